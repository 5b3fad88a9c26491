"""Simulation results as text, and as one HTML page with charts in the style of a run's report."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from jsrl.tools.report.charts import SMALL, Axis, Series, chart
from jsrl.tools.report.page import section, shell
from jsrl.tools.report.text import number, percent
from jsrl.tools.simulation.outcome import (
    CORES,
    ENVIRONMENTS,
    GPU,
    INFERENCE,
    INTO,
    OUT,
    ROUND_TRIPS,
    UPDATES,
    Outcome,
    lag_quantile,
)

FEWER_BYTES = "Fewer bytes help: smaller observations (uint8), --placement inline (no requests), or a faster network."
ADVICE = {
    CORES: "More cores help, or fewer CPU seconds per step: cheaper environments, larger groups (fewer --num-groups).",
    OUT: FEWER_BYTES,
    INTO: FEWER_BYTES,
    GPU: "Another accelerator helps, or one for inference alone (--placement apart).",
    UPDATES: "Cheaper updates help: fewer epochs, a smaller network, an accelerator. More actors do not.",
    INFERENCE: "Another server helps (--num-inference-servers), larger groups, or --placement inline.",
    ENVIRONMENTS: "More actors help (--num-actors), or faster environments.",
    ROUND_TRIPS: "More groups for each actor help (--num-groups), so that one steps while others wait, or a larger lag.",
}


def name_of(key: tuple[str, str]) -> str:
    what, where = key
    if what == CORES:
        return f"cores of {where}"
    if what in (OUT, INTO):
        return f"{'network out of' if what == OUT else 'network into'} {where}"
    return f"{what} of {where}" if where else what


def verdict(outcome: Outcome) -> str:
    """Return what limits the run, and what would help, as text."""
    key = outcome.bottleneck
    if key[0] == ROUND_TRIPS:
        return f"Nothing is busy for most of the time: waiting for each other limits this run. {ADVICE[ROUND_TRIPS]}"
    busy = percent(outcome.used[key])
    if key[0] == ENVIRONMENTS:
        return f"Environments limit this run: actors wait for nothing {busy} of their time. {ADVICE[ENVIRONMENTS]}"
    return f"{_limits(name_of(key))} this run: used {busy} of the time. {ADVICE[key[0]]}"


def _limits(name: str) -> str:
    singular = name.startswith(("network", "inference"))
    return f"{name[0].upper()}{name[1:]} limit{'s' if singular else ''}"


def summary(outcome: Outcome) -> str:
    """Return throughput, use of resources, lags and the bottleneck as text."""
    lines = [
        f"  {outcome.env_steps_per_s:,.0f} env steps/s trained, {outcome.updates_per_s:.3g} updates/s "
        f"(simulated {outcome.seconds:.0f} s)",
        f"  {verdict(outcome)}",
        "",
        "  used of the time:",
        *(f"    {name_of(key):<32}{percent(share):>6}" for key, share in by_use(outcome)),
        f"  actors: {_actors_text(outcome)}",
        f"  policy lag in updates: median {lag_quantile(outcome.lags, 0.5)}, p95 {lag_quantile(outcome.lags, 0.95)}, "
        f"largest {max(outcome.lags, default=0)}; {percent(outcome.dropped)} of the trajectories too old",
    ]
    if outcome.batch_rows:
        lines.append(f"  inference: {outcome.batch_rows:.1f} rows per batch")
    if outcome.deaths:
        lines.append(f"  {outcome.deaths} actors died and were replaced")
    return "\n".join(lines)


def by_use(outcome: Outcome) -> list[tuple[tuple[str, str], float]]:
    return sorted(outcome.used.items(), key=lambda entry: -entry[1])


def _actors_text(outcome: Outcome) -> str:
    own = {name: share for name, share in outcome.shares.items() if "/" not in name and share >= 0.005}
    return ", ".join(f"{name} {percent(share)}" for name, share in sorted(own.items(), key=lambda entry: -entry[1]))


def page(title: str, outcome: Outcome, notes: Sequence[str] = ()) -> str:
    """Return the results as a self-contained HTML page; `notes`: paragraphs below its title."""
    cards = [
        (number(outcome.env_steps_per_s), "env steps per second trained"),
        (number(outcome.updates_per_s), "updates per second"),
        (str(lag_quantile(outcome.lags, 0.95)), "policy lag, updates (p95)"),
    ]
    figures = "".join(f'<div class="card"><b>{escape(a)}</b><span>{escape(b)}</span></div>' for a, b in cards)
    paragraphs = "".join(f"<p>{escape(note)}</p>" for note in notes)
    parts = [
        f"<header><h1>{escape(title)}</h1><p>Simulated, not measured.</p>{paragraphs}</header>",
        f'<section class="cards">{figures}</section>',
        f'<section class="verdict"><h2>What limits it</h2><p>{escape(verdict(outcome))}</p></section>',
        section("How busy everything is", _bars(outcome)),
        section("Lag and speed", _lag_chart(outcome) + _rate_chart(outcome), "grid2"),
    ]
    return shell(title, "\n".join(part for part in parts if part))


def _bars(outcome: Outcome) -> str:
    rows = "".join(
        f'<tr><th>{escape(name_of(key))}</th><td>{percent(share)}</td><td class="bar"><div><i class="simulate" '
        f'style="width:{100 * min(share, 1.0):.1f}%"></i></div></td></tr>'
        for key, share in by_use(outcome)
    )
    return f'<table class="numbers"><tbody>{rows}</tbody></table>'


def _lag_chart(outcome: Outcome) -> str:
    total = sum(outcome.lags.values())
    if not total:
        return ""
    lags = np.arange(max(outcome.lags) + 2)
    shares = np.array([outcome.lags.get(int(lag), 0) / total for lag in lags])
    return chart(
        "share of trajectories by policy lag", "updates", [Series("share", lags, shares)], from_zero=True, size=SMALL
    )


def _rate_chart(outcome: Outcome) -> str:
    at = np.linspace(outcome.seconds / 10, outcome.seconds, len(outcome.rate))
    rate = Series("env steps/s", at, np.array(outcome.rate))
    return chart("env steps/s trained", "simulated seconds", [rate], from_zero=True, size=SMALL, axis=Axis())
