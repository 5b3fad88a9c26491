"""Let this host join a run: `jsrl join 10.0.0.5:7000 --token-file host-1.token`, on each host that should run workers.

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

from jsrl.cli.arguments import Parser
from jsrl.errors import ConfigError, JsrlError


def main(arguments: Sequence[str] | None = None) -> int:
    """Join a run, and serve it until it ends; return the exit status."""
    parser = Parser(prog="jsrl join", description=__doc__)
    parser.add_argument("address", nargs="?", help="HOST:PORT of the controller, as `jsrl run --listen` prints it")
    parser.add_argument("--token-file", help="one of the files that `jsrl run --listen` wrote; each host needs its own")
    parser.add_argument(
        "--from", dest="folder", help="folder with a run's token files: take a free one, and wait until there is one"
    )
    parser.add_argument(
        "--name", default=socket.gethostname(), help="name of this host, unique in the run (default: its host name)"
    )
    parser.add_argument(
        "--patience-s", type=float, default=120.0, help="seconds to wait for the controller (default: 120)"
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
        from jsrl.launch.local.facts import own_facts

        print(json.dumps(own_facts(options.name, "").entry))
        return 0
    given = [value is not None for value in (options.address, options.token_file)]
    if any(given) if options.folder is not None else not all(given):
        parser.error("give HOST:PORT of a controller and --token-file, or --from FOLDER alone")
    for name in ("patience_s", "cores", "memory_mb", "drain_s"):
        if not getattr(options, name) >= 0:  # also nan
            parser.error(f"--{name.replace('_', '-')} is {getattr(options, name):g}, expected 0 or more")
    try:
        if options.folder is not None:
            options.address, options.token_file = claimed(Path(options.folder), options.patience_s)
        if options.parent is not None:
            from jsrl.workers.process import die_with_parent

            die_with_parent(options.parent, signal.SIGHUP)
        most = (options.cores, options.memory_mb)
        return join(
            options.address, options.token_file, options.name, options.patience_s, most, options.drain_s, options.folder
        )
    except JsrlError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2


def claimed(folder: Path, timeout_s: float) -> tuple[str, str]:
    """Return (address, token file) from a folder of tokens."""
    from jsrl.launch.hosts.tokens import claim

    address, path = claim(folder, timeout_s)
    return address, str(path)


def join(
    address: str,
    token_file: str,
    name: str,
    patience_s: float,
    most: tuple[int, int] = (0, 0),
    drain_s: float = 30.0,
    folder: str | None = None,
) -> int:
    """Run the agent of this host, with at most `cores` cores and `memory_mb` MB of memory (0: all); see Agent.

    folder: from which the token was taken.

    Raises:
      ConfigError: the address, the token or JSRL_PORTS is invalid.
    """
    from jsrl.launch.local.agent import Agent, agent_folder, check_address
    from jsrl.launch.memory_folder import own_memory_folder
    from jsrl.transport.meeting.keys import load_client_keys
    from jsrl.transport.meeting.ports import allowed_ports

    allowed_ports()  # a wrong JSRL_PORTS would only be noticed by the workers
    if not Path(token_file).is_file():
        raise ConfigError(f"there is no token file {token_file}; take one of those that `jsrl run --listen` wrote.")
    address, keys = check_address(address), load_client_keys(token_file)
    tokens = None if folder is None else Path(folder)
    with agent_folder() as own, own_memory_folder() as memory:
        return Agent(address, keys, name, own, memory, _notify, patience_s, most, drain_s, tokens).run()


def _notify(line: str) -> None:
    with contextlib.suppress(OSError):  # nobody reads it any more: the connection of ssh is broken
        print(f"jsrl join: {line}", file=sys.stderr, flush=True)
