"""Hyperparameter search: ranges, trials in separate processes, Optuna's study, and results."""
