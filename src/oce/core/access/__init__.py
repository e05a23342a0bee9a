"""Who may do what: identities, roles, bindings, keys, decisions."""
