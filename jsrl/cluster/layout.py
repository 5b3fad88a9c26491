"""Assigns the workers of a graph to hosts: learners to GPUs, actors by cores, servers to GPUs or beside their actors.

A pure function of the workers' needs and the hosts' resources; the first host is the one on which the run is started.
Memory and GPUs are limits. Cores are not: more workers than cores are slow, but they run.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from jsrl.cluster.facts import HostFacts, check_names
from jsrl.errors import ConfigError
from jsrl.graph.launcher import Hosts, Need

_MOST_RANGES = 4  # of a family of workers, in texts
_GPU_LEARNER_CORES = 2  # cores that feed its accelerators


@dataclass(frozen=True)
class Layout:
    """The host of each worker.

    Attributes:
      hosts: all, the controller's first. of: worker -> the name of its host. needs: of the workers; learners on a host
        without GPUs need none, because their devices are the CPU's.
      servers: the actors on each host, if each has its own inference server (see Hosts); `of` and `needs` have these.
    """

    hosts: tuple[HostFacts, ...]
    of: dict[str, str]
    needs: tuple[Need, ...]
    servers: tuple[tuple[str, ...], ...] = ()

    def on(self, host: str) -> list[str]:
        return [need.worker for need in self.needs if self.of[need.worker] == host]

    @property
    def hosts_of_workers(self) -> Hosts:
        """Return the address of each worker's host; its name where that is not known."""
        own, *others = self.hosts
        addresses = {host.name: host.address or host.name for host in others}
        of = {worker: addresses[host] for worker, host in self.of.items() if host != own.name}
        return Hosts(own.address or own.name, of, servers=self.servers)


@dataclass
class _Room:
    """The free resources of a host. gpus: not reserved for one worker; learners and servers share them."""

    host: HostFacts
    memory_mb: int = 0
    cores: float = 0.0
    gpus: int = 0
    learners: int = 0
    workers: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.memory_mb, self.cores, self.gpus = self.host.memory_mb, float(self.host.cores), self.host.gpus

    def takes(self, need: Need) -> bool:
        return need.memory_mb <= self.memory_mb

    def take(self, need: Need) -> None:
        self.workers.append(need.worker)
        self.memory_mb -= need.memory_mb
        self.cores -= self.cores_of(need)

    def cores_of(self, need: Need) -> float:
        if need.cores is not None:
            return need.cores
        return (
            _GPU_LEARNER_CORES if self.host.gpus else self.host.cores / 2
        )  # on CPU it shares the host with other workers


def lay_out(needs: Sequence[Need], hosts: Sequence[HostFacts]) -> Layout:
    """Return the host of each worker.

    Args:
      needs: of the workers of a graph. hosts: the first is the one on which the run is started; workers that need the run
        folder stay there, or on hosts that see it. So do learners, unless only other hosts have GPUs for them.
    """
    check_names(tuple(hosts), "the list of hosts")
    rooms = [_Room(host) for host in hosts]
    _share_machines(rooms)
    seeing = [room for room in rooms if room.host.shares_folder or room is rooms[0]]
    of: dict[str, _Room] = {}
    for need in sorted((need for need in needs if need.device == "learns"), key=lambda need: bool(need.follows)):
        of[need.worker] = _for_learner(need, _for_learners(need, seeing, rooms, of.get(need.follows)), rooms)
    needs = [replace(n, gpus=0) if n.device == "learns" and not of[n.worker].host.gpus else n for n in needs]
    on_cpu = not any(host.gpus for host in hosts)
    splits = on_cpu and len(hosts) > 1 and any(need.asks for need in needs)
    each = next((need for need in needs if need.each), None) if splits else None
    needs = [need for need in needs if need is not each]
    if each is not None:
        for room in rooms:
            room.memory_mb, room.cores = room.memory_mb - each.memory_mb, room.cores - room.cores_of(each)
    shared = [need for need in needs if need.spreads or (need.answers and (on_cpu or not need.alone))]
    others = [need for need in needs if need.device != "learns" and need not in shared]
    last = [need for need in others if not (need.stays or need.beside or need.device == "serves")]
    for able, stays in ((seeing, True), (rooms, False)):  # workers that may go elsewhere come second
        for need in (need for need in others if need not in last and bool(need.stays) == stays):
            of[need.worker] = _for_one(need, able, of.get(need.beside))
        _spread_servers([n for n in shared if n.answers and bool(n.stays) == stays], able, of)
    for able, stays in ((seeing, True), (rooms, False)):
        _spread([n for n in shared if n.spreads and bool(n.stays) == stays], able, [room.cores for room in able], of)
    for need in last:  # where cores are idle
        of[need.worker] = _for_one(need, rooms, None)
    needs, servers = _with_servers(each, needs, rooms, of) if each is not None else (needs, ())
    return Layout(tuple(hosts), {need.worker: of[need.worker].host.name for need in needs}, tuple(needs), servers)


