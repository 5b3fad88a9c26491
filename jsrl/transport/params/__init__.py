"""Params streams: the newest params reach their readers."""
