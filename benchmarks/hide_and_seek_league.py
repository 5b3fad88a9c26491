"""Hide-and-seek: a league and plain self-play, trained for equally many env steps, then played against each other.

    python benchmarks/hide_and_seek_league.py [--scenario empty] [--env-steps 200000] [--seeds 2] [--out FILE]

One policy plays both sides in both arms. The league (`hide_and_seek_league`) has a second one, which looks for weaknesses, so
only a part of its rows train the first. Runs that are in `--runs-dir` already are not trained again. The cross-play table has
the shares of games that the row's player wins against the column's. Sides are swapped, and the side with the higher return
wins a game. `jsrl evaluate --tournament` makes the same table of any runs. Then each run's main policy plays against uniformly
random opponents and scripted seekers, as in `hide_and_seek_duel.py`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.hide_and_seek_duel import TEAMS, duel, learned_sides, pairs_of, random_side
from jsrl.control.run import run
from jsrl.experiment import Experiment
from jsrl.experiment.configs.hide_and_seek_league import config
from jsrl.tools.contest import Arena

GAMES, EPISODES = 100, 100
ARMS = ("league", "self-play")


def experiment_of(arm: str, scenario: str, env_steps: int, seed: int) -> Experiment:
    """Return an arm's experiment; the quadrant has no objects."""
    league = config()
    kwargs = league.env.kwargs | ({"n_boxes": 0, "n_ramps": 0} if scenario == "quadrant" else {})
    env = dataclasses.replace(league.env, id=f"hide_and_seek:{scenario}", kwargs=kwargs)
    made = dataclasses.replace(league, env=env, total_env_steps=env_steps, seed=seed, placement="serial")
    if arm == "self-play":
        return dataclasses.replace(made, policies={"main": league.policies["main"]}, director=None)
    return made


def train(arm: str, args: argparse.Namespace, seed: int) -> str:
    """Train a run unless it is there; return its name."""
    name = f"{args.scenario}-{arm}-{seed}"
    experiment = experiment_of(arm, args.scenario, args.env_steps, seed)
    if not (args.runs_dir / experiment.name / name).exists():
        run(experiment, runs_dir=args.runs_dir, name=name, display="plain")
    return f"{experiment.name}/{name}"


def cross_play(names: list[str], runs_dir: Path) -> dict[str, Any]:
    """Play every run against every other one; return the table of win rates, and print it."""
    arena = Arena([f"{name}@main/final" for name in names], runs_dir=runs_dir)
    table = arena.standings(GAMES)
    print(table, flush=True)
    return {
        "players": table.names,
        "win_rates": [[None if np.isnan(rate) else round(rate, 3) for rate in row] for row in table.win_rates.tolist()],
        "elo": np.round(table.ratings.elo).tolist(),
    }


def duels(name: str, experiment: Experiment, runs_dir: Path) -> dict[str, dict[str, float]]:
    """Play a run's main policy against fixed opponents."""
    random = {team: random_side(team, np.random.default_rng(0)) for team in TEAMS}
    pairs = pairs_of(learned_sides(name, "final", str(runs_dir)), random, every=True)
    sides = {pair: dict(zip(TEAMS, both, strict=True)) for pair, both in pairs.items()}
    return {pair: duel(experiment.env, both, EPISODES, 1_000_000) for pair, both in sides.items()}


def main() -> None:
    """Train both arms, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", choices=("empty", "quadrant"), default="empty")
    parser.add_argument("--env-steps", type=int, default=200_000)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    runs = {f"{arm} {seed}": train(arm, args, seed) for seed in range(args.seeds) for arm in ARMS}
    found: dict[str, Any] = {"env_steps": args.env_steps, "cross_play": cross_play(list(runs.values()), args.runs_dir)}
    for arm, name in runs.items():
        found[arm] = duels(name, experiment_of("league", args.scenario, 1, 0), args.runs_dir)
        for pair, values in found[arm].items():
            print(f"{arm}, {pair}: seen {values['seen_share']:.2f}, {values['median_distance']:.2f} m", flush=True)
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
