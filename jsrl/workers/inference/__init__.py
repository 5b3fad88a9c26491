"""Inference servers: batched actions for actors."""
