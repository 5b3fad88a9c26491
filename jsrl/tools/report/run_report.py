"""Content of a run's report, as a value, made from the files in the run's folder alone."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from jsrl.errors import ConfigError, JsrlError
from jsrl.experiment import Experiment
from jsrl.experiment.placements import PLACEMENTS, Placement
from jsrl.graph.graph_file import kinds_of, plain_graph, workers_of
from jsrl.graph.policies import folder_of
from jsrl.intervals import WIN_RATE, score_of, score_title
from jsrl.plain_files import read_plain
from jsrl.references.importing import import_target
from jsrl.references.reference import from_json
from jsrl.services.metrics.phases import by_phase
from jsrl.services.runs.curves import policies_in
from jsrl.services.runs.logs import messages_in
from jsrl.services.runs.runs import Run, RunFolder
from jsrl.services.runs.standings import StandingsTable, read_standings
from jsrl.services.runs.state import read_result, read_state
from jsrl.tools.report.limits import Bottleneck, RunSetup, find_bottleneck
from jsrl.tools.report.page import RUNS
from jsrl.tools.report.signs import learning_text
from jsrl.transport.ledger.legs import SAMPLES, read_legs
from jsrl.workers.actor.kind import KIND as ACTOR
from jsrl.workers.kinds import Kind, find_kind

PLAIN_TAGS = {"$tuple", "$dict", "$float", "$int"}
OWN_SETTINGS = re.compile(r"jsrl\.(experiment|agents|networks|directors)(\.\w+)*:[A-Z]\w*")
SEATS = re.compile(r"policies\.\w+\.seats")
MOST_WARNINGS, MOST_GROUPS, MOST_ACTORS = 50, 4, 128
FILES = ("result.json", "metrics.jsonl", "experiment.json", "environment.json", "trace.json", "report.txt")


@dataclass(frozen=True)
class WorkerTime:
    """Shares of time of one kind of worker, by activity and by phase; CPU time in cores, memory in MB.

    `policy`: of these workers, if the run has several; empty: the first one. CPU time and memory cover the workers of all
    policies together, and are left out if there are several.
    """

    kind: Kind
    count: int
    activities: dict[str, float]
    phases: dict[str, float]
    cpu: float | None
    rss_mb: float | None
    policy: str = ""

    @property
    def name(self) -> str:
        name = self.kind.title if self.count == 1 else f"{self.kind.plural} ({self.count})"
        return f"{name} of {self.policy}" if self.policy else name

    @property
    def prefix(self) -> str:
        return f"{self.policy}/{self.kind.prefix}" if self.policy else self.kind.prefix


@dataclass(frozen=True)
class RunReport:
    """Content of a report.

    Attributes:
      ended: the reason, or the state of a run without a result.
      steady: means of metrics over the lines between the first and the last (since the last resume), by name.
      rates: name -> per second. columns: the metrics of every line. ledger, legs: as in result.json.
      bottlenecks: what limits each policy's training; in serial runs the same for all. signs: of each policy that learned
        nothing, or lost it again: a text.
      standings: of the players, if a director assigns them.
      environment: command, commit, versions, hardware. options: the experiment's, by name.
      videos: path of each, relative to the folder -> its facts.
    """

    folder: Path
    name: str
    ended: str
    result: dict[str, Any]
    columns: dict[str, np.ndarray]
    steady: dict[str, float]
    rates: dict[str, float]
    workers: list[WorkerTime]
    bottlenecks: dict[str, Bottleneck]
    signs: dict[str, str]
    ledger: dict[str, Any]
    legs: dict[str, dict[str, Any]]
    environment: dict[str, Any]
    options: dict[str, Any]
    warnings: list[str] = field(default_factory=list)
    standings: StandingsTable | None = None
    videos: dict[str, str] = field(default_factory=dict)

    @property
    def error(self) -> str:
        """Return the error of a failed run, whose first line says what happened."""
        return str(self.result.get("error", ""))

    @property
    def policies(self) -> list[str]:
        """Return the policies of the run; the first one is called ""."""
        return list(self.bottlenecks)

    @property
    def at_work(self) -> np.ndarray:
        """Return the lines written during the run, as a mask: the last line of a run that ended is not one of them."""
        mask = np.ones(len(self.columns.get("env_steps", ())), bool)
        if self.result:
            mask[-1:] = False
        return mask

    def last(self, name: str) -> float | None:
        values = self.columns.get(name, np.zeros(0))
        finite = values[np.isfinite(values)]
        return float(finite[-1]) if finite.size else None

    @property
    def training_s(self) -> float:
        """Return the seconds, over all resumes, at which the last line before the last update was written."""
        updates, wall_s = (self.columns.get(name, np.zeros(0)) for name in ("updates", "wall_s"))
        before = wall_s[updates < updates.max(initial=0)]
        return float(before[-1]) if before.size else 0.0

    @property
    def since_resume_s(self) -> float | None:
        """Return the seconds since the last resume; None: the run was not resumed, or has no result."""
        wall_s = self.result.get("wall_s")
        return wall_s if wall_s is not None and self.training_s > wall_s + 2 else None

    @property
    def whole_s(self) -> float:
        """Return the seconds of the run, over all resumes."""
        wall_s = self.result.get("wall_s") if self.since_resume_s is None else None
        return wall_s or self.last("wall_s") or 0.0

    @property
    def score(self) -> tuple[str, float, float | None] | None:
        """Return (title, mean return, half of its 95% interval) of the final evaluation, else of the newest one.

        Before any evaluation it is the return in training, without an interval. None: there is no return yet.
        """
        facts = self.result.get("final") or self.result.get("evaluation") or {}
        if facts:
            half = (
                (facts["win_rate_high"] - facts["win_rate_low"]) / 2 if WIN_RATE in facts else facts.get("return_ci95")
            )
            return score_title(facts), score_of(facts), half
        if (value := self.last("evaluator/win_rate")) is not None:
            return "win rate, newest evaluation", value, None
        if (value := self.last("evaluator/return_mean")) is not None:
            return "return, newest evaluation", value, self.last("evaluator/return_ci95")
        value = self.last("actor/return_mean")
        return None if value is None else ("return in training", value, None)


def make_report(folder: RunFolder) -> RunReport:
    columns = Run(folder).metrics
    config, environment = folder.config, folder.environment
    result = read_result(folder.path)
    options = flat_options(config)
    facts, kinds = facts_of(derived(config), environment, options, hosts_of_actors(folder.path)), kinds_of(folder.path)
    means: dict[str, float] = {}
    found_rates: dict[str, float] = {}
    bottlenecks: dict[str, Bottleneck] = {}
    signs: dict[str, str] = {}
    standings = read_standings(folder.path)
    contested = standings is not None or len({options[name] for name in options if SEATS.fullmatch(name)}) > 1
    for policy in policies_in(columns):
        own = with_zero_shares(of_policy(columns, policy), kinds)
        lines = steady(own)
        own_means = _means(own, lines)
        if text := learning_text(own, options.keys(), contested=contested):
            signs[policy] = text
        bottlenecks[policy] = find_bottleneck(with_shared_workers(own_means, means), facts, kinds)
        means |= {f"{policy}/{name}": value for name, value in own_means.items()} if policy else own_means
        found_rates |= {_of(name, policy): value for name, value in rates(own, lines, own_means).items()}
    workers = worker_times(means, folder.path)
    if not facts.processes:
        bottlenecks = dict.fromkeys(bottlenecks, find_bottleneck(of_process(workers), facts, kinds))
    legs = _legs(folder.path, result)
    return RunReport(
        folder=folder.path,
        name=folder.name,
        ended=how_it_ended(folder.path),
        result=result,
        columns=columns,
        steady=means,
        rates=found_rates,
        workers=workers,
        bottlenecks=bottlenecks,
        signs=signs,
        ledger=legs.pop(SAMPLES, {}),
        legs=legs,
        environment=environment,
        options=options,
        warnings=_warnings(folder.logs / "controller.log"),
        standings=standings,
        videos=_videos(folder.path),
    )


def linked_files(run: Path) -> list[str]:
    """Return the paths of the files that a run's page may link, relative to the run's folder."""
    return [*FILES, *_videos(run)]


def _videos(run: Path) -> dict[str, str]:
    """Return path relative to the run's folder -> caption of each of its videos."""
    if not RunFolder(run).videos.exists():
        return {}
    found: dict[str, str] = import_target("jsrl.services.recordings.video_shelf:captions")(run)
    return found


