"""A run's report as text: the summary at its end, and report.txt."""

from __future__ import annotations

import math

from jsrl.control.result import fitted, ledger_lines, other_lines, score_lines
from jsrl.services.metrics.display_state import games_text, percent
from jsrl.services.metrics.phases import of_main_thread
from jsrl.services.runs.standings import StandingsTable
from jsrl.services.runs.state import read_best
from jsrl.tools.report.run_report import RunReport, WorkerTime

MOST_PLAYERS = 12  # players of the payoff table: the best ones, and those that learn


def number(value: float | None) -> str:
    """Return a number as text: 12,345, 12.3, 0.0123; "-" for None."""
    if value is None or not math.isfinite(value):
        return "-"
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.3g}"


def summary(report: RunReport) -> str:
    """Return rates, where time went, lag and the bottleneck, one line each."""
    lines = [f"learning{f' of {policy}' if policy else ''}: {text}" for policy, text in report.signs.items()]
    if report.rates:
        lines.append(
            "rates while training: " + ", ".join(f"{number(value)} {name}/s" for name, value in report.rates.items())
        )
    if report.workers:
        lines.append("where time went:")
        lines += [f"  {worker_line(worker)}" for worker in report.workers]
    for policy, bottleneck in report.bottlenecks.items():
        of = f" of {policy}" if policy else ""
        if lag := lag_text(report, policy):
            lines.append(f"policy lag{of}: {lag}")
        if not policy or bottleneck != report.bottlenecks[""]:
            lines.append(f"bottleneck{of}: {bottleneck.text}")
    if games := games_text(report.last):
        lines.append(games)
    if report.standings is not None:
        lines += standings_lines(report.standings)
    return "\n".join(lines)


def standings_lines(table: StandingsTable) -> list[str]:
    shown = table.best(MOST_PLAYERS)
    names = [f"{player} {rating(shown, i)}" for i, player in enumerate(shown.players)]
    rest = len(table.players) - len(names)
    return [f"ratings (Elo with 95% intervals, mean 0): {', '.join(names)}" + (f", and {rest} others" if rest else "")]


def rating(table: StandingsTable, player: int) -> str:
    """Return the Elo rating of a player, by its place, with its interval."""
    half = table.half[player]
    return f"{table.elo[player]:+.0f}" + ("" if math.isnan(half) else f" ± {half:.0f}")


def worker_line(worker: WorkerTime) -> str:
    parts = []
    for phase, share in sorted(worker.phases.items(), key=lambda entry: -entry[1]):
        if share >= 0.005:
            parts.append(f"{phase} {percent(share)}" + (reasons(worker) if phase == "wait" else ""))
    taken = [] if worker.cpu is None else [f"{worker.cpu:.2f} cores"]
    taken += [] if worker.rss_mb is None else [f"{worker.rss_mb:,.0f} MB"]
    return f"{worker.name:<17} {', '.join(parts)}" + (f"; {', '.join(taken)}" if taken else "")


def reasons(worker: WorkerTime) -> str:
    waits = [a for a in of_main_thread(worker.kind.all_activities) if a.phase == "wait"]
    named = {a.waits_for or a.name: worker.activities.get(a.name, 0.0) for a in waits}
    named = {name: share for name, share in named.items() if share >= 0.005}
    if len(named) == 1:
        return f" ({next(iter(named))})"
    return " (" + ", ".join(f"{name} {percent(share)}" for name, share in named.items()) + ")" if named else ""


def lag_text(report: RunReport, policy: str) -> str:
    """Return the policy lag's median, 95th percentile and maximum, or an empty string."""
    prefix = f"{policy}/" if policy else ""
    lags = [report.steady.get(f"{prefix}learner/policy_lag_{what}") for what in ("p50", "p95")]
    if lags[0] is None or lags[1] is None:
        return ""
    column = report.columns[f"{prefix}learner/policy_lag_max"]
    most = max(value for value in column if math.isfinite(value))
    return f"p50 {number(lags[0])}, p95 {number(lags[1])}, largest {number(most)} updates"


def origin_lines(report: RunReport) -> list[tuple[str, str]]:
    """Return the facts needed to repeat the run: (name, value)."""
    facts = report.environment
    hardware = facts.get("hardware", {})
    commit = str(facts.get("commit") or "unknown") + (
        " with uncommitted changes" if facts.get("uncommitted_changes") else ""
    )
    machine = (
        f"{hardware.get('processor', '?')}, {hardware.get('cores', '?')} cores, {hardware.get('memory_gb', '?')} GB"
    )
    devices = ", ".join(hardware.get("accelerators", ())) or "no accelerator"
    packages = ", ".join(f"{name} {version}" for name, version in facts.get("packages", {}).items())
    return [
        ("command", str(facts.get("command", "?"))),
        ("started", str(facts.get("started", "?"))),
        ("commit", commit),
        ("machine", f"{machine}, {devices}"),
        ("versions", f"Python {facts.get('python', '?')}, {packages}"),
    ]


def outcome_lines(report: RunReport) -> list[tuple[str, str]]:
    """Return how the run ended and its results: (name, value)."""
    result = report.result
    env_steps = result.get("env_steps", report.last("env_steps"))
    updates, since_s = result.get("updates", report.last("updates")), report.since_resume_s
    again = "" if since_s is None else f" ({number(since_s)} s since it was resumed)"
    lines = [
        ("ended", report.ended + (f": {failure(report.error)[0]}" if report.error else "")),
        ("reached", f"{number(env_steps)} env steps, {number(updates)} updates in {number(report.whole_s)} s{again}"),
    ]
    scores = result or {"best": read_best(report.folder)}
    return [*lines, *score_lines(scores), *other_lines(result.get("others", {}))]


def failure(error: str) -> tuple[str, str]:
    """Return an error as (a sentence that says what happened; the rest: traceback, logs)."""
    first, _, rest = error.strip().partition("\n")
    return first, rest.strip("\n")


def document(report: RunReport) -> str:
    lines = [report.name, "=" * len(report.name), ""]
    lines += [fitted(f"{name}: {value}") for name, value in outcome_lines(report)]
    if rest := failure(report.error)[1]:
        lines += ["", rest]
    lines += ["", fitted(summary(report)), ""]
    lines += ledger_lines(report.ledger, report.legs) if report.ledger else ["ledger: none was written"]
    lines.append("")
    lines += [fitted(f"{name}: {value}") for name, value in origin_lines(report)]
    if report.warnings:
        lines += ["", *report.warnings]
    return "\n".join(lines) + "\n"
