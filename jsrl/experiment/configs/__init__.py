"""Experiments: one short function `config() -> Experiment` per file."""
