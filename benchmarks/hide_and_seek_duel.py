"""Play the policies of a run of hide-and-seek against fixed opponents.

    python benchmarks/hide_and_seek_duel.py RUN [--tag final] [--runs-dir runs] [--episodes 100] [--out FILE]

Self-play returns say little: both sides improve. Here each side plays against uniformly random opponents, and beside it play a
seeker that only turns to the nearest hider (sight has no limit of distance, so it sees much) and one that also runs to it.
Both know where it is, seen or not.
Printed: the share of rewarded steps in which a hider is seen, and the median distance of a seeker to the nearest hider.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from jsrl.envs.hide_and_seek.game import ACTIONS, HideAndSeek
from jsrl.envs.make import make_game
from jsrl.policy import Policy, load_players

SLOTS = 32
Side = Callable[[HideAndSeek, object, np.ndarray], np.ndarray]  # (game, observation, is_first) -> actions [B, N, 5]


def random_side(team: str, rng: np.random.Generator) -> Side:
    """Return a team that acts uniformly at random."""

    def act(game: HideAndSeek, observation: object, is_first: np.ndarray) -> np.ndarray:
        return rng.integers(0, ACTIONS.nums, (SLOTS, len(game.groups[team]), 5))

    return act


def learned_side(policy: Policy) -> Side:
    """Return a team that a policy plays; it samples its actions."""

    def act(game: HideAndSeek, observation: object, is_first: np.ndarray) -> np.ndarray:
        return policy(observation, is_first, greedy=False, raw=True)

    return act


def turning_seekers(game: HideAndSeek, observation: object, is_first: np.ndarray) -> np.ndarray:
    """Turn to the nearest hider, on the spot."""
    chosen = chasing_seekers(game, observation, is_first)
    chosen[..., :2] = 5
    return chosen


def chasing_seekers(game: HideAndSeek, observation: object, is_first: np.ndarray) -> np.ndarray:
    """Turn to the nearest hider and run straight to it."""
    hiders, position = game.settings.n_hiders, game.worlds.position
    apart = position[:, None, :hiders, :2] - position[:, hiders : game.settings.n_agents, None, :2]
    nearest = (apart**2).sum(axis=-1).argmin(axis=2)
    toward = np.take_along_axis(apart, nearest[..., None, None], axis=2)[:, :, 0]
    wanted = np.arctan2(toward[..., 1], toward[..., 0]) + np.pi / 2
    turn = (wanted - position[:, hiders : game.settings.n_agents, 3] + np.pi) % (2 * np.pi) - np.pi
    chosen = np.zeros((*turn.shape, 5), int)
    chosen[..., :2] = 5 + np.round(5 * toward / np.maximum(np.abs(toward).max(axis=-1, keepdims=True), 1e-6))
    chosen[..., 2] = 5 + np.clip(np.round(5 * turn / 0.67), -5, 5)
    return chosen


def distances(game: HideAndSeek) -> np.ndarray:
    """Return the distances of seekers to their nearest hiders, [B, seekers]."""
    hiders, place = game.settings.n_hiders, game.worlds.centres()[..., :2]
    apart = place[:, hiders : game.settings.n_agents, None] - place[:, None, :hiders]
    return np.sqrt((apart**2).sum(axis=-1)).min(axis=2)


def duel(policy: Policy, sides: dict[str, Side], episodes: int, seed: int) -> dict[str, float]:
    """Play and return the share of rewarded steps in which a hider is seen, and the median distance in them."""
    config = policy.experiment.env
    known = make_game(config, 1, 0).spec.names
    groups = {team: tuple(name for name in known if name.startswith(team)) for team in sides}
    game = make_game(config, SLOTS, seed, groups=groups)
    assert isinstance(game, HideAndSeek)
    step, ended, caught, far = game.reset(), 0, list[np.ndarray](), list[np.ndarray]()
    while ended < episodes:
        step = game.step({team: side(game, step.observation[team], step.is_first) for team, side in sides.items()})
        ended += len(step.episodes)
        rewarded = (game.clock > game.settings.prep_steps) & ~step.is_first
        caught.append(game.sight.seen[rewarded, game.settings.n_hiders :, : game.settings.n_hiders].any(axis=(1, 2)))
        far.append(distances(game)[rewarded].ravel())
    game.close()
    return {
        "seen_share": round(float(np.concatenate(caught).mean()), 3),
        "median_distance": round(float(np.median(np.concatenate(far))), 2),
    }


def main() -> None:
    """Play all duels and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--tag", default="final")
    parser.add_argument("--runs-dir", default="runs")
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    players = load_players(args.run, args.tag, runs_dir=args.runs_dir)
    learned = {policy.seats[0].partition("_")[0]: learned_side(policy) for policy in players}
    rng = np.random.default_rng(args.seed)
    random = {team: random_side(team, rng) for team in ("hider", "seeker")}
    pairs = {
        "learned seeker, random hider": (random["hider"], learned["seeker"]),
        "random seeker, learned hider": (learned["hider"], random["seeker"]),
        "learned seeker, learned hider": (learned["hider"], learned["seeker"]),
        "random seeker, random hider": (random["hider"], random["seeker"]),
        "turning seeker, random hider": (random["hider"], turning_seekers),
        "chasing seeker, random hider": (random["hider"], chasing_seekers),
        "chasing seeker, learned hider": (learned["hider"], chasing_seekers),
    }
    found = {}
    for name, (hider, seeker) in pairs.items():
        found[name] = duel(players[0], {"hider": hider, "seeker": seeker}, args.episodes, args.seed)
        print(f"{name}: a hider is seen in {found[name]['seen_share']:.2f} of the rewarded steps, median distance "
              f"{found[name]['median_distance']:.2f} m")  # fmt: skip
    if args.out:
        args.out.write_text(json.dumps({"run": args.run, "tag": args.tag, "found": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
