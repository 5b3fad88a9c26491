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
WIDTH = 100  # of tables in files and pipes; all but the texts fit into 80 columns
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


def times(value: float) -> str:
    """Return a ratio."""
    return NOTHING if math.isnan(value) else f"{value:,.2f}x"


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


def columns(first: str, *headings: str) -> Table:
    """Return an empty table: a column of names, and columns of numbers."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column(first, no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def speed_table(raw: dict[str, Any]) -> Table:
    """Return the speed of the parts alone, the limit, and the speed of every placement."""
    whole, core = limits(raw)
    table = columns("", "env steps/s", "range", "of limit", "per CPU-s", "of limit")
    wall, cpu = parts_of(raw, "rows_per_s"), parts_of(raw, "rows_per_cpu_s")
    for part in PARTS:
        table.add_row(part, number(wall[part].median), ranged(wall[part]), "", number(cpu[part].median))
    table.add_row(f"limit, {raw['cores']} cores", number(whole), "", "", number(core), end_section=True)
    for placement, runs in raw["end_to_end"].items():
        if runs:
            speed, efficiency = spread_of(runs, "env_steps_per_s"), spread_of(runs, "env_steps_per_cpu_s").median
            shares = percent(speed.median / whole), percent(efficiency / core)
            table.add_row(placement, number(speed.median), ranged(speed), shares[0], number(efficiency), shares[1])
    return table


def flow_table(raw: dict[str, Any]) -> Table:
    """Return lag, batches, idle shares, bytes, copies, memory and starts of every placement."""
    headings = ("lag", "act rows", "idle a/i/l", "bytes", "copies", "PSS MB", "first update s")
    table = columns("", *headings)
    table.caption, table.caption_justify = caption(raw), "left"
    transport = raw["transport" if "transport" in raw else "road"]  # the name in older files
    for placement, runs in raw["end_to_end"].items():
        if not runs:
            continue
        rows, started = spread_of(runs, "inference_batch_rows").median, raw["starts"].get(placement, [])
        table.add_row(
            placement,
            f"{number(spread_of(runs, 'lag_p50').median)}/{number(spread_of(runs, 'lag_p95').high)}",
            number(raw["group_size"][placement] if math.isnan(rows) else rows, 1),
            "/".join(percent(spread_of(runs, f"{kind}_idle_share").median) for kind in KINDS),
            number(bytes_per_row(raw["traffic"], placement)),
            str(copies(placement, transport)),
            number(spread_of(runs, "pss_mb").median),
            ", ".join(number(spread_of(started, f"start_{how}_s").median, 1) for how in ("cold", "warm")),
        )
    return table


def caption(raw: dict[str, Any]) -> str:
    """Return the explanation of the columns."""
    formula = LIMIT_DEVICE_TEXT if raw["backend"] != "cpu" else LIMIT_TEXT
    frames = raw["frames_per_step"]
    named = f" One env step is {frames} game frames." if frames > 1 else ""
    return (
        f"limit = {formula}. Env steps are trained rows, each counted once whatever the epochs.{named} Median and range of "
        f"{raw['repetitions']} repetitions of {raw['seconds']:g} s after warm-up. per CPU-s: by all processes of the run. "
        "lag: updates, median and 95th percentile. idle: share of time that actor / inference server / learner waits. "
        "bytes and copies: of one row's way through all streams, and of its observation. first update: from the start of "
        "the command, without compiled programs, with those kept."
    )


def peers_tables(raw: dict[str, Any]) -> list[Table]:
    """Return the other libraries' speed and cost, and how many times faster the best placement is."""
    fastest, thriftiest = best_of(raw, "env_steps_per_s"), best_of(raw, "env_steps_per_cpu_s")
    ours, started = raw["end_to_end"], raw["starts"].get(fastest, [])
    own = {
        "env_steps_per_s": spread_of(ours[fastest], "env_steps_per_s").median,
        "env_steps_per_cpu_s": spread_of(ours[thriftiest], "env_steps_per_cpu_s").median,
        "pss_mb": spread_of(ours[fastest], "pss_mb").median,
        "first_update_s": spread_of(started, "start_warm_s").median,
    }
    speed = columns("peer", "env steps/s", "range", "ratio", "per CPU-s", "ratio")
    cost = columns("peer", "PSS MB", "ratio", "first update s", "ratio")
    cost.add_column("setting; what differs from the work", overflow="fold")
    for name, peer in raw["peers"].items():
        if "missing" in peer:
            cost.add_row(name, *[NOTHING] * 4, peer["missing"])
        for arm in peer.get("arms", []):
            found = {what: spread_of(arm["runs"], what) for what in own} if arm["runs"] else {}
            ratios = {what: times(ratio(own[what], found[what].median)) for what in found}
            if found:
                wall, cpu = found["env_steps_per_s"], found["env_steps_per_cpu_s"]
                cells = number(wall.median), ranged(wall), ratios["env_steps_per_s"]
                speed.add_row(name, *cells, number(cpu.median), ratios["env_steps_per_cpu_s"])
            memory = (number(found["pss_mb"].median), ratios["pss_mb"]) if found else (NOTHING,) * 2
            first = (number(found["first_update_s"].median, 1), ratios["first_update_s"]) if found else (NOTHING,) * 2
            cost.add_row(name, *memory, *first, arm_text(arm))
    cost.caption, cost.caption_justify = peers_caption(fastest, thriftiest), "left"
    return [speed, cost]


def peers_caption(fastest: str | None, thriftiest: str | None) -> str:
    """Return the explanation of the ratios."""
    return (
        f"ratios: jsrl {fastest} in wall clock, memory and (warm) start, jsrl {thriftiest} per CPU-second, to the "
        "peer; memory and start below 1 are jsrl's. A peer with two settings has one that is fastest and one that "
        "takes the least CPU."
    )


def arm_text(arm: dict[str, Any]) -> str:
    """Return the setting of a peer, what differs from the work, and what failed."""
    failed = [f"FAILED: {error.splitlines()[0]}" for error in arm["errors"]]
    return "; ".join([setting_text(arm["setting"]), *arm["differences"], *failed])


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
        console.print(speed_table(raw))
        console.print(flow_table(raw))
    for error in raw["errors"]:
        console.print(f"FAILED {error}", highlight=False, markup=False)
    if raw.get("differences"):
        console.print(f"jsrl's own work differs: {'; '.join(raw['differences'])}", highlight=False, markup=False)
    if any("search" in peer for peer in raw["peers"].values()):
        console.print(search_table(raw))
    if raw["alone"] and raw["peers"]:
        for table in peers_tables(raw):
            console.print(table)


def search_table(raw: dict[str, Any]) -> Table:
    """Return every setting of every peer that was tried."""
    table = Table(
        box=box.SIMPLE_HEAD, caption="settings tried, once each", caption_justify="left", padding=(0, 1, 0, 0)
    )
    for heading in ("peer", "setting"):
        table.add_column(heading, overflow="fold")
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
