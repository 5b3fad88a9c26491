"""Recorders: film episodes of the newest params."""
