"""Chaos: kill workers of a run and see it recover."""
