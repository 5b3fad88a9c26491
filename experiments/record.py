"""Record a trained policy: `python experiments/record.py RUN@TAG --to DIR`, the same as `jsrl record`."""

import sys

from jsrl.cli.record import main

if __name__ == "__main__":
    sys.exit(main())
