"""Environments of our own: games of several seats, and probes."""
