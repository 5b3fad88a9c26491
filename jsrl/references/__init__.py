"""References: send a user's code and values to another process."""
