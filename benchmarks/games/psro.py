"""Biased rock-paper-scissors by PPO in a run: PSRO with a Nash mixture, and self-play against the newest params.

    python benchmarks/games/psro.py [--seeds 3] [--arms psro latest] [--out FILE]

Reported is the exact NashConv (0: an equilibrium; 0.667 at the start): of PSRO's mixture of its population, and for self-play
against the newest params of the policy's average over the run, with the range of the policy itself.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.games.matrix import BIASED, nash_conv
from jsrl.agents.ppo import PPOConfig
from jsrl.control.run import run
from jsrl.directors.pools import DeltaUniform
from jsrl.directors.psro import PSRO
from jsrl.envs.config import EnvConfig
from jsrl.envs.make import make
from jsrl.experiment import EvaluatorConfig, Experiment, PolicyConfig
from jsrl.networks.model import NetworkConfig
from jsrl.services.snapshots.players import PlayerStore
from jsrl.tools.policy import load_policy

AGENT = PPOConfig(
    learning_rate=3e-3,
    gamma=1.0,
    entropy_coef=0.0,
    num_epochs=4,
    num_minibatches=4,
    network=NetworkConfig(hidden=(32,)),
)
RPS = Experiment(
    name="biased_rps",
    env=EnvConfig("matrix:biased_rps"),
    policies={"main": PolicyConfig(AGENT)},
    num_envs=32,
    rollout_length=32,
    total_env_steps=2_000_000,
    placement="inline",
    num_actors=1,
    evaluator=EvaluatorConfig(enabled=False),
)


def mixed_actions(folder: Path, versions: dict[str, int]) -> dict[str, np.ndarray]:
    """Return name -> probabilities [3] of frozen players of a run."""
    policy, store = load_policy(folder, "final"), PlayerStore(folder / "players")
    structure = jax.tree.structure(policy.params)
    (seen,) = make(RPS.env, 1, 0, groups={"all": policy.seats}).reset().observation.values()

    def probabilities(version: int) -> np.ndarray:
        params = jax.tree.unflatten(structure, [jnp.asarray(leaf) for leaf in store.load(version)])
        output, _ = policy.agent.act(params, jax.random.key(0), seen, jnp.ones(1, bool), policy.agent.initial_core(1))
        return np.asarray(jax.nn.softmax(output.distribution["logits"], axis=-1)).reshape(-1, 3)[0].astype(np.float64)

    return {name: probabilities(version) for name, version in versions.items()}


def exact(strategy: np.ndarray) -> float:
    """Return the NashConv of a strategy that both sides play."""
    strategy = strategy / strategy.sum()
    return nash_conv(BIASED, -BIASED, strategy, strategy)


def train(
    director: Any, seed: int, env_steps: int, folder: Path, agent: PPOConfig = AGENT
) -> tuple[Path, dict[str, Any], float]:
    """Return (run folder, the director's state, seconds) of a run."""
    name = f"{type(director).__name__}-{seed}"
    result = run(
        replace(RPS, policies={"main": PolicyConfig(agent)}, director=director, seed=seed, total_env_steps=env_steps),
        runs_dir=folder,
        name=name,
        display="quiet",
    )
    state = json.loads((Path(result.folder) / "director" / "newest.json").read_text())["state"]
    return Path(result.folder), state, result.wall_s


def psro(seed: int, folder: Path) -> dict[str, Any]:
    """Return the NashConv of PSRO's mixture at population 6."""
    director = PSRO(oracle_env_steps=60_000, games_per_cell=4_000, max_population=6)
    run_folder, state, wall_s = train(director, seed, 4_000_000, folder)
    players = director.population(state, "main")
    store = PlayerStore(run_folder / "players")
    strategies = mixed_actions(run_folder, {player.version: store.version(player.version) for player in players})
    mixture = director.mixture(state, "main")
    pairs = list(zip(players, mixture, strict=False))
    mixed = np.sum([share * strategies[player.version] for player, share in pairs], axis=0)
    return {
        "arm": "psro",
        "seed": seed,
        "population": len(pairs),
        "nash_conv": exact(mixed),
        "mixture": [round(share, 4) for share in mixture],
        "strategies": [strategies[player.version].round(3).tolist() for player, _ in pairs],
        "discarded": state["discarded"],
        "wall_s": wall_s,
    }


def latest(seed: int, folder: Path) -> dict[str, Any]:
    """Return the NashConv of the average over a run of self-play against the newest params, and the policy's range."""
    director = DeltaUniform(freeze_env_steps=5_000, latest_share=1.0)
    # A fast one soon becomes deterministic and stays so. With less entropy (0.02) its cycles grow, and the average with them.
    slow = replace(AGENT, learning_rate=3e-4, entropy_coef=0.1)
    run_folder, state, wall_s = train(director, seed, 1_000_000, folder, slow)
    names = state["pools"]["main"]["frozen"]
    store = PlayerStore(run_folder / "players")
    strategies = np.array(list(mixed_actions(run_folder, {name: store.version(name) for name in names}).values()))
    return {
        "arm": "latest",
        "seed": seed,
        "snapshots": len(names),
        "nash_conv": exact(strategies.mean(0)),
        "of_one": [min(map(exact, strategies)), max(map(exact, strategies))],
        "wall_s": wall_s,
    }


ARMS = {"psro": psro, "latest": latest}


def main() -> None:
    """Run the arms with each seed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(options.seeds):
            for arm in options.arms:
                found.append(ARMS[arm](seed, Path(folder)))
                print(json.dumps(found[-1]), flush=True)
                if options.out:
                    options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
