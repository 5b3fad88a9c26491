"""Runs over several hosts: `members` and `agent` decide, without clocks or I/O; the rest sends, starts and places."""
