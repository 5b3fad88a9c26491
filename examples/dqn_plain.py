"""DQN in one file, with double targets, duelling networks and n-step returns: `python examples/dqn_plain.py`.

It needs jax, flax, optax, gymnasium and numpy, and nothing of jsrl. It computes what jsrl's DQN computes with the same
options: tests/test_plain.py gives both the same params and rows, and compares loss, gradient, new params and target network.
So read this file to learn what `jsrl run dqn` does, and jsrl/agents/dqn.py for priorities, C51 and the ladder of epsilons.

Source: Mnih et al., 2015; van Hasselt et al., 2016, arXiv 1509.06461 (double); Wang et al., 2016, arXiv 1511.06581
(duelling). Compared with dqn.py of CleanRL:

* Replay keeps rows, not transitions: an episode's last observation has a row of its own, as Gymnasium's vector environments
  return it (`Rows` below). A transition is cut out of a window of n + 1 rows when it is drawn.
* Targets are double, networks duelling, returns of n steps, the loss is Huber's, and gradients are clipped.
* Several environments are stepped at once, and several updates follow.

Learns: CartPole-v1, return 500 of 100 greedy episodes with each of the seeds 0, 1, 2, after 45,000, 40,000 and 25,000 env
steps, in 68 to 75 s on 2 busy cores.
"""

import argparse
import dataclasses
import functools
import time
from typing import Any, NamedTuple

import flax.linen as nn
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import optax


@dataclasses.dataclass(frozen=True)
class Args:
    """The options, each with a flag of its name."""

    env_id: str = "CartPole-v1"
    seed: int = 0
    total_env_steps: int = 100_000
    stop_at_return: float = 490.0  # the mean of an evaluation
    eval_episodes: int = 100  # greedy ones
    eval_every: int = 5_000  # env steps
    num_envs: int = 16
    capacity: int = 100_000  # rows, of all environments
    min_size: int = 1_000  # rows before the first update
    batch_size: int = 64
    updates_per_env_step: float = 0.5
    n_step: int = 3
    learning_rate: float = 1e-3
    max_grad_norm: float = 10.0
    gamma: float = 0.99
    target_period: int = 100  # updates
    epsilon: float = 0.04
    exploration_fraction: float = 0.08  # of the updates, until epsilon has fallen from 1 to that
    hidden: int = 128


# -- the network ------------------------------------------------------------------------------------------------------


class Network(nn.Module):
    """Observations [..., S] to values of all actions [..., A]: v + (a - mean of a)."""

    hidden: int
    num_actions: int

    @nn.compact
    def __call__(self, x):
        """Return the values."""

        def layer(size, gain):
            return nn.Dense(size, kernel_init=nn.initializers.orthogonal(gain))

        for _ in range(2):
            x = nn.relu(layer(self.hidden, 2**0.5)(x))
        advantage, value = layer(self.num_actions, 1.0)(x), layer(1, 1.0)(x)
        return value + advantage - advantage.mean(axis=-1, keepdims=True)


class State(NamedTuple):
    """What training changes. updates: int32, made so far."""

    weights: Any
    target: Any
    opt_state: Any
    updates: Any


def make_optimizer(args):
    """Return Adam behind a clipped gradient."""
    return optax.chain(optax.clip_by_global_norm(args.max_grad_norm), optax.adam(args.learning_rate))


def init_state(args, key, observation, num_actions):
    """Return the state before any update; the target network has the same weights."""
    weights = Network(args.hidden, num_actions).init(key, observation)
    return State(weights, weights, make_optimizer(args).init(weights), jnp.int32(0))


def values_of(args, weights, observation):
    """Return values of all actions [..., A]."""
    num_actions = weights["params"]["Dense_2"]["bias"].shape[0]
    return Network(args.hidden, num_actions).apply(weights, observation)


# -- replay -----------------------------------------------------------------------------------------------------------


