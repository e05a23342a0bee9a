"""What the gateway keeps: records, request ledger, keys, its directory."""
