"""Hyperparameter search: ranges, trials as processes of their own, Optuna's study, and what was found."""
