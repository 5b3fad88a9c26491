"""Chaos: kills workers of a run and checks that it recovers."""
