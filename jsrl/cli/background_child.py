"""A run in the background: `python -m jsrl.cli.background_child WORDS` is `jsrl run WORDS` with its output in its folder."""

from __future__ import annotations

import sys

from jsrl.cli.run import main
from jsrl.launch.run_log import OutputToFolder
from jsrl.runs.provenance import record_command

if __name__ == "__main__":
    record_command(["run", *sys.argv[1:]])
    sys.exit(main(sys.argv[1:], hooks=(OutputToFolder(),)))
