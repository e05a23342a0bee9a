"""The HTTP API: routes, schemas, one error shape, pagination and event streams. No business rules."""
