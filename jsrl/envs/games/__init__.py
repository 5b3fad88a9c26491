"""Environments with several seats: their row table and the stacking of seats."""
