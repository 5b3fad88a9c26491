"""Hide-and-seek: do policies that learned to play learn the paper's tasks sooner than new ones?

    python benchmarks/hide_and_seek_transfer.py [--env-steps 300000] [--task-steps 150000] [--seeds 1] [--out FILE]
    python benchmarks/hide_and_seek_transfer.py --runs RUN@TAG,RUN@POLICY/TAG [--tasks lock_and_return,counting]

First a hider and a seeker learn against each other in the quadrant with a box and a ramp, with PPO and an LSTM. Then agents
learn each task: one begins with the params of the hider, one with those of the seeker, one with new params. With `--runs` they
begin with those of the given runs instead, which learned by PPO with `rows` (see docs/hide_and_seek.md). The paper
re-initialises the last layer of a trained policy; here all params are kept. Printed are the mean return and the mean
`task_score` in up to ten parts of the training, and those of random play.
Counting is not reinforcement learning: a linear classifier learns to tell from the LSTM's state at the end of an episode how
many boxes went to one side; its share of right answers in other episodes is printed beside that of the most frequent answer.
Task runs that are in `--runs-dir` already are not trained again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jsrl.control.run import run
from jsrl.envs.check import random_actions
from jsrl.envs.config import EnvConfig
from jsrl.envs.make import make_game
from jsrl.experiment import Experiment, PolicyConfig
from jsrl.experiment.configs.hide_and_seek_league import config
from jsrl.games.hide_and_seek.game import TASKS, HideAndSeek
from jsrl.games.hide_and_seek.settings import settings_of
from jsrl.networks.model import NetworkConfig
from jsrl.services.runs.runs import load_runs
from jsrl.tools.policy import Policy, load_policy

PARTS, SLOTS, NEW = 10, 32, "new"
NAME = "hide_and_seek_transfer"
PAIR = {"hider": "@final", "seeker": "@seekers/final"}
METRICS = ("hider_return", "task_score")
EPISODES, TESTED, PENALTY = (
    1024,
    256,
    1e-2,
)  # of counting: episodes, those for the test, and the classifier's L2 penalty


def game_of(env_steps: int, seed: int) -> Experiment:
    """Return two policies that learn against each other, with the observations of all tasks."""
    league = config()
    network = NetworkConfig(hidden=(128,), core="lstm", core_size=128, core_norm=True)
    agent = dataclasses.replace(
        league.policies["main"].agent, network=network, chunk_length=10, normalize_values=True, max_grad_norm=5.0
    )
    kwargs: dict[str, Any] = {
        "relative": True,
        "hide_unseen": True,
        "seekers_wait": True,
        "reward_range": 6.0,
        "reward_falls": True,
    }
    kwargs |= {"n_hiders": 1, "n_seekers": 1, "n_boxes": 1, "n_ramps": 1, "rows": [8, 3, 4]}
    return dataclasses.replace(
        league,
        name=NAME,
        env=EnvConfig("hide_and_seek:quadrant", kwargs=kwargs, episode_metrics=league.env.episode_metrics),
        policies={"hiders": PolicyConfig(agent, seats="hider_*"), "seekers": PolicyConfig(agent, seats="seeker_*")},
        director=None,
        rollout_length=80,
        total_env_steps=env_steps,
        seed=seed,
        placement="serial",
    )


def env_of(task: str, trained: EnvConfig) -> EnvConfig:
    """Return a task's environment, with observations like those of the training."""
    settings = settings_of(trained.id.partition(":")[2], trained.kwargs)
    same = ("rows", "relative", "hide_unseen", "corner_bias", "n_lidar", "lidar_range")
    kwargs = {key: trained.kwargs[key] for key in same if key in trained.kwargs} | {"max_others": settings.others}
    return EnvConfig(f"hide_and_seek:{task}", kwargs=kwargs, episode_metrics=METRICS)


def task_of(task: str, policy: Policy, env_steps: int, seed: int) -> Experiment:
    """Return one agent, like the one of a trained policy, that learns a task."""
    made = game_of(env_steps, seed)
    agent = dataclasses.replace(policy.experiment.agent, gamma=0.99)
    return dataclasses.replace(made, env=env_of(task, policy.experiment.env), agent=agent, policies={})


def train(experiment: Experiment, name: str, runs_dir: Path, init_from: str | None = None) -> None:
    """Train a run unless it is there."""
    if not (runs_dir / NAME / name).exists():
        run(experiment, runs_dir=runs_dir, name=name, init_from=init_from, display="plain")


def parts_of(name: str, runs_dir: Path) -> dict[str, list[float]]:
    """Return the means of the metrics in each part of a run of a task."""
    (trained,) = load_runs(f"{NAME}/{name}", runs_dir=str(runs_dir))
    found = {}
    for metric in METRICS:
        _, values = trained.curve(f"actor/episode_{metric}_mean")
        found[metric] = [round(float(np.mean(part)), 3) for part in np.array_split(values, PARTS) if len(part)]
    return found


