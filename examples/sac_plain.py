"""SAC for continuous actions in one file: `python examples/sac_plain.py --env-id Pendulum-v1`.

It needs jax, flax, optax, gymnasium and numpy, and nothing of jsrl. It computes what jsrl's SAC computes with the same
options: tests/test_plain.py gives both the same params and rows, and compares losses, gradients and new params. So read this
file to learn what `jsrl run sac` does, and jsrl/agents/sac.py for discrete actions, delayed policies and several devices.

Source: Haarnoja et al., 2018, arXiv 1812.05905. Compared with sac_continuous_action.py of CleanRL:

* Replay keeps rows, not transitions: an episode's last observation has a row of its own, as Gymnasium's vector environments
  return it (`Rows` below). A transition is cut out of two successive rows when it is drawn.
* Policy and temperature learn in every update. The temperature's loss is linear in log alpha, as in the authors' code.
* log std is clipped to [-20, 2], not squashed into [-5, 2]. Weights are orthogonal at the start.
* Actions are random until the first update, and several environments are stepped at once.

Learns: Pendulum-v1, return -154 and -158 of 20 greedy episodes with the seeds 0 and 1, after 4,000 env steps, in 51 and 54 s
on 2 busy cores.
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

    env_id: str = "Pendulum-v1"
    seed: int = 0
    total_env_steps: int = 20_000
    stop_at_return: float = -180.0  # the mean of an evaluation
    eval_episodes: int = 20  # greedy ones
    eval_every: int = 1_000  # env steps
    num_envs: int = 8
    capacity: int = 20_000  # rows, of all environments
    min_size: int = 1_000  # rows before the first update
    batch_size: int = 128
    updates_per_env_step: float = 1.0
    learning_rate: float = 1e-3
    gamma: float = 0.98
    tau: float = 0.01  # how far the target critics move in each update
    hidden: int = 64


# -- the networks -----------------------------------------------------------------------------------------------------


class MLP(nn.Module):
    """Inputs [..., S] to outputs [..., size]: two hidden layers with ReLU."""

    hidden: int
    size: int
    gain: float  # of the last layer at the start

    @nn.compact
    def __call__(self, x):
        """Return the outputs."""
        for _ in range(2):
            x = nn.relu(nn.Dense(self.hidden, kernel_init=nn.initializers.orthogonal(2**0.5))(x))
        return nn.Dense(self.size, kernel_init=nn.initializers.orthogonal(self.gain))(x)


def gaussian_of(args, policy, observation):
    """Return mean and log std [..., A] of the Gaussian whose samples tanh brings into [-1, 1]."""
    size = policy["params"]["Dense_2"]["bias"].shape[0]
    mean, log_std = jnp.split(MLP(args.hidden, size, 0.01).apply(policy, observation), 2, axis=-1)
    return mean, jnp.clip(log_std, -20.0, 2.0)


def sample(args, policy, observation, noise):
    """Return actions [..., A] in [-1, 1] and their log-probabilities [...], for standard normal noise [..., A]."""
    mean, log_std = gaussian_of(args, policy, observation)
    raw = mean + jnp.exp(log_std) * noise
    log_normal = -0.5 * noise**2 - log_std - 0.5 * jnp.log(2 * jnp.pi)
    log_slope = 2.0 * (jnp.log(2.0) - raw - nn.softplus(-2.0 * raw))  # log(1 - tanh(raw)^2), where tanh is 1 too
    return jnp.tanh(raw), jnp.sum(log_normal - log_slope, axis=-1)


def values_of(args, critics, observation, action):
    """Return the values [2, ...] of both critics, whose weights have a leading axis of 2."""
    joined = jnp.concatenate([observation, action], axis=-1)
    return jax.vmap(lambda weights: MLP(args.hidden, 1, 1.0).apply(weights, joined)[..., 0])(critics)


class State(NamedTuple):
    """What training changes. opt_states: of policy, critics and log_alpha."""

    policy: Any
    critics: Any
    target: Any
    log_alpha: Any
    opt_states: Any


def init_state(args, key, observation, num_dims):
    """Return the state before any update."""
    policy_key, critic_key = jax.random.split(key)
    joined = jnp.zeros((*observation.shape[:-1], observation.shape[-1] + num_dims))
    policy = MLP(args.hidden, 2 * num_dims, 0.01).init(policy_key, observation)
    each = [MLP(args.hidden, 1, 1.0).init(k, joined) for k in jax.random.split(critic_key)]
    critics = jax.tree.map(lambda *weights: jnp.stack(weights), *each)
    log_alpha = jnp.float32(0.0)
    return State(policy, critics, critics, log_alpha, opt_states_of(args, policy, critics, log_alpha))


def opt_states_of(args, *trained):
    """Return Adam's states of new weights."""
    return tuple(optax.adam(args.learning_rate).init(weights) for weights in trained)


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
    action: Any  # float32 [W, M, A], in [-1, 1]
    reward: Any  # float32 [W, M]
    discount: Any  # float32 [W, M]


