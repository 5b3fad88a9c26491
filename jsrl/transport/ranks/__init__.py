"""The stream over which the ranks of a learner agree."""
