"""Run an experiment: `python experiments/run.py ppo_cartpole`, the same as `jsrl run ppo_cartpole`."""

import sys

from jsrl.cli.run import main

if __name__ == "__main__":
    sys.exit(main())
