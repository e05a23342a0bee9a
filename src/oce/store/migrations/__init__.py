"""Forward-only migrations; each freezes a step of `oce.store.tables`."""
