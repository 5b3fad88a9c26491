"""Replay workers: store rows, write batches of windows."""
