"""Agents: drafts, and the commands that make them run."""
