"""Benchmarks of jsrl; `experiments/bench.py` runs some of them."""
