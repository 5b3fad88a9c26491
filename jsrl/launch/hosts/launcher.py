"""The launcher of many hosts: workers live under the agents of hosts that joined; who needs the run folder, on this host."""

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
from jsrl.transport.meeting.keys import hex_of, make_host_keys
from jsrl.workers.jobs import Job, kind_of

JOIN_S = 600.0


class JoinedHosts:
    """Starts workers on hosts that join with `jsrl join`; see jsrl.launch.launcher.Launcher.

    A worker whose host is lost begins its next life on another one that is there, or on this one.

    Args:
      here: starts the workers of this host. own: what this host has, with the IP address that others reach it at.
      port: to listen at; 0: any. count: how many hosts a run waits for, up to `join_s`.
      tokens: folder for the join tokens, one file for each host. tell: shows a line to people.
      engine: starts the agents, on its hosts; None: people do. keep: families of workers that stay on this host.
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
        keep: Sequence[str] = (),
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
        self._laid: dict[str, str] = {}  # worker -> name of the host that it was laid on
        self._needs: dict[str, Need] = {}
        self._keep = keep
        self._archives: dict[frozenset[str], tuple[str, bytes]] = {}
        self._sent: set[tuple[int, str]] = set()  # (host epoch, digest or KEYS)
        self._guests: dict[int, Path] = {}  # host epoch -> the file that lets its keys in to the streams
        self._serves = self._closed = False
        self._keeper: Keeper | None = None
        self.token_files: list[Path] = []
        try:
            if engine is None:
                self.token_files = [self._tokens.make() for _ in range(count)]
                self._tokens.publish(self.address)
            else:
                self._keeper = Keeper(engine, self.address, self._tokens.make, self._tokens.discard, self._lose, tell)
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
        needs = kept(needs, self._keep)
        layout = lay_out(needs, facts)
        self._tell(layout_text(layout))
        self._laid, self._needs = layout.of, {need.worker: need for need in needs}
        self._home = {worker: host for worker, host in layout.of.items() if host != self._own.name}
        addresses = {host.name: host.address for host in facts}
        return Hosts(self._own.address, {worker: addresses[host] for worker, host in self._home.items()}, relayed=True)

    def start(self, job: Job, start: Start) -> Handle:
        """Start a worker on its host; where that is lost on another one, at last on this one."""
        if job.name not in self._home:
            return self._start_here(job, start)
        if not self._serves:
            self._port.serve(start.control, Path(job.registry), Path(job.folder), self._guest_names)
            self._serves = True
        with self._port.changed:
            host = self._host_for(job.name)
            if host is not None:
                life = RemoteLife(host, job.name, job.incarnation)
        if host is None:
            self._tell(f"{job.name} starts on this host: no other one is there")
            return self._start_here(bound_at(job, self._own.address), start)
        self._begin(life, job, start)
        return HostHandle(self._port, life)

    def _guest_names(self) -> list[str]:
        return [guest.name for guest in list(self._guests.values())]

    def _start_here(self, job: Job, start: Start) -> Handle:
        if start.variables_on is not None:
            own = {worker for worker, host in self._laid.items() if host == self._own.name}
            start = dataclasses.replace(start, variables=start.variables_on(None, own))
        return self._here.start(job, start)

    def _host_for(self, worker: str) -> JoinedHost | None:
        """Return the host of a worker, else one (with a GPU for it) with few workers for its cores; None: there is none."""
        need = self._needs[worker]

        def order(host: JoinedHost) -> tuple[bool, bool, float]:
            lacks_gpu = need.device == "serves" and not host.facts.gpus
            return host.name != self._home[worker], lacks_gpu, host.living / host.facts.cores

        return min((host for host in self.members.hosts if host.facts.gpus >= need.gpus), key=order, default=None)

    def _variables_on(self, host: JoinedHost, job: Job, start: Start) -> dict[str, str]:
        """Return the variables of a worker on a host, where accelerators are counted from 0."""
        variables = start.variables
        if start.variables_on is not None:
            laid = {worker for worker, name in self._laid.items() if name == host.name}
            there = laid | {job.name} | {worker for worker, _ in host.lives}
            variables = start.variables_on([str(number) for number in range(host.facts.gpus)], there)
        return {name: value for name, value in variables.items() if name in VARIABLES}

    def _begin(self, life: RemoteLife, job: Job, start: Start) -> None:
        """Send a host what a worker needs, and its job."""
        assert job.keys is not None
        host = life.host
        tree = to_json(moved(job, host.folder, host.facts.address))
        modules = frozenset(modules_named(tree))
        if modules not in self._archives:  # later lives get the same, whatever was edited meanwhile
            self._archives[modules] = archive(set(modules))
        digest, content = self._archives[modules]
        if self._is_new(host, KEYS):
            keys = make_host_keys(job.keys)
            self._guests[host.epoch], host.server_key = keys.guest, hex_of(keys.public)
            self._port.send(host, Keys(host.epoch, keys.client, keys.server))
            self._port.tell_names()  # others let its keys in
        if digest and self._is_new(host, digest):
            for at in range(0, len(content), CHUNK_BYTES):
                part = content[at : at + CHUNK_BYTES]
                self._port.send(host, Code(host.epoch, digest, part, at + CHUNK_BYTES >= len(content)))
        variables = self._variables_on(host, job, start)
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


def kept(needs: Sequence[Need], families: Sequence[str]) -> list[Need]:
    """Return what workers need, those of some families (`inference`: inference-0, inference-1, ...) where the run folder is.

    Raises:
      ConfigError: the run has no such family.
    """
    there = {family: [n.worker for n in needs if f"{n.worker}-".startswith(f"{family}-")] for family in families}
    if unknown := [family for family, workers in there.items() if not workers]:
        known = ", ".join(dict.fromkeys(kind_of(need.worker) for need in needs))
        raise ConfigError(f"--keep-here names {unknown[0]!r}, but this run has no such workers; it has: {known}.")
    stay = {worker for workers in there.values() for worker in workers}
    why = "--keep-here says so"
    return [dataclasses.replace(n, stays=n.stays or why) if n.worker in stay else n for n in needs]


def bound_at(job: Job, address: str) -> Job:
    """Return a job that binds its streams at an IP address."""
    ends = tuple(
        (port, dataclasses.replace(end, address=tcp(address)) if end.address else end) for port, end in job.ends
    )
    return dataclasses.replace(job, ends=ends, others=tuple(bound_at(other, address) for other in job.others))


def moved(job: Job, folder: str, address: str) -> Job:
    """Return a job for a host with this IP address where the run's files lie in `folder`; new episodes begin there."""
    job = bound_at(job, address)
    return dataclasses.replace(
        job,
        folder=folder,
        away=True,
        registry=f"{folder}/names",
        keys=f"{folder}/{KEYS}",
        start_point=dataclasses.replace(job.start_point, journal_epoch=None),
        others=tuple(moved(other, folder, address) for other in job.others),
    )
