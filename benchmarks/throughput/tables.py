"""The raw numbers of a benchmark as tables: a pure function of the JSON that it writes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.throughput.arithmetic import LIMIT_DEVICE_TEXT, LIMIT_TEXT, Spread, best, physical_limit, ratio, spread
from benchmarks.throughput.end_to_end import KINDS
from benchmarks.throughput.traffic import bytes_per_row, copies
from jsrl.errors import ConfigError

FORMAT = 2  # of the raw numbers
PARTS = ("environment", "inference", "update")
WIDTH = 168
NOTHING = "-"


def number(value: float, digits: int = 0) -> str:
    """Return a number as text."""
    return NOTHING if math.isnan(value) else f"{value:,.{digits}f}"


def ranged(found: Spread) -> str:
    """Return the range of repetitions."""
    return NOTHING if math.isnan(found.low) else f"{found.low:,.0f} - {found.high:,.0f}"


def percent(value: float) -> str:
    """Return a share in percent."""
    return NOTHING if math.isnan(value) else f"{value:.0%}"


def spread_of(runs: Sequence[dict[str, Any]], name: str) -> Spread:
    """Return the spread of a number over repetitions."""
    return spread([float(run[name]) if run.get(name) is not None else math.nan for run in runs])


def parts_of(raw: dict[str, Any], what: str) -> dict[str, Spread]:
    """Return part -> spread of its `rows_per_s` or `rows_per_cpu_s`."""
    return {part: spread([once[part][what] for once in raw["alone"]]) for part in PARTS}


def limits(raw: dict[str, Any]) -> tuple[float, float]:
    """Return the physical limit of this machine in rows per second, and that of one core in rows per CPU-second."""
    wall, cpu = parts_of(raw, "rows_per_s"), parts_of(raw, "rows_per_cpu_s")
    whole = physical_limit(
        *(wall[part].median for part in PARTS), cores=raw["cores"], on_accelerator=raw["backend"] != "cpu"
    )
    return whole, physical_limit(*(cpu[part].median for part in PARTS), cores=1)


def best_of(raw: dict[str, Any], what: str) -> str | None:
    """Return the placement with the best median."""
    return best({placement: spread_of(runs, what).median for placement, runs in raw["end_to_end"].items() if runs})


def title(raw: dict[str, Any]) -> str:
    """Return the lines above the table: work, hardware, commit, versions."""
    facts = raw["facts"]
    hardware, packages = facts["hardware"], facts["packages"]
    changed = " (with uncommitted changes)" if facts.get("uncommitted_changes") else ""
    machine = [hardware["processor"], f"{raw['cores']} cores", f"{hardware['memory_gb']} GB", *hardware["accelerators"]]
    versions = ", ".join(f"{name} {packages[name]}" for name in packages)
    options = " ".join(raw["options"]) or "as configured"
    return (
        f"{raw['name']} ({options})\n{', '.join(machine)}; load before: {raw['load'][0]:.1f}\n"
        f"commit {(facts['commit'] or 'unknown')[:12]}{changed}; Python {facts['python']}, {versions}"
    )


def main_table(raw: dict[str, Any]) -> Table:
    """Return parts alone, the limit, and every placement."""
    whole, core = limits(raw)
    table = Table(box=box.SIMPLE_HEAD, caption=caption(raw), caption_justify="left")
    table.add_column("", no_wrap=True)
    for heading in ("env steps/s", "range", "of limit", "per CPU-s", "of limit", "lag p50/p95", "act rows"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in ("idle a/i/l", "bytes", "copies", "PSS MB", "first update s"):
        table.add_column(heading, justify="right", no_wrap=True)
    wall, cpu = parts_of(raw, "rows_per_s"), parts_of(raw, "rows_per_cpu_s")
    for part in PARTS:
        table.add_row(f"{part} alone", number(wall[part].median), ranged(wall[part]), "", number(cpu[part].median))
    table.add_row(f"limit, {raw['cores']} cores", number(whole), "", "", number(core), end_section=True)
    for placement, runs in raw["end_to_end"].items():
        if runs:
            table.add_row(*placement_row(raw, placement, runs, whole, core))
    return table


def placement_row(
    raw: dict[str, Any], placement: str, runs: list[dict[str, Any]], whole: float, core: float
) -> list[str]:
    """Return one placement's cells."""
    speed, efficiency = spread_of(runs, "env_steps_per_s"), spread_of(runs, "env_steps_per_cpu_s")
    lag = f"{number(spread_of(runs, 'lag_p50').median)}/{number(spread_of(runs, 'lag_p95').high)}"
    rows = spread_of(runs, "inference_batch_rows").median
    idle = "/".join(percent(spread_of(runs, f"{kind}_idle_share").median) for kind in KINDS)
    started = raw["starts"].get(placement, [])
    first = f"{number(spread_of(started, 'start_cold_s').median, 1)}, {number(spread_of(started, 'start_warm_s').median, 1)}"
    return [
        placement,
        number(speed.median),
        ranged(speed),
        percent(speed.median / whole),
        number(efficiency.median),
        percent(efficiency.median / core),
        lag,
        number(raw["group_size"][placement] if math.isnan(rows) else rows, 1),
        idle,
        number(bytes_per_row(raw["traffic"], placement)),
        str(copies(placement, raw["transport"])),
        number(spread_of(runs, "pss_mb").median),
        first,
    ]


