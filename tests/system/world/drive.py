"""experiments/run.py, which also knows the experiments in extra_configs."""

import sys
from pathlib import Path

here = Path(__file__).resolve().parent
sys.path[:0] = [str(here), str(here.parents[2] / "experiments")]

import jsrl.configs  # noqa: E402
from jsrl.cli.run import main  # noqa: E402

jsrl.configs.__path__.append(str(here / "extra_configs"))

if __name__ == "__main__":
    sys.exit(main())
