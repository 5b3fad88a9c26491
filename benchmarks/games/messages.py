"""What messages are worth: speaker and listener with each listener hearing its own speaker, and with shuffled messages.

    python benchmarks/games/messages.py RUN [--runs-dir runs] [--episodes 500]

RUN is a run of `mappo_speaker_listener`; its final policies play greedily. Shuffled: in every step each listener gets the
message of another episode. Printed is the mean return over seats, with 95% intervals over episodes.
"""

from __future__ import annotations

import argparse
import json

import numpy as np

from jsrl.envs.make import make_game
from jsrl.tools.policy import Policy, load_policy

SYMBOLS = 3  # last entries of what the listener observes


def returns(speaker: Policy, listener: Policy, episodes: int, seed: int, *, shuffled: bool) -> np.ndarray:
    """Return the mean return over seats of each episode, [B]."""
    game = make_game(speaker.experiment.env, episodes, seed)
    rng, total = np.random.default_rng(seed), np.zeros(episodes)
    step = game.reset()
    for number in range(25):
        first = np.full(episodes, number == 0)
        seen = step.observation["listener_0"].copy()
        if shuffled:
            order = rng.permutation(episodes)
            seen[order, :, -SYMBOLS:] = seen[np.roll(order, 1), :, -SYMBOLS:]
        spoken = speaker(step.observation["speaker_0"], first, raw=True)
        step = game.step({"speaker_0": spoken, "listener_0": listener(seen, first, raw=True)})
        total += step.reward.mean(axis=1)
    return total


def main() -> None:
    """Play both ways and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--runs-dir", default="runs")
    parser.add_argument("--episodes", type=int, default=500)
    parser.add_argument("--seed", type=int, default=12345)
    options = parser.parse_args()
    speaker, listener = (
        load_policy(options.run, f"{name}/final", runs_dir=options.runs_dir) for name in ("speaker", "listener")
    )
    for shuffled in (False, True):
        found = returns(speaker, listener, options.episodes, options.seed, shuffled=shuffled)
        interval = 1.96 * found.std(ddof=1) / len(found) ** 0.5
        print(json.dumps({"shuffled": shuffled, "return": round(found.mean(), 2), "ci95": round(interval, 2)}))


if __name__ == "__main__":
    main()
