"""Play the policies of a run of hide-and-seek against fixed opponents.

    python benchmarks/hide_and_seek_duel.py RUN [--tag final] [--runs-dir runs] [--episodes 100] [--curve N] [--out FILE]
    python benchmarks/hide_and_seek_duel.py RUN --env-id hide_and_seek:quadrant --env-kwargs '{"map_scale": 2}'

Self-play returns say little, because both sides improve. Here each side plays against uniformly random opponents; for
comparison, one scripted seeker only turns to the nearest hider (sight has no limit of distance, so it sees much) and another
one also runs to it. Both know its position, seen or not.
Printed: the share of rewarded steps in which a hider is seen, from any distance, and the median distance of a seeker to the
nearest hider; then whether the learned seeker chases random hiders: it sees one in `--share` of the steps, from at most half
the distance of the seeker that only turns. `--curve N`: only the two learned sides against random opponents, at N of the
snapshots that the run has kept (train with `--snapshots.keep 200`). `--env-id` and `--env-kwargs`: in another world than that
of the training; its observations must have the same shapes.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from jsrl.envs.config import EnvConfig
from jsrl.envs.make import make_game
from jsrl.games.hide_and_seek.game import ACTIONS, HideAndSeek
from jsrl.services.runs.runs import RunFolder
from jsrl.services.snapshots.store import SnapshotStore
from jsrl.tools.policy import Policy, load_players, load_policy, policies_in

SLOTS = 32
TEAMS = ("hider", "seeker")
Side = Callable[[HideAndSeek, object, np.ndarray], np.ndarray]  # (game, observation, is_first) -> actions [B, N, 5]


def random_side(team: str, rng: np.random.Generator) -> Side:
    """Return a team that acts uniformly at random."""

    def act(game: HideAndSeek, observation: object, is_first: np.ndarray) -> np.ndarray:
        return rng.integers(0, ACTIONS.nums, (game.num_envs, len(game.groups[team]), 5))

    return act


def learned_side(policy: Policy, team: str) -> Side:
    """Return a team played by a policy, of this team or of all seats; it samples its actions."""

    def act(game: HideAndSeek, observation: Any, is_first: np.ndarray) -> np.ndarray:
        seats = game.groups[team]
        own = [policy.seats.index(seat) for seat in seats]
        if len(own) == len(policy.seats):
            return policy(observation, is_first, greedy=False, raw=True)
        whole = {}
        for name, leaf in observation.items():  # observations of the other team's seats do not matter here
            whole[name] = np.zeros((len(leaf), len(policy.seats), *leaf.shape[2:]), leaf.dtype)
            whole[name][:, own] = leaf
        return policy(whole, is_first, greedy=False, raw=True)[:, own]

    return act


def learned_sides(run: str, tag: str, runs_dir: str) -> dict[str, Side]:
    """Return both teams of a run, each with its own policies and their memory."""
    sides = {}
    for team in TEAMS:
        players = load_players(run, tag, runs_dir=runs_dir)
        sides[team] = learned_side(next(p for p in players if f"{team}_0" in p.seats), team)
    return sides


def turning_seekers(game: HideAndSeek, observation: object, is_first: np.ndarray) -> np.ndarray:
    """Turn to the nearest hider without moving."""
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


def make_duel(config: EnvConfig, num_envs: int, seed: int) -> HideAndSeek:
    """Return a game whose groups are the two teams."""
    known = make_game(config, 1, 0).spec.names
    groups = {team: tuple(name for name in known if name.startswith(team)) for team in TEAMS}
    game = make_game(config, num_envs, seed, groups=groups)
    assert isinstance(game, HideAndSeek)
    return game


def duel(config: EnvConfig, sides: dict[str, Side], episodes: int, seed: int) -> dict[str, float]:
    """Play and return the share of rewarded steps in which a hider is seen, and the median distance in them."""
    game = make_duel(config, SLOTS, seed)
    step, ended, caught, far = game.reset(), 0, list[np.ndarray](), list[np.ndarray]()
    while ended < episodes:
        step = game.step({team: side(game, step.observation[team], step.is_first) for team, side in sides.items()})
        ended += len(step.episodes)
        rewarded = (game.clock > game.settings.prep_steps) & ~step.is_first
        seen = game.sight.seen[rewarded, game.settings.n_hiders :, : game.settings.n_hiders]
        caught.append(np.asarray(seen.any(axis=(1, 2))))
        far.append(distances(game)[rewarded].ravel())
    game.close()
    return {
        "seen_share": round(float(np.concatenate(caught).mean()), 3),
        "median_distance": round(float(np.median(np.concatenate(far))), 2),
    }


def kept_tags(run: str, runs_dir: str, points: int) -> list[str]:
    """Return tags of some snapshots that the run has kept; tags them, so that they can be loaded by name."""
    folder = RunFolder.open(run, runs_dir)
    stores = [SnapshotStore(folder.snapshots / name / "state") for name in ["", *list(policies_in(folder))[1:]]]
    kept = sorted(set.intersection(*(set(store.versions()) for store in stores)))
    chosen = [kept[i] for i in np.unique(np.linspace(0, len(kept) - 1, points).astype(int))]
    for store in stores:
        for version in chosen:
            store.tag(f"update-{version}", version)
    return [f"update-{version}" for version in chosen]


def pairs_of(learned: dict[str, Side], random: dict[str, Side], *, every: bool) -> dict[str, tuple[Side, Side]]:
    """Return the pairings: name -> (hider, seeker)."""
    pairs = {
        "learned seeker, random hider": (random["hider"], learned["seeker"]),
        "random seeker, learned hider": (learned["hider"], random["seeker"]),
    }
    if every:
        pairs |= {
            "learned seeker, learned hider": (learned["hider"], learned["seeker"]),
            "random seeker, random hider": (random["hider"], random["seeker"]),
            "turning seeker, random hider": (random["hider"], turning_seekers),
            "chasing seeker, random hider": (random["hider"], chasing_seekers),
            "chasing seeker, learned hider": (learned["hider"], chasing_seekers),
        }
    return pairs


def chases(duels: dict[str, dict[str, float]], share: float) -> bool:
    """Return whether the learned seeker sees random hiders often enough, at most half as far as a turning one."""
    learned, turning = (duels[f"{name} seeker, random hider"] for name in ("learned", "turning"))
    return learned["seen_share"] >= share and learned["median_distance"] <= turning["median_distance"] / 2


def main() -> None:
    """Play all duels and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--tag", default="final")
    parser.add_argument("--runs-dir", default="runs")
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--curve", type=int, default=0)
    parser.add_argument("--share", type=float, default=0.7, help="of the steps in which a chaser sees a hider")
    parser.add_argument("--seed", type=int, default=1_000_000)
    parser.add_argument("--env-id", help="of the world to play in; default: that of the training")
    parser.add_argument("--env-kwargs", type=json.loads, default={}, help="JSON; replaces those of the training")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    tags = kept_tags(args.run, args.runs_dir, args.curve) if args.curve else [args.tag]
    trained = load_policy(args.run, tags[0], runs_dir=args.runs_dir).experiment.env
    config = dataclasses.replace(trained, id=args.env_id or trained.id, kwargs={**trained.kwargs, **args.env_kwargs})
    rng = np.random.default_rng(args.seed)
    random = {team: random_side(team, rng) for team in TEAMS}
    found: dict[str, dict[str, dict[str, float]]] = {}
    for tag in tags:
        learned, found[tag] = learned_sides(args.run, tag, args.runs_dir), {}
        for name, (hider, seeker) in pairs_of(learned, random, every=not args.curve).items():
            text = found[tag][name] = duel(config, {"hider": hider, "seeker": seeker}, args.episodes, args.seed)
            print(f"{tag}, {name}: a hider is seen in {text['seen_share']:.2f} of the rewarded steps, median distance "
                  f"{text['median_distance']:.2f} m", flush=True)  # fmt: skip
    if not args.curve:
        verdict = "chases" if chases(found[args.tag], args.share) else "does not chase"
        print(
            f"the learned seeker {verdict} random hiders ({args.share:g} of the steps, half as far as one that turns)"
        )
    if args.out:
        args.out.write_text(
            json.dumps(
                {"run": args.run, "env": [config.id, dict(config.kwargs)], "episodes": args.episodes, "found": found},
                indent=1,
            )
            + "\n"
        )


if __name__ == "__main__":
    main()
