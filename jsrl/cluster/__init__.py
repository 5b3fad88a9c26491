"""Hosts of a run: decisions about those that join it, and their messages. Nothing here sends, waits or reads a clock."""
