"""What every test shares: programs are compiled quickly, because tests check results and not speed."""

import os

os.environ.setdefault("JSRL_PROFILES", "")  # what a developer has tuned is nothing to tests
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # before jax is imported; worker processes inherit it
