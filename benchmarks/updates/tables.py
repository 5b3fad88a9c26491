"""The raw numbers of a benchmark of off-policy learning as tables: a pure function of the JSON."""

from __future__ import annotations

import math
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.throughput.arithmetic import ratio, spread
from benchmarks.throughput.tables import WIDTH, columns, number, percent, ranged, times
from jsrl.errors import ConfigError

KIND, FORMAT = "replay", 1


def rates(arm: dict[str, Any], what: str) -> Any:
    """Return the spread of `updates_per_s` or `updates_per_cpu_s` over an arm's runs."""
    return spread([float(run[what]) for run in arm["runs"]])


def best(work: dict[str, Any], system: str, what: str) -> float:
    """Return the best median of a system's settings."""
    medians = [rates(arm, what).median for arm in work["arms"] if arm["system"] == system and arm["runs"]]
    return max(medians, default=math.nan)


def matrix_share(work: dict[str, Any], arm: dict[str, Any]) -> float:
    """Return the share of the matrix-product rate that an arm's updates reach, the median over its runs."""
    shares = [
        run["operations_per_update"] * run["updates_per_cpu_s"] / run["matrix_operations_per_cpu_s"]
        for run in arm["runs"]
        if "matrix_operations_per_cpu_s" in run and run.get("backend") == "cpu"
    ]
    return spread(shares).median


def setting_text(setting: dict[str, Any]) -> str:
    """Return a setting as text."""
    return ", ".join(name.replace("_", " ") if value is True else f"{name} {value}" for name, value in setting.items())


def work_tables(work: dict[str, Any]) -> list[Table]:
    """Return one work: the speed and the cost of every arm, and how many times faster jsrl's best is than each system's."""
    speed = columns("system, setting", "rows/s", "range", "ratio", "per CPU-s", "ratio")
    speed.title, speed.title_justify = title_of(work), "left"
    cost = columns("system, setting", "updates/s", "CPU ms", "of matmul", "PSS MB")
    cost.add_column("what differs", overflow="fold")
    own = {what: best(work, "jsrl", what) for what in ("updates_per_s", "updates_per_cpu_s")}
    for arm in work["arms"]:
        name = f"{arm['system']}, {setting_text(arm['setting'])}"
        speed.add_row(name, *speed_cells(work, arm, own))
        cost.add_row(name, *cost_cells(work, arm))
    return [speed, cost]


def speed_cells(work: dict[str, Any], arm: dict[str, Any], own: dict[str, float]) -> list[str]:
    """Return an arm's speed; the ratios stand beside the setting that is its system's best."""
    if not arm["runs"]:
        return []
    wall, cpu = rates(arm, "updates_per_s"), rates(arm, "updates_per_cpu_s")
    ratios = []
    for what, found in (("updates_per_s", wall), ("updates_per_cpu_s", cpu)):
        is_best = arm["system"] != "jsrl" and found.median == best(work, arm["system"], what)
        ratios.append(times(ratio(own[what], found.median)) if is_best else "")
    rows = work["batch"]
    spread_rows = ranged(spread([rows * float(run["updates_per_s"]) for run in arm["runs"]]))
    return [number(rows * wall.median), spread_rows, ratios[0], number(rows * cpu.median), ratios[1]]


def cost_cells(work: dict[str, Any], arm: dict[str, Any]) -> list[str]:
    """Return an arm's time and memory, and what differs or failed."""
    notes = "; ".join([*arm["differences"], *(f"FAILED: {error.splitlines()[0]}" for error in arm["errors"])])
    if not arm["runs"]:
        return [*["-"] * 4, notes]
    memory = spread([float(run["pss_mb"]) for run in arm["runs"]]).median
    per_s, per_cpu_s = rates(arm, "updates_per_s").median, rates(arm, "updates_per_cpu_s").median
    return [
        number(per_s, 1),
        number(1e3 / per_cpu_s, 2),
        percent(matrix_share(work, arm)),
        number(memory),
        notes,
    ]


def title_of(work: dict[str, Any]) -> str:
    """Return a work as text."""
    if work["part"] == "updates":
        return f"updates alone, batch {work['batch']:,}, {work['updates_per_call']} in one call"
    ratio_text = f"{work['updates_per_step']} update of {work['batch']} rows per env step"
    return f"sampling and updating: {work['num_envs']} environments, {ratio_text}"


def heading(raw: dict[str, Any]) -> str:
    """Return the lines above the tables: work, hardware, commit, versions."""
    facts = raw["facts"]
    hardware, packages = facts["hardware"], facts["packages"]
    changed = " (with uncommitted changes)" if facts.get("uncommitted_changes") else ""
    machine = [hardware["processor"], f"{raw['cores']} cores", f"{hardware['memory_gb']} GB", *hardware["accelerators"]]
    return (
        f"{raw['name']}: {raw['algorithm'].upper()} on HalfCheetah-v5, 256 x 256\n"
        f"{', '.join(machine)}; load before: {raw['load'][0]:.1f}\n"
        f"commit {(facts['commit'] or 'unknown')[:12]}{changed}; Python {facts['python']}, "
        + ", ".join(f"{name} {packages[name]}" for name in packages)
    )


CAPTION = (
    "rows/s: batch x updates per second, the update frame rate. CPU ms: of one update, all processes. "
    "per CPU-s: rows per CPU-second. Ratios: jsrl's best setting to the system's best, each by its own measure. "
    "of matmul: operations of the layers' products per CPU-second, as a share of the rate of plain matrix products "
    "measured in the same process. Median and range over the runs of an arm."
)


def show(raw: dict[str, Any], console: Console | None = None) -> None:
    """Print everything.

    Raises:
      ConfigError: these are not raw numbers of this benchmark, or of an older one.
    """
    if raw.get("kind") != KIND or raw.get("format") != FORMAT:
        raise ConfigError(f"not the raw numbers of this benchmark: {raw.get('kind')}, format {raw.get('format')}.")
    console = console or Console()
    if not console.is_terminal:
        console = Console(file=console.file, width=WIDTH)
    console.print(heading(raw), highlight=False, markup=False)
    for table in (table for work in raw["works"] for table in work_tables(work)):
        console.print(table)
    for name, why in raw["missing"].items():
        console.print(f"{name}: {why}", highlight=False, markup=False)
    console.print(CAPTION, highlight=False, markup=False)
