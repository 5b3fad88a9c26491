"""What the actor-critic algorithms share: acting, the agent axis, and the optimizer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jsrl.agents.base import Act, ActOutput, ActParams, Agent, AgentState, Update
from jsrl.agents.devices import masked_mean
from jsrl.agents.distributions import Distribution, mask_logits, named, noise_core, state_noise
from jsrl.agents.normalization import ACTION_MASK, normalize
from jsrl.errors import ConfigError
from jsrl.networks.model import ActorCritic
from jsrl.references.importing import import_target
from jsrl.types import Array, ArraySpec, Continuous, EnvSpec, Trajectory, Tree, map_tree, named_leaves, spread

OPTIMIZERS, SCHEDULES = ("adam", "sgd", "rmsprop"), ("constant", "linear")
OPTIMIZER_HELP = (
    f"{', '.join(OPTIMIZERS)}, or a factory of an optax optimizer, called with the learning rate: optax:lamb."
)
TOTAL_UPDATES_HELP = "updates of the whole run; filled in by Experiment."
SCHEDULE_HELP = (
    "learning rates over time: `constant`, `linear` to 0 at update `total_updates`, or a factory of an optax schedule, called "
    "with (learning_rate, total_updates): optax:cosine_decay_schedule."
)


class Weights(NamedTuple):
    """All trained weights."""

    policy: Tree
    value: Tree


# -- several agents that share a policy: [T, B, N, ...] is folded to [T, B * N, ...] ----------------------------------


def one_agent(spec: EnvSpec) -> EnvSpec:
    """Return the spec as one agent sees it: observation leaves without their leading agent axis.

    Raises:
      ConfigError: an observation leaf has no such axis.
    """
    if spec.num_agents is None:
        return spec
    for name, leaf in named_leaves(spec.observation):
        if leaf.shape[:1] != (spec.num_agents,):
            raise ConfigError(
                f"{spec.name} has num_agents={spec.num_agents}, but its observation {name or '(the only leaf)'} has "
                f"shape {leaf.shape}; every observation leaf needs the agent axis first: ({spec.num_agents}, ...)"
            )
    observation = map_tree(lambda leaf: ArraySpec(leaf.shape[1:], leaf.dtype), spec.observation)
    return dataclasses.replace(spec, observation=observation, num_agents=None)


def fold(tree: Tree, axis: int) -> Tree:
    """Merge axes `axis` and `axis + 1` of every leaf: [..., B, N, ...] to [..., B * N, ...]."""
    return jax.tree.map(lambda x: x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :]), tree)


def unfold(tree: Tree, axis: int, num_agents: int) -> Tree:
    """Undo `fold`: [..., B * N, ...] to [..., B, N, ...]."""
    return jax.tree.map(lambda x: x.reshape(*x.shape[:axis], -1, num_agents, *x.shape[axis + 1 :]), tree)


def fold_agents(trajectory: Trajectory, num_agents: int | None) -> Trajectory:
    """Return the trajectory as one of B * N environments with one agent each (as it is without an agent axis).

    Values that are not the agent's own become 0, so that they reach no gradient: actions of rows on which the agent does
    not act, and observations of waiting rows. With a core, which reads these rows as acting did, only the observations of
    agents that wait on all rows become 0.
    """
    if num_agents is None:
        return trajectory
    per_agent = {
        name: fold(getattr(trajectory, name), 1)
        for name in ("observation", "action", "reward", "discount", "acts", "log_prob", "extras", "version")
    }
    own = per_agent["acts"] > 0
    seen = jnp.any(own, axis=0) if jax.tree.leaves(trajectory.core) else own
    per_agent["observation"] = jax.tree.map(lambda x: where_rows(seen, x), per_agent["observation"])
    per_agent["extras"] = jax.tree.map(lambda x: where_rows(own, x), per_agent["extras"])
    per_agent["action"] = where_rows(per_agent["acts"] == 1, per_agent["action"])
    is_first = jnp.repeat(trajectory.is_first, num_agents, axis=1)
    sampling = jax.tree.map(lambda x: jnp.repeat(x, num_agents, axis=0), trajectory.sampling)
    state = jax.tree.map(lambda x: jnp.repeat(x, num_agents, axis=1), trajectory.state)
    core = fold(trajectory.core, 0)
    return trajectory._replace(is_first=is_first, core=core, sampling=sampling, state=state, **per_agent)


def where_rows(condition: Array, x: Array) -> Array:
    """Return x [T+1, C, ...] where the condition [T+1, C] or [C] holds, else 0."""
    condition = jnp.broadcast_to(condition, x.shape[:2])
    return jnp.where(spread(condition, x), x, jnp.zeros((), x.dtype))


# -- acting -----------------------------------------------------------------------------------------------------------


def action_mask(observation: Tree) -> Array | None:
    """Return the observation's `action_mask` [..., A], or None where it has none."""
    return observation.get(ACTION_MASK) if isinstance(observation, dict) else None


