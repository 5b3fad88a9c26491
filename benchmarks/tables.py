"""The tables of docs/scores.md and docs/speed.md from the raw files: `python benchmarks/tables.py`.

A table stands in its page between `<!-- table NAME -->` and `<!-- end -->`. `--check` changes nothing and fails where a
page differs from the raw files.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import defaults, zoo
from jsrl.cli import tuned
from jsrl.intervals import mean_interval

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = ("docs/scores.md", "docs/speed.md")
NAMES = {
    "sb3": "SB3", "pufferlib": "PufferLib", "sbx": "SBX", "sample-factory": "Sample Factory", "rllib": "RLlib",
    "torch-loop": "torch loop",
}  # fmt: skip


class Speed(NamedTuple):
    """A workload that was measured beside other libraries: its file, and what it is called."""

    file: str
    workload: str


SPEEDS = [
    Speed("against-ppo_halfcheetah", "HalfCheetah"),
    Speed("against-ppo_pong", "Pong from pixels"),
    Speed("against-ppo_cartpole", "CartPole"),
    Speed("against-ppo_cartpole-lag1", "CartPole, lag 1"),
    Speed("against-ppo_cartpole-64envs", "CartPole, 64 environments"),
]


SCORE_HEADS = "environment | algorithm | score | each seed | env steps | published or best | command, raw file"
AGAINST_HEADS = (
    "workload | placement | policy lag | env steps/s | ratio to the fastest other | the same per CPU-second "
    "| measured with it | commit | raw file"
)
HOSTS_HEADS = (
    "library | hosts | env steps/s | share of the environments' maximum | CPU us per env step | memory, MB "
    "| s to the first update"
)


def raw(name: str) -> Any:
    """Return the content of a file of results."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def rows(heads: str, lines: Iterable[list[str]]) -> str:
    """Return a table in Markdown; `heads` are separated by ` | `."""
    return "\n".join(
        f"| {' | '.join(cells)} |" for cells in (heads.split(" | "), ["---"] * (heads.count(" | ") + 1), *lines)
    )


def scores(table: str) -> str:
    """Return a table of scores; an interval over seeds where there are several, else over episodes."""
    with (ROOT / "benchmarks" / "scores.csv").open(newline="") as file:
        found = [score_row(row) for row in csv.DictReader(file) if row["table"] == table]
    return rows(SCORE_HEADS, found)


def score_row(row: dict[str, str]) -> list[str]:
    """Return the cells of one row of scores.csv, whose `files` are a pattern: a run for each seed."""
    runs = [json.loads(path.read_text())["outcome"] for path in sorted(RESULTS.glob(f"{row['files']}.json"))]
    means = [run["final"]["return_mean"] for run in runs]
    several = len(means) > 1
    half = mean_interval(means)[1] if several else runs[0]["final"]["return_ci95"]
    steps = [in_short(count) for count in sorted(run["env_steps"] for run in runs)]

    def shown(value: float | None) -> str:
        return f"{value:,.{row['digits']}f}"

    return [
        row["environment"],
        row["algorithm"],
        f"{shown(statistics.mean(means))} ± {shown(half)}",
        "; ".join(map(shown, means)) if several else "one seed",
        steps[0] if steps[0] == steps[-1] else f"{steps[0]} to {steps[-1]}",
        row["published"],
        f"`{row['command']}`<br>`{row['files']}.json`",
    ]


def in_short(env_steps: int) -> str:
    """Return a count in thousands or millions, such as 21k or 1.6M."""
    return f"{env_steps / 1e3:.0f}k" if env_steps < 1e6 else f"{env_steps / 1e6:.1f}M"


def median(runs: list[dict[str, Any]], what: str) -> float:
    """Return the median of what was measured."""
    return statistics.median(run[what] for run in runs if run[what] >= 0)  # nan: not measured


def best(arms: list[dict[str, Any]], what: str) -> float:
    """Return the best median among the settings of one library."""
    return max(median(arm["runs"], what) for arm in arms)


def against() -> str:
    """Return jsrl's speeds beside the fastest of the other libraries that were measured with it."""
    lines = []
    for speed in SPEEDS:
        found = raw(speed.file)
        peers = {NAMES[name]: peer["arms"] for name, peer in found["peers"].items()}
        for placement, runs in found["end_to_end"].items():
            ours, cpu = median(runs, "env_steps_per_s"), median(runs, "env_steps_per_cpu_s")
            fastest = max(peers, key=lambda name: best(peers[name], "env_steps_per_s"))
            lag = [run["lag_p50"] for run in runs if run["lag_p50"] >= 0]
            lines.append(
                [
                    speed.workload,
                    placement,
                    f"{statistics.median(lag):.0f}" if lag else "0",
                    f"{ours:,.0f}",
                    f"{ours / best(peers[fastest], 'env_steps_per_s'):.2f}x {fastest}",
                    f"{cpu / max(best(arms, 'env_steps_per_cpu_s') for arms in peers.values()):.2f}x",
                    ", ".join(sorted(peers)),
                    f"`{found['facts']['commit'][:8]}`",
                    f"`{speed.file}.json`",
                ]
            )
    return rows(AGAINST_HEADS, lines)


