"""A particle world in NumPy, all slots and agents at once."""
