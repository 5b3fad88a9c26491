"""Kill, stop and flood a run at random: `python experiments/chaos.py ppo_cartpole`, the same as `jsrl chaos`."""

import sys

from jsrl.cli.chaos import main

if __name__ == "__main__":
    sys.exit(main())
