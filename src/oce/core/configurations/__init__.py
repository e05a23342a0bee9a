"""Configurations: editable documents that a deploy snapshots."""
