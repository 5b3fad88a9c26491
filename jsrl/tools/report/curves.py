"""The charts of a run's report, chosen by the names of its metrics: learning, algorithm, machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from jsrl.graph.graph_file import kinds_of
from jsrl.services.metrics.catalogue import Metric
from jsrl.services.metrics.phases import PHASES, of_main_thread
from jsrl.services.runs.curves import curve_of, scores_of
from jsrl.tools.report.charts import SMALL, Series, chart
from jsrl.tools.report.run_report import RunReport, of_policy
from jsrl.workers.actor.kind import KIND as ACTOR
from jsrl.workers.kinds import OWN, Kind, kind_metrics
from jsrl.workers.learner.kind import KIND as LEARNER
from jsrl.workers.learner.kind import MEASURED

FIRST = "first policy"
KNOWN = {metric.name: metric for metric in kind_metrics(LEARNER)}
NO_UNITS = ("-", "0-1", "<= 1", "count")
TITLES = {  # metrics whose names are abbreviations
    "approx_kl": "approximate KL divergence",
    "grad_norm": "gradient norm",
    "loss_policy": "policy loss",
    "loss_value": "value loss",
}
STEPS, SECONDS = "env steps", "seconds"
# index of a curve's colour, as in the bars of the table: see page.STYLE
COLOURS = {"infer": 0, "transport": 1, "simulate": 2, "publish": 3, "train": 4, "wait": 5, "other": 6}


def learning(report: RunReport) -> list[str]:
    returns = []
    for policy in report.policies:
        of = f" of {policy}" if policy else ""
        returns += _with_interval(report, policy, f"evaluation{of}")
        returns += _curves(report, {f"training{of}": _named(policy, "actor/return_mean")})
    lengths = {policy or FIRST: _named(policy, "actor/length_mean") for policy in report.policies}
    wins = {policy or FIRST: _named(policy, "evaluator/win_rate") for policy in report.policies}
    drawn = [
        chart("Win rate against named opponents", STEPS, _curves(report, wins), x_range=_steps(report)),
        chart("Return of an episode", STEPS, returns, x_range=_steps(report)),
        chart("Length of an episode in training, steps", STEPS, _curves(report, lengths), x_range=_steps(report)),
    ]
    return [one for one in drawn if one]


def algorithm(report: RunReport) -> str:
    """Return a small chart for every metric that the updates, or the episodes of a user's environments, report."""
    return _small_charts(report, {LEARNER: MEASURED, ACTOR: ACTOR.shown.metrics})


def own_workers(report: RunReport) -> str:
    """Return a small chart for every metric that a user's kinds of workers report."""
    own = {kind: () for kind in kinds_of(report.folder) if kind.name not in OWN}
    return _small_charts(report, own, "{0.title}: ")


def _small_charts(report: RunReport, kinds: Mapping[Kind, Iterable[Metric]], begin: str = "") -> str:
    """Return a chart over env steps for each metric of some kinds, but for those measured; known ones have a hint."""
    columns = [name for policy in report.policies for name in of_policy(report.columns, policy)]
    drawn = []
    for kind, measured in kinds.items():
        known = {metric.name: metric for metric in kind_metrics(kind)}
        for name in dict.fromkeys(algorithm_metrics(columns, kind, measured)):
            series = _curves(report, {policy or FIRST: _named(policy, name) for policy in report.policies})
            hint = f"{known[name].meaning}; healthy: {known[name].healthy}" if name in known else name
            title = begin.format(kind) + title_of(name, known)
            drawn.append(chart(title, STEPS, series, x_range=_steps(report), size=SMALL, hint=hint))
    charts = "".join(drawn)
    return f'<div class="grid3">{charts}</div>' if charts else ""


def algorithm_metrics(names: Iterable[str], kind: Kind, measured: Iterable[Metric]) -> list[str]:
    """Return the metrics of a kind of worker that come from its algorithm, not from the worker or its time accounting."""
    own = {f"{kind.prefix}/{metric.name}" for metric in measured}
    own |= {f"{kind.prefix}/{activity.name}_share" for activity in kind.all_activities}
    return [name for name in names if name.startswith(f"{kind.prefix}/") and name not in own]


def title_of(name: str, known: dict[str, Metric] = KNOWN) -> str:
    """Return the title of a metric's chart: `learner/loss_value` is `Value loss, reward²`."""
    unit = known[name].unit.replace("^2", "²") if name in known else "-"
    own = name.partition("/")[2]
    words = TITLES.get(own) or own.replace("_", " ")
    return words[:1].upper() + words[1:] + (f", {unit}" if unit not in NO_UNITS else "")


