"""Environments with several seats: their row table, how seats are stacked, and the adapters."""
