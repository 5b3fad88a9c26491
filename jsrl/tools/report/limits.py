"""What limits a run: facts of the experiment and the machine, measured means, and the first verdict that fits them.

The kind of worker that waits least is the limit, unless all cores are busy: then the machine is. CPU time distinguishes
environments that compute from environments that wait.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from jsrl.services.metrics.display_state import percent
from jsrl.tools.report.signs import known_advice
from jsrl.workers.kinds import OWN, Kind, named_kinds

FULL = 0.85  # share of the cores above which no process fits
MOST_LOAD = 2.0  # processes per core that run or wait for a core; above it, each waits half of the time
LEAST_CPU = 0.25  # of the time in which a worker computes; with less it waits for a core
ROOM_CORES = 0.5  # free cores, so that another process would be worth starting
WAITS = 0.25  # a worker that waits for less than this share of its time is busy
MORE = 0.05  # by this share the learner waits longer than actors, if they limit it
WAITS_OF_ACTORS = ("wait_inference", "wait_params", "wait_block")
ALONE = ("learner", "evaluator", "video-recorder", "parameter-server")  # kinds of which a run has one worker
WORK = {"env": "stepping environments", "act": "acting", "update": "updates", "transport": "moving rows"}
LARGER_GROUPS = (
    "fewer, larger groups act in larger batches (--num-groups, --num-envs); --placement served acts once for all actors"
)
CHEAPER_UPDATES = (
    "fewer --agent.num-epochs",
    "fewer --replay.updates-per-env-step",
    "a smaller --replay.batch-size",
    "a smaller network",
    "a larger batch of rows (--batch-envs, --num-envs)",
)


@dataclass(frozen=True)
class RunSetup:
    """The facts of an experiment and its machine that advice depends on.

    Attributes:
      processes: workers have processes of their own. cores: that it may use. actors: processes.
      servers: inference servers. synchronous: max_policy_lag is 0. zeromq: rows go over sockets on one machine.
      accelerators: on this machine. more_actors: larger numbers of actors that divide the groups, ascending.
      more_groups: the next valid number of groups, None: there is none. recorded: a recording is read, without actors.
      options: names of the run's options. hosts: of actors, other than the learner's.
    """

    processes: bool = True
    cores: int = 1
    actors: int = 1
    servers: int = 1
    synchronous: bool = False
    zeromq: bool = False
    accelerators: int = 0
    more_actors: tuple[int, ...] = ()
    more_groups: int | None = None
    recorded: bool = False
    options: frozenset[str] = frozenset()
    hosts: tuple[str, ...] = ()


class Bottleneck(NamedTuple):
    """What limits a run: `kind` names the verdict (for programs), `text` explains it and what would help."""

    kind: str
    text: str


def find_bottleneck(metrics: Mapping[str, float], facts: RunSetup, kinds: Iterable[Kind] | None = None) -> Bottleneck:
    """Return what limits a run.

    Args:
      metrics: means over its steady part, by full name (`actor/env_share`, `system/actor_cpu_share`, ...).
      facts: of the experiment and the machine. kinds: of the run's workers; None: jsrl's own.
    """
    e = Evidence(metrics, facts, named_kinds() if kinds is None else kinds)
    if "fused" in e.shares and "learner" not in e.shares:
        share = percent(e.share("fused", "update"))
        return Bottleneck(
            "fused", f"Environments, acting and updates are one compiled program; it runs {share} of the time."
        )
    if "learner" not in e.shares or ("actor" not in e.shares and not facts.recorded):
        return Bottleneck("unknown", "There are too few measurements to say what limits this run.")
    if not facts.processes:
        return Bottleneck("serial", _serial_text(e))
    verdict = next(one for one in VERDICTS if one.applies(e))
    advice = verdict.advice if isinstance(verdict.advice, str) else verdict.advice(e)
    help_text = f" {advice[0].upper()}{advice[1:]}." if advice else ""
    return Bottleneck(verdict.name, f"{verdict.facts.format_map(e)}; {e.cores_text}.{help_text}")


class Evidence:
    """A run's means; values that are not finite are left out.

    Attributes:
      shares: kind of worker -> activity -> share of time. cpu: kind -> CPU time of all its workers, in cores.
    """

    def __init__(self, metrics: Mapping[str, float], facts: RunSetup, kinds: Iterable[Kind]) -> None:
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        self.facts, self.kinds = facts, {kind.name: kind for kind in kinds}
        self.shares: dict[str, dict[str, float]] = {}
        self.cpu: dict[str, float] = {}
        for name, kind in self.kinds.items():
            own = {a.name: finite[f"{kind.prefix}/{a.name}_share"] for a in kind.all_activities
                   if f"{kind.prefix}/{a.name}_share" in finite}  # fmt: skip
            if own:
                self.shares[name] = own
            if f"system/{kind.prefix}_cpu_share" in finite:
                self.cpu[name] = finite[f"system/{kind.prefix}_cpu_share"]
        self.cores_used = sum(self.cpu.values())
        self.others = min(finite.get("system/others_cpu_share", 0.0), float(facts.cores))  # CPU time of other programs
        self.load = finite.get("system/load", 0.0)  # processes that run or wait for a core; 0: not known

    def share(self, kind: str, *activities: str) -> float:
        """Return the share of time of some activities of a kind of worker; 0 if nothing was reported."""
        return sum(self.shares.get(kind, {}).get(activity, 0.0) for activity in activities)

    def __getitem__(self, name: str) -> str:
        """Return what stands for `{name}` in a text; of `{kind/activity+activity}` the share of time."""
        kind, slash, activities = name.partition("/")
        if slash:
            return percent(self.share(kind, *activities.split("+")))
        takers = (
            f"{f'the {self.kinds[name].title}' if name in ALONE else self.kinds[name].plural} {cores:.1f}"
            for name, cores in self.takers
        )
        own, works = self.busiest_own
        return {
            "waits": f"the learner waits {percent(self.learner_waits)} of its time for batches",
            "actors_wait": percent(self.actors_wait),
            "idle_actors": "" if self.facts.recorded else f" and actors wait {percent(self.actors_wait)} of theirs",
            "hosts": ", ".join(self.facts.hosts),
            "cores": str(self.facts.cores),
            "cores_used": f"{self.cores_used:.1f}",
            "takers": ", ".join(takers),
            "own_works": f"{self.kinds[own].plural} work {percent(works)}" if own else "",
        }[name]

    @property
    def crowded(self) -> bool:
        """Return whether processes wait for cores: by the load, or because workers that compute get little CPU time."""
        computes = (("learner", "update", 1), ("inference", "act", self.facts.servers))
        hungry = not (self.facts.accelerators or self.facts.hosts) and any(
            kind in self.cpu and self.cpu[kind] < LEAST_CPU * self.share(kind, work) * count
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
        return self.share("learner", "wait_batch")

    @property
    def actors_wait(self) -> float:
        return self.share("actor", *WAITS_OF_ACTORS)

    @property
    def starved(self) -> bool:
        """Return whether others limit the learner: it waits long, or longer than actors do."""
        acting = "actor" in self.shares and not self.facts.recorded
        return self.learner_waits >= WAITS or (acting and self.learner_waits > self.actors_wait + MORE)

    @property
    def busiest_own(self) -> tuple[str, float]:
        """Return the user's kind that waits least, and the share of its time in which it works."""
        works = {
            name: sum(own.get(a.name, 0.0) for a in kind.shown.activities if a.phase not in ("wait", "other"))
            for name, own in self.shares.items()
            if name not in OWN and (kind := self.kinds[name]).reads_samples
        }
        return max(works.items(), key=lambda entry: entry[1], default=("", 0.0))

    def mostly(self, *activities: str) -> bool:
        """Return whether actors spend most of their time with these activities."""
        own = self.shares.get("actor", {})
        rest = [share for activity, share in own.items() if activity not in activities]
        return bool(own) and self.share("actor", *activities) >= max(rest, default=0.0)

    @property
    def takes_turns(self) -> bool:
        """Return whether learner and actors wait for each other, as a synchronous run lets them."""
        waits_for_params = self.share("inference", "wait_params") + self.share("actor", "wait_params")
        waits = min(self.actors_wait, self.learner_waits)
        return self.facts.synchronous and not self.full and waits >= WAITS and waits_for_params >= 0.15

    @property
    def shares_cores(self) -> bool:
        return self.full and self.actors_wait >= WAITS

    @property
    def cores_text(self) -> str:
        cores = self.facts.cores
        if not self.cpu:
            return f"this machine has {cores} core{'s' if cores > 1 else ''}"
        others = f" (other programs take {self.others:.1f})" if self.others >= 0.15 * cores else ""
        others += f" (load {self.load:.0f})" if self.load >= MOST_LOAD * cores else ""
        if self.full:
            busy = {1: "the one core is busy", 2: "both cores are busy"}
            return busy.get(cores, f"all {cores} cores are busy") + others
        return f"{self.cores_used:.1f} of {cores} cores are used{others}"

    @property
    def takers(self) -> list[tuple[str, float]]:
        """Return the three kinds of workers that take most CPU time, with it."""
        return sorted(self.cpu.items(), key=lambda entry: -entry[1])[:3]


