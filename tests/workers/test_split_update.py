"""Policy and critics on two devices: alternating equals the agent's own update; asynchronously they stay within the lead."""

from __future__ import annotations

import subprocess
import sys

import pytest

from jsrl.agents.ppo import PPOConfig
from jsrl.agents.sac import SACConfig
from jsrl.cli.plan import describe
from jsrl.envs.config import EnvConfig
from jsrl.errors import ConfigError
from jsrl.experiment import Experiment, LearnerConfig, ReplayConfig
from jsrl.graph.devices import process_environment
from jsrl.graph.plan import make_plan
from jsrl.networks.model import NetworkConfig
from tests.fake_devices import fake_devices
from tests.marks import nightly

COMMON = """
import dataclasses
import sys
import jax
import numpy as np

from jsrl.agents.random_rows import random_trajectory
from jsrl.agents.ddpg import DDPGConfig, ddpg
from jsrl.agents.sac import SACConfig, sac
from jsrl.agents.td3 import TD3Config, td3
from jsrl.errors import NonFiniteUpdate
from jsrl.networks.model import NetworkConfig
from jsrl.replay.device.agent import on_device
from jsrl.experiment.settings import ReplayConfig
from jsrl.types import ArraySpec, Continuous, EnvSpec, make_trajectory_spec
from jsrl.workers.learner.split_update import SplitUpdate

jax.config.update("jax_cpu_enable_async_dispatch", False)
assert jax.local_device_count() == 2
network = NetworkConfig(hidden=(16,), activation="tanh")
spec = EnvSpec(ArraySpec((3,), "float32"), Continuous((-1.0,) * 2, (1.0,) * 2))
KEY = jax.random.key(4)
MAKERS = {"sac": (sac, SACConfig), "td3": (td3, TD3Config), "ddpg": (ddpg, DDPGConfig)}

def make(name, **options):
    factory, config = MAKERS[name]
    return factory(config(network=network, learning_rate=1e-2, normalize_observations=True, **options), spec)

def batch(step, rows=1, columns=32):
    rng = np.random.default_rng(step)
    return random_trajectory(spec, rng, num_rows=rows, num_envs=columns, extras=(), core=(), weighted=False)

def whole(t):
    return jax.tree.map(lambda x: x[None], t)

def split_of(agent, **options):
    parts = (agent.split.policy, agent.split.critic)
    return SplitUpdate(agent, parts, jax.local_devices(), KEY, **options)

def near(a, b, atol):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=atol), a, b)
"""

TURNS = (
    COMMON
    + """
name, delay = sys.argv[1], int(sys.argv[2])
options = {} if name == "ddpg" else {"policy_delay": delay}
agent = make(name, **options)
split, update = split_of(agent, max_lead=0), jax.jit(agent.update)
alone = jax.jit(agent.init)(jax.random.key(3))
state = split.make(jax.random.key(3))
split.compile(state, whole(batch(0)))
for step in range(12):
    t = batch(step)
    alone, output = update(alone, t, jax.random.fold_in(KEY, step))
    state, (metrics, _), _ = split(state, whole(t), step)
    assert set(metrics) == set(output.metrics) | {"split_policy_staleness", "split_critic_staleness"}
    assert metrics["split_policy_staleness"] == metrics["split_critic_staleness"] == 0
    if step == 5:  # a snapshot, and on from it
        kept = split.saved(state)
        split.close()
        split = split_of(agent, max_lead=0)
        state = split.place(kept)
        split.compile(state, whole(t))
joined = split.saved(state)
assert jax.tree.structure(joined) == jax.tree.structure(alone)
# SAC: to rounding. The others' target policy is one update old (tau is 0.005, the rate 0.01).
near(joined, alone, 2e-5 if name == "sac" else 5e-3)
if name != "sac":
    near(joined.params, alone.params, 2e-3)
split.close()
print("equal")
"""
)

APART = (
    COMMON
    + """
lead, calls = 2, 60
agent = make("sac")
replay = ReplayConfig(capacity=400, batch_size=16, min_size=20, updates_per_call=3, updates_per_env_step=None)
schema = make_trajectory_spec(spec, (), (), num_rows=4, num_envs=8)
parts = (agent.split.policy, agent.split.critic)
sides = [on_device(agent._replace(update=part), replay, schema) for part in parts]
split = SplitUpdate(sides[0].agent, tuple(s.agent.update for s in sides), jax.local_devices(), KEY, max_lead=lead,
                    updates_per_call=3, ring=sides[0])
state = split.make(jax.random.key(0))
split.compile(state, whole(batch(0, 4, 8)))
stale, losses = [], []
for step in range(calls):
    t = batch(step, 4, 8)
    t = t._replace(reward=3 * t.observation[..., 0], discount=0 * t.discount)  # something to learn
    given = whole(t)
    state, (metrics, _), _ = split(state, given, step)
    for leaf in jax.tree.leaves(given):
        leaf[...] = 0  # the caller's buffers are the caller's again
    stale += [float(v) for k, v in metrics.items() if "staleness" in k]
    losses += [float(metrics["loss_value"])] if "loss_value" in metrics else []
joined = split.saved(state)
assert int(joined.updates) == int(joined.params.weights.updates) == 3 * calls, joined.updates
assert joined.extra.ring == () and int(joined.extra.made) == 3 * calls
assert 0 <= min(stale) and max(stale) <= 3 * lead, stale
assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(joined))
assert np.mean(losses[-10:]) < 0.3 * np.mean(losses[1:6]), losses
split.close()

# one device's ring with turns: the agent with a ring, as a learner without a split has it
replay = dataclasses.replace(replay, updates_per_call=1)
sides = [on_device(agent._replace(update=part), replay, schema) for part in parts]
turns = SplitUpdate(sides[0].agent, tuple(s.agent.update for s in sides), jax.local_devices(), KEY, max_lead=0,
                    ring=sides[0])
one = on_device(agent, replay, schema)
update, alone = jax.jit(one.agent.update), one.agent.init(jax.random.key(0))
state = turns.make(jax.random.key(0))
turns.compile(state, whole(batch(0, 4, 8)))
for step in range(8):
    alone, _ = update(alone, batch(step, 4, 8), jax.random.fold_in(KEY, step))
    state, *_ = turns(state, whole(batch(step, 4, 8)), step)
near(turns.saved(state).params, alone.params, 2e-5)
bad = batch(99, 4, 8)
bad.reward[...] = np.nan
try:
    for step in range(200):
        state, *_ = turns(state, whole(bad), step)
except NonFiniteUpdate as error:
    assert "critic's side" in str(error), error
    print("refused")
turns.close()
"""
)


