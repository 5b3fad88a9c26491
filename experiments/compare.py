"""Compare two runs: `python experiments/compare.py RUN_A RUN_B`, the same as `jsrl compare`."""

import sys

from jsrl.cli.compare import main

if __name__ == "__main__":
    sys.exit(main())
