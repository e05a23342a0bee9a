"""The egress process: the only road out of a Sandbox, and the only holder of credential values."""
