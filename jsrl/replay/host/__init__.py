"""Replay in host memory, for replay workers."""
