"""What limits a run: facts of the experiment and the machine, measured means, and the verdict on them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from jsrl.references.importing import import_target
from jsrl.services.metrics.display_state import percent
from jsrl.workers.actor.kind import KIND as ACTOR
from jsrl.workers.evaluator.kind import KIND as EVALUATOR
from jsrl.workers.kinds import Kind, named_kinds
from jsrl.workers.learner.kind import KIND as LEARNER

VERDICT = "jsrl.tools.report.verdicts:verdict"  # imported where a run has several processes
FULL = 0.85  # share of the cores above which no process fits
MOST_LOAD = 2.0  # processes per core that run or wait for a core; above it, each waits half of the time
LEAST_CPU = 0.25  # of the time in which a worker computes; with less it waits for a core
ROOM_CORES = 0.5  # free cores, so that another process would be worth starting


@dataclass(frozen=True)
class RunSetup:
    """The facts of an experiment and its machine that advice depends on.

    Attributes:
      processes: workers have processes of their own. cores: that it may use. actors, ring: processes, and groups in each.
      servers: inference servers. synchronous: max_policy_lag is 0. zeromq: rows go over sockets on one machine.
      accelerators: on this machine. more_actors: larger numbers of actors that divide the groups, ascending.
      more_groups: the next valid number of groups, None: there is none. recorded: a recording is read, without actors.
      options: names of the run's options. hosts: of actors, other than the learner's.
    """

    processes: bool = True
    cores: int = 1
    actors: int = 1
    ring: int = 1
    servers: int = 1
    synchronous: bool = False
    zeromq: bool = False
    accelerators: int = 0
    more_actors: tuple[int, ...] = ()
    more_groups: int | None = None
    recorded: bool = False
    options: frozenset[str] = frozenset()
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """A run's means: shares of time by kind of worker and activity, and CPU time in cores by kind."""

    facts: RunSetup
    metrics: Mapping[str, float]
    shares: dict[Kind, dict[str, float]] = field(default_factory=dict)
    cpu: dict[Kind, float] = field(default_factory=dict)

    def share(self, kind: Kind, *activities: str) -> float:
        """Return the share of time of some activities of a kind of worker; 0 if nothing was reported."""
        return sum(self.shares.get(kind, {}).get(activity, 0.0) for activity in activities)

    def named(self, name: str) -> Kind | None:
        """Return the kind of a name that something was reported of."""
        return next((kind for kind in (*self.shares, *self.cpu) if kind.name == name), None)

    @property
    def cores_used(self) -> float:
        """Return CPU time of all workers per second."""
        return sum(self.cpu.values())

    @property
    def others(self) -> float:
        """Return CPU time of other programs per second."""
        return min(self.metrics.get("system/others_cpu_share", 0.0), float(self.facts.cores))

    @property
    def load(self) -> float:
        """Return the processes that run or wait for a core; 0 if that is not known."""
        return self.metrics.get("system/load", 0.0)

    @property
    def crowded(self) -> bool:
        """Return whether processes wait for cores: by the load, or because workers that compute get little CPU time."""
        computes = ((LEARNER, "update", 1), (self.named("inference"), "act", self.facts.servers))
        hungry = not (self.facts.accelerators or self.facts.hosts) and any(
            kind is not None and kind in self.cpu and self.cpu[kind] < LEAST_CPU * self.share(kind, work) * count
            for kind, work, count in computes
        )
        return hungry or self.load >= MOST_LOAD * self.facts.cores

    @property
    def full(self) -> bool:
        busy = self.cores_used + self.others >= FULL * self.facts.cores
        return bool(self.cpu) and (busy or self.crowded)

    @property
    def room(self) -> bool:
        """Return whether there is a free core for another process."""
        return not self.full and self.facts.cores - self.cores_used - self.others >= ROOM_CORES

    @property
    def learner_waits(self) -> float:
        """Return the share of time in which the learner waits for batches."""
        return self.share(LEARNER, "wait_batch")

    @property
    def cpu_per_actor(self) -> float:
        return self.cpu.get(ACTOR, 0.0) / max(self.facts.actors, 1)


def gather(metrics: Mapping[str, float], facts: RunSetup, kinds: Iterable[Kind] | None = None) -> Evidence:
    """Return a run's metrics by kind of worker; values that are not finite are left out.

    Args:
      metrics, facts: as for `find_bottleneck`. kinds: of the run's workers; None: jsrl's own.
    """
    finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
    shares, cpu = {}, {}
    for kind in named_kinds() if kinds is None else kinds:
        names = {a.name: f"{kind.prefix}/{a.name}_share" for a in kind.all_activities}
        own = {activity: finite[name] for activity, name in names.items() if name in finite}
        if own:
            shares[kind] = own
        spent = f"system/{kind.prefix}_cpu_share"
        if spent in finite:
            cpu[kind] = finite[spent]
    return Evidence(facts, finite, shares, cpu)


def _turns(e: Evidence) -> Sequence[tuple[str, float]]:
    """Return the activities with their shares of the single process's time, largest first."""
    turns = {"evaluating": e.share(EVALUATOR, "env", "act", "publish", "other")}
    for kind, own in e.shares.items():
        for activity, share in own.items() if kind.name not in ("evaluator", "video-recorder") else ():
            if activity in WORK:
                turns[WORK[activity]] = turns.get(WORK[activity], 0.0) + share
    return sorted(turns.items(), key=lambda entry: -entry[1])


WORK = {"env": "stepping environments", "act": "acting", "update": "updates", "transport": "moving rows"}


def _serial_text(e: Evidence) -> str:
    shares = [(what, share) for what, share in _turns(e) if share >= 0.01]
    rest = 1.0 - sum(share for _, share in shares)
    turns = [f"{what} {percent(share)}" for what, share in [*shares, *([("other", rest)] if rest >= 0.01 else [])]]
    return f"This run is serial, one process that does everything in turn: {', '.join(turns)}."


@dataclass(frozen=True)
class Bottleneck:
    """What limits a run: `kind` names the verdict (for programs), `text` explains it and what would help."""

    kind: str
    text: str


def find_bottleneck(metrics: Mapping[str, float], facts: RunSetup, kinds: Iterable[Kind] | None = None) -> Bottleneck:
    """Return what limits a run.

    Args:
      metrics: means over its steady part, by full name (`actor/env_share`, `system/actor_cpu_share`, ...).
      facts: of the experiment and the machine. kinds: of the run's workers; None: jsrl's own.
    """
    e = gather(metrics, facts, kinds)
    if (fused := e.named("fused")) is not None and LEARNER not in e.shares:
        share = percent(e.share(fused, "update"))
        return Bottleneck(
            "fused", f"Environments, acting and updates are one compiled program; it runs {share} of the time."
        )
    if LEARNER not in e.shares or (ACTOR not in e.shares and not facts.recorded):
        return Bottleneck("unknown", "There are too few measurements to say what limits this run.")
    if not facts.processes:
        return Bottleneck("serial", _serial_text(e))
    return Bottleneck(*import_target(VERDICT)(e))