def machine(report: RunReport) -> list[str]:
    """Return the charts of rates, lag, CPU time and memory for which there are numbers."""
    kinds = kinds_of(report.folder)
    cores = {kind.plural: f"system/{kind.prefix}_cpu_share" for kind in kinds} | {
        "other programs": "system/others_cpu_share"
    }
    memory = {kind.plural: f"system/{kind.prefix}_rss_mb" for kind in kinds}
    drawn = [
        chart("Env steps per second", SECONDS, _rates(report), from_zero=True),
        chart("Policy lag, updates", STEPS, _lags(report), from_zero=True, x_range=_steps(report)),
        chart("CPU, cores", SECONDS, _over_time(report, cores), from_zero=True),
        chart("Resident memory, MB", SECONDS, _over_time(report, memory), from_zero=True),
    ]
    return [one for one in drawn if one]


def _rates(report: RunReport) -> list[Series]:
    found: list[Series] = []
    for policy in report.policies:
        of = f" of {policy}" if policy else ""
        found += _over_time(report, {f"taken by actors{of}": _named(policy, "actor/env_steps_per_s")}, len(found))
        own = of_policy(report.columns, policy)
        if {"wall_s", "env_steps", "learner/update_share"} <= own.keys():
            reported = np.where(report.at_work, own["learner/update_share"], np.nan)
            found.append(_trained(f"trained{of}", own["wall_s"], own["env_steps"], reported, len(found)))
    return found


def _trained(name: str, wall_s: np.ndarray, env_steps: np.ndarray, reported: np.ndarray, index: int) -> Series:
    """Return env steps trained per second, from counter differences over several lines, because updates come in bursts."""
    lines = np.flatnonzero(np.isfinite(reported))
    apart = 3 if len(lines) > 12 else 1
    passed_s = wall_s[lines[apart:]] - wall_s[lines[:-apart]]
    steps = env_steps[lines[apart:]] - env_steps[lines[:-apart]]
    fine = (passed_s > 0) & (steps >= 0)
    return Series(name, wall_s[lines[apart:]][fine], steps[fine] / passed_s[fine], index=index)


def _lags(report: RunReport) -> list[Series]:
    """Return the lags of each policy; none if no row was ever old."""
    found: list[Series] = []
    for policy in report.policies:
        of = f" of {policy}" if policy else ""
        found += _curves(
            report, {f"{what}{of}": _named(policy, f"learner/policy_lag_{what}") for what in ("p50", "p95")}
        )
    return found if any(series.y.any() for series in found) else []


def shares_of_time(report: RunReport) -> str:
    """Return a chart for each kind of worker: shares of its time over the run."""
    at_work, drawn = report.at_work, []
    for worker in report.workers:
        names = {a.name: f"{worker.prefix}/{a.name}_share" for a in worker.kind.all_activities}
        columns = {activity: report.columns[name] for activity, name in names.items() if name in report.columns}
        lines = at_work & np.any([np.isfinite(column) for column in columns.values()], axis=0)
        phases = dict.fromkeys(PHASES, np.zeros(int(lines.sum())))
        for a in of_main_thread(worker.kind.all_activities):
            if a.name in columns:
                phases[a.phase] = phases[a.phase] + np.nan_to_num(columns[a.name][lines])
        wall_s = report.columns["wall_s"][lines]
        series = [Series(name, wall_s, y, index=COLOURS[name]) for name, y in phases.items() if y.any()]
        drawn.append(chart(f"Shares of time: {worker.name}", SECONDS, series, from_zero=True, size=SMALL))
    charts = "".join(drawn)
    return f'<h3>As the run went on</h3><div class="grid3">{charts}</div>' if charts else ""


def _named(policy: str, name: str) -> str:
    return f"{policy}/{name}" if policy else name


def _steps(report: RunReport) -> tuple[float, float]:
    """Return the common axis of env steps of all charts."""
    counted = [report.columns.get(_named(policy, "env_steps"), np.zeros(0)) for policy in report.policies]
    values = np.concatenate(counted)
    return 0.0, max(float(np.nanmax(values)) if np.isfinite(values).any() else 0.0, 1.0)


def _curves(report: RunReport, named: dict[str, str]) -> list[Series]:
    """Return curves over env steps: name -> metric; the index of each is its place, even if others are missing."""
    return [
        Series(name, *curve_of(report.columns, metric), index=index if len(named) > 1 else None)
        for index, (name, metric) in enumerate(named.items())
        if metric in report.columns
    ]


def _with_interval(report: RunReport, policy: str, name: str) -> list[Series]:
    scores = scores_of(report.columns, policy)
    low, high = (scores.return_mean + sign * scores.return_ci95 for sign in (-1, 1))
    return [Series(name, scores.env_steps, scores.return_mean, low, high)] if scores.env_steps.size else []


def _over_time(report: RunReport, named: dict[str, str], first: int = 0) -> list[Series]:
    """Return curves over the run's seconds: name -> metric."""
    lines = report.at_work
    return [
        Series(name, report.columns["wall_s"][lines], report.columns[metric][lines], index=first + index)
        for index, (name, metric) in enumerate(named.items())
        if metric in report.columns
    ]
