"""`jsrl tune` with the additional experiments in extra_configs."""

import sys

import drive  # noqa: F401  (makes them known)

from jsrl.cli.tune import main

if __name__ == "__main__":
    sys.exit(main())
