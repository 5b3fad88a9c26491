"""Distributed reinforcement learning in JAX, from a notebook to a cluster, with the same algorithm file."""

__version__ = "0.1.0"