def with_zero_shares(columns: dict[str, np.ndarray], kinds: Iterable[Kind]) -> dict[str, np.ndarray]:
    """Return a policy's columns, with 0 for the share of an activity in lines before its first time in the last session."""
    found, start = dict(columns), last_session(columns)
    for kind in kinds:
        names = [name for a in kind.all_activities if (name := f"{kind.prefix}/{a.name}_share") in columns]
        known = {name: np.isfinite(columns[name][start:]) for name in names}
        reported = np.any(list(known.values()), axis=0)
        for name, finite in known.items():
            found[name] = columns[name].copy()
            found[name][start:][reported & ~np.maximum.accumulate(finite)] = 0.0
    return found


def with_shared_workers(own: Mapping[str, float], first: Mapping[str, float]) -> dict[str, float]:
    """Return a policy's means; of actors and inference servers that work for all policies, those of the first one."""
    shared = ("actor/", "inference/")
    missing = tuple(p for p in shared if not any(n.startswith(p) and n.endswith("_share") for n in own))
    return {name: value for name, value in first.items() if name.startswith(missing)} | dict(own)


def how_it_ended(path: Path) -> str:
    """Return why the run in a folder ended, or its state if there is no result."""
    if ended := read_result(path).get("ended"):
        return str(ended)
    state = read_state(path)
    if state.name == "silent":
        return f"no news from {state.process.host if state.process else 'its host'}"
    return RUNS if state.is_running else "killed (it left no result)"


