"""OpenClaw Enterprise: a control plane for sandboxed AI agents."""