def _serial_text(e: Evidence) -> str:
    turns = {"evaluating": e.share("evaluator", "env", "act", "publish", "other")}
    for kind, own in e.shares.items():
        for activity, share in own.items() if kind not in ("evaluator", "video-recorder") else ():
            if activity in WORK:
                turns[WORK[activity]] = turns.get(WORK[activity], 0.0) + share
    shares = [(what, share) for what, share in sorted(turns.items(), key=lambda entry: -entry[1]) if share >= 0.01]
    rest = 1.0 - sum(share for _, share in shares)
    texts = [f"{what} {percent(share)}" for what, share in [*shares, *([("other", rest)] if rest >= 0.01 else [])]]
    return f"This run is serial, one process that does everything in turn: {', '.join(texts)}."


# -- advice: what would help; empty: nothing ----------------------------------------------------------------------------


def _more_actors(e: Evidence) -> str:
    """Return an option with a number of actors that would help."""
    facts = e.facts
    free = facts.cores - e.cores_used - e.others
    per_actor = e.cpu.get("actor", 0.0) / max(facts.actors, 1)
    room_for = facts.actors + max(1, int(free / max(per_actor, 0.1)))
    enough = math.ceil(facts.actors / max(1.0 - e.learner_waits, 0.05))  # more than the learner can use does not help
    fitting = [n for n in facts.more_actors if n <= min(room_for, enough)]
    if facts.more_actors:
        return f"raise --num-actors to {(fitting or facts.more_actors[:1])[-1]}"
    return "raise --num-envs, so that there are groups for more --num-actors"


