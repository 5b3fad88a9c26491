"""BenchMARL's MAPPO on cooperative navigation or foraging, with the network, rows and epochs of `jsrl run mappo`.

    python run_benchmarl.py mpe2 --seed 0 --env-steps 300800
    python run_benchmarl.py vmas --env-steps 100000
    python run_benchmarl.py lbf --game 6x6-2p-1f-coop --env-steps 400000

`mpe2` is the game of jsrl's `particle:simple_spread_v3`, one process that steps its environments one after another.
`vmas` is BenchMARL's fastest form of it: vectorised in torch, with other dynamics and rewards, so only its speed compares.
`lbf` is a game of lbforaging, the same as jsrl's `foraging:GAME`, stepped one after another; gamma is 0.99.
The loss, the env steps, the CPU time and the returns go to benchmarks/results/spread-benchmarl-ENV-seedN.json or
foraging-benchmarl-GAME-seedN.json: `points` of greedy episodes, `sampled` of the training episodes before each evaluation.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import measuring
import process_tree
import seats_work as work
import torch
from benchmarl.algorithms import MappoConfig
from benchmarl.environments import PettingZooTask, VmasTask
from benchmarl.experiment import Callback, Experiment, ExperimentConfig
from benchmarl.models.mlp import MlpConfig
from foraging_game import Foraging
from torchrl.envs import PettingZooWrapper

RESULTS = Path(__file__).resolve().parents[1] / "results"
FORAGING = "8x8-2p-2f-coop"
SETTINGS = {"lr": work.LEARNING_RATE, "adam_eps": 1e-5, "clip_grad_val": work.MAX_GRAD_NORM}
MAPPO = {
    "clip_epsilon": work.CLIP,
    "entropy_coef": work.ENTROPY,
    "critic_coef": 1.0,
    "loss_critic_type": "smooth_l1",
    "lmbda": work.LAMBDA,
}
NOTE = "no value normalisation, no value clipping, a constant learning rate; agents have no numbers"


def task_of(name: str, game: str) -> Any:
    """Return BenchMARL's task; game: of lbforaging."""
    limit = work.LIMITS["foraging" if name == "lbf" else "spread"]
    if name == "vmas":
        return VmasTask.SIMPLE_SPREAD.get_task({"max_steps": limit, "num_agents": 3, "obs_agents": True})

    from mpe2 import simple_spread_v3

    task = PettingZooTask.SIMPLE_SPREAD.get_task({"max_cycles": limit, "N": 3, "local_ratio": 0.5})

    def make(_: Any, num_envs: int, continuous_actions: bool, seed: int | None, device: Any) -> Any:
        """Torchrl looks for these games where PettingZoo kept them before they moved to mpe2."""
        if name == "lbf":
            return lambda: PettingZooWrapper(Foraging(game), categorical_actions=True, seed=seed, device=device)
        return lambda: PettingZooWrapper(
            simple_spread_v3.parallel_env(max_cycles=limit, continuous_actions=continuous_actions),
            categorical_actions=True,
            return_state=True,
            seed=seed,
            device=device,
        )

    type(task).get_env_fun = make  # of the class: tasks are pickled
    return task


