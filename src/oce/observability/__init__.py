"""Logging and metrics that every process shares; imports nothing of ours."""
