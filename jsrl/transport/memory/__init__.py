"""Shared memory and what wakes its readers."""
