"""Web pages over `core`: sign in with a service key, see Agents, follow a deployment. No business rules, no database, no build step."""
