"""What happens to a Sandbox over time: rendering, starting, restarting, stopping, configuring."""
