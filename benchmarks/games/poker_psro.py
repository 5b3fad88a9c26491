"""PSRO on Kuhn and Leduc poker with PPO as the oracle: the exact NashConv of its mixture at each population size.

    python benchmarks/games/poker_psro.py kuhn [--seeds 3] [--out FILE]
    python benchmarks/games/poker_psro.py leduc --solver uniform --population 16

The initial params count as the first member. Exact best responses in place of PPO: benchmarks/games/populations.py.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.games.boards import legal_shares
from benchmarks.games.poker import Kuhn, Leduc
from benchmarks.games.trees import Rules, Tree, unfold
from jsrl.agents.ppo import PPOConfig
from jsrl.control.run import run
from jsrl.directors.psro import PSRO
from jsrl.envs.config import EnvConfig
from jsrl.experiment import EvaluatorConfig, Experiment, PolicyConfig
from jsrl.networks.model import NetworkConfig
from jsrl.services.snapshots.players import PlayerStore
from jsrl.tools.policy import load_policy

GAMES: dict[str, tuple[Callable[[], Rules], str]] = {
    "kuhn": (Kuhn, "openspiel:kuhn_poker"),
    "leduc": (Leduc, "openspiel:leduc_poker"),
}
POKER = Experiment(
    name="poker",
    env=EnvConfig("openspiel:kuhn_poker"),
    policies={
        "main": PolicyConfig(
            PPOConfig(
                learning_rate=1e-3,
                gamma=1.0,
                entropy_coef=0.01,
                num_epochs=4,
                num_minibatches=4,
                network=NetworkConfig(hidden=(64, 64)),
            )
        )
    },
    num_envs=64,
    rollout_length=32,
    total_env_steps=100_000_000,  # the director ends the run
    placement="inline",
    num_actors=2,
    evaluator=EvaluatorConfig(enabled=False),
)


def strategies(folder: Path, tree: Tree, versions: dict[str, int]) -> dict[str, np.ndarray]:
    """Return name -> the policy [I, A] of frozen players of a run."""
    policy, store = load_policy(folder, "final"), PlayerStore(folder / "players")
    structure, rows = jax.tree.structure(policy.params), len(tree.legal)
    act = jax.jit(policy.agent.act)

    def of(version: int) -> np.ndarray:
        params = jax.tree.unflatten(structure, [jnp.asarray(leaf) for leaf in store.load(version)])

        def query(observations: np.ndarray, legal: np.ndarray) -> np.ndarray:
            shown = {"observation": observations[:, None], "action_mask": legal[:, None].astype(np.uint8)}
            shown = jax.tree.map(lambda leaf: np.repeat(leaf, 2, 1), shown)  # one policy plays both seats
            output, _ = act(params, jax.random.key(0), shown, jnp.ones(rows, bool), policy.agent.initial_core(rows))
            logits = np.asarray(output.distribution["logits"], np.float64).reshape(rows, 2, -1)[:, 0]
            return legal_shares(logits, legal)

        return tree.query(query)

    return {name: of(version) for name, version in versions.items()}


def exact(tree: Tree, members: list[np.ndarray], weights: list[float]) -> float:
    """Return the NashConv of a mixture that both sides sample from."""
    return tree.nash_conv(tree.profile(*(tree.mixture(members, weights, player) for player in (0, 1))))


def train(game: str, director: PSRO, seed: int, folder: Path) -> dict[str, Any]:
    """Return the NashConv of the mixture at the end of a run, and of each member alone."""
    rules, env = GAMES[game]
    tree = unfold(rules())
    experiment = replace(POKER, env=EnvConfig(env), director=director, seed=seed)
    result = run(experiment, runs_dir=folder, name=f"{game}-{seed}", display="quiet")
    run_folder = Path(result.folder)
    state = json.loads((run_folder / "director" / "newest.json").read_text())["state"]
    players, mixture = director.population(state, "main"), director.mixture(state, "main")
    store = PlayerStore(run_folder / "players")
    found = strategies(run_folder, tree, {player.version: store.version(player.version) for player in players})
    members = [found[player.version] for player in players]
    return {
        "game": game,
        "solver": director.solver,
        "seed": seed,
        "population": len(mixture),
        "nash_conv": exact(tree, members[: len(mixture)], list(mixture)),
        "newest_alone": tree.nash_conv(members[-1]),
        "uniform_mixture": exact(tree, members, [1 / len(members)] * len(members)),
        "mixture": [round(share, 4) for share in mixture],
        "env_steps": result.env_steps,
        "discarded": state["discarded"],
        "wall_s": result.wall_s,
    }


def main() -> None:
    """Train with each seed and print the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("game", choices=GAMES)
    parser.add_argument("--solver", default="nash")
    parser.add_argument("--population", type=int, default=10)
    parser.add_argument("--oracle-env-steps", type=int, default=100_000)
    parser.add_argument("--games-per-cell", type=int, default=1_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    director = PSRO(
        oracle_env_steps=given.oracle_env_steps,
        games_per_cell=given.games_per_cell,
        solver=given.solver,
        max_population=given.population,
    )
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(given.first_seed, given.first_seed + given.seeds):
            found.append(train(given.game, director, seed, Path(folder)))
            print(json.dumps(found[-1]), flush=True)
            if given.out:
                given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
