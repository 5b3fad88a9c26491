"""The launcher of many hosts: workers run under the agents of joined hosts, or here if they need the run folder."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from jsrl.cluster.archive import archive, code_file, modules_named
from jsrl.cluster.engines.engine import AgentStarter, Engine
from jsrl.cluster.facts import HostFacts
from jsrl.cluster.join_key import JoinKey
from jsrl.cluster.layout import evened_out, lay_out, layout_text
from jsrl.cluster.members import AgentEnded, GiveKeys, JoinedHost, Members, Place, RemoteWorker
from jsrl.cluster.members import Start as StartWorker
from jsrl.cluster.messages import LEASE_S, LOST_S, VARIABLES, Begin, Keys
from jsrl.cluster.port import HostHandle, HostPort
from jsrl.cluster.this_host import code_digest, versions
from jsrl.errors import ConfigError, counted
from jsrl.graph.addresses import KEYS, stays_here, tcp
from jsrl.graph.graph import Graph
from jsrl.graph.launcher import Handle, Hosts, Launcher, Need, Start
from jsrl.graph.placements import with_servers
from jsrl.references.reference import to_json
from jsrl.services.runs.files import write_atomic
from jsrl.services.runs.values import Registration
from jsrl.services.snapshots.store import SnapshotStore
from jsrl.transport.door.keys import admit_hosts, hex_of, make_host_keys
from jsrl.transport.network.relay import ancestors
from jsrl.transport.stream import generation_at, name_at
from jsrl.workers.jobs import Job, JobPlace, kind_of
from jsrl.workers.kinds import find_kind, value_of

JOIN_S = 600.0
LOOK_S = 0.5  # for requests to stop, while waiting for hosts
SETTLE_S = 2.0  # after a host joined: others may join at the same time, and all get their share in one step


class JoinedHosts:
    """Starts workers on hosts that join with `jsrl join`; see jsrl.graph.launcher.Launcher.

    A worker whose host is lost restarts on another joined host, or on this one. A host that joins during the run gets its
    share of the actors; the workers of a host that leaves move.

    Args:
      here: starts the workers of this host. own: facts of this host, with the IP address at which others reach it.
      port: to listen at; 0: any. count: number of hosts that are expected. least: number of hosts for which a run waits, up
        to `join_s`; None: all. More may join later.
      join_key: file for the join key. notify: shows a line to the user.
      engine: starts the agents, on its hosts; None: the user starts them. keep: families of workers that stay on this host.
      learner_on: name of the host on which learners run; empty: see lay_out.
      lease_s: time without a message of the controller after which an agent ends its workers. lost_s: time without a message
        of an agent after which its workers are replaced; longer than the lease.

    Attributes:
      address: at which hosts join. join_key: the file with which they do.

    Raises:
      ConfigError: the number of hosts is invalid, the port cannot be bound, or the join key cannot be written.
    """

    def __init__(
        self,
        here: Launcher,
        own: HostFacts,
        port: int,
        count: int,
        join_key: Path,
        notify: Callable[[str], None],
        *,
        engine: Engine | None = None,
        keep: Sequence[str] = (),
        learner_on: str = "",
        least: int | None = None,
        join_s: float = JOIN_S,
        lease_s: float = LEASE_S,
        lost_s: float = LOST_S,
    ) -> None:
        if count < 1:
            raise ConfigError(f"num_hosts is {count}; wait for at least one other host, or leave out --listen.")
        least = count if least is None else least
        if not 1 <= least <= count:
            raise ConfigError(f"min_hosts is {least}, expected 1 to {count}, which is num_hosts.")
        self._here, self._own, self._join_s, self._notify = here, own, join_s, notify
        self._count, self._least = count, least
        self.join_key, self._key = join_key, JoinKey(join_key)
        self.members = Members(own.name, versions(), code_digest(), lease_s, lost_s)
        self._port = HostPort(tcp(own.address, port), self._key, self.members, notify, self._after_loss)
        self.address = self._port.address.removeprefix("tcp://")
        self._home: dict[str, str] = {}  # worker -> name of the joined host that it belongs to
        self._laid: dict[str, str] = {}  # worker -> name of the host that the layout gave it
        self._needs: dict[str, Need] = {}
        self._at: dict[str, str] = {}  # worker -> name of the host of its newest incarnation
        self._remotes: dict[str, RemoteWorker] = {}  # worker -> its newest incarnation, if that is on another host
        self._movable: set[str] = set()
        self._known: set[int] = set()  # memberships of hosts that already have their share
        self._targets: dict[str, str] = {}  # worker -> the host to which it will move
        self._keep, self._learner_on = keep, learner_on
        self._archives: dict[frozenset[str], tuple[str, bytes]] = {}
        self._sent: set[tuple[int, str]] = set()  # (membership, digest or KEYS)
        self._kept_at: dict[str, int] = {}  # worker -> membership of the host that has the files that it keeps
        self._host_keys: dict[int, Path] = {}  # membership -> the file that admits its keys to the streams
        self._params: dict[str, set[str]] = {}  # name of a params stream -> its readers
        self._serves = self._closed = False
        self._keeper: AgentStarter | None = None
        try:
            self._key.publish(self.address)
        except ConfigError:
            self.close()
            raise
        if engine is not None:
            self._keeper = AgentStarter(engine, join_key, self._lose, notify)

    def _after_loss(self, host: JoinedHost) -> None:
        with self._port.changed:
            file = self._host_keys.pop(host.membership, None)
        if file is not None:
            file.unlink(missing_ok=True)
        if self._keeper is not None and host.leaves:
            self._keeper.release(host.name, host.leaves)

    def _lose(self, name: str, why: str) -> float:
        with self._port.changed:
            lived_s = self.members.lived_s(name, time.monotonic())
            self._port.tell(AgentEnded(name, why))
            return lived_s

    @property
    def waits_for(self) -> str:
        with self._port.changed:
            return f"hosts: {len(self.members.staying)} of {self._least} joined"

    @property
    def _given_up(self) -> dict[str, str]:
        return self._keeper.given_up if self._keeper is not None else {}

    def place(self, graph: Graph, needs: Sequence[Need], stop_asked: Callable[[], bool]) -> Hosts:
        """Wait for the hosts, and distribute the workers over them and this one."""
        self._await_hosts(stop_asked)
        with self._port.changed:
            hosts = self.members.staying
            self._known = {host.membership for host in hosts}
        facts = [self._own, *(host.facts for host in hosts)]
        needs = placed(needs, self._keep, self._learner_on)
        layout = lay_out(needs, facts)
        self._notify(layout_text(layout))
        self._laid, self._needs = layout.of, {need.worker: need for need in layout.needs}
        self._home = {worker: host for worker, host in layout.of.items() if host != self._own.name}
        addresses = {host.name: host.address for host in facts}
        at = {worker: addresses[host] for worker, host in self._home.items()}
        found = Hosts(self._own.address, at, relayed=True, servers=layout.servers)
        graph = with_servers(graph, layout.servers) if layout.servers else graph
        self._params = readers_of_params(graph)
        self._movable = {need.worker for need in needs if need.spreads and not need.stays}
        self._movable = {worker for worker in self._movable if may_move(graph, worker, found)}
        return found

    def _await_hosts(self, stop_asked: Callable[[], bool]) -> None:
        until = time.monotonic() + self._join_s
        while not self._port.wait(lambda: len(self.members.staying) >= self._least, LOOK_S):
            if stop_asked():
                raise KeyboardInterrupt("the run was asked to end while waiting for hosts")
            if self._count - len(self._given_up) < self._least:
                name, why = next(iter(self._given_up.items()))
                raise ConfigError(f"host {name} cannot join: {why}")
            if time.monotonic() > until:
                hosts = [host.name for host in self.members.staying]
                raise ConfigError(
                    f"{len(hosts)} of {counted(self._least, 'host')} joined within {self._join_s:g} s: "
                    f"{', '.join(hosts) or 'none'}. Start `jsrl join {self.join_key}` on each, and check that port "
                    f"{self.address.rpartition(':')[2]} is open in the firewall of this host."
                )

    def silence(self) -> tuple[frozenset[str], frozenset[str]]:
        """Return the workers on hosts that cannot be reached, and those on hosts that send nothing, which is known sooner.

        What the first make now reaches nobody; the silence of the others means nothing.
        """
        now_s, hosts = time.monotonic(), {remote.host.membership: remote.host for remote in self._remotes.values()}
        away = {number for number, host in hosts.items() if host.is_away(now_s)}
        unheard = {number for number, host in hosts.items() if not host.is_heard(now_s)}
        return self._workers_of(away), self._workers_of(unheard)

    def _workers_of(self, memberships: Collection[int]) -> frozenset[str]:
        return frozenset(name for name, remote in self._remotes.items() if remote.host.membership in memberships)

    def moves(self) -> Mapping[str, str]:
        """Return worker -> reason for its move: its host leaves, or a new host takes a share."""
        with self._port.changed:
            leaving = [host for host in self.members.hosts if host.leaves]
            found = {remote.worker: f"host {host.name} leaves" for host in leaving for remote in host.living_workers}
            self._share_with_new()
            return found | {worker: f"host {host} has room for it" for worker, host in self._targets.items()}

    def _share_with_new(self) -> None:
        """Give the hosts that have joined since the last call their share of the workers that may move."""
        staying = self.members.staying
        names = {host.name for host in staying}
        self._targets = {worker: host for worker, host in self._targets.items() if host in names | {self._own.name}}
        new = [host for host in staying if host.membership not in self._known]
        if not new or time.monotonic() - new[-1].joined_s < SETTLE_S:
            return
        self._known |= {host.membership for host in new}
        of = {worker: at if at in names else self._own.name for worker, at in self._at.items()}
        needs = [need for need in self._needs.values() if need.worker in of]
        self._targets = evened_out(needs, [self._own, *(host.facts for host in staying)], of, self._movable)

    def start(self, job: Job, start: Start) -> Handle:
        self._take_target(job)
        if job.name not in self._home:
            self._at[job.name] = self._own.name
            return self._start_here(job, start)
        if not self._serves:
            assert start.server is not None
            self._port.serve(
                start.server, Path(job.place.registry), Path(job.folder), self._admitted_keys, self._parents
            )
            self._serves = True
        with self._port.changed:
            host = self._host_for(job.name)
            if host is not None:
                bound = [end for one in (job, *job.others) for _, end in one.ends if end.address]
                legs = tuple(end.leg for end in bound if end.leg)
                names = {name_at(end.stream.name, job.name) for end in bound}
                names |= {generation_at(end.stream.name, job.name) for end in bound}
                speech = find_kind(job.kind).speech
                self._port.tell(Place(host.membership, job.name, job.incarnation, speech, legs, frozenset(names)))
                remote = host.workers[job.name, job.incarnation]
        self._at[job.name] = self._own.name if host is None else host.name
        if host is None:
            self._notify(f"{job.name} starts on this host: no other host has joined")
            return self._start_here(bound_at(job, self._own.address), start)
        self._begin(host, job, start)
        self._remotes[job.name] = remote
        return HostHandle(self._port, remote)

    def _take_target(self, job: Job) -> None:
        """Assign a worker to the host to which it moves. In a deterministic run workers do not move to balance the load."""
        if job.experiment.deterministic:
            self._movable.discard(job.name)  # its episodes would start again
        target = self._targets.pop(job.name, None)
        if target == self._own.name:
            self._home.pop(job.name, None)
        elif target is not None:
            self._home[job.name] = target

    def _parents(self, names: Mapping[str, Registration]) -> dict[int, dict[str, list[str]]]:
        """Return from where hosts fetch the params that their workers read: a tree whose root is the publisher."""
        found: dict[int, dict[str, list[str]]] = {}
        for name, readers in self._params.items():
            if name not in names or not names[name].address.startswith("tcp://"):
                continue
            with self._port.changed:
                hosts = [h for h in self.members.hosts if any(remote.worker in readers for remote in h.living_workers)]
            for place, host in enumerate(hosts):
                above = [hosts[at].relays[name] for at in ancestors(place) if name in hosts[at].relays]
                found.setdefault(host.membership, {})[name] = [*above, names[name].address]
        return found

    def _admitted_keys(self) -> dict[str, list[str]]:
        """Return the stream keys of hosts -> the workers for which each speaks."""
        with self._port.changed:
            hosts = [host for host in self.members.hosts if host.membership in self._host_keys]
            workers = {host.membership: sorted({remote.worker for remote in host.living_workers}) for host in hosts}
            return {self._host_keys[membership].name: names for membership, names in workers.items()}

    def _start_here(self, job: Job, start: Start) -> Handle:
        self._kept_at.pop(job.name, None)
        self._remotes.pop(job.name, None)
        if start.variables_on is not None:
            own = {worker for worker, host in self._laid.items() if host == self._own.name}
            start = dataclasses.replace(start, variables=start.variables_on(None, own))
        return self._here.start(job, start)

    def _host_for(self, worker: str) -> JoinedHost | None:
        """Return the host of a worker; else the one with the fewest workers per core, and room for it; None: none fits."""
        need = self._needs[worker]

        def order(host: JoinedHost) -> tuple[bool, bool, bool, float]:
            used_mb = sum(self._needs[remote.worker].memory_mb for remote in host.living_workers)
            is_full = used_mb + need.memory_mb > host.facts.memory_mb
            lacks_gpu = need.device != "cpu" and not host.facts.gpus
            return host.name != self._home[worker], is_full, lacks_gpu, host.num_living / host.facts.cores

        staying = self.members.staying
        on_cpu = need.device == "learns" and not any(host.facts.gpus for host in staying)  # its devices are the CPU's
        return min((host for host in staying if on_cpu or host.facts.gpus >= need.gpus), key=order, default=None)

    def _variables_on(self, host: JoinedHost, job: Job, start: Start) -> dict[str, str]:
        """Return the variables of a worker on a host, where accelerators are counted from 0."""
        variables = start.variables
        if start.variables_on is not None:
            laid = {worker for worker, name in self._laid.items() if name == host.name}
            there = laid | {job.name} | {worker for worker, _ in host.workers}
            variables = start.variables_on([str(number) for number in range(host.facts.gpus)], there)
        return {name: value for name, value in variables.items() if name in VARIABLES}

    def _begin(self, host: JoinedHost, job: Job, start: Start) -> None:
        """Send a host the files that a worker needs, and its job."""
        job, run = with_start(job), str(Path(job.folder).absolute())
        assert job.keys is not None
        tree = to_json(moved(job, host.folder, host.facts.address))
        modules = frozenset(modules_named(tree))
        if modules not in self._archives:  # later incarnations get the same code, even if it was edited
            self._archives[modules] = archive(set(modules))
        digest, content = self._archives[modules]
        if (host.membership, KEYS) not in self._sent:
            keys = make_host_keys(job.keys)
            with self._port.changed:
                self._host_keys[host.membership] = keys.file
            message = Keys(host.membership, keys.client, keys.server)
            self._port.tell(GiveKeys(host.membership, message, hex_of(keys.public)))
            self._sent.add((host.membership, KEYS))  # once it was: a full disk may be temporary
        if digest and (host.membership, digest) not in self._sent:
            file = Path(job.folder, code_file(digest))
            file.parent.mkdir(exist_ok=True)
            write_atomic(file, content, durable=False)
            self._port.send_file(host, code_file(digest))
            self._sent.add((host.membership, digest))
        keeps = list(value_of(find_kind(job.kind).travel.keeps_files, job))
        lacks_files = bool(keeps) and self._kept_at.get(job.name) != host.membership
        variables = self._variables_on(host, job, start)
        body = json.dumps(tree).encode()
        begin = Begin(
            host.membership, job.kind, job.name, job.incarnation, body, variables, digest, start.forks, keeps, run
        )
        with self._port.changed:
            admit_hosts(Path(job.keys), self._admitted_keys())
        self._port.send_names()  # others must admit its keys
        self._port.tell(StartWorker(host.membership, begin, lacks_files))
        if keeps:
            self._kept_at[job.name] = host.membership

    def busy_s(self) -> None:
        return

    def close(self) -> None:
        """Make all agents end their workers and themselves; end the workers of this host. May be called twice."""
        if not self._closed:
            self._closed = True
            self._port.close("the run has ended")
            if self._keeper is not None:
                self._keeper.close()
            self._key.close()
            for file in self._host_keys.values():
                file.unlink(missing_ok=True)
        self._here.close()


def readers_of_params(graph: Graph) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for stream in (stream for stream in graph.streams if stream.type == "params"):
        readers = {worker.name for worker, _ in graph.sinks(stream.name)}
        found |= {name_at(stream.name, worker.name): readers for worker, _ in graph.sources(stream.name)}
    return found


def may_move(graph: Graph, worker: str, hosts: Hosts) -> bool:
    """Return whether a worker can reach its streams from any host."""
    streams = [graph.stream(link.stream) for link in graph.worker(worker).links]
    return not any(stream.transport or stays_here(graph, stream, hosts) for stream in streams)


def placed(needs: Sequence[Need], families: Sequence[str], learner_on: str = "") -> list[Need]:
    """Return the needs of workers, with those of some families (`inference`: inference-0, ...) kept on this host.

    Args:
      learner_on: the name of the host of the learners; empty: any.
    """
    if learner_on:
        needs = [dataclasses.replace(n, on=learner_on) if n.device == "learns" and not n.follows else n for n in needs]
    there = {family: [n.worker for n in needs if f"{n.worker}-".startswith(f"{family}-")] for family in families}
    if unknown := [family for family, workers in there.items() if not workers]:
        known = ", ".join(dict.fromkeys(kind_of(need.worker) for need in needs))
        raise ConfigError(f"--keep-here names {unknown[0]!r}, but this run has no such workers; it has: {known}.")
    stay = {worker for workers in there.values() for worker in workers}
    why = "--keep-here says so"
    return [dataclasses.replace(n, stays=n.stays or why, each=False) if n.worker in stay else n for n in needs]


def bound_at(job: Job, address: str) -> Job:
    ends = tuple(
        (port, dataclasses.replace(end, address=tcp(address)) if end.address else end) for port, end in job.ends
    )
    return dataclasses.replace(job, ends=ends, others=tuple(bound_at(other, address) for other in job.others))


def moved(job: Job, folder: str, address: str) -> Job:
    """Return a job for a host with this IP address, which keeps the run's files in `folder`; its episodes start again."""
    job, start = bound_at(job, address), job.start_point
    if start.restore is not None and (own := in_run(job, start.restore)) is not None:
        start = dataclasses.replace(start, restore=f"{folder}/{own}")
    return dataclasses.replace(
        job,
        place=JobPlace(folder, f"{folder}/names", f"{folder}/{KEYS}", away=True),
        start_point=dataclasses.replace(start, journal_generation=None),
        others=tuple(moved(other, folder, address) for other in job.others),
    )


def in_run(job: Job, restore: str) -> str | None:
    path, folder = Path(restore), Path(job.folder).absolute()
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else None


def with_start(job: Job) -> Job:
    """Return a job that begins with a snapshot of its own run: a copy, if it was to begin with another run's."""
    restore = job.start_point.restore
    if not find_kind(job.kind).lifecycle.must_finish or restore is None or in_run(job, restore) is not None:
        return job
    folder, _, selector = restore.rpartition("@")
    store, own = SnapshotStore(folder), job.begins_with.absolute()
    version = store.resolve(selector)
    shutil.copytree(store.folder / str(version), own / str(version), dirs_exist_ok=True)
    return dataclasses.replace(job, start_point=dataclasses.replace(job.start_point, restore=f"{own}@{version}"))
