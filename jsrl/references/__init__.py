"""References: how a user's code and values reach another process."""