def _means(columns: dict[str, np.ndarray], lines: np.ndarray) -> dict[str, float]:
    """Return the mean of each metric that has values in `lines`, which are of the last session."""
    start, wall_s = last_session(columns), columns.get("wall_s")
    means = {name: _mean(values, lines, wall_s, start) for name, values in columns.items()}
    return {name: value for name, value in means.items() if math.isfinite(value)}


def _mean(values: np.ndarray, lines: np.ndarray, wall_s: np.ndarray | None, start: int) -> float:
    """Return the mean of a metric's values in `lines`, each weighted with the seconds since the metric's value before.

    A learner reports nothing during an update, so its next line stands for more time than a line of an actor. Values
    before line `start` do not count: otherwise the shares of an activity that is new since a resume had other weights.
    """
    at = np.flatnonzero(np.isfinite(values))
    at = at[at >= start]
    if wall_s is None or len(at) < 2:
        weights = np.ones(len(at))
    else:
        weights = np.diff(wall_s[at], prepend=wall_s[at[0] - 1] if at[0] else 0.0).clip(0.0)
    at, weights = at[lines[at]], weights[lines[at]]
    if not at.size:
        return math.nan
    return float(np.average(values[at], weights=weights if weights.sum() > 0 else None))


# -- policies ---------------------------------------------------------------------------------------------------------


def of_policy(columns: Mapping[str, np.ndarray], policy: str) -> dict[str, np.ndarray]:
    """Return the columns of a policy and of the machine, under the names of the first policy."""
    if not policy:
        others = tuple(f"{other}/" for other in policies_in(columns) if other)
        return {name: column for name, column in columns.items() if not name.startswith(others)}
    shared = {name: column for name, column in columns.items() if name.startswith("system/") or name == "wall_s"}
    own = f"{policy}/"
    return shared | {name.removeprefix(own): column for name, column in columns.items() if name.startswith(own)}


def _of(name: str, policy: str) -> str:
    return f"{name} of {policy}" if policy else name


# -- numbers ----------------------------------------------------------------------------------------------------------


def steady(columns: dict[str, np.ndarray]) -> np.ndarray:
    """Return the lines that show steady work, as a mask.

    These are the lines since the last resume from the learner's second report, as the first one includes the start, to the
    last but one, as the last one includes the end. With fewer than three reports: all between them.
    """
    count = len(columns.get("updates", ()))
    reported = np.flatnonzero(np.isfinite(columns.get("learner/update_share", np.full(count, np.nan))))
    numbers = reported[reported >= last_session(columns)]
    mask = np.zeros(count, bool)
    if len(numbers):
        first, last = (numbers[1], numbers[-2]) if len(numbers) >= 3 else (numbers[0], numbers[-1])
        mask[first : last + 1] = True
    return mask


