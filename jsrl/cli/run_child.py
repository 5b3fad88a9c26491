"""A run as a child process: `python -m jsrl.cli.run_child PID WORDS` is `jsrl run WORDS`, but ends with the process PID."""

from __future__ import annotations

import sys

from jsrl.cli.run import main
from jsrl.runs.provenance import record_command
from jsrl.workers.process import die_with_parent

if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    record_command(["run", *sys.argv[2:]])
    sys.exit(main(sys.argv[2:]))
