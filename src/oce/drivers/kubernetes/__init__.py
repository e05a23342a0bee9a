"""Compute, Configuration and Secret on Kubernetes: not part of this release. A startup YAML that selects them is refused by name."""
