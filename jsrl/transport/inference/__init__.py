"""Inference streams: requests and replies."""
