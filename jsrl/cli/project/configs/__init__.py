"""Experiments: one file each, with a function `config() -> Experiment`."""
