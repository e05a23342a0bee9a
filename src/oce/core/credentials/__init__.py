"""Credential sources: a Harness uses a credential without holding it."""
