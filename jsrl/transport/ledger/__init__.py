"""Ledgers: counts of trajectories produced, consumed and dropped on each leg."""
