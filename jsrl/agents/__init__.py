"""Algorithms as values made of pure functions: one file each."""
