"""Streams: how arrays travel between workers; numpy and ZeroMQ only."""
