"""The routes, one module per group of resources; each handler is one call into `core`."""
