"""Actors: step environments and write trajectories."""
