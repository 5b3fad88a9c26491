"""Draw the learning curves of docs from benchmarks/results: `python benchmarks/curves.py`.

Each plot has one curve per seed: the mean return of greedy evaluation episodes over env steps, with a band of 95%
confidence over those episodes. The files were written by benchmarks/keep.py. Dashed curves are those of another library, one
per seed (written by drivers in benchmarks/peers). A dotted line is a published final score, or the return of
optimal planning. Plots of hide-and-seek show the share of rewarded steps in which a hider is seen, without bands.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jsrl.tools.report.charts import LEFT, WIDE, Series, chart

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
COLOURS = ("#2563b0", "#d9822b", "#2a9d6f", "#b0426a", "#7a5bc0", "#6b7785")
PEER, REFERENCE = 6, 7  # indices of their colours
ZOO = "rl-baselines3-zoo"
PLANNED = (-7.9, "planned play: -7.9")  # benchmarks/notes/learning.md, several seats


@dataclass(frozen=True)
class Plot:
    """The content of one plot.

    Attributes:
      title: above the curves. start: prefix of the seeds' files. x_label: of the horizontal axis.
      peer: curves of another library: (legend, prefix of their files).
      reference: a score to compare with: (value, its source).
    """

    title: str
    start: str
    x_label: str = "env steps"
    peer: tuple[str, str] | None = None
    reference: tuple[float, str] | None = None


PICTURES = {
    "ppo_cartpole": Plot(
        "PPO, CartPole-v1 (served)",
        "ppo_cartpole-served-seed",
        peer=("SBX 0.28, same settings", "ppo_cartpole-sbx-seed"),
        reference=(500.0, f"{ZOO}: 500 after 100k env steps"),
    ),
    "ppo_pong": Plot(
        "PPO, Pong from pixels",
        "ppo_pong-seed",
        peer=("SBX 0.28, same settings", "ppo_pong-sbx-seed"),
        reference=(20.989, f"{ZOO}: 20.99 after 10M env steps"),
    ),
    "ppo_halfcheetah": Plot(
        "PPO, HalfCheetah-v5",
        "ppo_halfcheetah-seed",
        peer=("SBX 0.28, same settings", "ppo_halfcheetah-sbx-seed"),
        reference=(5819.0, f"{ZOO}: 5,819 after 1M env steps of v3"),
    ),
    "impala_pong": Plot("IMPALA, Pong from pixels", "impala_pong-seed"),
    "dqn_pong": Plot("DQN, Pong from pixels", "dqn_pong-seed", reference=(20.602, f"{ZOO}: 20.6 after 10M env steps")),
    "dqn_cartpole": Plot(
        "DQN, CartPole-v1",
        "dqn_cartpole-serial-seed",
        peer=("SBX 0.28, same settings", "dqn_cartpole-sbx-seed"),
        reference=(500.0, f"{ZOO}: 500 after 50k env steps"),
    ),
    "dqn_cartpole-c51": Plot(
        "DQN with 51 atoms, CartPole-v1",
        "dqn_cartpole-c51-seed",
        reference=(500.0, f"{ZOO}: 500 after 50k env steps, DQN"),
    ),
    "r2d2-memory": Plot("R2D2, probe:memory", "r2d2-memory-seed"),
    "r2d2-stateless-cartpole": Plot(
        "R2D2, CartPole-v1 without velocities",
        "r2d2-stateless-cartpole-seed",
        reference=(150.0, "RLlib's example aims at 150 within 1M env steps"),
    ),
    "sac_halfcheetah": Plot(
        "SAC, HalfCheetah-v5, stopped at 5,000",
        "sac_halfcheetah-seed",
        peer=("SBX 0.28, same settings", "sac_halfcheetah-sbx-same-seed"),
        reference=(9535.0, f"{ZOO}: 9,535 after 1M env steps of v3"),
    ),
    "sac_pendulum": Plot(
        "SAC, Pendulum-v1",
        "sac_pendulum-seed",
        peer=("SBX 0.28, same settings", "sac_pendulum-sbx-seed"),
        reference=(-157.0, f"{ZOO}: -157 after 20k env steps"),
    ),
    "td3-pendulum": Plot(
        "TD3, Pendulum-v1",
        "td3-pendulum-seed",
        peer=("SBX 0.28, same settings", "td3-pendulum-sbx-seed"),
        reference=(-152.0, f"{ZOO}: -152 after 20k env steps"),
    ),
    "ddpg-pendulum": Plot(
        "DDPG, Pendulum-v1",
        "ddpg-pendulum-seed",
        peer=("SBX 0.28, same settings", "ddpg-pendulum-sbx-seed"),
        reference=(-152.0, f"{ZOO}: -152 after 20k env steps"),
    ),
    "bc-expert": Plot("BC from 112 recorded episodes, CartPole-v1", "bc-expert-seed", "rows trained on"),
    "mappo-spread": Plot("MAPPO, simple_spread_v3", "mappo-spread-seed", reference=PLANNED),
    "mappo-spread-constant": Plot(
        "MAPPO, simple_spread_v3, constant rate",
        "mappo-spread-constant-seed",
        peer=("BenchMARL 1.5, same network, batches and rate", "spread-benchmarl-mpe2-seed"),
        reference=PLANNED,
    ),
    "ippo-constant": Plot(
        "IPPO, simple_spread_v3, constant rate",
        "ippo-constant-seed",
        peer=("RLlib 2.60, same network, batches and rate", "spread-rllib-seed"),
        reference=PLANNED,
    ),
    "ippo-foraging-5x5": Plot(
        "IPPO, foraging 5x5-2p-1f-coop",
        "ippo-foraging-5x5-seed",
        peer=("RLlib 2.60, same network, batches and rate", "foraging-rllib-5x5-2p-1f-coop-seed"),
        reference=(0.5, "all food: 0.5"),
    ),
    "mappo_speaker_listener": Plot(
        "MAPPO, simple_speaker_listener_v4", "mappo_speaker_listener-seed", reference=(-7.7, "planned play: -7.7")
    ),
    "mappo_reference": Plot(
        "MAPPO, simple_reference_v3", "mappo_reference-seed", reference=(-7.5, "planned play: -7.5")
    ),
    "ippo": Plot("IPPO, simple_spread_v3", "ippo-seed", reference=PLANNED),
    "qmix": Plot("QMIX, simple_spread_v3", "qmix-seed", reference=PLANNED),
    "qmix_recurrent": Plot("Recurrent QMIX, simple_spread_v3", "qmix_recurrent-seed", reference=PLANNED),
    "happo": Plot("HAPPO, simple_spread_v3", "happo-seed", reference=PLANNED),
    "vdn": Plot("VDN, simple_spread_v3", "vdn-seed", reference=PLANNED),
    "vdn_recurrent": Plot("Recurrent VDN, simple_spread_v3", "vdn_recurrent-seed", reference=PLANNED),
}
CHECKS = "hide_and_seek_checks.json"


@dataclass(frozen=True)
class Check:
    """The content of one plot of hide-and-seek: the newest run of each seed of a check in CHECKS.

    Attributes:
      title: above the curves. check: its name. reference: a share to compare with: (value, its source).
    """

    title: str
    check: str
    reference: tuple[float, str] | None = None


HIDE_AND_SEEK = {
    "hide_and_seek-l1": Check("L1, both learn: a hider is seen within 6 m", "L1"),
    "hide_and_seek-l2": Check("L2, both learn: a hider is seen within 6 m", "L2"),
    "hide_and_seek-l3": Check("L3, snapshots: a random hider is seen", "L3", (0.50, "required: 0.50")),
}
STYLE = (
    "text{font:11px system-ui,sans-serif;fill:#5d6b7c}.title{font-size:13px;font-weight:600;fill:#1c2430}"
    ".grid{stroke:#dfe4ea}.axis{stroke:#5d6b7c}polyline{fill:none;stroke-width:1.8}circle{fill:#fff}polygon{opacity:.18;stroke:none}"
    f".line{PEER}{{stroke:#6b7785;stroke-dasharray:6 3;stroke-width:1.2}}polygon.line{PEER}{{fill:#6b7785}}"
    f".line{REFERENCE}{{stroke:#1c2430;stroke-dasharray:2 3;stroke-width:1.2}}"
)
TOP, ROW = 26, 15  # of the title with the seeds, and of each further line of the legend


def draw(plot: Plot, results: Path = RESULTS) -> str:
    """Return one plot as a standalone SVG, from the files of its seeds in a folder of results."""
    series = [_series(path) for path in sorted(results.glob(f"{plot.start}?.json"))]
    peers = [_peer(path) for path in sorted(results.glob(f"{plot.peer[1]}?.json"))] if plot.peer else []
    notes = []
    if plot.peer and peers:
        seeds = f"seeds 0 to {len(peers) - 1}" if len(peers) > 1 else "seed 0"
        notes.append((PEER, f"{plot.peer[0]}, {seeds}"))
    return svg(plot, "return", plot.x_label, [*peers, *series], notes)


def draw_check(plot: Check, results: Path = RESULTS) -> str:
    """Return one plot of hide-and-seek as a standalone SVG, from a folder of results."""
    runs = json.loads((results / CHECKS).read_text())["runs"]
    newest = {run["seed"]: run for run in runs if run["check"] == plot.check}
    series = []
    for seed, run in sorted(newest.items()):
        points = np.array(run["snapshots"]["rows"] if "snapshots" in run else run["curve"])
        series.append(Series(f"seed {seed}", points[:, 0], points[:, 1], index=seed))
    return svg(plot, "share of rewarded steps", "env steps", series, [])


def svg(
    plot: Plot | Check, y_label: str, x_label: str, drawn: list[Series], notes: list[tuple[int, str]], **options: Any
) -> str:
    """Return curves as a standalone SVG; notes: index of a colour and text, for each line of the legend.

    options: of `chart`.
    """
    series = [one for one in drawn if not one.faint]
    if plot.reference:
        value, text = plot.reference
        ends = np.array([min(one.x.min() for one in drawn), max(one.x.max() for one in drawn)])
        drawn = [*drawn, Series(text, ends, np.full(2, value), index=REFERENCE, faint=True)]
        notes = [*notes, (REFERENCE, text)]
    found = re.search(r"<svg[^>]*>(.*)</svg>", chart(plot.title, x_label, drawn, **options))
    assert found, f"{plot.title}: fewer than two points"
    inside = found.group(1)
    width, height = WIDE
    colours = "".join(f".line{i}{{stroke:{c}}}.key{i},polygon.line{i}{{fill:{c}}}" for i, c in enumerate(COLOURS))
    keys = "".join(
        f'<text class="key{i}" x="{width - 12 - 48 * (len(series) - 1 - i)}" y="16" text-anchor="end">{one.name}</text>'
        for i, one in enumerate(series)
    )
    legend = "".join(
        f'<line class="line{index}" x1="{LEFT}" x2="{LEFT + 26}" y1="{TOP + ROW * row}" y2="{TOP + ROW * row}"/>'
        f'<text x="{LEFT + 32}" y="{TOP + ROW * row + 4}">{text}</text>'
        for row, (index, text) in enumerate(notes)
    )
    top = TOP + ROW * len(notes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height + top}" role="img">\n'
        f"<style>{STYLE}{colours}</style>\n<title>{plot.title}: {y_label} over {x_label}</title>\n"
        f'<text class="title" x="{LEFT}" y="16">{plot.title}</text>{keys}{legend}\n'
        f'<g transform="translate(0 {top})">{inside}</g>\n</svg>\n'
    )


def _series(path: Path) -> Series:
    curves = json.loads(path.read_text())["curves"]
    points, halves = np.array(curves["evaluator/return_mean"]), np.array(curves["evaluator/return_ci95"])
    x, y, half = points[:, 0], points[:, 2], halves[:, 2]
    number = int(path.stem[-1])
    return Series(f"seed {number}", x, y, y - half, y + half, index=number)


def _peer(path: Path) -> Series:
    """Return the curve of another library; its points are (env steps, mean, half interval) or (env steps, seconds, mean)."""
    kept = json.loads(path.read_text())
    points = np.array(kept["points"], float)
    if not {"task", "note"} & set(kept):
        return Series(path.stem, points[:, 0], points[:, 2], index=PEER, faint=True)
    x, y, half = points.T
    return Series(path.stem, x, y, y - half, y + half, index=PEER, faint=True)


def main(arguments: list[str] | None = None) -> int:
    """Draw all plots."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, default=ROOT / "docs" / "pictures", help="folder of the plots")
    folder = parser.parse_args(arguments).to
    for name, plot in PICTURES.items():
        (folder / f"curve-{name}.svg").write_text(draw(plot))
        print(f"curve-{name}.svg: {plot.title}")
    for name, check in HIDE_AND_SEEK.items():
        (folder / f"curve-{name}.svg").write_text(draw_check(check))
        print(f"curve-{name}.svg: {check.title}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
