"""Evaluators: play snapshots without learning."""
