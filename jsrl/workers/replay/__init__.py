"""Replay workers: keep rows, write batches of windows."""
