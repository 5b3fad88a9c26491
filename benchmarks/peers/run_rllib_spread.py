"""RLlib's PPO with one shared policy on cooperative navigation, with the network, rows and epochs of `jsrl run ippo`.

    python run_rllib_spread.py --seed 0 --env-steps 300800

The game is mpe2's simple_spread_v3, jsrl's `particle:simple_spread_v3`. One process steps 128 environments one after another
and learns. As in jsrl, each observation ends with the number of its seat (one-hot).
The losses, the env steps, the CPU time and greedy returns go to benchmarks/results/spread-rllib-seedN.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import measuring
import numpy as np
import process_tree
import ray
import seats_work as work
import torch
from mpe2 import simple_spread_v3
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv
from ray.tune.registry import register_env

RESULTS = Path(__file__).resolve().parents[1] / "results"
SEATS, LIMIT = 3, work.LIMITS["spread"]
POLICY = "shared"
NOTE = "no value normalisation, squared value error without a clip, a constant learning rate, Adam's epsilon 1e-8"


class Spread(ParallelPettingZooEnv):
    """simple_spread_v3 for RLlib; observations end with the number of the seat, one-hot."""

    def __init__(self, _: Any = None) -> None:
        super().__init__(simple_spread_v3.parallel_env(max_cycles=LIMIT))
        numbers = np.eye(SEATS, dtype=np.float32)
        self._numbers = dict(zip(self.par_env.possible_agents, numbers, strict=True))
        spaces = {}
        for agent, space in self.observation_space.items():
            size = space.shape[0] + SEATS
            spaces[agent] = gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32)
        self.observation_space = gymnasium.spaces.Dict(spaces)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Start an episode."""
        seen, info = super().reset(seed=seed, options=options)
        return self._numbered(seen), info

    def step(self, action_dict: Any) -> Any:
        """Step all agents together."""
        seen, *others = super().step(action_dict)
        return self._numbered(seen), *others

    def _numbered(self, seen: dict[str, Any]) -> dict[str, Any]:
        return {agent: np.concatenate([row, self._numbers[agent]]).astype(np.float32) for agent, row in seen.items()}


def config_of(seed: int) -> Any:
    """Return the settings. RLlib adds a row to each episode, so a batch has the 26 rows of jsrl for each environment."""
    model = DefaultModelConfig(fcnet_hiddens=[*work.HIDDEN], fcnet_activation="relu", vf_share_layers=False)
    return (
        PPOConfig()
        .environment("spread")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=work.NUM_ENVS, rollout_fragment_length=work.ROWS)
        .learners(num_learners=0, num_gpus_per_learner=0)
        .multi_agent(policies={POLICY}, policy_mapping_fn=lambda *_, **__: POLICY)
        .rl_module(model_config=model)
        .training(
            train_batch_size_per_learner=work.NUM_ENVS * work.ROWS,
            minibatch_size=work.NUM_ENVS * (work.ROWS + 1) * SEATS // work.MINIBATCHES,
            num_epochs=work.EPOCHS,
            lr=work.LEARNING_RATE,
            gamma=work.GAMMA,
            lambda_=work.LAMBDA,
            clip_param=work.CLIP,
            entropy_coeff=work.ENTROPY,
            vf_loss_coeff=1.0,
            vf_clip_param=float("inf"),
            grad_clip=work.MAX_GRAD_NORM,
            use_kl_loss=False,
        )
        .debugging(seed=seed, log_level="ERROR")
    )


def greedy_returns(module: Any, episodes: int) -> list[float]:
    """Return the returns of episodes with the most likely actions, each the mean over the seats."""
    games = [Spread() for _ in range(episodes)]
    seen = [game.reset(seed=10_000 + i)[0] for i, game in enumerate(games)]
    returns = np.zeros(episodes)
    for _ in range(LIMIT):
        rows = torch.tensor(np.array([[*row.values()] for row in seen]))
        with torch.no_grad():
            logits = module.forward_inference({"obs": rows.reshape(-1, rows.shape[-1])})["action_dist_inputs"]
        action = logits.argmax(-1).reshape(episodes, SEATS).tolist()
        for i, (game, chosen) in enumerate(zip(games, action, strict=True)):
            seen[i], rewards, *_ = game.step(dict(zip(seen[i], chosen, strict=True)))
            returns[i] += np.mean([*rewards.values()])
    return returns.tolist()


def losses_of(result: dict[str, Any]) -> dict[str, float]:
    """Return the losses of an update."""
    learner = result["learners"][POLICY]
    return {name: float(learner[name]) for name in ("policy_loss", "vf_loss", "entropy")}


def train(given: argparse.Namespace) -> dict[str, Any]:
    """Train; return what the file keeps of it."""
    algorithm = config_of(given.seed).build_algo()
    learner = algorithm.learner_group._learner
    steps = measuring.count_steps(*learner._named_optimizers.values())
    begun_s, env_steps = time.monotonic(), 0
    updates: list[dict[str, float]] = []
    points: list[list[float]] = []
    period = max(1, given.env_steps // given.evaluations)
    while env_steps < given.env_steps:
        result = algorithm.train()
        env_steps = int(result["num_env_steps_sampled_lifetime"])
        clocks = {"seconds": time.monotonic() - begun_s, "cpu_s": process_tree.cpu_seconds(os.getpid())}
        updates.append({"env_steps": env_steps, **clocks, **losses_of(result)})
        if env_steps >= period * (len(points) + 1) or env_steps >= given.env_steps:
            returns = greedy_returns(algorithm.get_module(POLICY), given.episodes)
            points.append(work.point(env_steps, returns))
            print(*points[-1], f"{time.monotonic() - begun_s:.0f} s", flush=True)
    return {
        "gradient_steps": round(steps() / len(updates)),
        "env_steps_per_s": work.rate(updates, "seconds"),
        "env_steps_per_cpu_s": work.rate(updates, "cpu_s"),
        "updates": updates,
        "points": points,
    }


def main() -> None:
    """Train, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--env-steps", type=int, default=300_000)
    parser.add_argument("--episodes", type=int, default=100, help="of an evaluation")
    parser.add_argument("--evaluations", type=int, default=6)
    parser.add_argument("--to", type=Path, default=RESULTS, help="folder of the result")
    given = parser.parse_args()

    process_tree.adopt_orphans()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    torch.set_num_threads(1)
    # Loopback only. Its processes are descendants of this one, and are counted with it.
    ray.init(include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    register_env("spread", Spread)
    found = train(given)
    kept = {
        "command": shlex.join(["python", "benchmarks/peers/run_rllib_spread.py", *sys.argv[1:]]),
        "packages": measuring.versions_of("ray", "torch", "mpe2", "gymnasium", "numpy"),
        "note": NOTE,
        **found,
    }
    print({name: kept[name] for name in ("env_steps_per_s", "env_steps_per_cpu_s")}, kept["updates"][-1], flush=True)
    (given.to / f"spread-rllib-seed{given.seed}.json").write_text(json.dumps(kept) + "\n")
    measuring.leave()


if __name__ == "__main__":
    main()
