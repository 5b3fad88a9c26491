"""What limits a run, in words, from its own measurements: one verdict of a table, and the option that would help.

A worker that waits is not the limit; one that works while others wait for it is, unless every core is busy already, in
which case the machine is. CPU time tells environments that compute from environments that wait.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from jsrl.services.phases import ACTIVITIES

WAITS = 0.25  # a worker that waits for less than this share of its time is busy
FULL = 0.85  # of the cores: nothing more fits
ROOM_CORES = 0.5  # free, so that another process would be worth starting


@dataclass(frozen=True)
class Facts:
    """What an experiment and its machine are, as far as advice depends on it.

    Attributes:
      placement: as in the experiment. cores: that the run may use. actors, ring: processes, and groups in each.
      servers: inference servers. synchronous: max_policy_lag is 0. zeromq: rows go over sockets on one machine.
      accelerators: on this machine. more_actors: larger numbers of actors that divide the groups, ascending.
      more_groups: the next number of groups that works, None: none does.
    """

    placement: str = "served"
    cores: int = 1
    actors: int = 1
    ring: int = 1
    servers: int = 1
    synchronous: bool = False
    zeromq: bool = False
    accelerators: int = 0
    more_actors: tuple[int, ...] = ()
    more_groups: int | None = None


@dataclass(frozen=True)
class Bottleneck:
    """What limits a run: `kind` names the verdict (a key for programs), `text` says it and what would help."""

    kind: str
    text: str


@dataclass(frozen=True)
class Evidence:
    """A run's means, by name without the worker: shares of time, and CPU time in cores, by kind of worker."""

    facts: Facts
    metrics: Mapping[str, float]
    shares: dict[str, dict[str, float]] = field(default_factory=dict)
    cpu: dict[str, float] = field(default_factory=dict)

    def share(self, kind: str, *activities: str) -> float:
        """Return the share of time of some activities of a kind of worker; 0 where nothing was reported."""
        return sum(self.shares.get(kind, {}).get(activity, 0.0) for activity in activities)

    @property
    def cores_used(self) -> float:
        """Return CPU time of all workers per second."""
        return sum(self.cpu.values())

    @property
    def others(self) -> float:
        """Return CPU time of other programs per second."""
        return min(self.metrics.get("system/others_cpu_share", 0.0), float(self.facts.cores))

    @property
    def full(self) -> bool:
        """Return whether every core is busy."""
        return bool(self.cpu) and self.cores_used + self.others >= FULL * self.facts.cores

    @property
    def room(self) -> bool:
        """Return whether another process would find a core."""
        return not self.full and self.facts.cores - self.cores_used - self.others >= ROOM_CORES

    @property
    def learner_waits(self) -> float:
        """Return the share of time in which the learner has nothing to learn from."""
        return self.share("learner", "wait_batch")

    @property
    def cpu_per_actor(self) -> float:
        """Return the cores that each actor takes."""
        return self.cpu.get("actor", 0.0) / max(self.facts.actors, 1)


def find_bottleneck(metrics: Mapping[str, float], facts: Facts) -> Bottleneck:
    """Return what limits a run.

    Args:
      metrics: means over its steady part, by full name (`actor/env_share`, `system/actor_cpu_share`, ...).
      facts: of the experiment and the machine.
    """
    evidence = gather(metrics, facts)
    for kind, applies, text in SERIAL if facts.placement == "serial" else VERDICTS:
        if applies(evidence):
            return Bottleneck(kind, text(evidence))
    raise AssertionError("the last verdict always applies")


def gather(metrics: Mapping[str, float], facts: Facts) -> Evidence:
    """Return a run's metrics sorted by what they say; values that are not finite are left out."""
    finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
    shares = {
        kind: {a.name: finite[f"{kind}/{a.name}_share"] for a in activities if f"{kind}/{a.name}_share" in finite}
        for kind, activities in ACTIVITIES.items()
    }
    cpu = {kind: finite[f"system/{kind}_cpu_share"] for kind in ACTIVITIES if f"system/{kind}_cpu_share" in finite}
    return Evidence(facts, finite, {kind: own for kind, own in shares.items() if own}, cpu)


