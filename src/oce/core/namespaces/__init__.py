"""Namespaces: tenants and their life."""
