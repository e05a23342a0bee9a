"""Secrets: metadata here, values with the Secret driver."""
