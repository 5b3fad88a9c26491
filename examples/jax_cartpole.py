"""An environment of your own in JAX, compiled together with acting and learning: `python examples/jax_cartpole.py`.

The state is a tree of arrays, and `reset` and `step` are pure functions of one environment; jsrl vectorizes them and begins
the next episode itself. With `--placement fused`, which is the default for environments in JAX, many steps and updates are one
compiled call. The dynamics are those of Gymnasium's CartPole-v1.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

import jsrl
from jsrl.extend import ArraySpec, Discrete, EnvSpec, JaxStep

GRAVITY, CART, POLE, LENGTH, FORCE, STEP_S = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02


class State(NamedTuple):
    """motion: position and speed of the cart, angle and angular speed of the pole. time: steps so far."""

    motion: jax.Array
    time: jax.Array


class CartPole:
    """A pole on a cart: 1 per step, until it falls or after `limit` steps."""

    def __init__(self, limit: int = 500):
        """Take the number of steps after which an episode is truncated."""
        self.spec = EnvSpec(ArraySpec((4,), "float32"), Discrete(2))
        self.limit = limit

    def reset(self, key):
        """Return (state, observation) at the start of an episode."""
        motion = jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05)
        return State(motion, jnp.int32(0)), motion

    def step(self, key, state, action):
        """Push the cart to the left (0) or to the right (1)."""
        _, speed, angle, turn = state.motion
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        push = (jnp.where(action == 1, FORCE, -FORCE) + POLE * LENGTH * turn**2 * sin) / (CART + POLE)
        turning = (GRAVITY * sin - cos * push) / (LENGTH * (4 / 3 - POLE * cos**2 / (CART + POLE)))
        pushing = push - POLE * LENGTH * turning * cos / (CART + POLE)
        change = jnp.stack([speed, pushing, turn, turning])
        state = State(state.motion + STEP_S * change, state.time + 1)
        fell = (jnp.abs(state.motion[0]) > 2.4) | (jnp.abs(state.motion[2]) > jnp.deg2rad(12))
        return JaxStep(state, state.motion, jnp.float32(1), fell, state.time >= self.limit)


def config() -> jsrl.Experiment:
    """Return the experiment: 100 greedy episodes of one snapshot average 490."""
    return jsrl.Experiment(
        name="jax_cartpole",
        env=jsrl.EnvConfig(CartPole, backend="jax"),
        agent=jsrl.PPOConfig(learning_rate=3e-3, schedule="linear", gamma=0.98, gae_lambda=0.9, num_epochs=4),
        num_envs=64,
        rollout_length=64,
        total_env_steps=1_000_000,
        stop_at_return=490.0,
        evaluator=jsrl.EvaluatorConfig(episodes=100, num_envs=100, period_env_steps=50_000),
    )


if __name__ == "__main__":
    print(jsrl.run(config()))
