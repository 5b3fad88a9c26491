"""Streams between processes of one host: shared memory, and what wakes and locks it."""