def _with_servers(
    server: Need, needs: Sequence[Need], rooms: list[_Room], of: dict[str, _Room]
) -> tuple[list[Need], tuple[tuple[str, ...], ...]]:
    """Give each host with actors its own server, before them in the needs; return these, and the actors of each."""
    asking = [need.worker for need in needs if need.asks]
    homes = [room for room in rooms if any(of[name] is room for name in asking)]
    family = server.worker.rpartition("-")[0]
    servers = [replace(server, worker=f"{family}-{number}") for number in range(len(homes))]
    of |= {one.worker: room for one, room in zip(servers, homes, strict=True)}
    at = min(number for number, need in enumerate(needs) if need.asks)
    actors = tuple(tuple(name for name in asking if of[name] is room) for room in homes)
    return [*needs[:at], *servers, *needs[at:]], actors


def _share_machines(rooms: list[_Room]) -> None:
    """Divide the memory of a machine between hosts on it, such as two tasks on one node, which may each use all of it."""
    for machine, most_mb in {(room.host.machine, room.host.machine_mb) for room in rooms if room.host.machine}:
        same = [room for room in rooms if room.host.machine == machine]
        whole_mb = sum(room.memory_mb for room in same)
        for room in same:
            room.memory_mb = room.memory_mb * min(most_mb or whole_mb, whole_mb) // whole_mb


def _for_learners(need: Need, seeing: list[_Room], rooms: list[_Room], leader: _Room | None) -> list[_Room]:
    """Return the hosts among which a learner's is chosen: those that see the run folder, unless only others have its GPUs.

    All ranks of a learner compute on GPUs, or all on CPU.
    """
    if leader is not None:
        return [room for room in rooms if bool(room.host.gpus) == bool(leader.host.gpus)]
    if need.on:
        able, where = [room for room in rooms if room.host.name == need.on], f"is to run on {need.on}"
        if not able:
            names = ", ".join(room.host.name for room in rooms)
            raise ConfigError(f"--learner-on is {need.on!r}, but there is no such host; hosts: {names}.")
    else:
        able = [room for room in rooms if room.host.gpus >= max(need.gpus, 1)]
        if not able or any(room in seeing for room in able):
            return seeing
        where = f"belongs where the GPUs of {max(able, key=lambda room: room.host.gpus).host.name} are"
    if need.stays and not any(room in seeing for room in able):
        raise ConfigError(
            f"{need.worker} {where}, but {need.stays}, and that host does not see the run folder; start the run there and "
            "list it first, or set shares_folder for it if it sees the folder, or give it gpus 0 to train on CPU."
        )
    return able


def _for_learner(need: Need, able: list[_Room], rooms: list[_Room]) -> _Room:
    """Return the host of a learner: the most GPUs per learner, then the most cores; on CPU the most cores."""
    chosen = able if need.on or need.follows else rooms
    on_cpu = not any(room.host.gpus for room in chosen)  # its devices are the CPU's
    fit = [room for room in able if room.host.gpus >= need.gpus or on_cpu]
    if not fit:
        best = max(chosen, key=lambda room: room.host.gpus)
        raise ConfigError(
            f"{need.worker} wants {need.gpus} GPUs on one host, but {best.host.name}, which has the most, has "
            f"{best.host.gpus}; ask for fewer (--learner.num-devices), or add a larger host."
        )
    ordered = sorted(fit, key=lambda room: (-room.host.gpus / (1 + room.learners), -room.cores))
    room = _first_with_memory(need, ordered)
    room.learners += 1
    return room


def _for_one(need: Need, rooms: list[_Room], beside: _Room | None) -> _Room:
    """Return the host of a worker: beside another if possible, else any; a server with its own GPU where one is free."""

    def order(room: _Room) -> tuple[bool, bool, float]:
        free = room.gpus - (1 if room.learners else 0) if need.alone else room.host.gpus
        return (need.device == "serves" and free < max(need.gpus, 1), room is not beside, -room.cores)

    room = _first_with_memory(need, sorted(rooms, key=order))
    if need.alone and room.gpus > (1 if room.learners else 0):
        room.gpus -= 1
    return room


def _first_with_memory(need: Need, rooms: list[_Room]) -> _Room:
    """Return the first of some hosts with enough memory for a worker; reserves the memory."""
    for room in rooms:
        if room.takes(need):
            room.take(need)
            return room
    left = ", ".join(f"{room.host.name} has {room.memory_mb:,} MB left" for room in rooms)
    raise ConfigError(
        f"{need.worker} needs about {need.memory_mb:,} MB of memory, but {left}; give the run a host with more, or make the "
        "network, ring or replay smaller."
    )


