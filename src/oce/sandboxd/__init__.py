"""The single-machine gateway: an OpenShell-compatible server over confined processes of this machine."""