def random_play(env: EnvConfig, seed: int) -> dict[str, float]:
    """Return the means of the metrics over the first two episodes of each slot, with random actions."""
    game, rng = make_game(env, SLOTS, seed), np.random.default_rng(seed)
    step = game.reset()
    ended: list[list[Any]] = [[] for _ in range(SLOTS)]
    while min(map(len, ended)) < 2:
        step = game.step(random_actions(game, step.observation, rng))
        for episode in step.episodes:
            ended[episode.slot].append(episode.metrics)
    game.close()
    return {metric: round(float(np.mean([e[metric] for slot in ended for e in slot[:2]])), 3) for metric in METRICS}


def memories(policy: Policy, env: EnvConfig, episodes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Watch episodes of counting; return the states of the policy's core at their ends [E, F], and the counts [E]."""
    game = make_game(env, SLOTS, seed)
    assert isinstance(game, HideAndSeek) and game.task is not None
    act, key = jax.jit(partial(policy.agent.act, greedy=True)), jax.random.key(seed)
    still = {"hider_0": np.zeros((SLOTS, 1, 5), np.int64)}
    step, core, found = game.reset(), policy.agent.initial_core(SLOTS), list[tuple[np.ndarray, np.ndarray]]()
    while len(found) * SLOTS < episodes:
        _, core = act(policy.params, key, step.observation["hider_0"], step.is_first, core)
        if step.episodes:
            parts = [np.asarray(leaf).reshape(SLOTS, -1) for leaf in jax.tree.leaves(core)]
            found.append((np.concatenate(parts, axis=1), game.task.score.copy()))
        step = game.step(still)
    game.close()
    states, counts = zip(*found, strict=True)
    return np.concatenate(states), np.concatenate(counts).astype(int)


def classify(states: np.ndarray, counts: np.ndarray, tested: int) -> dict[str, float]:
    """Fit a linear classifier [F] -> count; return its share of right answers for the last `tested` ones."""
    from scipy.optimize import minimize

    scale = states[:-tested].std(axis=0)
    inputs = (states - states[:-tested].mean(axis=0)) / np.where(scale > 1e-6, scale, 1.0)
    inputs = np.concatenate([inputs, np.ones((len(inputs), 1))], axis=1)
    wanted, shape = np.eye(counts.max() + 1)[counts], (inputs.shape[1], counts.max() + 1)
    known, right = inputs[:-tested], wanted[:-tested]

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        logits = known @ weights.reshape(shape)
        logits -= logits.max(axis=1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
        gradient = known.T @ (np.exp(logits) - right) / len(known) + PENALTY * weights.reshape(shape)
        return -(logits * right).sum() / len(known) + PENALTY / 2 * weights @ weights, gradient.ravel()

    weights = minimize(loss, np.zeros(shape).ravel(), jac=True, method="L-BFGS-B").x.reshape(shape)
    answers, likely = (inputs[-tested:] @ weights).argmax(axis=1), np.bincount(counts[:-tested]).argmax()
    return {
        "right": round(float((answers == counts[-tested:]).mean()), 3),
        "most frequent": round(float((counts[-tested:] == likely).mean()), 3),
    }


def measure(task: str, start: str, selector: str, args: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Train a run of a task, or the classifier of counting; return its figures.

    Args:
      start: name of the start; "new": new params. selector: RUN@TAG, whose agent learns.
    """
    name, _, tag = selector.partition("@")
    policy = load_policy(name, tag, runs_dir=str(args.runs_dir))
    if task == "counting":
        if start == NEW:
            policy.params = policy.agent.init(jax.random.key(seed)).params
        return classify(*memories(policy, env_of(task, policy.experiment.env), EPISODES, seed), TESTED)
    called = f"{task}-{start.replace('/', '-')}-{seed}"
    train(task_of(task, policy, args.task_steps, seed), called, args.runs_dir, None if start == NEW else selector)
    return parts_of(called, args.runs_dir)


def starts_of(args: argparse.Namespace, seed: int) -> dict[str, str]:
    """Return the starts, name -> RUN@TAG; trains a hider and a seeker if no runs are given."""
    starts = {selector: selector for selector in args.runs.split(",") if selector}
    if not starts:
        train(game_of(args.env_steps, seed), f"pair-{seed}", args.runs_dir)
        starts = {start: f"{NAME}/pair-{seed}{tag}" for start, tag in PAIR.items()}
    return starts | {NEW: next(iter(starts.values()))}


def main() -> None:
    """Measure all tasks from all starts, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", default="", help="RUN@TAG,...; default: trains a hider and a seeker")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--env-steps", type=int, default=300_000)
    parser.add_argument("--task-steps", type=int, default=150_000)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found: dict[str, Any] = {"env_steps": args.env_steps, "task_steps": args.task_steps, "tasks": {}}
    for task in args.tasks.split(","):
        found["tasks"][task] = values = {}
        if task != "counting":
            values["random"] = random_play(env_of(task, game_of(1, 0).env), 0)
            print(f"{task}, random play: {values['random']}", flush=True)
        for seed in range(args.seeds):
            for start, selector in starts_of(args, seed).items():
                values[f"{start}-{seed}"] = measure(task, start, selector, args, seed)
                print(f"{task}, {start}, seed {seed}: {values[f'{start}-{seed}']}", flush=True)
        if args.out:
            args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
