"""Benchmarks of jsrl; `jsrl bench` runs some of them."""
