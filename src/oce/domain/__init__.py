"""Values and rules of the platform. No I/O; imports nothing of ours."""
