"""Environments with several seats: their row table, the stacking of seats, and the adapters."""