class Replay:
    """The newest rows of some environments, in a ring."""

    def __init__(self, args, observation_shape, action_shape):
        """Begin empty."""
        self.length, num_envs = args.capacity // args.num_envs, args.num_envs
        self.rows = Rows(
            observation=np.zeros((self.length, num_envs, *observation_shape), np.float32),
            is_first=np.zeros((self.length, num_envs), bool),
            action=np.zeros((self.length, num_envs, *action_shape), np.float32),
            reward=np.zeros((self.length, num_envs), np.float32),
            discount=np.zeros((self.length, num_envs), np.float32),
        )
        self.added = 0  # rows of each environment

    def add(self, *row):
        """Add one row of each environment."""
        for field, values in zip(self.rows, row, strict=True):
            field[self.added % self.length] = values
        self.added += 1

    def sample(self, rng, number):
        """Return windows of two successive rows, leaves [2, number, ...]."""
        oldest = max(0, self.added - self.length)
        at = (rng.integers(oldest, self.added - 1, number) + np.arange(2)[:, None]) % self.length
        env = rng.integers(0, self.rows.is_first.shape[1], number)
        return Rows(*(field[at, env] for field in self.rows))


# -- the update -------------------------------------------------------------------------------------------------------


def critic_loss(args, critics, state, rows, noise, mean):
    """Return the loss of both critics: (Q - (r + d (min Q'(o', a') - alpha log pi(a' | o'))))^2 / 2."""
    next_action, next_log_prob = sample(args, state.policy, rows.observation[1], noise)
    next_value = values_of(args, state.target, rows.observation[1], next_action).min(axis=0)
    soft_value = next_value - jnp.exp(state.log_alpha) * next_log_prob
    goal = jax.lax.stop_gradient(rows.reward[0] + args.gamma * rows.discount[0] * soft_value)
    error = values_of(args, critics, rows.observation[0], rows.action[0]) - goal
    return mean(jnp.sum(0.5 * error**2, axis=0))


def policy_loss(args, policy, state, rows, noise, mean):
    """Return the loss of the policy, alpha log pi(a | o) - min Q(o, a), and its entropy."""
    action, log_prob = sample(args, policy, rows.observation[0], noise)
    value = values_of(args, state.critics, rows.observation[0], action).min(axis=0)
    return mean(jnp.exp(state.log_alpha) * log_prob - value), mean(-log_prob)


