"""Metrics: names, sinks, phases, traces, the display."""
