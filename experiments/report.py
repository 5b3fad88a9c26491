"""Make a run's report again: `python experiments/report.py RUN`, the same as `jsrl report RUN`."""

import sys

from jsrl.cli.report import main

if __name__ == "__main__":
    sys.exit(main())