def mask_outputs(outputs: Any, observation: Tree) -> Any:
    """Return head outputs under which actions that the observation's `action_mask` forbids have probability 0."""
    mask = action_mask(observation)
    return outputs if mask is None else mask_logits(outputs, mask)


def check_action_mask(spec: EnvSpec) -> None:
    """Refuse action masks over real-valued actions."""
    if isinstance(spec.observation, dict) and ACTION_MASK in spec.observation and isinstance(spec.action, Continuous):
        raise ConfigError(
            f"{spec.name} has an action_mask but continuous actions, which cannot be masked; drop the key"
        )


def for_agents(agent: Agent, num_agents: int | None) -> Agent:
    """Return `agent`, whose `act` and `initial_core` are for single agents, for environments of N agents (None: as it is).

    The agents of an environment are folded into the batch. `update` folds its trajectories itself.
    """
    if num_agents is None:
        return agent

    def act(
        params: ActParams, key: Array, observation: Tree, is_first: Array, core: Tree, *, greedy: bool = False
    ) -> tuple[ActOutput, Tree]:
        observation, core = fold((observation, core), 0)
        is_first = jnp.repeat(is_first, num_agents, axis=0)
        return unfold(agent.act(params, key, observation, is_first, core, greedy=greedy), 0, num_agents)

    def initial_core(batch_size: int) -> Tree:
        return unfold(agent.initial_core(batch_size * num_agents), 0, num_agents)

    return agent._replace(act=act, initial_core=initial_core)


def make_act(network: ActorCritic, chosen: Distribution, *, with_value: bool = False) -> Act:
    """Return the `act` of an actor-critic agent; greedy takes the distribution's mode.

    With `with_value`, params hold all `Weights`, and the extras hold the value of each row.
    """
    period = network.noise_period

    def act(
        params: ActParams, key: Array, observation: Tree, is_first: Array, core: Tree, *, greedy: bool = False
    ) -> tuple[ActOutput, Tree]:
        normal = normalize(params.moments, observation)
        row = jax.tree.map(lambda x: x[None], normal)  # acting is T = 1
        weights = params.weights.policy if with_value else params.weights
        outputs, features, after = network.policy(weights, row, is_first[None], core if period is None else ())
        extras = {"value": network.value(params.weights.value, row, features)[0]} if with_value else ()
        outputs = mask_outputs(jax.tree.map(lambda x: x[0], outputs), observation)
        action = chosen.mode(outputs) if greedy else chosen.sample(key, outputs)
        if period is not None:
            noise, after = state_noise(weights, features[0], core, key, is_first, period)
            action = action if greedy else chosen.mode(outputs) + noise
        return ActOutput(action, chosen.log_prob(outputs, action), extras, named(outputs)), after

    return act


def acting_core(network: ActorCritic) -> Callable[[int], Tree]:
    """Return the `initial_core` of `make_act`."""
    if network.noise_period is None:
        return network.initial_core
    return noise_core(jax.eval_shape(network.init, jax.random.key(0))[0])


def acting_agent(
    network: ActorCritic,
    chosen: Distribution,
    init: Callable[[Array], AgentState],
    update: Update,
    num_agents: int | None,
    *,
    with_value: bool = False,
) -> Agent:
    """Return the agent that acts by `make_act`."""
    act = make_act(network, chosen, with_value=with_value)
    store_core = network.noise_period is None
    return for_agents(Agent(init, acting_core(network), act, update, store_core=store_core), num_agents)


# -- optimisation -----------------------------------------------------------------------------------------------------


