"""experiments/tune.py, which also knows the experiments in extra_configs."""

import sys

import drive  # noqa: F401  (makes them known)
import tune

if __name__ == "__main__":
    sys.exit(tune.main())
