"""Streams over ZeroMQ: a link between two ends, and three protocols over it."""