@functools.partial(jax.jit, static_argnames="args")
def update(args, state, rows, key):
    """Return the state after one step of critics, policy, temperature and targets, and the losses of critics and policy."""
    critic_key, policy_key = jax.random.split(key)
    mask = 1.0 - rows.is_first[1].astype(jnp.float32)  # 0: row 0 is a last observation, and row 1 of another episode
    adam = optax.adam(args.learning_rate)

    def mean(x):
        return jnp.sum(x * mask) / jnp.maximum(jnp.sum(mask), 1.0)

    def step(weights, gradients, opt_state):
        steps, opt_state = adam.update(gradients, opt_state)
        return optax.apply_updates(weights, steps), opt_state

    of_policy, of_critics, of_alpha = state.opt_states
    noise = jax.random.normal(critic_key, rows.action.shape[1:])
    loss_value, gradients = jax.value_and_grad(lambda c: critic_loss(args, c, state, rows, noise, mean))(state.critics)
    critics, of_critics = step(state.critics, gradients, of_critics)
    state = state._replace(critics=critics)  # the policy learns from the new critics

    noise = jax.random.normal(policy_key, rows.action.shape[1:])
    with_entropy = jax.value_and_grad(lambda p: policy_loss(args, p, state, rows, noise, mean), has_aux=True)
    (loss_policy, entropy), gradients = with_entropy(state.policy)
    policy, of_policy = step(state.policy, gradients, of_policy)

    num_dims = rows.action.shape[-1]
    excess = entropy - (-num_dims)  # the target entropy is minus the number of action dimensions
    log_alpha, of_alpha = step(state.log_alpha, excess, of_alpha)
    target = jax.tree.map(lambda t, c: t + args.tau * (c - t), state.target, critics)
    return State(policy, critics, target, log_alpha, (of_policy, of_critics, of_alpha)), (loss_value, loss_policy)


# -- the loop ---------------------------------------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnames="args")
def act(args, policy, observation, noise):
    """Return actions [B, A] in [-1, 1]."""
    return sample(args, policy, observation, noise)[0]


def make_envs(args, number):
    """Return environments with actions in [-1, 1], whatever their bounds."""
    return gymnasium.wrappers.vector.RescaleAction(
        gymnasium.make_vec(args.env_id, number, vectorization_mode="sync"), np.float32(-1.0), np.float32(1.0)
    )


def evaluate(args, policy):
    """Return the mean return of the Gaussian's means, over one episode of each environment."""
    episodes = args.eval_episodes
    envs = make_envs(args, episodes)
    observation, _ = envs.reset(seed=args.seed + 1_000_000)
    total, over = np.zeros(episodes), np.zeros(episodes, bool)
    while not over.all():
        action = np.asarray(act(args, policy, observation, np.zeros(envs.action_space.shape, np.float32)))
        observation, reward, terminated, truncated, _ = envs.step(action)
        total += np.where(over, 0.0, reward)
        over |= terminated | truncated
    envs.close()
    return total.mean()


def train(args):
    """Train until an evaluation reaches the goal, print progress, and return the last evaluation."""
    num_envs, rng = args.num_envs, np.random.default_rng(args.seed)
    envs = make_envs(args, num_envs)
    observation, _ = envs.reset(seed=args.seed)
    is_first, is_last = np.ones(num_envs, bool), np.zeros(num_envs, bool)
    action_shape = envs.single_action_space.shape
    key = jax.random.key(args.seed)
    state = init_state(args, key, observation, *action_shape)
    replay = Replay(args, envs.single_observation_space.shape, action_shape)
    updates, due, score = 0, 0.0, -np.inf

    for env_steps in range(num_envs, args.total_env_steps + 1, num_envs):
        if updates:
            noise = rng.standard_normal((num_envs, *action_shape), np.float32)
            action = np.asarray(act(args, state.policy, observation, noise))
        else:
            action = rng.uniform(-1.0, 1.0, (num_envs, *action_shape)).astype(np.float32)
        following, reward, terminated, truncated, _ = envs.step(action)
        replay.add(observation, is_first, action, reward, 1.0 - terminated)
        # The step after a last observation ignores the action and returns the first observation of the next episode.
        observation, is_first, is_last = following, is_last, terminated | truncated

        if env_steps >= args.min_size:
            due += num_envs * args.updates_per_env_step
        while due >= 1.0:
            windows = replay.sample(rng, args.batch_size)
            state, losses = update(args, state, windows, jax.random.fold_in(key, updates))
            updates, due = updates + 1, due - 1.0
        if env_steps % args.eval_every == 0 and updates:
            score = evaluate(args, state.policy)
            alpha = np.exp(state.log_alpha)
            print(f"{env_steps} env steps: return {score:.1f}, loss of the critics {losses[0]:.3f}, alpha {alpha:.3f}")
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