def _spread_servers(needs: list[Need], rooms: list[_Room], of: dict[str, _Room]) -> None:
    """Distribute servers like actors, so that each is beside its clients; if hosts have GPUs, only on these.

    The host of a learner with GPUs counts as much as the best, and comes first: params need not leave it.
    """
    if not needs:
        return
    least = max(need.gpus for need in needs)
    if all(room.host.gpus < least for room in rooms):
        best = max(rooms, key=lambda room: room.host.gpus)
        raise ConfigError(
            f"{needs[0].worker} wants GPU {least - 1} (--inference.device), counted from 0, but {best.host.name}, which has "
            f"the most, has {best.host.gpus}; use auto, cpu or a lower one."
        )
    weights = [room.cores for room in rooms]
    if needs[0].device == "serves" and any(room.host.gpus for room in rooms):
        fit = [room for room in rooms if room.host.gpus >= max(least, 1)]
        rooms = sorted(fit, key=lambda room: not room.learners)
        weights = [max(other.cores for other in rooms) if room.learners else room.cores for room in rooms]
    _spread(needs, rooms, weights, of)


def _spread(needs: list[Need], able: list[_Room], weights: list[float], of: dict[str, _Room]) -> None:
    """Distribute workers in proportion to weights, within each host's memory; those on one host feed one rank if possible."""
    if not needs:
        return
    for some, rooms, counts in _by_rank(needs, able, _counts(needs, able, weights), of):
        _settle_near(some, rooms, counts, of)


