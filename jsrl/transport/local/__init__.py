"""Streams inside one process: serial mode, notebooks, tests."""
