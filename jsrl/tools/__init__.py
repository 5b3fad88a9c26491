"""Tools beside runs: a model of their speed, and storms over them."""
