"""What every test shares: programs are compiled quickly, because tests check results and not speed."""

import os

os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # before jax is imported; worker processes inherit it
