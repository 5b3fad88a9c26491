"""Runs over several hosts: what hosts have, and which workers they get."""
