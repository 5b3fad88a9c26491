"""A run as a child process: `python -m jsrl.cli.child PID WORDS` is `jsrl run WORDS`, but ends with the process PID.

With PID 0 it is a run in the background: it outlives the command that started it, and its output goes to its folder.
"""

from __future__ import annotations

import sys

from jsrl.cli.run import main
from jsrl.control.hooks import OutputToFolder
from jsrl.linux import die_with_parent
from jsrl.services.runs.provenance import record_command

if __name__ == "__main__":
    parent, words = int(sys.argv[1]), sys.argv[2:]
    if parent:
        die_with_parent(parent)
    record_command(["run", *words])
    sys.exit(main(words, hooks=() if parent else (OutputToFolder(),)))