def config_of(name: str, env_steps: int, folder: str, episodes: int) -> Any:
    """Return the settings of an experiment."""
    config = ExperimentConfig.get_from_yaml()
    batch = work.NUM_ENVS * work.ROWS
    fields = SETTINGS | {
        "gamma": work.FORAGING_GAMMA if name == "lbf" else work.GAMMA,
        "prefer_continuous_actions": False,
        "on_policy_n_envs_per_worker": work.NUM_ENVS,
        "on_policy_collected_frames_per_batch": batch,
        "on_policy_n_minibatch_iters": work.EPOCHS,
        "on_policy_minibatch_size": batch // work.MINIBATCHES,
        "max_n_frames": env_steps,
        "evaluation_interval": batch * max(1, env_steps // 3 // batch),
        "evaluation": True,
        "evaluation_episodes": episodes,
        "render": False,
        "loggers": ["csv"],  # without one it never evaluates
        "create_json": False,
        "save_folder": folder,
    }
    for option, value in fields.items():
        setattr(config, option, value)
    return config


class Watch(Callback):
    """Records each update (env steps, wall and CPU seconds, losses) and each evaluation (env steps, mean return, 95%).

    `sampled` has the training episodes that ended since the evaluation before, in the same form.
    """

    def __init__(self) -> None:
        super().__init__()
        self.updates: list[dict[str, float]] = []
        self.points: list[list[float]] = []
        self.sampled: list[list[float]] = []
        self._ended: list[torch.Tensor] = []
        self._begun_s = time.monotonic()

    def on_batch_collected(self, batch: Any) -> None:
        """Keep the returns of the episodes that ended, each the mean over the seats."""
        (group,) = self.experiment.group_map
        ended = batch["next", "done"].squeeze(-1)
        self._ended.append(batch["next", group, "episode_reward"].squeeze(-1)[ended].mean(-1))

    def on_train_end(self, training_td: Any, group: str) -> None:
        """Record an update."""
        line = {"env_steps": self.experiment.total_frames, "seconds": time.monotonic() - self._begun_s}
        line |= {name: float(training_td[name].mean()) for name in ("loss_objective", "loss_critic", "loss_entropy")}
        self.updates.append(line | {"cpu_s": process_tree.cpu_seconds(os.getpid())})

    def on_evaluation_end(self, rollouts: list[Any]) -> None:
        """Record an evaluation: the mean over the seats, as jsrl reports it."""
        (group,) = self.experiment.group_map
        env_steps = self.experiment.total_frames
        returns = [float(rollout["next", group, "reward"].sum(0).mean()) for rollout in rollouts]
        self.points.append(work.point(env_steps, returns))
        ended, self._ended = torch.cat([torch.zeros(0), *self._ended]).tolist(), []
        if len(ended) > 1:
            self.sampled.append(work.point(env_steps, ended))
        print(
            "greedy",
            self.points[-1],
            "sampled",
            self.sampled[-1:],
            f"{time.monotonic() - self._begun_s:.0f} s",
            flush=True,
        )


def experiment_of(given: argparse.Namespace, folder: str, watch: Watch) -> Experiment:
    """Return the experiment."""
    mlp = MlpConfig(num_cells=[*work.HIDDEN], activation_class=torch.nn.ReLU, layer_class=torch.nn.Linear)
    mappo = MappoConfig(
        share_param_critic=True,
        scale_mapping="biased_softplus_1.0",
        use_tanh_normal=True,
        minibatch_advantage=False,
        **MAPPO,
    )
    return Experiment(
        task=task_of(given.env, given.game),
        algorithm_config=mappo,
        model_config=mlp,
        critic_model_config=mlp,
        seed=given.seed,
        config=config_of(given.env, given.env_steps, folder, given.episodes),
        callbacks=[watch],
    )


def main() -> None:
    """Train, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env", choices=("mpe2", "vmas", "lbf"))
    parser.add_argument("--game", default=FORAGING, help="of lbforaging, for lbf")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--env-steps", type=int, default=300_000)
    parser.add_argument("--episodes", type=int, default=100, help="of an evaluation")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--to", type=Path, default=RESULTS, help="folder of the results")
    given = parser.parse_args()

    torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory() as folder:
        watch = Watch()
        experiment_of(given, folder, watch).run()
    kept = {
        "command": shlex.join(["python", "benchmarks/peers/run_benchmarl.py", *sys.argv[1:]]),
        "packages": measuring.versions_of("benchmarl", "torchrl", "torch", "mpe2", "vmas", "lbforaging"),
        "note": NOTE,
        "env_steps_per_s": work.rate(watch.updates, "seconds"),
        "env_steps_per_cpu_s": work.rate(watch.updates, "cpu_s"),
        "updates": watch.updates,
        "points": watch.points,
        "sampled": watch.sampled,
    }
    print({name: kept[name] for name in ("env_steps_per_s", "env_steps_per_cpu_s")}, watch.updates[-1], flush=True)
    name = f"foraging-benchmarl-{given.game}" if given.env == "lbf" else f"spread-benchmarl-{given.env}"
    (given.to / f"{name}-seed{given.seed}.json").write_text(json.dumps(kept) + "\n")


if __name__ == "__main__":
    main()