def _cheaper_updates(e: Evidence) -> str:
    if e.facts.accelerators > 1:
        return "more devices help (--learner.num-devices), then a larger batch"
    cheaper = ", ".join(known_advice(CHEAPER_UPDATES, e.facts.options))
    if e.facts.accelerators or e.room:
        return f"cheaper updates help: {cheaper}"
    return f"only cheaper updates help: {cheaper}, or an accelerator"


def _faster_stepping(e: Evidence) -> str:
    if e.full and e.others > e.cores_used:
        return "on an idle machine they would run faster"
    if e.full:
        return "more actors will not help here; a faster environment would (--env.backend, fewer wrappers)"
    if e.cpu and e.cpu.get("actor", 0.0) / max(e.facts.actors, 1) < 0.5 * e.share("actor", "env"):
        return f"the environments wait rather than compute: {_more_actors(e)}"
    serves = e.share("inference", "act", "transport")
    if serves >= 1 - WAITS / 2 and e.share("actor", "wait_inference") >= WAITS:
        return (
            f"acting is the next limit, at {percent(serves)} of the servers' time: raise --num-inference-servers to "
            f"{e.facts.servers + 1}, then --num-actors"
        )
    return _more_actors(e)


def _on_idle_machine(e: Evidence) -> str:
    waits = e.share("actor", "wait_inference")
    inline = "; --placement inline acts in every actor" if waits >= WAITS and not e.facts.accelerators else ""
    return f"on an idle machine it would be faster{inline}"


