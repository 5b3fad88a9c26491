"""Ranks: the processes of a learner beside its first."""
