"""Tuning: trials, search and profiles."""
