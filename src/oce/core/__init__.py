"""Use cases. Every function takes (platform, actor, …): authorize, load, check rules, write state + audit + work in one transaction."""
