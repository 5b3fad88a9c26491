"""Ranks: the processes of a learner besides the first."""
