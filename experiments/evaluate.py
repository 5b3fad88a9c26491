"""Play a run's snapshot: `python experiments/evaluate.py RUN@TAG`, the same as `jsrl evaluate RUN@TAG`."""

import sys

from jsrl.cli.evaluate import main

if __name__ == "__main__":
    sys.exit(main())
