"""Replay on the learner's devices."""
