"""The overhead of jsrl against a hand-written loop, on one core: `python benchmarks/by_hand.py`.

  loop      a loop as a researcher writes it: gymnasium environments stepped one after another, a jitted `act`, rows put into
            arrays, a jitted `update`; it uses only the agent's pure functions of jsrl
  serial    the same experiment by run.py in one process
  inline    the same in two processes, an actor and a learner

All arms run on one core with one math thread, once with plain CartPole and once with an environment that takes 1 ms a step.
Arms alternate (A B, B A, ...); the figure is trained env steps/s, ratios are medians over rounds with a bootstrap interval of
95%. Limits: `serial` at least 95% of the loop, `inline` at least 80% where a step takes 1 ms; the exit status is 1 if a whole
interval lies below. Results go to benchmarks/results/by-hand.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

from benchmarks.srl.blocks import Arm, Figures, Record, alternate, paired_ratio, ratio_text
from benchmarks.throughput.alone import on_one_core, rate
from benchmarks.throughput.end_to_end import end_to_end

SLOW = "benchmarks.endurance.slow:Slow"
EXPERIMENT = "ppo_cartpole"
ASKED = {("serial", "cartpole"): 0.95, ("serial", "slow"): 0.95, ("inline", "slow"): 0.80}


# -- the loop ---------------------------------------------------------------------------------------------------------


class Loop:
    """PPO by hand: environments are reset in the step after the end of their episode; that row is not trained on."""

    def __init__(self, make_env: Any, experiment: Any) -> None:
        import jax

        from jsrl.agents.ppo import ppo
        from jsrl.types import ArraySpec, Discrete, EnvSpec

        self.rows, self.envs = experiment.rollout_length, [make_env() for _ in range(experiment.num_envs)]
        agent = ppo(
            dataclasses.replace(experiment.agent, total_updates=1_000_000),
            EnvSpec(ArraySpec((4,), "float32"), Discrete(2)),
        )
        self.act, self.update = jax.jit(agent.act), jax.jit(agent.update, donate_argnums=0)
        self.key, self.number = jax.random.key(0), 0
        self.state = jax.jit(agent.init)(self.key)
        self.split = jax.jit(lambda number: jax.random.split(jax.random.fold_in(self.key, number), self.rows + 1))

    def begin(self) -> None:
        """Reset the environments."""
        import numpy as np

        self.observation = np.stack([env.reset(seed=i)[0] for i, env in enumerate(self.envs)])
        self.is_first = np.ones(len(self.envs), bool)
        self.over = np.zeros(len(self.envs), bool)

    def iterate(self) -> int:
        """Play T rows and update; return the env steps."""
        import jax
        import numpy as np

        from jsrl.types import Trajectory

        T, B = self.rows, len(self.envs)
        rows = Trajectory(
            observation=np.zeros((T + 1, B, 4), np.float32),
            is_first=np.zeros((T + 1, B), bool),
            action=np.zeros((T + 1, B), np.int32),
            reward=np.zeros((T + 1, B), np.float32),
            discount=np.zeros((T + 1, B), np.float32),
            acts=np.ones((T + 1, B), np.uint8),
            log_prob=np.zeros((T + 1, B), np.float32),
            extras={},
            version=np.zeros((T + 1, B), np.int64),
            core=(),
        )
        keys = self.split(self.number)
        self.number += 1
        for t in range(T):
            output, _ = self.act(self.state.params, keys[t], self.observation, self.is_first, ())
            action = np.asarray(output.action)
            rows.observation[t], rows.is_first[t], rows.action[t] = self.observation, self.is_first, action
            rows.log_prob[t] = output.log_prob
            self.step(action, rows.reward[t], rows.discount[t])
        rows.observation[T], rows.is_first[T] = self.observation, self.is_first
        self.state, _ = self.update(self.state, rows, keys[T])
        jax.block_until_ready(self.state.updates)
        return T * B

    def step(self, action: Any, reward: Any, discount: Any) -> None:
        """Step every environment, or reset it if its episode is over."""
        for i, env in enumerate(self.envs):
            self.is_first[i] = self.over[i]
            if self.over[i]:
                self.observation[i], self.over[i] = env.reset()[0], False
                continue
            self.observation[i], reward[i], terminated, truncated, _ = env.step(int(action[i]))
            discount[i] = 0.0 if terminated else 1.0
            self.over[i] = terminated or truncated


def run_loop(env: str, seconds: float, warm_up_s: float) -> None:
    """Train, and print env steps/s."""
    import gymnasium

    from benchmarks.endurance.slow import Slow
    from jsrl.cli.experiments import experiments

    def make_env() -> Any:
        return gymnasium.wrappers.TimeLimit(Slow(), 500) if env == "slow" else gymnasium.make("CartPole-v1")

    loop = Loop(make_env, experiments()[EXPERIMENT]())
    loop.begin()
    rate(loop.iterate, warm_up_s)
    per_s, per_cpu_s = rate(loop.iterate, seconds)
    print(json.dumps({"env_steps_per_s": per_s, "env_steps_per_cpu_s": per_cpu_s}))


# -- measuring --------------------------------------------------------------------------------------------------------


def loop_arm(env: str, given: argparse.Namespace) -> Arm:
    """Return the arm of the loop by hand, in a separate process."""
    times = ["--seconds", f"{given.seconds}", "--warm-up-s", f"{given.warm_up_s}"]
    words = [sys.executable, str(Path(__file__).resolve()), "--loop", env, *times]

    def block() -> Figures:
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(words, check=True, capture_output=True, text=True, cwd=folder)
        return json.loads(done.stdout.splitlines()[-1])

    return Arm(f"loop, {env}", block)


def run_arm(placement: str, env: str, given: argparse.Namespace) -> Arm:
    """Return the arm of run.py in a placement."""
    slow = ("--env.id", SLOW, "--env.max-episode-steps", "500")

    def block() -> Figures:
        options = slow if env == "slow" else ()
        found = end_to_end(EXPERIMENT, placement, given.seconds, given.warm_up_s, options)
        return {name: found[name] for name in ("env_steps_per_s", "env_steps_per_cpu_s", "cores_used")}

    return Arm(f"{placement}, {env}", block)


def main() -> int:
    """Measure, print and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="measured in each block")
    parser.add_argument("--warm-up-s", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--loop", choices=("cartpole", "slow"), help="run the loop by hand, and print its figure")
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "by-hand.json")
    given = parser.parse_args()
    on_one_core()
    if given.loop:
        run_loop(given.loop, given.seconds, given.warm_up_s)
        return 0
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    record = Record("by_hand", "env_steps_per_s", {"seconds": given.seconds, "warm_up_s": given.warm_up_s})
    arms = [loop_arm(env, given) for env in ("cartpole", "slow")]
    arms += [run_arm(*which, given) for which in (*ASKED, ("inline", "cartpole"))]
    alternate(record, arms, given.rounds)
    below = []
    for arm in arms:
        placement, env = arm.name.split(", ")
        if placement != "loop":
            ratio = record.summary[arm.name] = paired_ratio(record, arm.name, f"loop, {env}")
            asked = ASKED.get((placement, env))
            print(f"{arm.name:<18} of the loop {ratio_text(ratio)}{f', limit {asked}' if asked else ''}")
            below += [arm.name] if asked and ratio["high"] < asked else []
    record.save(given.json)
    print(f"  below: {', '.join(below) or 'none'}; raw numbers: {given.json}")
    return int(bool(below))


if __name__ == "__main__":
    sys.exit(main())
