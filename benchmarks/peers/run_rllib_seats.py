"""RLlib's PPO with one policy for all seats of spread or foraging, with the network, rows and epochs of `jsrl run ippo`.

    python run_rllib_seats.py spread --seed 0 --env-steps 300800
    python run_rllib_seats.py 5x5-2p-1f-coop --env-steps 300800

`spread` is mpe2's simple_spread_v3, jsrl's `particle:simple_spread_v3`; other games are lbforaging's, jsrl's `foraging:GAME`,
with gamma 0.99. One process steps 128 environments one after another and learns. As in jsrl, each observation ends with the
number of its seat (one-hot). The losses, the env steps, the CPU time, greedy returns (`points`) and those of training
episodes (`sampled`) go to benchmarks/results/spread-rllib-seedN.json or foraging-rllib-GAME-seedN.json.
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
from foraging_game import Foraging
from mpe2 import simple_spread_v3
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv
from ray.tune.registry import register_env

RESULTS = Path(__file__).resolve().parents[1] / "results"
POLICY = "shared"
NOTE = "no value normalisation, squared value error without a clip, a constant learning rate, Adam's epsilon 1e-8"


class Seats(ParallelPettingZooEnv):
    """A game for RLlib; observations end with the number of the seat, one-hot.

    Attributes:
      seats: their number. limit: steps of an episode.
    """

    def __init__(self, game: str) -> None:
        self.limit = work.LIMITS["spread" if game == "spread" else "foraging"]
        super().__init__(simple_spread_v3.parallel_env(max_cycles=self.limit) if game == "spread" else Foraging(game))
        self.seats = len(self.par_env.possible_agents)
        numbers = np.eye(self.seats, dtype=np.float32)
        self._numbers = dict(zip(self.par_env.possible_agents, numbers, strict=True))
        spaces = {}
        for agent, space in self.observation_space.items():
            size = space.shape[0] + self.seats
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


def config_of(game: str, seed: int) -> Any:
    """Return the settings. RLlib adds a row to each episode, so a batch has the 26 rows of jsrl for each environment."""
    seats = Seats(game).seats
    model = DefaultModelConfig(fcnet_hiddens=[*work.HIDDEN], fcnet_activation="relu", vf_share_layers=False)
    return (
        PPOConfig()
        .environment("game")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=work.NUM_ENVS, rollout_fragment_length=work.ROWS)
        .learners(num_learners=0, num_gpus_per_learner=0)
        .multi_agent(policies={POLICY}, policy_mapping_fn=lambda *_, **__: POLICY)
        .rl_module(model_config=model)
        .training(
            train_batch_size_per_learner=work.NUM_ENVS * work.ROWS,
            minibatch_size=work.NUM_ENVS * (work.ROWS + 1) * seats // work.MINIBATCHES,
            num_epochs=work.EPOCHS,
            lr=work.LEARNING_RATE,
            gamma=work.GAMMA if game == "spread" else work.FORAGING_GAMMA,
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


def greedy_returns(game: str, module: Any, episodes: int) -> list[float]:
    """Return the returns of episodes with the most likely actions, each the mean over the seats."""
    games = [Seats(game) for _ in range(episodes)]
    seen = [each.reset(seed=10_000 + i)[0] for i, each in enumerate(games)]
    returns, over = np.zeros(episodes), np.zeros(episodes, bool)
    for _ in range(games[0].limit):
        rows = torch.tensor(np.array([[*row.values()] for row in seen]))
        with torch.no_grad():
            logits = module.forward_inference({"obs": rows.reshape(-1, rows.shape[-1])})["action_dist_inputs"]
        action = logits.argmax(-1).reshape(episodes, -1).tolist()
        for i in np.flatnonzero(~over):
            seen[i], rewards, ended, cut, _ = games[i].step(dict(zip(seen[i], action[i], strict=True)))
            returns[i] += np.mean([*rewards.values()])
            over[i] = ended["__all__"] or cut["__all__"]
    return returns.tolist()


def losses_of(result: dict[str, Any]) -> dict[str, float]:
    """Return the losses of an update."""
    learner = result["learners"][POLICY]
    return {name: float(learner[name]) for name in ("policy_loss", "vf_loss", "entropy")}


def train(given: argparse.Namespace) -> dict[str, Any]:
    """Train; return what the file keeps of it."""
    seats = Seats(given.game).seats
    algorithm = config_of(given.game, given.seed).build_algo()
    learner = algorithm.learner_group._learner
    steps = measuring.count_steps(*learner._named_optimizers.values())
    begun_s, env_steps = time.monotonic(), 0
    updates: list[dict[str, float]] = []
    points: list[list[float]] = []
    sampled: list[list[float]] = []
    period = max(1, given.env_steps // given.evaluations)
    while env_steps < given.env_steps:
        result = algorithm.train()
        env_steps = int(result["num_env_steps_sampled_lifetime"])
        clocks = {"seconds": time.monotonic() - begun_s, "cpu_s": process_tree.cpu_seconds(os.getpid())}
        updates.append({"env_steps": env_steps, **clocks, **losses_of(result)})
        if env_steps >= period * (len(points) + 1) or env_steps >= given.env_steps:
            returns = greedy_returns(given.game, algorithm.get_module(POLICY), given.episodes)
            points.append(work.point(env_steps, returns))
            sampled.append([env_steps, round(result["env_runners"]["episode_return_mean"] / seats, 3)])
            print(*points[-1], *sampled[-1], f"{time.monotonic() - begun_s:.0f} s", flush=True)
    return {
        "gradient_steps": round(steps() / len(updates)),
        "env_steps_per_s": work.rate(updates, "seconds"),
        "env_steps_per_cpu_s": work.rate(updates, "cpu_s"),
        "updates": updates,
        "points": points,
        "sampled": sampled,
    }


def main() -> None:
    """Train, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("game", help="spread, or a game of lbforaging such as 5x5-2p-1f-coop")
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
    register_env("game", lambda _: Seats(given.game))
    found = train(given)
    kept = {
        "command": shlex.join(["python", "benchmarks/peers/run_rllib_seats.py", *sys.argv[1:]]),
        "packages": measuring.versions_of("ray", "torch", "mpe2", "lbforaging", "gymnasium", "numpy"),
        "note": NOTE,
        **found,
    }
    print({name: kept[name] for name in ("env_steps_per_s", "env_steps_per_cpu_s")}, kept["updates"][-1], flush=True)
    name = "spread-rllib" if given.game == "spread" else f"foraging-rllib-{given.game}"
    (given.to / f"{name}-seed{given.seed}.json").write_text(json.dumps(kept) + "\n")
    measuring.leave()


if __name__ == "__main__":
    main()