# -- the parts of sentences -------------------------------------------------------------------------------------------


def percent(share: float) -> str:
    """Return a share as a percentage."""
    return f"{100 * share:.0f}%"


def cores_text(e: Evidence) -> str:
    """Return how many cores are busy."""
    cores = e.facts.cores
    if not e.cpu:
        return f"this machine has {cores} core{'s' if cores > 1 else ''}"
    others = f" (other programs take {e.others:.1f})" if e.others >= 0.15 * cores else ""
    if e.full:
        return {1: "the one core is busy", 2: "both cores are busy"}.get(cores, f"all {cores} cores are busy") + others
    return f"{e.cores_used:.1f} of {cores} cores are used{others}"


def actors_advice(e: Evidence) -> str:
    """Return how many actors would help, as an option that works, or why none does."""
    free = e.facts.cores - e.cores_used - e.others
    room_for = e.facts.actors + max(1, int(free / max(e.cpu_per_actor, 0.1)))
    enough = math.ceil(
        e.facts.actors / max(1.0 - e.learner_waits, 0.05)
    )  # more than the learner could take helps nobody
    fitting = [n for n in e.facts.more_actors if n <= min(room_for, enough)]
    if fitting:
        return f"raise --num-actors to {fitting[-1]}"
    if e.facts.more_actors:
        return f"raise --num-actors to {e.facts.more_actors[0]}"
    return "raise --num-envs, so that there are groups for more --num-actors"


def learner_waits_text(e: Evidence) -> str:
    """Return how long the learner waits."""
    return f"the learner waits {percent(e.learner_waits)} of its time for batches"


def groups_advice(e: Evidence) -> str:
    """Return how to put more groups of environments into each actor."""
    if e.facts.more_groups is not None:
        return f"--num-groups {e.facts.more_groups} gives each actor more groups, so that one steps while others wait"
    return "more --num-envs in more groups keep each actor busy while it waits"


# -- verdicts: (name, whether it applies, what it says); the first that applies is it ----------------------------------

Verdict = tuple[str, Callable[[Evidence], bool], Callable[[Evidence], str]]


def _unknown(e: Evidence) -> bool:
    return "actor" not in e.shares or "learner" not in e.shares


def _learner_text(e: Evidence) -> str:
    busy = e.share("learner", "update", "publish", "snapshot", "transport")
    waits = e.share("actor", "wait_block", "wait_params", "wait_inference")
    text = f"Updates limit this run: the learner trains {percent(e.share('learner', 'update'))} of its time "
    text += f"({percent(busy)} with publishing) and actors wait {percent(waits)} of theirs; {cores_text(e)}"
    if e.facts.accelerators > 1:
        return text + ". More devices help (--learner.num-devices), then a larger batch."
    if e.facts.accelerators or e.room:
        return (
            text
            + ". Fewer epochs, a smaller network or a larger batch (--batch-envs, --num-envs) make updates cheaper."
        )
    return text + ", so only cheaper updates help: fewer epochs, a smaller network, or an accelerator."


def _publishing_text(e: Evidence) -> str:
    share = e.share("learner", "publish", "snapshot")
    return (
        f"Publishing limits this run: the learner spends {percent(share)} of its time handing out params and snapshots. "
        "Larger batches publish less often (--batch-envs, --rollout-length), and so does a longer --snapshots.period-s."
    )


def _machine_text(e: Evidence) -> str:
    takers = sorted(e.cpu.items(), key=lambda entry: -entry[1])[:3]
    parts = ", ".join(f"{WHO[kind]} {cores:.1f}" for kind, cores in takers)
    text = f"The machine limits this run: {cores_text(e)} ({parts}), so more processes will not help here. "
    first = takers[0][0]
    if first == "evaluator" or e.cpu.get("evaluator", 0.0) > 0.2 * e.facts.cores:
        return text + "Evaluate less often: a larger --evaluator.period-env-steps, or fewer --evaluator.episodes."
    return text + {
        "actor": "Cheaper environments or acting would help.",
        "inference": "A smaller network would help, or larger inference batches (more slots per group).",
        "learner": "Fewer epochs or a smaller network would help, or an accelerator.",
    }.get(first, "Fewer of them would help.")


