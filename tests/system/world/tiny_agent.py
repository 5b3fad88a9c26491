"""An agent that compiles quickly: a linear softmax policy, REINFORCE on immediate rewards. For system tests."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from jsrl.agents.base import ActOutput, ActParams, Agent, AgentState, UpdateOutput
from jsrl.types import Discrete, EnvSpec


@dataclasses.dataclass(frozen=True)
class TinyConfig:
    """Options of the tiny agent; `fault` makes it break a rule on purpose."""

    learning_rate: float = 0.5
    width: int = 0
    fault: str = "none"
    nan_at_update: int = -1
    nan_gradient_at_update: int = -1

    factory: ClassVar[str] = "tiny_agent:tiny"


def tiny(config: TinyConfig, spec: EnvSpec) -> Agent:
    """Return the agent."""
    if config.fault == "factory":
        raise RuntimeError("the factory gave up on purpose")
    if config.fault == "no agent":
        return None
    assert isinstance(spec.action, Discrete)
    size = spec.observation.shape[0] + 1
    shape = (size + config.width, spec.action.num_actions)

    def logits(weights, observation):
        ones = jnp.ones((*observation.shape[:-1], 1 + config.width))
        return jnp.concatenate([observation, ones], -1) @ weights["policy"]

    def init(key):
        weights = {"policy": 0.01 * jax.random.normal(key, shape)}
        if config.fault == "no state":
            return ActParams(weights, ())
        return AgentState(ActParams(weights, ()), (), (), (), jnp.zeros((), jnp.int32))

    def act(params, key, observation, is_first, core, *, greedy=False):
        if config.fault == "act raises":
            raise RuntimeError("act gave up on purpose")
        scores = logits(params.weights, observation)
        action = jnp.argmax(scores, -1) if greedy else jax.random.categorical(key, scores)
        action = action.astype(jnp.float32 if config.fault == "act dtype" else jnp.int32)
        log_prob = jnp.take_along_axis(jax.nn.log_softmax(scores), action[:, None].astype(jnp.int32), 1)[:, 0]
        output = ActOutput(action, log_prob, ())
        return output if config.fault == "no core" else (output, core)

    def loss(weights, trajectory):
        log_probs = jax.nn.log_softmax(logits(weights, trajectory.observation[:-1]))
        chosen = jnp.take_along_axis(log_probs, trajectory.action[:-1][..., None], -1)[..., 0]
        mask = trajectory.acts[:-1] * (1.0 - trajectory.is_first[1:])
        return -jnp.sum(chosen * trajectory.reward[:-1] * mask) / jnp.maximum(mask.sum(), 1.0)

    def update(state, trajectory, key, *, axis_name=None):
        if config.fault == "update raises":
            jnp.ones(3) @ jnp.ones(4)
        value, grads = jax.value_and_grad(loss)(state.params.weights, trajectory)
        if axis_name is not None:
            value, grads = jax.lax.pmean((value, grads), axis_name)
        poison = jnp.where(state.updates == config.nan_at_update, jnp.nan, 0.0)
        value, grads = value + poison, jax.tree.map(lambda g: g + poison, grads)
        spoiled = jnp.where(state.updates == config.nan_gradient_at_update, jnp.nan, 0.0)
        grads = jax.tree.map(lambda g: g + spoiled, grads)
        weights = jax.tree.map(lambda w, g: w - config.learning_rate * g, state.params.weights, grads)
        # the sum of the weights before the update identifies the state that it was given
        metrics = {"loss": value, "weights_before": state.params.weights["policy"][0, 0]}
        updated = AgentState(ActParams(weights, ()), (), (), (), state.updates + 1)
        return updated, UpdateOutput(metrics, None)

    return Agent(init, lambda batch_size: (), act, update)
