"""Decisions about a run as state machines: messages in, actions out, without clocks, files, sockets or processes."""