def _crowded_text(e: Evidence) -> str:
    return (
        f"Other programs limit this run: they take {e.others:.1f} of {e.facts.cores} cores, this run {e.cores_used:.1f}. On "
        "an idle machine it would be faster, and these measurements would be others."
    )


WHO = {
    "actor": "actors",
    "inference": "inference servers",
    "learner": "the learner",
    "evaluator": "the evaluator",
    "parameter_server": "the parameter server",
}


def _environments_text(e: Evidence) -> str:
    spent = f"actors spend {percent(e.share('actor', 'env'))} of their time stepping and {learner_waits_text(e)}"
    text = f"Environments limit this run: {spent}; {cores_text(e)}"
    if e.full and e.others > e.cores_used:
        return text + ". On an idle machine they would have more of it."
    if e.full:
        return text + ", so more actors will not help here; a faster environment would (--env.backend, fewer wrappers)."
    if e.cpu and e.cpu_per_actor < 0.5:
        return text + f", because the environments wait rather than compute: {actors_advice(e)}."
    return text + f": {actors_advice(e)}."


def _acting_text(e: Evidence) -> str:
    text = (
        f"Acting limits this run: actors spend {percent(e.share('actor', 'act'))} of their time choosing actions and "
        f"{learner_waits_text(e)}; {cores_text(e)}"
    )
    if e.room:
        return text + f": {actors_advice(e)}."
    return text + (
        ". Fewer, larger groups act in larger batches (--num-groups, --num-envs); --placement served acts once for all actors."
    )


def _inference_text(e: Evidence) -> str:
    servers = e.facts.servers
    text = (
        f"Inference limits this run: {'the server acts' if servers == 1 else 'servers act'} "
        f"{percent(e.share('inference', 'act', 'transport'))} of the time, actors wait "
        f"{percent(e.share('actor', 'wait_inference'))} of theirs for actions and {learner_waits_text(e)}; {cores_text(e)}"
    )
    if e.room and e.facts.actors > servers:
        return text + f": try --num-inference-servers {servers + 1}, or --placement inline for a small network."
    if e.room:
        return (
            text + ": try --placement inline, which acts in every actor, or --inference.threads 2 for a large network."
        )
    return (
        text + ". A smaller network or larger groups (fewer --num-groups) make acting cheaper; so does an accelerator."
    )


def _alternating_text(e: Evidence) -> str:
    waits = e.share("actor", "wait_inference", "wait_params", "wait_block")
    return (
        f"Taking turns limits this run: with --max-policy-lag 0 actors wait {percent(waits)} of their time while the learner "
        f"trains, and {learner_waits_text(e)} while they step; {cores_text(e)}. --max-policy-lag 1 lets both go on at once."
    )


def _latency_text(e: Evidence) -> str:
    return (
        f"Round trips limit this run: actors wait {percent(e.share('actor', 'wait_inference'))} of their time for actions "
        f"while the server has nothing to do for {percent(e.share('inference', 'wait'))} of its own; {cores_text(e)}. "
        f"{groups_advice(e)[0].upper()}{groups_advice(e)[1:]}; {actors_advice(e)}."
    )


def _transport_text(e: Evidence) -> str:
    text = (
        f"Moving rows limits this run: actors spend {percent(e.share('actor', 'transport'))} of their time writing rows and "
        f"requests; {cores_text(e)}. "
    )
    if e.facts.zeromq:
        return text + "--road shared-memory is faster on one machine."
    if e.room:
        return text + f"{actors_advice(e)[0].upper()}{actors_advice(e)[1:]}."
    return text + "Larger groups (fewer --num-groups) move more rows at once."


def _blocks_text(e: Evidence) -> str:
    return (
        f"Room in the sample stream limits this run: actors wait {percent(e.share('actor', 'wait_block'))} of their time for "
        f"blocks although {learner_waits_text(e)}. Raise --actor.blocks-per-group, or use larger batches."
    )