def caption(raw: dict[str, Any]) -> str:
    """Return the explanation of the columns."""
    formula = LIMIT_DEVICE_TEXT if raw["backend"] != "cpu" else LIMIT_TEXT
    frames = raw["frames_per_step"]
    named = f" One env step is {frames} game frames." if frames > 1 else ""
    return (
        f"limit = {formula}. Env steps are trained rows, each counted once whatever the epochs.{named} Median and range of "
        f"{raw['repetitions']} repetitions of {raw['seconds']:g} s after warm-up. per CPU-s: by all processes of the run. "
        "lag: updates. idle: share of time that actor / inference server / learner waits. bytes and copies: of one row's "
        "way through all streams, and of its observation. first update: from the start of the command, without compiled "
        "programs, with those kept."
    )


def peers_table(raw: dict[str, Any]) -> Table:
    """Return the other libraries, and how many times faster the best placement is."""
    fastest, thriftiest = best_of(raw, "env_steps_per_s"), best_of(raw, "env_steps_per_cpu_s")
    ours = raw["end_to_end"]
    started = raw["starts"].get(fastest, [])
    own = {
        "wall": spread_of(ours[fastest], "env_steps_per_s").median,
        "cpu": spread_of(ours[thriftiest], "env_steps_per_cpu_s").median,
        "pss": spread_of(ours[fastest], "pss_mb").median,
        "start": spread_of(started, "start_warm_s").median,
    }
    table = Table(
        box=box.SIMPLE_HEAD,
        caption=f"ratios: jsrl {fastest} in wall clock, memory and (warm) start, jsrl {thriftiest} per CPU-second, to the "
        "peer; memory and start below 1 are jsrl's. A peer with two settings has one that is fastest and one that "
        "takes the least CPU.",
        caption_justify="left",
    )
    table.add_column("peer")
    for heading in (
        "env steps/s",
        "range",
        "ratio",
        "per CPU-s",
        "ratio",
        "PSS MB",
        "ratio",
        "first update s",
        "ratio",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("setting; what differs from the work", overflow="fold")
    for name, peer in raw["peers"].items():
        if "missing" in peer:
            table.add_row(name, *[NOTHING] * 9, peer["missing"])
        for arm in peer.get("arms", []):
            table.add_row(name, *peer_cells(arm, own))
    return table


def peer_cells(arm: dict[str, Any], own: dict[str, float]) -> list[str]:
    """Return one peer's cells in one setting."""
    runs = arm["runs"]
    text = "; ".join(
        [
            setting_text(arm["setting"]),
            *arm["differences"],
            *(f"FAILED: {error.splitlines()[0]}" for error in arm["errors"]),
        ]
    )
    if not runs:
        return [*[NOTHING] * 9, text]
    speed, efficiency = spread_of(runs, "env_steps_per_s"), spread_of(runs, "env_steps_per_cpu_s").median
    memory, first = spread_of(runs, "pss_mb").median, spread_of(runs, "first_update_s").median
    return [
        number(speed.median),
        ranged(speed),
        f"{number(ratio(own['wall'], speed.median), 2)}x",
        number(efficiency),
        f"{number(ratio(own['cpu'], efficiency), 2)}x",
        number(memory),
        f"{number(ratio(own['pss'], memory), 2)}x",
        number(first, 1),
        f"{number(ratio(own['start'], first), 2)}x",
        text,
    ]


def show(raw: dict[str, Any], console: Console | None = None) -> None:
    """Print everything.

    Raises:
      ConfigError: these are not the raw numbers of a benchmark, or of an older one.
    """
    if raw.get("format") != FORMAT:
        raise ConfigError(f"not the raw numbers of this bench.py: format {raw.get('format')}, expected {FORMAT}.")
    console = console or Console()
    if not console.is_terminal:
        console = Console(file=console.file, width=WIDTH)
    console.print(title(raw), highlight=False, markup=False)
    if raw["alone"]:
        console.print(main_table(raw))
    for error in raw["errors"]:
        console.print(f"FAILED {error}", highlight=False, markup=False)
    if raw.get("differences"):
        console.print(f"jsrl's own work differs: {'; '.join(raw['differences'])}", highlight=False, markup=False)
    if any("search" in peer for peer in raw["peers"].values()):
        console.print(search_table(raw))
    if raw["alone"] and raw["peers"]:
        console.print(peers_table(raw))


def search_table(raw: dict[str, Any]) -> Table:
    """Return every setting of every peer that was tried."""
    table = Table(box=box.SIMPLE_HEAD, caption="settings tried, once each", caption_justify="left")
    for heading in ("peer", "setting"):
        table.add_column(heading)
    for heading in ("env steps/s", "per CPU-s", "PSS MB"):
        table.add_column(heading, justify="right")
    for name, peer in raw["peers"].items():
        for tried in peer.get("search", ()):
            cells = [
                number(float(tried.get(what, math.nan)))
                for what in ("env_steps_per_s", "env_steps_per_cpu_s", "pss_mb")
            ]
            failed = f" FAILED: {tried['error'].splitlines()[0]}" if "error" in tried else ""
            table.add_row(name, setting_text(tried["setting"]) + failed, *cells)
    return table


def setting_text(setting: dict[str, Any]) -> str:
    """Return a setting as text."""
    return ", ".join(f"{key} {value}" for key, value in setting.items()) or "defaults"
