"""Agent revisions and deployments."""