def libraries() -> str:
    """Return the speed of each other library with its best setting."""
    found = {speed.workload: raw(speed.file)["peers"] for speed in SPEEDS}
    names = ["sb3", "pufferlib", "sbx", "sample-factory", "rllib"]
    lines = [
        [
            NAMES[name],
            *(
                f"{best(peers[name]['arms'], 'env_steps_per_s'):,.0f}" if name in peers else ""
                for peers in found.values()
            ),
        ]
        for name in names
    ]
    return rows(" | ".join(["env steps/s", *found]), lines)


def updates() -> str:
    """Return the rows that SAC's updates train in a second, for jsrl and others."""
    systems = ["jsrl", "sbx", "torch-loop", "sb3"]
    lines = []
    for name in ("against-sac_halfcheetah-updates", "against-sac_halfcheetah-learning"):
        for work in raw(name)["works"]:
            arms = {system: [arm for arm in work["arms"] if arm["system"] == system] for system in systems}
            rates = [best(arms[system], "updates_per_s") * work["batch"] for system in systems]
            lines.append(
                [
                    work["name"],
                    *(f"{rate:,.0f}" for rate in rates),
                    f"{rates[0] / max(rates[1:]):.2f}x",
                    f"`{name}.json`",
                ]
            )
    heads = ["rows/s", *(NAMES.get(system, system) for system in systems), "jsrl / best other", "raw file"]
    return rows(" | ".join(heads), lines)


def gpu_runs() -> str:
    """Return the speed of whole runs of Pong on the two GPUs."""
    h100, h200 = raw("gpu-h100"), raw("gpu-h200")
    what = {
        "inline": "actors act on their CPU cores",
        "served": "one inference server on the GPU",
        "apart": "the inference server on the CPU",
    }
    lines = []
    for placement, meaning in what.items():
        first = h100["placements"]["summary"][placement]["median"]
        second = h200["placements"]["env_steps_per_s"].get(placement)
        lines.append([f"{placement}: {meaning}", f"{first:,.0f}", f"{second:,.0f}" if second else ""])
    return rows("`ppo_pong`, 120 environments, 15 actors: env steps/s | H100 | H200", lines)


def gpu_updates() -> str:
    """Return SAC's updates on a GPU by batch size."""
    lines = []
    for batch, found in raw("gpu-h100")["updates"].items():
        (work,) = found["works"]
        rate = best(work["arms"], "updates_per_s")
        lines.append([f"{int(batch):,}", f"{rate * int(batch):,.0f}", f"{rate:,.0f}", str(work["updates_per_call"])])
    return rows("batch | rows/s | updates/s | updates in one call", lines)


def environments() -> str:
    """Return the speed of jsrl's own environments beside those that they repeat."""
    found = raw("particle")["rates"]
    lines = []
    for name, rates in found.items():
        ours, other = (statistics.median(rates[key]) for key in ("jsrl", "mpe2" if "mpe2" in rates else "lbforaging"))
        known = "mpe2" if "mpe2" in rates else "lbforaging"
        lines.append([name, f"{ours:,.0f}", f"{other:,.0f} ({known})", f"{ours / other:.0f}x"])
    return rows("env steps per CPU-second | jsrl | the original | ratio", lines)


def hosts() -> str:
    """Return the speed on several hosts beside RLlib's: medians of the runs."""
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in raw("beside-rllib")["rows"]:
        found.setdefault((row["system"], row["hosts"]), []).append(row)
    lines: list[list[str]] = [
        [
            {"jsrl": "jsrl", "rllib": "RLlib"}[system],
            str(count),
            *(f"{statistics.median(run[key] for run in runs):,.{digits}f}" for key, digits in KEYS),
        ]
        for (system, count), runs in found.items()
        if system in ("jsrl", "rllib")
    ]
    return rows(HOSTS_HEADS, sorted(lines, key=lambda line: line[1]))


KEYS = (("rows_per_s", 0), ("efficiency", 2), ("cpu_us_per_row", 0), ("pss_mb", 0), ("started_s", 0))
TABLES: dict[str, Callable[[], str]] = {
    "one agent": lambda: scores("one agent"),
    "several agents": lambda: scores("several agents"),
    "tuned settings": lambda: rows(zoo.HEADS, (zoo.cells(row) for row in tuned.rows() if row.source != "jsrl")),
    "defaults of ppo": lambda: defaults.table("ppo"),
    "defaults of dqn": lambda: defaults.table("dqn"),
    "defaults of sac": lambda: defaults.table("sac"),
    "against": against,
    "libraries": libraries,
    "updates": updates,
    "gpu runs": gpu_runs,
    "gpu updates": gpu_updates,
    "environments": environments,
    "hosts": hosts,
}
PLACE = re.compile(r"(<!-- table ([a-z ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def with_tables(page: str) -> str:
    """Return a page with its tables made anew."""
    return PLACE.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n\n{found[3]}", page)


def main(arguments: list[str] | None = None) -> int:
    """Write the tables, or check them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail where a page differs from the raw files")
    check = parser.parse_args(arguments).check
    differs = []
    for name in PAGES:
        page = ROOT / name
        text = page.read_text()
        made = with_tables(text)
        if made != text:
            differs.append(name)
            if not check:
                page.write_text(made)
    if check and differs:
        print(f"{', '.join(differs)} differ from benchmarks/results. Write them again: python benchmarks/tables.py")
    return int(check and bool(differs))


if __name__ == "__main__":
    sys.exit(main())