def _by_rank(
    needs: list[Need], able: list[_Room], counts: list[int], of: dict[str, _Room]
) -> list[tuple[list[Need], list[_Room], list[int]]]:
    """Return (workers, hosts, counts on each) for each rank that they feed, so that no host feeds two; all in one otherwise.

    The host of a rank feeds that rank. No host gets more than 1.5 times the workers that `counts` gives it (or one more).
    """
    fed: dict[str, list[Need]] = {}
    for need in needs:
        fed.setdefault(need.feeds, []).append(need)
    whole, given = [(needs, able, counts)], {rank: dict[int, int]() for rank in fed}  # host -> its count, for each rank
    if len(fed) < 2:
        return whole
    homes = {i: rank for i, room in enumerate(able) for rank in reversed(fed) if of.get(rank) is room}
    for i in sorted((i for i, count in enumerate(counts) if count), key=lambda i: (i not in homes, -counts[i])):
        lacking = max(fed, key=lambda rank: len(fed[rank]) - sum(given[rank].values()))
        given[homes.get(i, lacking)][i] = counts[i]
    found = []
    for rank, some in fed.items():
        rooms, even, size_mb = [able[i] for i in given[rank]], given[rank].values(), max(1, some[0].memory_mb)
        most = [min(max(n + 1, n * 3 // 2), room.memory_mb // size_mb) for room, n in zip(rooms, even, strict=True)]
        if sum(most) < len(some):
            return whole
        found.append((some, rooms, shares(len(some), list(map(float, even)), most)))
    return found


def _settle_near(needs: list[Need], able: list[_Room], counts: list[int], of: dict[str, _Room]) -> None:
    """Give hosts their counts of some workers: beside their servers, and in order."""
    left = {need.worker: need for need in needs}
    free = list[int]()
    for room, count in zip(able, counts, strict=True):
        near = [need for need in left.values() if of.get(need.asks) is room][:count]
        _settle(room, near, left, of)
        free.append(count - len(near))
    for room, count in zip(able, free, strict=True):
        _settle(room, list(itertools.islice(left.values(), count)), left, of)


def _counts(needs: list[Need], able: list[_Room], weights: list[float]) -> list[int]:
    size_mb = max(1, *(need.memory_mb for need in needs))
    room_for = [max(0, room.memory_mb // size_mb) for room in able]
    if sum(room_for) < len(needs):
        each = ", ".join(f"{room.host.name} {most}" for room, most in zip(able, room_for, strict=True))
        raise ConfigError(
            f"{len(needs)} workers such as {needs[0].worker} need about {size_mb:,} MB of memory each, but what the others "
            f"leave is enough for {sum(room_for)} ({each}); use fewer, or hosts with more memory."
        )
    weights = [max(weight, 0.0) for weight in weights]
    return shares(len(needs), weights if sum(weights) > 0 else [float(room.host.cores) for room in able], room_for)


def _settle(room: _Room, some: list[Need], left: dict[str, Need], of: dict[str, _Room]) -> None:
    for need in some:
        del left[need.worker]
        room.take(need)
        of[need.worker] = room


def evened_out(
    needs: Sequence[Need], hosts: Sequence[HostFacts], of: Mapping[str, str], movable: Collection[str]
) -> dict[str, str]:
    """Return worker -> host for the fewest moves that give each host its share of the movable workers.

    Args:
      of: worker -> its current host. movable: workers that spread and may move.
    """
    rooms = {host.name: _Room(host) for host in hosts}
    for need in needs:
        if need.worker not in movable:
            rooms[of[need.worker]].take(need)
    some = [need for need in needs if need.worker in movable]
    try:
        counts = _counts(some, list(rooms.values()), [room.cores for room in rooms.values()]) if some else []
    except ConfigError:  # too little memory for an even share: no worker moves
        return {}
    surplus, free = list[str](), list[str]()
    for name, count in zip(rooms, counts, strict=bool(some)):
        here = [need.worker for need in some if of[need.worker] == name]
        surplus += here[count:]
        free += [name] * (count - len(here))
    return dict(zip(surplus, free, strict=True))


def shares(total: int, weights: Sequence[float], most: Sequence[int]) -> list[int]:
    """Return integer shares of `total` in proportion to `weights`, none above its `most`.

    The largest remainders are rounded up. A surplus goes to the others; `most` must sum up to `total` or more.
    """
    found = [0] * len(weights)
    while (left := total - sum(found)) > 0:
        open_ = [i for i, limit in enumerate(most) if found[i] < limit]
        whole = sum(weights[i] for i in open_)
        parts = {i: left * (weights[i] / whole if whole > 0 else 1 / len(open_)) for i in open_}
        for i in open_:
            found[i] += min(int(parts[i]), most[i] - found[i])
        _round_up(found, total, most, sorted(open_, key=lambda i: (int(parts[i]) - parts[i], i)))
    return found


def _round_up(found: list[int], total: int, most: Sequence[int], order: Iterable[int]) -> None:
    for i in order:
        if sum(found) < total and found[i] < most[i]:
            found[i] += 1


def layout_text(layout: Layout) -> str:
    """Return the hosts with their workers, as text: a line for each host, and one about workers bound to the first."""
    wide = max(len(name) for name in ("host", *(host.name for host in layout.hosts)))
    lines = [f"  {'host':<{wide}}  {'address':<15}{'GPUs':>5}{'cores':>14}{'memory MB':>20}  workers"]
    by_name = {need.worker: need for need in layout.needs}
    for host in layout.hosts:
        here = [by_name[name] for name in layout.on(host.name)]
        cores = sum(need.cores if need.cores is not None else 0 for need in here)
        shared = any(need.cores is None for need in here)  # with a worker that uses idle cores
        busy = f"{cores}{'+' if shared else ''} of {host.cores}"
        memory = f"{sum(need.memory_mb for need in here):,} of {host.memory_mb:,}"
        names = ranges([need.worker for need in here]) or "none"
        lines.append(f"  {host.name:<{wide}}  {host.address:<15}{host.gpus:>5}{busy:>14}{memory:>20}  {names}")
    stay = {
        need.stays: [n.worker for n in layout.needs if n.stays == need.stays] for need in layout.needs if need.stays
    }
    if stay and len(layout.hosts) > 1:
        each = ", ".join(f"{ranges(names)} ({why})" for why, names in stay.items())
        lines.append(f"  Only on hosts that see the run folder: {each}.")
    return "\n".join(lines)


def ranges(names: Sequence[str]) -> str:
    """Return names as text, those with consecutive numbers as a range: `learner, actor-0 to actor-7 (8)`.

    A family with gaps is shown by its first and last: `actor-0, actor-3, ..., actor-33 (12)`.
    """
    words: list[tuple[str, str, int]] = []
    for name in names:
        if words and _follows(name, words[-1][1]):
            first, _, count = words[-1]
            words[-1] = (first, name, count + 1)
        else:
            words.append((name, name, 1))
    texts = list[str]()
    for _, alike in itertools.groupby(words, key=lambda word: word[0].rpartition("-")[0] or word[0]):
        some = list(alike)
        if len(some) > _MOST_RANGES:
            texts.append(f"{some[0][0]}, {some[1][0]}, ..., {some[-1][1]} ({sum(count for *_, count in some)})")
        else:
            texts += [first if count == 1 else f"{first} to {last} ({count})" for first, last, count in some]
    return ", ".join(texts)


def _follows(name: str, before: str) -> bool:
    (family, _, number), (earlier, _, last) = name.rpartition("-"), before.rpartition("-")
    return family == earlier and number.isdigit() and last.isdigit() and int(number) == int(last) + 1
