"""Options of `jsrl run` for workers on other hosts: `--listen` (hosts join by themselves), `--hosts` (by ssh), Ray, Slurm."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import shlex
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from jsrl.cluster.launcher import JoinedHosts
from jsrl.cluster.this_host import address_towards, own_facts
from jsrl.control.processes.launcher import Local
from jsrl.control.run import check_starts_workers
from jsrl.errors import ConfigError, counted
from jsrl.experiment import Experiment
from jsrl.experiment.options import RunOptions
from jsrl.services.runs.message_limits import printable
from jsrl.transport.network.sockets import allowed_ports

if TYPE_CHECKING:
    from jsrl.cluster.engines.engine import Engine
    from jsrl.graph.launcher import Launcher


@contextlib.contextmanager
def other_hosts(options: RunOptions, experiment: Experiment) -> Iterator[Launcher]:
    """Yield the launcher of workers on other hosts."""
    if options.launcher != "local" and options.hosts is not None:
        raise ConfigError(f"--hosts cannot be combined with --launcher {options.launcher}; leave one of them out.")
    check_starts_workers(experiment)  # before an engine begins
    allowed_ports()  # a wrong JSRL_PORTS would only be noticed once all hosts have joined
    engine, address = engine_of(options, notify)
    count = options.num_hosts if engine is None else len(engine.hosts)
    host, port = parse_listen(options.listen) if options.listen else (address, 0)
    own = own_facts(socket.gethostname(), host)
    key = Path(options.join_key or Path(options.runs_dir, f"join-{host}-{port or os.getpid()}.key"))
    try:
        launcher = JoinedHosts(
            Local(), own, port, count, key, notify, engine=engine, join_s=options.join_s, keep=options.keep_here,
            learner_on=options.learner_on or "", least=options.min_hosts,
        )  # fmt: skip
    except ConfigError:
        if engine is not None:
            engine.close()
        raise
    try:
        if engine is None:
            least = options.min_hosts or count
            later = f", and {count - least} more that may come later" if least < count else ""
            notify(
                f"waiting for {counted(least, 'host')} to join at {launcher.address}{later}; copy the key file to each, and "
                "give its path there:"
            )
            notify(f"  {shlex.join(['jsrl', 'join', str(key.absolute())])}")
        yield launcher
    finally:
        launcher.close()


def notify(line: str) -> None:
    """Show a line on standard error. Without a reader the run continues, as it does without its display."""
    with contextlib.suppress(OSError, ValueError):
        print(printable(line), file=sys.stderr, flush=True)


def engine_of(options: RunOptions, notify: Callable[[str], None]) -> tuple[Engine | None, str]:
    """Return (the engine that starts the agents, IP address of this host); None: users start them."""
    if options.launcher == "ray":
        from jsrl.cluster.engines.ray import request_of
        from jsrl.cluster.engines.ray_driver import Ray

        ray = Ray(request_of(options.ray, options.num_hosts, options.host_python, os.environ), notify)
        return ray, ray.acquire()
    if options.launcher == "slurm":
        from jsrl.cluster.engines.ssh import Srun, other_nodes, own_address

        nodes = other_nodes()
        notify(f"running inside Slurm job {os.environ.get('SLURM_JOB_ID')}; its other nodes: {', '.join(nodes)}")
        return Srun(nodes, sys.executable), own_address(nodes)
    if options.hosts is None:
        return None, ""
    from jsrl.cluster.engines.ssh import Ssh

    ssh = Ssh(options.hosts.split(","), options.host_python or sys.executable)
    return ssh, "" if options.listen else source_address(options.hosts)


def parse_listen(text: str) -> tuple[str, int]:
    """Return (IP address, port) of `10.0.0.5` or `10.0.0.5:7000`; port 0: any."""
    host, port = text, "0"
    if text.count(":") == 1 or "]:" in text:
        host, _, port = text.rpartition(":")
    try:
        address = ipaddress.ip_address(host.strip("[]"))
        if address.is_unspecified or not 0 <= int(port) < 1 << 16:
            raise ValueError
    except ValueError:
        raise ConfigError(
            f"--listen is {text!r}, expected an IP address of this host that the others reach, perhaps with a port: "
            "10.0.0.5 or 10.0.0.5:7000 (`hostname -I` lists addresses)."
        ) from None
    return str(address), int(port)


def source_address(hosts: str) -> str:
    """Return this host's source IP address for packets to the first of some hosts."""
    from jsrl.cluster.engines.ssh import resolved

    first = resolved(hosts.split(",", maxsplit=1)[0])
    try:
        return address_towards(first, 22)
    except OSError as error:
        raise ConfigError(
            f"{first!r} of --hosts cannot be resolved here ({error.strerror or error}); check the name, or give the "
            "IP address of this host that the others reach with --listen."
        ) from error
