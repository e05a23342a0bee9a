"""Network policy admission."""