class Rows(NamedTuple):
    """Rows of M environments, leaves [W, M, ...].

    An episode that ends, and the first row of the next one:

    | observation  | is_first | reward    | discount |                                                              |
    |--------------|----------|-----------|----------|--------------------------------------------------------------|
    | o0           | 1        | r(o0, a0) | 1        |                                                              |
    | o1           | 0        | r(o1, a1) | 0 or 1   | 0: o2 is terminal; 1: the time is up, or the episode goes on |
    | o2, the last | 0        | 0         | 1        | its action is ignored; its value bootstraps a time limit     |
    | o0'          | 1        |           |          | the next episode                                             |

    So row t is a last observation where is_first[t + 1].
    """

    observation: Any  # float32 [W, M, S]
    is_first: Any  # bool [W, M]
    action: Any  # int32 [W, M]
    reward: Any  # float32 [W, M]
    discount: Any  # float32 [W, M]


class Replay:
    """The newest rows of some environments, in a ring."""

    def __init__(self, args, observation_shape):
        """Begin empty."""
        self.length, num_envs = args.capacity // args.num_envs, args.num_envs
        self.rows = Rows(
            observation=np.zeros((self.length, num_envs, *observation_shape), np.float32),
            is_first=np.zeros((self.length, num_envs), bool),
            action=np.zeros((self.length, num_envs), np.int32),
            reward=np.zeros((self.length, num_envs), np.float32),
            discount=np.zeros((self.length, num_envs), np.float32),
        )
        self.added = 0  # rows of each environment

    def add(self, *row):
        """Add one row of each environment."""
        for field, values in zip(self.rows, row, strict=True):
            field[self.added % self.length] = values
        self.added += 1

    def sample(self, rng, number, num_rows):
        """Return windows of some successive rows, leaves [num_rows, number, ...]."""
        oldest = max(0, self.added - self.length)
        first = rng.integers(oldest, self.added - num_rows + 1, number)
        at = (first + np.arange(num_rows)[:, None]) % self.length
        env = rng.integers(0, self.rows.is_first.shape[1], number)
        return Rows(*(field[at, env] for field in self.rows))


# -- the update -------------------------------------------------------------------------------------------------------


class Batch(NamedTuple):
    """Transitions, leaves [M, ...], over n steps or up to the end of the episode.

    discount: the factor of the bootstrap value. mask: 0 where row 0 of the window is a last observation.
    """

    observation: Any
    action: Any
    reward: Any
    discount: Any
    next_observation: Any
    mask: Any


def batch_of(args, rows):
    """Return the transition of each window [n + 1, M, ...] of rows."""
    is_last = rows.is_first[1:]
    following = rows.observation[0]
    reward = jnp.zeros_like(rows.reward[0])
    discount, goes_on = jnp.ones_like(reward), jnp.ones(reward.shape, bool)
    for t in range(args.n_step):
        goes_on &= ~is_last[t]  # a last observation bootstraps, and what follows belongs to the next episode
        reward += jnp.where(goes_on, discount * rows.reward[t], 0.0)
        discount = jnp.where(goes_on, discount * args.gamma * rows.discount[t], discount)
        following = jnp.where(goes_on[:, None], rows.observation[t + 1], following)
    mask = 1.0 - is_last[0].astype(jnp.float32)
    return Batch(rows.observation[0], rows.action[0], reward, discount, following, mask)


def loss(args, weights, target, batch):
    """Return the loss: Huber's of Q(o, a) - (r + d Q'(o', argmax Q(o', .))), with Q' the target network."""
    best = jnp.argmax(values_of(args, weights, batch.next_observation), axis=-1)
    following = jnp.take_along_axis(values_of(args, target, batch.next_observation), best[:, None], axis=-1)[:, 0]
    goal = jax.lax.stop_gradient(batch.reward + batch.discount * following)
    value = jnp.take_along_axis(values_of(args, weights, batch.observation), batch.action[:, None], axis=-1)[:, 0]
    return jnp.sum(optax.huber_loss(value, goal) * batch.mask) / jnp.maximum(jnp.sum(batch.mask), 1.0)