def _cheaper_work(e: Evidence) -> str:
    """Return what would take less of a full machine, by the kind of worker that takes most of it."""
    first = e.takers[0][0]
    if first == "evaluator" or e.cpu.get("evaluator", 0.0) > 0.2 * e.facts.cores:
        help_text = "a larger --evaluator.period-env-steps or fewer --evaluator.episodes would"
    elif first == "video-recorder":
        help_text = "a larger --video.period-env-steps or a larger --video.niceness would"
    elif first == "actor" and e.facts.actors > 2 * e.facts.cores:
        help_text = "fewer --num-actors, with more environments each, would share the cores better"
    elif first == "learner":
        help_text = f"cheaper updates would: {', '.join(known_advice(CHEAPER_UPDATES, e.facts.options))}"
    else:
        known = {
            "actor": "cheaper environments or acting would",
            "inference": "a smaller network, or larger inference batches (more slots per group), would",
            "parameter-server": "larger batches would, which publish less often (--batch-envs, --rollout-length)",
        }
        help_text = known.get(first, f"fewer {e.kinds[first].plural} would")
    return f"more processes will not help here; {help_text}"


def _faster_serving(e: Evidence) -> str:
    servers = e.facts.servers
    if e.room and e.facts.actors > servers:
        return f"try --num-inference-servers {servers + 1}, or --placement inline for a small network"
    if e.room:
        return "try --placement inline, which acts in every actor, or --inference.threads 2 for a large network"
    return "a smaller network or larger groups (fewer --num-groups) make acting cheaper; so does an accelerator"


def _more_at_once(e: Evidence) -> str:
    """Return an option that puts more groups of environments into each actor."""
    if e.facts.more_groups is not None:
        groups = f"--num-groups {e.facts.more_groups} gives each actor more groups, so that one steps while others wait"
    else:
        groups = "more --num-envs in more groups keep each actor busy while it waits"
    return f"{groups}; {_more_actors(e)}"


def _faster_moving(e: Evidence) -> str:
    if e.facts.zeromq:
        return "--transport shared-memory is faster on one machine"
    return _more_actors(e) if e.room else "larger groups (fewer --num-groups) move more rows at once"


def _more_replay(e: Evidence) -> str:
    if not e.room:
        return "smaller observations or batches (--replay.batch-size) would help"
    draws = e.share("replay", "draw", "draw_draw") > e.share("replay", "insert")
    return "raise --replay.threads" if draws else "raise --replay.num-replays"


# -- verdicts: the first one that applies --------------------------------------------------------------------------------


class Verdict(NamedTuple):
    """What is said is `facts; cores. Advice.`, with numbers of the evidence in braces."""

    name: str
    applies: Callable[[Evidence], bool]
    facts: str
    advice: str | Callable[[Evidence], str]


