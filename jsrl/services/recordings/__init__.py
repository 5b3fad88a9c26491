"""Recordings and videos."""
