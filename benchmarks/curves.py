"""Draw the learning curves of docs/algorithms from benchmarks/results: `python benchmarks/curves.py`.

Each picture has one curve per seed: the mean return of greedy evaluation episodes over env steps, with a band of 95%
confidence over those episodes. The files were written by benchmarks/keep.py.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

import numpy as np

from jsrl.report.charts import LEFT, WIDE, Series, chart

ROOT = Path(__file__).parents[1]
COLOURS = ("#2563b0", "#d9822b", "#2a9d6f", "#b0426a", "#7a5bc0", "#6b7785")
PICTURES = {  # picture -> (title, the seeds' files begin with)
    "ppo_cartpole": ("PPO, CartPole-v1, placement served", "ppo_cartpole-served-seed"),
    "ppo_pong": ("PPO, Pong from pixels", "ppo_pong-seed"),
    "ppo_halfcheetah": ("PPO, HalfCheetah-v5", "ppo_halfcheetah-seed"),
    "impala_pong": ("IMPALA, Pong from pixels", "impala_pong-seed"),
    "dqn_pong": ("DQN, Pong from pixels", "dqn_pong-seed"),
    "dqn_cartpole-c51": ("DQN with 51 atoms, CartPole-v1", "dqn_cartpole-c51-seed"),
    "r2d2-memory": ("R2D2, probe:memory", "r2d2-memory-seed"),
    "sac_halfcheetah": ("SAC, HalfCheetah-v5, stopped at 5,000", "sac_halfcheetah-seed"),
    "sac_pendulum": ("SAC, Pendulum-v1", "sac_pendulum-seed"),
    "td3-pendulum": ("TD3, Pendulum-v1", "td3-pendulum-seed"),
    "ddpg-pendulum": ("DDPG, Pendulum-v1", "ddpg-pendulum-seed"),
    "bc-expert": ("BC from 112 recorded episodes, CartPole-v1", "bc-expert-seed"),
}
STYLE = (
    "text{font:11px system-ui,sans-serif;fill:#5d6b7c}.title{font-size:13px;font-weight:600;fill:#1c2430}"
    ".grid{stroke:#dfe4ea}.axis{stroke:#5d6b7c}polyline{fill:none;stroke-width:1.8}circle{fill:#fff}polygon{opacity:.18;stroke:none}"
)
TOP = 26  # of the title and legend, above the chart


def draw(title: str, files: list[Path]) -> str:
    """Return one picture as a standalone SVG.

    Args:
      title: above the curves. files: one per seed, as benchmarks/keep.py writes them.
    """
    series = [_series(path) for path in files]
    x_label = "rows trained on" if "BC" in title else "env steps"
    inside = re.search(r"<svg[^>]*>(.*)</svg>", chart(title, x_label, series)).group(1)
    width, height = WIDE
    colours = "".join(f".line{i}{{stroke:{c}}}.key{i},polygon.line{i}{{fill:{c}}}" for i, c in enumerate(COLOURS))
    keys = "".join(
        f'<text class="key{i}" x="{width - 12 - 48 * (len(series) - 1 - i)}" y="16" text-anchor="end">{one.name}</text>'
        for i, one in enumerate(series)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height + TOP}" role="img">\n'
        f"<style>{STYLE}{colours}</style>\n<title>{title}: return over {x_label}</title>\n"
        f'<text class="title" x="{LEFT}" y="16">{title}</text>{keys}\n'
        f'<g transform="translate(0 {TOP})">{inside}</g>\n</svg>\n'
    )


def _series(path: Path) -> Series:
    curves = json.loads(path.read_text())["curves"]
    points, halves = np.array(curves["evaluator/return_mean"]), np.array(curves["evaluator/return_ci95"])
    x, y, half = points[:, 0], points[:, 2], halves[:, 2]
    return Series(f"seed {path.stem[-1]}", x, y, y - half, y + half)


def main(arguments: list[str] | None = None) -> int:
    """Draw all pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, default=ROOT / "docs" / "pictures", help="folder of the pictures")
    folder = parser.parse_args(arguments).to
    for name, (title, start) in PICTURES.items():
        files = sorted((ROOT / "benchmarks" / "results").glob(f"{start}?.json"))
        (folder / f"curve-{name}.svg").write_text(draw(title, files))
        print(f"curve-{name}.svg: {', '.join(path.name for path in files)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