def _joining_text(e: Evidence) -> str:
    return (
        f"Joining rows into batches limits this run: the thread that does it works "
        f"{percent(e.share('learner', 'prefetch_transport'))} of its time and {learner_waits_text(e)}. Smaller observations "
        "help (uint8 instead of float32), or fewer and longer trajectories (--rollout-length)."
    )


def _balanced_text(e: Evidence) -> str:
    return (
        f"Nothing stands out: the learner works {percent(1 - e.learner_waits)} of its time, actors step environments "
        f"{percent(e.share('actor', 'env'))} and wait {percent(_actor_waits(e))} of theirs; {cores_text(e)}."
    )


def _actor_waits(e: Evidence) -> float:
    return e.share("actor", "wait_inference", "wait_params", "wait_block")


def _mostly(e: Evidence, *activities: str) -> bool:
    """Return whether actors spend most of their time in one of some activities."""
    own = e.shares.get("actor", {})
    rest = [share for activity, share in own.items() if activity not in activities]
    return bool(own) and e.share("actor", *activities) >= max(rest, default=0.0)


def _starved(e: Evidence) -> bool:
    return e.learner_waits >= WAITS


def _alternating(e: Evidence) -> bool:
    lost = min(_actor_waits(e), e.learner_waits)
    waits_for_params = e.share("inference", "wait_params") + e.share("actor", "wait_params")
    return e.facts.synchronous and not e.full and lost >= WAITS and waits_for_params >= 0.15


def _says_nothing(e: Evidence) -> str:
    return "The run was too short to say what limits it."


VERDICTS: tuple[Verdict, ...] = (
    ("unknown", _unknown, _says_nothing),
    ("publishing", lambda e: not _starved(e) and e.share("learner", "publish", "snapshot") >= 0.3, _publishing_text),
    ("updates", lambda e: not _starved(e), _learner_text),
    ("joining", lambda e: e.share("learner", "prefetch_transport") >= 0.7, _joining_text),
    ("alternating", _alternating, _alternating_text),
    ("environments", lambda e: _mostly(e, "env"), _environments_text),
    ("acting", lambda e: _mostly(e, "act"), _acting_text),
    ("crowded", lambda e: e.full and e.others > e.cores_used, _crowded_text),
    ("machine", lambda e: e.full, _machine_text),
    (
        "inference",
        lambda e: _mostly(e, "wait_inference") and e.share("inference", "act", "transport") >= 0.6,
        _inference_text,
    ),
    ("latency", lambda e: _mostly(e, "wait_inference"), _latency_text),
    ("room", lambda e: _mostly(e, "wait_block"), _blocks_text),
    ("transport", lambda e: _mostly(e, "transport"), _transport_text),
    ("balanced", lambda e: True, _balanced_text),
)


def _turns(e: Evidence) -> Sequence[tuple[str, float]]:
    """Return who does what for how much of the one process's time, largest first."""
    entries = [
        (WORK[activity], share)
        for kind, own in e.shares.items()
        for activity, share in own.items()
        if activity in WORK and kind != "evaluator"
    ]
    entries.append(("evaluating", e.share("evaluator", "env", "act", "publish", "other")))
    return sorted(entries, key=lambda entry: -entry[1])


WORK = {"env": "stepping environments", "act": "acting", "update": "updates", "transport": "moving rows"}


def _serial_text(e: Evidence) -> str:
    turns = [f"{what} {percent(share)}" for what, share in _turns(e) if share >= 0.01]
    text = f"This run is serial, one process that does everything in turn: {', '.join(turns)}."
    cores = e.facts.cores
    if cores == 1:
        return text + f" On one core, only cheaper {_turns(e)[0][0]} would help."
    return text + f" It uses one of {cores} cores; --placement inline or served uses the others."


SERIAL: tuple[Verdict, ...] = (
    ("unknown", _unknown, _says_nothing),
    ("serial", lambda e: True, _serial_text),
)