def last_session(columns: dict[str, np.ndarray]) -> int:
    """Return the first line since the last resume, or since the learner last continued from an older snapshot."""
    updates = columns.get("updates", np.zeros(0))
    nothing = np.full(len(updates), np.nan)
    resumed = np.flatnonzero(np.isfinite(columns.get("system/resumed", nothing)))
    reported = np.flatnonzero(np.isfinite(columns.get("learner/update_share", nothing)))
    falls = reported[1:][np.diff(updates[reported]) < 0]
    return max([0, *resumed[-1:], *falls[-1:]])


def rates(columns: dict[str, np.ndarray], lines: np.ndarray, means: dict[str, float]) -> dict[str, float]:
    """Return rates during steady work: trained env steps and updates, steps taken, rows answered."""
    found: dict[str, float] = {}
    at = columns.get("learner/trained_s", np.full(len(lines), np.nan))
    numbers = np.flatnonzero(np.isfinite(at) & lines)
    if len(numbers) < 2:
        numbers = np.flatnonzero(np.isfinite(at))
        numbers = numbers[numbers >= last_session(columns)]
    if len(numbers) >= 2 and at[numbers[-1]] > at[numbers[0]]:
        passed_s = at[numbers[-1]] - at[numbers[0]]
        for name, column in (("env steps trained", "env_steps"), ("updates", "updates")):
            found[name] = float(columns[column][numbers[-1]] - columns[column][numbers[0]]) / passed_s
    for name, metric in (("env steps taken", "actor/env_steps_per_s"), ("rows answered", "inference/rows_per_s")):
        if metric in means:
            found[name] = means[metric]
    return {name: value for name, value in found.items() if value >= 0}


def rates_of(columns: dict[str, np.ndarray]) -> dict[str, float]:
    """Return the rates of a run's first policy, as the summary at the end of the run shows them."""
    lines = steady(columns)
    return rates(columns, lines, _means(columns, lines))


def worker_times(means: dict[str, float], folder: Path) -> list[WorkerTime]:
    graph = plain_graph(folder)
    folders = {} if graph is None else {worker.name: folder_of(graph, worker) for worker in graph.workers}
    counts = Counter((find_kind(worker.kind).name, folders[worker.name]) for worker in workers_of(folder))
    times = []
    policies = list(dict.fromkeys(["", *folders.values()]))
    for policy, kind in ((policy, kind) for policy in policies for kind in kinds_of(folder)):
        prefix = f"{policy}/{kind.prefix}" if policy else kind.prefix
        names = {a.name: f"{prefix}/{a.name}_share" for a in kind.all_activities}
        shares = {activity: means[name] for activity, name in names.items() if name in means}
        if shares:
            used = [means.get(f"system/{kind.prefix}_{what}") for what in ("cpu_share", "rss_mb")]
            cpu, rss_mb = used if len(policies) == 1 else (None, None)
            phases = by_phase(kind.all_activities, shares)
            count = max(1, counts[kind.name, policy])
            times.append(WorkerTime(kind, count, shares, phases, cpu, rss_mb, policy))
    return times


def of_process(workers: Iterable[WorkerTime]) -> dict[str, float]:
    """Return the shares of a serial run's one process, by metric: sums over all workers of a kind, which take turns."""
    total: defaultdict[str, float] = defaultdict(float)
    for of_kind in workers:
        for activity, share in of_kind.activities.items():
            total[f"{of_kind.kind.prefix}/{activity}_share"] += share * of_kind.count
    return dict(total)


