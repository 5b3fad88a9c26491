"""Shared memory, and wake-ups of its readers."""
