"""The Installation itself."""
