"""Snapshots: what a run keeps of its learner."""
