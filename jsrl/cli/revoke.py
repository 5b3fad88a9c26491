"""Remove a joined host from a run, with its keys: `jsrl revoke RUN HOST`, on any host that sees the run folder.

Its connections end within seconds, its workers start again elsewhere, and no host of this name can join. The join key is
replaced: hosts that are in the run stay, others need the new file. Names are in the run folder, in revoked.json; remove one
there to let the host join again, with the new file.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from jsrl.cli.main import run_parser
from jsrl.cli.status import headline
from jsrl.errors import ConfigError, JsrlError
from jsrl.runs.runs import named
from jsrl.runs.state import read_state, revoke_host


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask the controller of a run to remove a host; return the exit status."""
    parser = run_parser("revoke", __doc__)
    parser.add_argument(
        "host", metavar="HOST", help="name of the host in the run, as in the line `host NAME (...) joined`"
    )
    options = parser.parse_args(arguments)
    try:
        folder = named(options.run, options.runs_dir)
        state = read_state(folder.path)
        if state.is_over:
            raise ConfigError(f"{folder.name} has already ended: {headline(state)}.")
        revoke_host(folder.path, options.host)
    except (JsrlError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    print(f"{folder.name}: host {options.host} is removed within seconds, and no host of this name can join")
    hosts = dict.fromkeys(worker.host for worker in (state.status.workers if state.status else ()) if worker.host)
    if options.host not in hosts:
        print(f"no worker is on a host of this name now; hosts with workers: {', '.join(hosts) or 'none'}")
    return 0
