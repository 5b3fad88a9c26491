"""The single files in examples/ compute what jsrl's agents compute, from the same params and rows."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jsrl
from jsrl.agents.random_rows import random_trajectory
from jsrl.extend import Agent, AgentState, build_agent, make_spec
from jsrl.types import Trajectory

EXAMPLES = Path(__file__).parents[1] / "examples"
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)


def rows_of(env_id: str, num_rows: int, num_envs: int) -> Trajectory:
    """Return rows of episodes that terminate, reach their time limit, and go on."""
    spec, rng = make_spec(jsrl.EnvConfig(id=env_id)), np.random.default_rng(0)
    return random_trajectory(spec, rng, num_rows=num_rows, num_envs=num_envs, extras=(), core=())


def agent_of(config: Any, env_id: str) -> Agent:
    agent = build_agent(config, make_spec(jsrl.EnvConfig(id=env_id)))
    return agent._replace(init=jax.jit(agent.init), update=jax.jit(agent.update))


def keep_gradient(learning_rate):
    """Return an optimizer whose state is the last gradient; its steps are 0."""
    del learning_rate
    return optax.GradientTransformation(
        lambda weights: jax.tree.map(jnp.zeros_like, weights),
        lambda gradients, state, weights: (jax.tree.map(jnp.zeros_like, gradients), gradients),
    )


KEPT: dict[str, Any] = {"optimizer": keep_gradient, "max_grad_norm": None}


def kept(opt_state: Any) -> Any:
    return opt_state.inner_state[-1]


def assert_near(ours: Any, plain: Any, relative: float = 1e-5) -> None:
    """Compare trees leaf by leaf: the largest difference, relative to the largest number of the leaf."""
    ours, plain = jax.device_get((ours, plain))
    assert jax.tree.structure(ours) == jax.tree.structure(plain)
    assert any(leaf.any() for leaf in jax.tree.leaves(ours))
    for one, other in zip(*map(jax.tree.leaves, (ours, plain)), strict=True):
        assert one.shape == other.shape
        assert np.abs(one - other).max() <= relative * np.abs(one).max()


def assert_same_step(before: Any, ours: Any, plain: Any) -> None:
    """Compare new weights, and the change from the old ones, of which float32 holds fewer digits."""
    assert_near(ours, plain)
    before, ours, plain = jax.device_get((before, ours, plain))
    assert_near(*(jax.tree.map(np.subtract, after, before) for after in (ours, plain)), 1e-3)


def with_gradient(loss: Callable[..., Any], weights: Any, *, has_aux: bool = False) -> Any:
    return jax.jit(jax.value_and_grad(loss, has_aux=has_aux))(weights)


def plain_layers(torso: Any, *heads: Any) -> Any:
    """Return the variables of a plain network, whose layers are numbered: those of a torso, then the heads."""
    return {"params": torso | {f"Dense_{len(torso) + number}": head for number, head in enumerate(heads)}}


# -- PPO --------------------------------------------------------------------------------------------------------------


def ppo_weights(policy: Any, value: Any) -> Any:
    import ppo_plain

    return ppo_plain.Weights(
        plain_layers(policy["torso"]["MLP_0"], policy["head"]["logits"]),
        plain_layers(value["torso"]["MLP_0"], value["head"]),
    )


def ppo_rows() -> tuple[Trajectory, Any]:
    """Return the same rows for jsrl and for the plain file; some ratios are beyond the clip."""
    import ppo_plain

    rows = rows_of("CartPole-v1", 8, 8)
    rows.log_prob[:] = np.random.default_rng(1).normal(-0.7, 0.2, rows.log_prob.shape)
    per_row = (rows.action[:-1], rows.log_prob[:-1], rows.reward[:-1], rows.discount[:-1])
    return rows, ppo_plain.Rows(rows.observation, rows.is_first, *per_row)


def ppo_config(args: Any, **changed: Any) -> jsrl.PPOConfig:
    names = ("learning_rate", "gamma", "gae_lambda", "entropy_coef", "num_epochs", "num_minibatches")
    network = jsrl.NetworkConfig(hidden=(args.hidden, args.hidden))
    return jsrl.PPOConfig(network=network, **{name: getattr(args, name) for name in names}, **changed)


def test_plain_ppo_has_the_loss_and_gradient_of_jsrl():
    import ppo_plain

    args = ppo_plain.Args(hidden=8, num_epochs=1, num_minibatches=1, entropy_coef=0.01)
    rows, given = ppo_rows()
    agent, key = agent_of(ppo_config(args, **KEPT), args.env_id), jax.random.key(3)
    state = agent.init(jax.random.key(0))
    after, output = agent.update(state, rows, key)
    weights = ppo_weights(state.params.weights, state.learner_params)
    batch = jax.jit(lambda w, r: ppo_plain.batch_of(args, w, r))(weights, given)
    assert 0 < batch.mask.sum() < batch.mask.size
    (total, terms), gradient = with_gradient(lambda w: ppo_plain.loss(args, w, batch), weights, has_aux=True)
    names = ("loss", "loss_policy", "loss_value", "entropy")
    assert_near(jnp.stack([output.metrics[name] for name in names]), jnp.stack([total, *terms]))
    assert_near(ppo_weights(*kept(after.opt_state)), gradient)


def test_plain_ppo_makes_the_steps_of_jsrl():
    import ppo_plain

    args = ppo_plain.Args(hidden=8, num_epochs=3, num_minibatches=4, entropy_coef=0.01)
    rows, given = ppo_rows()
    agent, key = agent_of(ppo_config(args), args.env_id), jax.random.key(3)
    state = agent.init(jax.random.key(0))
    after, output = agent.update(state, rows, key)
    weights = ppo_weights(state.params.weights, state.learner_params)
    opt_state = ppo_plain.make_optimizer(args).init(weights)
    new, _, mean_loss = ppo_plain.update(args, weights, opt_state, given, args.learning_rate, key)
    assert_near(output.metrics["loss"], mean_loss)
    assert_same_step(weights, ppo_weights(after.params.weights, after.learner_params), new)


# -- DQN --------------------------------------------------------------------------------------------------------------


def dqn_network(network: Any) -> Any:
    return plain_layers(network["torso"]["MLP_0"], network["head"]["advantage"], network["head"]["value"])


def dqn_config(args: Any, **changed: Any) -> jsrl.DQNConfig:
    names = ("learning_rate", "max_grad_norm", "gamma", "target_period", "exploration_fraction", "epsilon")
    network = jsrl.NetworkConfig(hidden=(args.hidden, args.hidden), activation="relu")
    return jsrl.DQNConfig(
        **{"network": network, "total_updates": 50_000} | {name: getattr(args, name) for name in names} | changed
    )


def dqn_state(agent: Agent) -> AgentState:
    """Return a state whose target network differs from the online one."""
    state, other = (agent.init(jax.random.key(number)) for number in (0, 1))
    return state._replace(learner_params=other.learner_params)


def test_plain_dqn_is_jsrls_dqn():
    import dqn_plain

    args = dqn_plain.Args(hidden=8, target_period=2)
    rows = rows_of(args.env_id, args.n_step, 16)
    rows.is_first[[1, 1, 3, 3], [1, 3, 5, 7]] = True  # windows that begin with a last observation, or end with one
    rows.discount[1, 5] = 0.0
    given = dqn_plain.Rows(rows.observation, rows.is_first, rows.action, rows.reward, rows.discount)
    batch = jax.jit(lambda r: dqn_plain.batch_of(args, r))(given)
    assert set(np.round(np.unique(batch.discount), 4)) == set(np.float32([0.0, 0.99, 0.9801, 0.9703, 1.0]))
    assert set(np.unique(batch.mask)) == {0.0, 1.0}

    agent = agent_of(dqn_config(args, **KEPT), args.env_id)
    state = dqn_state(agent)
    after, output = agent.update(state, rows, jax.random.key(3))
    weights, target = dqn_network(state.params.weights.network), dqn_network(state.learner_params.target)
    total, gradient = with_gradient(lambda w: dqn_plain.loss(args, w, target, batch), weights)
    assert_near(output.metrics["loss"], total)
    assert_near(dqn_network(kept(after.opt_state)), gradient)

    agent = agent_of(dqn_config(args), args.env_id)
    state = dqn_state(agent)
    plain = dqn_plain.State(weights, target, dqn_plain.make_optimizer(args).init(weights), jnp.int32(0))
    for number in (1, 2, 3):  # the target network follows after the second update
        state, _ = agent.update(state, rows, jax.random.key(number))
        plain, _ = dqn_plain.update(args, plain, given)
        assert_same_step(weights, dqn_network(state.params.weights.network), plain.weights)
        assert_near(dqn_network(state.learner_params.target), plain.target)
        assert np.array_equal(plain.target["params"]["Dense_0"]["kernel"], target["params"]["Dense_0"]["kernel"]) == (
            number == 1
        )


# -- SAC --------------------------------------------------------------------------------------------------------------


def sac_state(state: AgentState, opt_states: Any) -> Any:
    """Return the plain file's state."""
    import sac_plain

    policy, critics = state.params.weights.network, state.learner_params
    return sac_plain.State(
        sac_layers(policy),
        sac_layers(critics.online),
        sac_layers(critics.target),
        state.extra.log_temperature,
        opt_states,
    )


