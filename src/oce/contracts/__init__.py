"""What a Driver promises: requests, results and refusals. No behaviour, no vendor."""
