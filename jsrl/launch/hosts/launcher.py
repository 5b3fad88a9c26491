"""The launcher of many hosts: actors live under the agents of hosts that joined, everything else on this host."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from jsrl.errors import ConfigError
from jsrl.graph.graph import Graph
from jsrl.launch.hosts.archive import archive, modules_named
from jsrl.launch.hosts.engine import Engine, Keeper
from jsrl.launch.hosts.facts import HostFacts
from jsrl.launch.hosts.handle import HostHandle
from jsrl.launch.hosts.layout import lay_out, layout_text
from jsrl.launch.hosts.members import JoinedHost, Members, RemoteLife
from jsrl.launch.hosts.messages import CHUNK_BYTES, LEASE_S, LOST_S, VARIABLES, Begin, Code, Keys
from jsrl.launch.hosts.port import HostPort
from jsrl.launch.hosts.tokens import Tokens
from jsrl.launch.launcher import Handle, Hosts, Launcher, Need, Start
from jsrl.launch.links import KEYS, tcp
from jsrl.references.reference import to_json
from jsrl.transport.meeting.keys import add_guest
from jsrl.workers.jobs import Job

JOIN_S = 600.0


class JoinedHosts:
    """Starts actors on hosts that join with `jsrl join`; see jsrl.launch.launcher.Launcher.

    A worker whose host is lost begins its next life on another one that is there, or on this one.

    Args:
      here: starts the workers of this host. own: what this host has, with the IP address that others reach it at.
      port: to listen at; 0: any. count: how many hosts a run waits for, up to `join_s`.
      tokens: folder for the join tokens, one file for each host. tell: shows a line to people.
      engine: starts the agents, on its hosts; None: people do.
      lease_s: silence of the controller after which an agent ends its workers. lost_s: silence of an agent after which they
        are replaced; longer than the lease.

    Attributes:
      address: at which hosts join. token_files: one for each host.

    Raises:
      ConfigError: no host is wanted, or it cannot listen there, or not write the tokens.
    """

    def __init__(
        self,
        here: Launcher,
        own: HostFacts,
        port: int,
        count: int,
        tokens: Path,
        tell: Callable[[str], None],
        *,
        engine: Engine | None = None,
        join_s: float = JOIN_S,
        lease_s: float = LEASE_S,
        lost_s: float = LOST_S,
    ) -> None:
        if count < 1:
            raise ConfigError(f"num_hosts is {count}; wait for at least one other host, or leave out --listen.")
        self._here, self._own, self._count, self._join_s, self._tell = here, own, count, join_s, tell
        self._tokens = Tokens(tokens)
        self.members = Members(self._tokens, lease_s, lost_s, own=own.name, on_loss=self._after_loss)
        self._port = HostPort(tcp(own.address, port), self._tokens, self.members, tell)
        self.address = self._port.address.removeprefix("tcp://")
        self._home: dict[str, str] = {}  # worker -> name of the joined host that it belongs to
        self._archives: dict[frozenset[str], tuple[str, bytes]] = {}
        self._sent: set[tuple[int, str]] = set()  # (host epoch, digest or KEYS)
        self._guests: dict[int, Path] = {}  # host epoch -> the file that lets its key in to the streams
        self._serves = self._closed = False
        self._keeper: Keeper | None = None
        self.token_files: list[Path] = []
        try:
            if engine is None:
                self.token_files = [self._tokens.make() for _ in range(count)]
                self._tokens.publish(self.address)
            else:
                self._keeper = Keeper(engine, self.address, self._tokens.make, self._lose, tell)
        except ConfigError:
            self.close()
            raise

    def _after_loss(self, host: JoinedHost) -> str:
        """Take back the key of a lost host; return who may take its place: whoever has the new token, or its engine's next."""
        if (guest := self._guests.pop(host.epoch, None)) is not None:
            guest.unlink(missing_ok=True)
        if self._keeper is not None:
            return ""
        try:
            return f"another may join with {self._tokens.make()}"
        except ConfigError as error:
            return str(error)

    def _lose(self, name: str, why: str) -> None:
        """Note that the agent of a host has ended."""
        with self._port.changed:
            for host in [host for host in self.members.hosts if host.name == name]:
                self.members.lose(host, why)
            self._port.changed.notify_all()

    @property
    def _given_up(self) -> dict[str, str]:
        return self._keeper.given_up if self._keeper is not None else {}

    def place(self, graph: Graph, needs: Sequence[Need]) -> Hosts:
        """Wait for the hosts, and lay the workers on them and on this one.

        Raises:
          ConfigError: too few hosts joined in time, or something does not fit.
        """
        hosts = self.members.hosts
        there = self._port.wait(lambda: len(hosts) >= self._count or bool(self._given_up), self._join_s)
        if self._given_up:
            name, why = next(iter(self._given_up.items()))
            raise ConfigError(f"host {name} cannot join: {why}")
        if not there:
            names = ", ".join(host.name for host in hosts) or "none"
            raise ConfigError(
                f"{len(hosts)} of {self._count} host(s) joined within {self._join_s:g} s: {names}. Start `jsrl join "
                f"{self.address} --token-file FILE` on each, and see that the port is open in the firewall of this host."
            )
        facts = [self._own, *(host.facts for host in hosts)]
        layout = lay_out([dataclasses.replace(n, travels=n.travels and n.spreads) for n in needs], facts)
        self._tell(layout_text(layout))
        self._home = {worker: host for worker, host in layout.of.items() if host != self._own.name}
        addresses = {host.name: host.address for host in facts}
        return Hosts(self._own.address, {worker: addresses[host] for worker, host in self._home.items()}, relayed=True)

    def start(self, job: Job, start: Start) -> Handle:
        """Start a worker on its host; where that is lost on another one, at last on this one."""
        if job.name not in self._home:
            return self._here.start(job, start)
        if not self._serves:
            self._port.serve(start.control, Path(job.registry))
            self._serves = True
        with self._port.changed:
            host = self._host_for(job.name)
            if host is not None:
                life = RemoteLife(host, job.name, job.incarnation)
        if host is None:
            self._tell(f"{job.name} starts on this host: no other one is there")
            return self._here.start(job, start)
        self._begin(life, job, start)
        return HostHandle(self._port, life)

    def _host_for(self, worker: str) -> JoinedHost | None:
        """Return the host of a worker, else the one with the fewest workers for its cores; None: there is none."""
        ordered = sorted(
            self.members.hosts, key=lambda host: (host.name != self._home[worker], host.living / host.facts.cores)
        )
        return ordered[0] if ordered else None

    def _begin(self, life: RemoteLife, job: Job, start: Start) -> None:
        """Send a host what a worker needs, and its job."""
        assert job.keys is not None
        host = life.host
        tree = to_json(moved(job, host.folder))
        modules = frozenset(modules_named(tree))
        if modules not in self._archives:  # later lives get the same, whatever was edited meanwhile
            self._archives[modules] = archive(set(modules))
        digest, content = self._archives[modules]
        if self._is_new(host, KEYS):
            self._guests[host.epoch], key = add_guest(job.keys)
            self._port.send(host, Keys(host.epoch, key))
        if digest and self._is_new(host, digest):
            for at in range(0, len(content), CHUNK_BYTES):
                part = content[at : at + CHUNK_BYTES]
                self._port.send(host, Code(host.epoch, digest, part, at + CHUNK_BYTES >= len(content)))
        variables = {name: value for name, value in start.variables.items() if name in VARIABLES}
        body = json.dumps(tree).encode()
        life.begin = Begin(host.epoch, job.kind, job.name, job.incarnation, body, variables, digest, start.forks)
        life.asked_s = time.monotonic()
        with self._port.changed:
            host.lives[job.name, job.incarnation] = life
            if host.lost:  # just now
                host.lose(host.lost)
        self._port.send(host, life.begin)

    def _is_new(self, host: JoinedHost, what: str) -> bool:
        found = (host.epoch, what) not in self._sent
        self._sent.add((host.epoch, what))
        return found

    def busy_s(self) -> None:
        """Return None: nobody measures what other programs use on all hosts."""
        return

    def close(self) -> None:
        """Let all agents end their workers and themselves, and end the workers of this host. May be called twice."""
        if not self._closed:
            self._closed = True
            self._port.close("the run has ended")
            if self._keeper is not None:
                self._keeper.close()
            self._tokens.close()
            for guest in self._guests.values():
                guest.unlink(missing_ok=True)
        self._here.close()


def moved(job: Job, folder: str) -> Job:
    """Return a job for a host where the files of the run lie in `folder`; environments begin new episodes there."""
    return dataclasses.replace(
        job,
        folder=folder,
        registry=f"{folder}/names",
        keys=f"{folder}/{KEYS}",
        start_point=dataclasses.replace(job.start_point, journal_epoch=None),
        others=tuple(moved(other, folder) for other in job.others),
    )