def make_optimizer(optimizer: Any, *, eps: float, max_grad_norm: float | None) -> optax.GradientTransformation:
    """Return an optimizer with clipping, for `apply_gradients`, which gives the learning rate of each step.

    Args:
      optimizer: adam, sgd, rmsprop, or a factory `(learning_rate) -> optax.GradientTransformation` or its `module:NAME`.
      eps: of adam and rmsprop.
    """
    clip = optax.identity() if max_grad_norm is None else optax.clip_by_global_norm(max_grad_norm)
    match optimizer:
        case "adam":
            return optax.chain(clip, optax.scale_by_adam(eps=eps))
        case "rmsprop":
            return optax.chain(clip, optax.scale_by_rms(decay=0.99, eps=eps))
        case "sgd":
            return optax.chain(clip, optax.identity())
    factory = _factory("optimizer", optimizer, OPTIMIZERS, "learning_rate")

    def with_rate(learning_rate: Array) -> optax.GradientTransformation:
        return optax.chain(clip, factory(learning_rate))

    return optax.inject_hyperparams(with_rate)(learning_rate=0.0)


def _factory(what: str, given: Any, choices: tuple[str, ...], *names: str) -> Callable[..., Any]:
    """Return an optax factory, given as such or as `module:NAME`, that is called with the named values."""
    if not callable(given) and ":" not in str(given):
        raise ConfigError(
            f"unknown {what} {given!r}; choose one of {', '.join(choices)}, or module:NAME of an optax factory"
        )
    factory = import_target(given) if isinstance(given, str) else given

    def call(*values: Any) -> Any:
        try:
            return factory(*values)
        except TypeError as error:
            raise ConfigError(
                f"{what} {given!r} cannot be called with ({', '.join(names)}): {error}. Give a function of these that sets "
                "the rest, such as functools.partial(optax.adamw, weight_decay=0.01)."
            ) from error

    return call


def scheduled(base: float, schedule: Any, total_updates: int | None, updates: Array) -> Array:
    """Return the learning rate, or another hyperparameter, after `updates` updates.

    Args:
      schedule: constant, linear (it falls to 0 at `total_updates`), or a factory `(base, total_updates) -> optax.Schedule` or
        its `module:NAME`.
    """
    if schedule == "constant":
        return jnp.asarray(base, jnp.float32)
    if total_updates is None:
        raise ConfigError(
            f"schedule={schedule!r} needs total_updates (where it ends), got None; an Experiment sets it, your own loop must "
            "give it."
        )
    if schedule != "linear":
        at = _factory("schedule", schedule, SCHEDULES, "learning_rate", "total_updates")(base, total_updates)
        return jnp.asarray(at(updates), jnp.float32)
    return base * jnp.clip(1.0 - updates / float(total_updates), 0.0, 1.0)  # an int above 2^31 overflows


def learning_rate(config: Any, updates: Array, own: float | None = None) -> Array:
    """Return the learning rate of a config after `updates` updates; own: in place of its `learning_rate`."""
    return scheduled(own or config.learning_rate, config.schedule, config.total_updates, updates)


def apply_gradients(
    optimizer: optax.GradientTransformation, gradients: Tree, opt_state: Tree, weights: Tree, learning_rate: Array
) -> tuple[Tree, Tree]:
    if isinstance(opt_state, optax.InjectStatefulHyperparamsState):  # of a factory: it applies the rate and its sign
        opt_state = opt_state._replace(hyperparams={"learning_rate": jnp.asarray(learning_rate, jnp.float32)})
        steps, opt_state = optimizer.update(gradients, opt_state, weights)
        return optax.apply_updates(weights, steps), opt_state
    steps, opt_state = optimizer.update(gradients, opt_state, weights)
    return jax.tree.map(lambda w, s: w - learning_rate * s, weights, steps), opt_state


# -- metrics ----------------------------------------------------------------------------------------------------------


def explained_variance(target: Array, value: Array, mask: Array, axis_name: str | None) -> Array:
    """Return 1 - Var(target - value) / Var(target) over the unmasked rows of all devices; 1 is perfect."""

    def variance(x: Array) -> Array:
        return masked_mean(jnp.square(x - masked_mean(x, mask, axis_name)), mask, axis_name)

    return 1.0 - variance(target - value) / jnp.maximum(variance(target), 1e-8)
