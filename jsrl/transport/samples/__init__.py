"""Sample streams: trajectories and batches, one way."""