def run_script(script: str, *arguments: str) -> str:
    environment = fake_devices(2)
    command = [sys.executable, "-c", script, *arguments]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout.splitlines()[-1]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "delay"),
    [("sac", 2), *(nightly(*case) for case in (("sac", 1), ("td3", 2), ("ddpg", 1)))],
)
def test_alternating_on_two_devices_equals_one_update(name, delay):
    assert run_script(TURNS, name, str(delay)) == "equal"


@pytest.mark.slow
def test_asynchronous_split_respects_the_lead_and_refuses_non_finite_updates():
    assert run_script(APART) == "refused"


RESUMED = """
import sys
from pathlib import Path
import jax
import numpy as np
from jsrl.agents.sac import SACConfig
from jsrl.envs.config import EnvConfig
from jsrl.experiment import EvaluatorConfig, Experiment, LearnerConfig, ReplayConfig
from jsrl.control.run import run
from jsrl.networks.model import NetworkConfig

folder = Path(sys.argv[1])
e = Experiment(
    agent=SACConfig(network=NetworkConfig(hidden=(16,))), env=EnvConfig("Pendulum-v1"), num_envs=4, rollout_length=4,
    max_policy_lag=None, total_env_steps=800, placement="serial", learner=LearnerConfig(split="actor-critic"),
    replay=ReplayConfig(capacity=1_000, batch_size=16, min_size=100, updates_per_env_step=0.125, save=True),
    evaluator=EvaluatorConfig(enabled=False),
)
whole = run(e, runs_dir=folder, name="whole", display="quiet")
again = run(e, runs_dir=folder, name="again", display="quiet")
jax.tree.map(np.testing.assert_array_equal, whole.params, again.params)
assert whole.updates == 88, whole.updates  # the first 96 env steps fill the replay
run(e, runs_dir=folder, name="half", total_env_steps=400, display="quiet")
later = run(e, runs_dir=folder, resume="experiment/half", display="quiet")
assert later.updates == 88
alone = run(e, runs_dir=folder, name="alone", display="quiet", learner=LearnerConfig())
there = run(e, runs_dir=folder, resume="experiment/alone", total_env_steps=1_040, display="quiet")  # whole again: split
assert there.updates == 118, there.updates
columns = whole.metrics
assert "learner/split_policy_staleness" in columns and "learner/loss_value" in columns
print("resumed")
"""


@pytest.mark.nightly
def test_a_split_run_repeats_itself_and_is_continued_split_or_not(tmp_path):
    assert run_script(RESUMED, str(tmp_path)) == "resumed"


# -- refusals, and the plan -------------------------------------------------------------------------------------------


def experiment(**changes) -> Experiment:
    values = {
        "agent": SACConfig(network=NetworkConfig(hidden=(8,))),
        "env": EnvConfig("Pendulum-v1"),
        "num_envs": 4,
        "rollout_length": 4,
        "placement": "served",
        "num_actors": 1,
        "max_policy_lag": None,
        "learner": LearnerConfig(split="actor-critic"),
        "replay": ReplayConfig(capacity=1_000, batch_size=16, min_size=100),
    }
    return Experiment(**(values | changes))


@pytest.mark.slow
def test_the_plan_gives_a_split_learner_two_devices(tmp_path):
    plan = make_plan(experiment(), str(tmp_path), tmp_path)
    assert "policy <-> critics" in describe(plan, []) and "at most 2 calls apart" in describe(plan, [])
    assert "device_count=2" in process_environment(plan, plan.jobs[0], [])["XLA_FLAGS"]
    assert experiment(placement="serial").split_lead == 0
    with pytest.raises(ConfigError, match="PPO and IMPALA update both in one gradient"):
        make_plan(experiment(agent=PPOConfig(), replay=None), str(tmp_path), tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"learner": LearnerConfig(split="actor-critic", num_devices=4)},
            "num_devices=4 is not possible; leave it out",
        ),
        ({"replay": ReplayConfig(prioritised=True)}, "replay.prioritised would change"),
    ],
)
def test_options_incompatible_with_split_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        experiment(**changes)
