"""Find the fastest settings: `python experiments/tune.py ppo_cartpole`, the same as `jsrl tune`."""

import sys

from jsrl.cli.tune import main

if __name__ == "__main__":
    sys.exit(main())
