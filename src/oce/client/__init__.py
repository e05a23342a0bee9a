"""A typed HTTP client of the API and the Agent Gateway, on the standard library."""