def sac_layers(network: Any) -> Any:
    return plain_layers(network["MLP_0"], *network["head"].values())


def sac_config(args: Any, **changed: Any) -> jsrl.SACConfig:
    network = jsrl.NetworkConfig(hidden=(args.hidden, args.hidden), activation="relu")
    names = ("learning_rate", "gamma", "tau")
    return jsrl.SACConfig(network=network, **{name: getattr(args, name) for name in names}, **changed)


def sac_agent_and_state(config: Any, env_id: str) -> tuple[Agent, AgentState]:
    """Return an agent, and a state whose target critics differ from the online ones."""
    agent = agent_of(config, env_id)
    state, other = (agent.init(jax.random.key(number)) for number in (0, 1))
    targets = state.learner_params._replace(target=other.learner_params.target)
    extra = state.extra._replace(log_temperature=jnp.float32(-0.5))
    return agent, state._replace(learner_params=targets, extra=extra)


def test_plain_sac_is_jsrls_sac():
    import sac_plain

    args, key = sac_plain.Args(hidden=8), jax.random.key(3)
    rows = rows_of(args.env_id, 1, 16)
    rows.is_first[1, 1::4] = True  # windows that begin with a last observation
    rows.discount[0, ::4] = 0.0
    rows.action[:] = np.tanh(rows.action)
    given = sac_plain.Rows(rows.observation, rows.is_first, rows.action, rows.reward, rows.discount)

    agent, state = sac_agent_and_state(sac_config(args, **KEPT), args.env_id)
    after, output = agent.update(state, rows, key)
    plain = sac_state(state, None)
    noises = [jax.random.normal(k, rows.action.shape[1:]) for k in jax.random.split(key)]
    mask = ~rows.is_first[1]

    def mean(x):
        return jnp.mean(x[mask])

    fixed = (plain, given, noises[0], mean)
    loss_value, gradient = with_gradient(lambda c: sac_plain.critic_loss(args, c, *fixed), plain.critics)
    assert_near(output.metrics["loss_value"], loss_value)
    assert_near(sac_layers(kept(after.opt_state.critics)), gradient)
    fixed = (plain, given, noises[1], mean)
    (loss_policy, entropy), gradient = with_gradient(
        lambda p: sac_plain.policy_loss(args, p, *fixed), plain.policy, has_aux=True
    )
    assert_near(
        jnp.stack([output.metrics["loss_policy"], output.metrics["entropy"]]), jnp.stack([loss_policy, entropy])
    )
    assert_near(sac_layers(kept(after.opt_state.policy)), gradient)

    agent, state = sac_agent_and_state(sac_config(args), args.env_id)
    before = sac_state(state, sac_plain.opt_states_of(args, plain.policy, plain.critics, plain.log_alpha))
    now = before
    for number in (1, 2):
        state, _ = agent.update(state, rows, jax.random.key(number))
        now, _ = sac_plain.update(args, now, given, jax.random.key(number))
        assert_same_step(before._replace(opt_states=()), sac_state(state, ()), now._replace(opt_states=()))
    # The steps of Adam do not show the size of a gradient; its moments do.
    policy, critics, temperature = (optax.tree.get(each, "mu") for each in state.opt_state)
    plain_moments = [optax.tree.get(each, "mu") for each in now.opt_states]
    assert_near([sac_layers(policy), sac_layers(critics), temperature], plain_moments)


