"""Replay: rows stored once, windows of them drawn many times; on the device (jax) and on the host (numpy)."""
