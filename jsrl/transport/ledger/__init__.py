"""Ledgers: what was produced, consumed and dropped on each hop."""
