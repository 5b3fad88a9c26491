"""Let this host join a run: `jsrl join FILE`, with the key file of the run, on each host that should run workers.

`jsrl join --facts` prints what this host has, as an entry of a file for `jsrl run NAME --plan --hosts-file`.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from jsrl.cli.main import Parser, show_error
from jsrl.errors import JsrlError


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(prog="jsrl join", description=__doc__)
    parser.add_argument(
        "key",
        nargs="?",
        metavar="FILE",
        help="the run's key file, as `jsrl run --listen` prints it, or a copy; the host waits for it",
    )
    parser.add_argument(
        "--name", default=socket.gethostname(), help="name of this host, unique in the run (default: its host name)"
    )
    parser.add_argument(
        "--patience-s", type=float, default=120.0, help="seconds to wait for the file and the controller (default: 120)"
    )
    parser.add_argument("--cores", type=int, default=0, help="cores that workers may use here (default: all)")
    parser.add_argument(
        "--memory-mb", type=int, default=0, help="MB of memory that workers may use here (default: all)"
    )
    parser.add_argument(
        "--drain-s",
        type=float,
        default=30.0,
        help="seconds for workers to stop in order after SIGTERM or Ctrl-C (default: 30); a second signal ends them at once",
    )
    parser.add_argument("--parent", type=int, help="process ID: leave the run when this process ends (Linux)")
    parser.add_argument("--facts", action="store_true", help="print what this host has, and do not join")
    options = parser.parse_args(arguments)
    if options.facts:
        from jsrl.cluster.this_host import own_facts

        print(json.dumps(own_facts(options.name, "").entry))
        return 0
    if options.key is None:
        parser.error("give the key file of a run, as `jsrl run --listen` prints it")
    for name in ("patience_s", "cores", "memory_mb", "drain_s"):
        if not getattr(options, name) >= 0:  # also nan
            parser.error(f"--{name.replace('_', '-')} is {getattr(options, name):g}, expected 0 or more")
    try:
        if options.parent is not None:
            from jsrl.linux import die_with_parent

            die_with_parent(options.parent, signal.SIGHUP)
        most = (options.cores, options.memory_mb)
        return join(Path(options.key), options.name, options.patience_s, most, options.drain_s)
    except JsrlError as error:
        return show_error(error)


def join(key: Path, name: str, patience_s: float, most: tuple[int, int] = (0, 0), drain_s: float = 30.0) -> int:
    """Run the agent of this host, with at most `cores` cores and `memory_mb` MB of memory (0: all); see AgentProcess."""
    from jsrl.cluster.agent_process import AgentProcess, agent_folder, check_address
    from jsrl.cluster.join_key import read_key
    from jsrl.control.memory_folder import own_memory_folder
    from jsrl.transport.network.sockets import allowed_ports

    allowed_ports()  # a wrong JSRL_PORTS would only be noticed by the workers
    if not key.exists():
        _notify(f"waiting for {key}")
    address, keys = read_key(key, patience_s)
    with agent_folder() as own, own_memory_folder() as memory:
        return AgentProcess(
            key, check_address(address), keys, name, own, memory, _notify, patience_s, most, drain_s
        ).run()


def _notify(line: str) -> None:
    with contextlib.suppress(OSError):  # nobody reads it any more: the connection of ssh is broken
        print(f"jsrl join: {line}", file=sys.stderr, flush=True)