VERDICTS = (
    Verdict(
        "publishing",
        lambda e: not e.starved and e.share("learner", "publish", "snapshot") >= 0.3,
        "Publishing limits this run: the learner spends {learner/publish+snapshot} of its time handing out params and "
        "snapshots",
        "larger batches publish less often (--batch-envs, --rollout-length), and so does a longer --snapshots.period-s",
    ),
    Verdict(
        "updates",
        lambda e: not e.starved,
        "Updates limit this run: the learner trains {learner/update} of its time "
        "({learner/update+publish+snapshot+transport} with publishing){idle_actors}",
        _cheaper_updates,
    ),
    Verdict(
        "stage",
        lambda e: e.busiest_own[1] >= 0.7,
        "Workers of a kind of your own limit this run: {own_works} of their time and {waits}",
        lambda e: "put more of them into the graph: graph.scale(NAME, COUNT)" if e.room else "cheaper work would help",
    ),
    Verdict(
        "replay",
        lambda e: max(e.share("replay", "draw_draw"), e.share("replay", "insert", "draw")) >= 0.7,
        "Replay limits this run: it writes rows for {replay/insert} of its time, draws batches for {replay/draw+draw_draw}, "
        "and {waits}",
        _more_replay,
    ),
    Verdict(
        "joining",
        lambda e: e.share("learner", "prefetch_transport") >= 0.7,
        "Joining rows into batches limits this run: its thread works {learner/prefetch_transport} of its time and {waits}",
        "smaller observations help (uint8 instead of float32), or fewer and longer trajectories (--rollout-length)",
    ),
    Verdict(
        "recording",
        lambda e: e.facts.recorded,
        "Reading the recording limits this run: {waits}",
        "smaller observations or a faster disk would help",
    ),
    Verdict(
        "alternating",
        lambda e: e.takes_turns,
        "Taking turns limits this run: with --max-policy-lag 0 actors wait {actors_wait} of their time while the learner "
        "trains, and {waits} while they step",
        "--max-policy-lag 1 lets both go on at once",
    ),
    Verdict(
        "link",
        lambda e: bool(e.facts.hosts) and e.share("actor", "wait_block") >= WAITS,
        "The network limits this run: actors on {hosts} wait {actors_wait} of their time, {actor/wait_block} until rows have "
        "left, and {waits}",
        "send fewer bytes: smaller observations (uint8 instead of float32), --compress, or actors on the learner's host",
    ),
    Verdict(
        "environments",
        lambda e: e.mostly("env") and not e.shares_cores,
        "Environments limit this run: actors spend {actor/env} of their time stepping and {waits}",
        _faster_stepping,
    ),
    Verdict(
        "acting",
        lambda e: e.mostly("act") and not e.shares_cores,
        "Acting limits this run: actors spend {actor/act} of their time choosing actions and {waits}",
        lambda e: _more_actors(e) if e.room else LARGER_GROUPS,
    ),
    Verdict(
        "crowded",
        lambda e: e.full and max(e.others, e.facts.cores / 2) > e.cores_used,
        "Other programs limit this run: it gets {cores_used} of {cores} cores, and its workers wait for a core",
        _on_idle_machine,
    ),
    Verdict(
        "machine",
        lambda e: e.full,
        "The machine limits this run: {takers}",
        _cheaper_work,
    ),
    Verdict(
        "inference",
        lambda e: e.mostly("wait_inference") and e.share("inference", "act", "transport") >= 0.6,
        "Inference limits this run: servers act {inference/act+transport} of the time, actors wait {actor/wait_inference} of "
        "theirs for actions and {waits}",
        _faster_serving,
    ),
    Verdict(
        "latency",
        lambda e: e.mostly("wait_inference"),
        "Round trips limit this run: actors wait {actor/wait_inference} of their time for actions while the server has "
        "nothing to do for {inference/wait} of its own",
        _more_at_once,
    ),
    Verdict(
        "room",
        lambda e: e.mostly("wait_block"),
        "Room in the sample stream limits this run: actors wait {actor/wait_block} of their time for blocks although {waits}",
        "raise --actor.blocks-per-group, or use larger batches",
    ),
    Verdict(
        "transport",
        lambda e: e.mostly("transport"),
        "Moving rows limits this run: actors spend {actor/transport} of their time writing rows and requests",
        _faster_moving,
    ),
    Verdict(
        "balanced",
        lambda e: True,
        "Nothing stands out: the learner waits {learner/wait_batch} of its time, actors step environments {actor/env} and "
        "wait {actors_wait} of theirs",
        "",
    ),
)