# -- the files themselves ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ppo_plain", "dqn_plain", "sac_plain"])
def test_a_plain_file_uses_nothing_of_jsrl(name):
    assert not re.search(r"^\s*(import|from) jsrl", (EXAMPLES / f"{name}.py").read_text(), re.MULTILINE)


def test_plain_ppo_runs():
    import ppo_plain

    args = ppo_plain.Args(total_env_steps=10 * 64, rollout_length=4, eval_episodes=2, hidden=8)
    assert ppo_plain.evaluate(args, ppo_plain.train(args)) > 0


@pytest.mark.parametrize(("name", "least"), [("dqn_plain", 1.0), ("sac_plain", -2000.0)])
def test_a_plain_file_with_replay_runs(name, least):
    plain = importlib.import_module(name)
    args = plain.Args(
        total_env_steps=160,
        eval_every=160,
        eval_episodes=2,
        min_size=80,
        updates_per_env_step=0.25,
        capacity=96,
        hidden=8,
    )
    assert plain.train(args) > least


@pytest.mark.nightly
@pytest.mark.timeout(1000)
@pytest.mark.parametrize(("name", "score"), [("ppo_plain", 475.0), ("dqn_plain", 475.0), ("sac_plain", -200.0)])
def test_a_plain_file_learns(name, score):
    command = [sys.executable, EXAMPLES / f"{name}.py", "--seed", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=900, check=True)
    line = ended.stdout.splitlines()[-1]
    assert line.startswith("return "), ended.stdout
    assert float(line.split()[1]) >= score
