"""Connecting the two ends of a stream: addresses, hellos, keys."""