def _legs(folder: Path, result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the ledgers of all legs: the result's, or without a result those on the run's pages."""
    if result.get("ledger"):
        return {SAMPLES: result["ledger"]} | result.get("legs", {})
    return {name: ledger.counts for name, ledger in read_legs(folder).items()}


# -- the experiment, as far as it can be read without the user's own code ----------------------------------------------


def derived(config: dict[str, Any]) -> Experiment | None:
    """Return the experiment without agent and environment, for its derived numbers; None if it is invalid.

    The file is only read: fields that name anything but jsrl's own settings have their defaults.
    """
    fields = config.get("fields", {})
    known = {f.name for f in dataclasses.fields(Experiment)} - {"agent", "env"}
    plain = {name: fields[name] for name in known if name in fields and _is_plain(fields[name])}
    try:
        return Experiment(agent=None, **{name: from_json(value) for name, value in plain.items()})
    except (JsrlError, TypeError, ValueError):  # written by another version
        return None


def _is_plain(value: Any) -> bool:
    """Return whether JSON values name nothing but jsrl's own settings, so that `from_json` runs no code of others."""
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if not isinstance(value, dict):
        return True
    named = [str(name) for tag, name in value.items() if tag.startswith("$") and tag not in PLAIN_TAGS]
    return all(map(OWN_SETTINGS.fullmatch, named)) and all(map(_is_plain, value.values()))


def hosts_of_actors(folder: Path) -> tuple[str, ...]:
    """Return the hosts of a run's actors, other than its controller's, by its last status."""
    status = read_state(folder).status
    workers = () if status is None else status.workers
    return tuple(sorted({worker.host for worker in workers if worker.kind == ACTOR.name} - {""}))


def facts_of(
    experiment: Experiment | None,
    environment: dict[str, Any],
    options: Mapping[str, Any],
    hosts: tuple[str, ...] = (),
) -> RunSetup:
    """Return the facts that advice depends on; options: of the run, by name. hosts: of its actors."""
    hardware = environment.get("hardware", {})
    cores, accelerators = int(hardware.get("cores", 1)), len(hardware.get("accelerators", ()))
    if experiment is None:
        placement = PLACEMENTS.get(str(options.get("placement")), Placement())
        return RunSetup(placement.processes, cores, accelerators=accelerators, options=frozenset(options))
    e = experiment
    most = min(MOST_ACTORS, max(2 * cores, 4 * e.actors))
    actors = range(e.actors + 1, most + 1) if e.where.processes else ()
    groups = [n * e.groups for n in range(2, MOST_GROUPS + 1)]
    return RunSetup(
        processes=e.where.processes,
        cores=cores,
        actors=e.actors,
        servers=e.num_inference_servers,
        synchronous=e.max_policy_lag == 0,
        zeromq=e.where.uses_zeromq,
        accelerators=accelerators,
        more_actors=tuple(n for n in actors if _works(e, num_actors=n)),
        more_groups=next((n for n in groups if _works(e, num_groups=n)), None),
        recorded=e.recording is not None,
        options=frozenset(options),
        hosts=hosts,
    )


def _works(experiment: Experiment, **changes: Any) -> bool:
    try:
        dataclasses.replace(experiment, **changes)
    except ConfigError:
        return False
    return True


def flat_options(value: Any, name: str = "") -> dict[str, Any]:
    """Return an experiment's JSON form as option name -> value."""
    parts: dict[str, Any] = {}
    if isinstance(value, dict) and "$type" in value and isinstance(value.get("fields"), dict):
        parts = {key.replace("_", "-"): inner for key, inner in value["fields"].items()}
    elif isinstance(value, dict) and all(isinstance(inner, dict) and "$type" in inner for inner in value.values()):
        parts = value  # such as policies, by name
    if parts:
        within = (flat_options(inner, f"{name}.{key}".lstrip(".")) for key, inner in parts.items())
        return {option: leaf for options in within for option, leaf in options.items()}
    if isinstance(value, dict) and set(value) == {"$tuple"}:
        return {name: ",".join(map(str, value["$tuple"]))}
    return {name: value if isinstance(value, str | int | float | None) else json.dumps(value)}


def _warnings(log: Path) -> list[str]:
    """Return the displayed warnings and errors."""
    try:
        lines = read_plain(log).decode(errors="replace").splitlines()
    except (OSError, ValueError):
        return []
    found = (message for message in messages_in(lines) if message.startswith(("warning: ", "error: ")))
    return list(dict.fromkeys(found))[:MOST_WARNINGS]