@functools.partial(jax.jit, static_argnames="args")
def update(args, state, rows):
    """Return the state after one gradient step with these windows, and the loss."""
    batch = batch_of(args, rows)
    value, gradients = jax.value_and_grad(lambda weights: loss(args, weights, state.target, batch))(state.weights)
    steps, opt_state = make_optimizer(args).update(gradients, state.opt_state)
    weights, updates = optax.apply_updates(state.weights, steps), state.updates + 1
    due = updates % args.target_period == 0
    target = jax.tree.map(lambda new, old: jnp.where(due, new, old), weights, state.target)
    return State(weights, target, opt_state, updates), value


# -- the loop ---------------------------------------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnames="args")
def best_action(args, weights, observation):
    """Return the actions [B] of the largest values."""
    return jnp.argmax(values_of(args, weights, observation), axis=-1)


def evaluate(args, weights):
    """Return the mean return of greedy actions, over one episode of each environment."""
    episodes = args.eval_episodes
    envs = gymnasium.make_vec(args.env_id, episodes, vectorization_mode="sync")
    observation, _ = envs.reset(seed=args.seed + 1_000_000)
    total, over = np.zeros(episodes), np.zeros(episodes, bool)
    while not over.all():
        action = np.asarray(best_action(args, weights, observation))
        observation, reward, terminated, truncated, _ = envs.step(action)
        total += np.where(over, 0.0, reward)
        over |= terminated | truncated
    envs.close()
    return total.mean()


def train(args):
    """Train until an evaluation reaches the goal, print progress, and return the last evaluation."""
    num_envs, rng = args.num_envs, np.random.default_rng(args.seed)
    envs = gymnasium.make_vec(args.env_id, num_envs, vectorization_mode="sync")
    observation, _ = envs.reset(seed=args.seed)
    is_first, is_last = np.ones(num_envs, bool), np.zeros(num_envs, bool)
    num_actions = int(envs.single_action_space.n)
    state = init_state(args, jax.random.key(args.seed), observation, num_actions)
    replay = Replay(args, envs.single_observation_space.shape)
    updates, due, score = 0, 0.0, -np.inf
    exploration_updates = args.exploration_fraction * args.total_env_steps * args.updates_per_env_step

    for env_steps in range(num_envs, args.total_env_steps + 1, num_envs):
        epsilon = 1.0 + (args.epsilon - 1.0) * min(1.0, updates / exploration_updates)
        explores = rng.random(num_envs) < epsilon
        greedy = np.asarray(best_action(args, state.weights, observation))
        action = np.where(explores, rng.integers(0, num_actions, num_envs), greedy)
        following, reward, terminated, truncated, _ = envs.step(action)
        replay.add(observation, is_first, action, reward, 1.0 - terminated)
        # The step after a last observation ignores the action and returns the first observation of the next episode.
        observation, is_first, is_last = following, is_last, terminated | truncated

        if env_steps >= args.min_size:
            due += num_envs * args.updates_per_env_step
        while due >= 1.0:
            windows = replay.sample(rng, args.batch_size, args.n_step + 1)
            state, value = update(args, state, windows)
            updates, due = updates + 1, due - 1.0
        if env_steps // args.eval_every > (env_steps - num_envs) // args.eval_every and updates:
            score = evaluate(args, state.weights)
            print(f"{env_steps} env steps: return {score:.1f}, loss {value:.4f}, epsilon {epsilon:.2f}")
            if score >= args.stop_at_return:
                break
    envs.close()
    return score


def parse_args():
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for field in dataclasses.fields(Args):
        parser.add_argument("--" + field.name.replace("_", "-"), type=field.type, default=field.default)
    return Args(**vars(parser.parse_args()))


if __name__ == "__main__":
    start_s = time.monotonic()
    score = train(parse_args())
    print(f"return {score:.1f} of greedy episodes, after {time.monotonic() - start_s:.1f} s")
