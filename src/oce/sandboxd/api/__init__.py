"""The gateway's RPC and HTTP surface. Rules live in `state` and `lifecycle`; this only speaks the protocol."""
