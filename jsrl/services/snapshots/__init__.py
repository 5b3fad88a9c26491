"""Snapshots: durable copies of a learner's state."""
