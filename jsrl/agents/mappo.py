"""Multi-agent PPO: one policy for all seats of a group, with a central value function (MAPPO) or each seat's own (IPPO).

The update is PPO's (jsrl.agents.ppo). Two inputs are added. The policy also reads the number of its seat. The value function
reads the environment's global state with the seat's own observation, or, without a global state, the observations of all seats
of the group. Only the policy is published; acting needs no global state.

Source: Yu et al., 2022, arXiv 2103.01955 (MAPPO), sections 3 and 5; de Witt et al., 2020, arXiv 2011.09533 (IPPO).
Differs: values are normalised by PopArt, which keeps the value function's outputs as its scale moves.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from jsrl.agents import actor_critic as ac
from jsrl.agents.base import ActOutput, ActParams, Agent, AgentState, UpdateOutput
from jsrl.agents.losses import ValueLoss
from jsrl.agents.ppo import PPOConfig, ppo
from jsrl.agents.seats import numbered, numbered_spec, own_size, own_vector, size, state_vector
from jsrl.errors import ConfigError
from jsrl.fields import (
    FiniteFloat,
    NonNegativeFinite,
    NonNegativeFloat,
    PositiveFinite,
    PositiveFloat,
    PositiveInt,
    option,
    suggesting,
)
from jsrl.networks.model import ActorCritic, NetworkConfig, actor_critic
from jsrl.types import VALUE_ONLY, Array, ArraySpec, EnvSpec, Trajectory, Tree, named_leaves

CENTRAL = "central"  # the observation leaf that the critic reads


@suggesting
@dataclass(frozen=True)
class MAPPOConfig(PPOConfig):
    """Hyperparameters of MAPPO and IPPO: those of PPO, with the paper's values, and these."""

    factory: ClassVar[str] = "jsrl.agents.mappo:mappo"

    learning_rate: PositiveFinite = 7e-4
    max_grad_norm: PositiveFloat | None = 10.0
    value_clip: NonNegativeFloat | None = 0.2
    value_loss: ValueLoss = "huber"
    value_coef: NonNegativeFinite = 1.0
    entropy_coef: FiniteFloat = 0.01
    num_epochs: PositiveInt = 10
    num_minibatches: PositiveInt = 1
    normalize_values: bool = True
    values: ClassVar[str] = "learner"  # type: ignore[misc]  # actors cannot compute them
    # fmt: off
    critic: Literal["central", "own"] = option("central", "central (MAPPO): the value function reads the global state, "
        "or all seats' observations where the environment has no state. own (IPPO): each seat's observation.")
    rewards: Literal["own", "team"] = option("own", "each seat learns from its `own` reward, or from that of the "
        "`team`: the mean over the seats of the group, as in VDN and QMIX.")
    agent_ids: bool = option(True, "the policy reads the number of its seat, so that seats that share it may act "
        "differently.")
    critic_network: NetworkConfig = option(help="options of the value function's network; its core is none.",
        factory=NetworkConfig, in_python=True)
    # fmt: on

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.critic_network.core != "none":
            raise ConfigError(
                f"critic_network.core is {self.critic_network.core!r}; the value function of MAPPO has no recurrent state. "
                "Leave it out (network.core is the policy's)"
            )
        if self.critic_network.shared:
            raise ConfigError(
                "critic_network.shared=True, but the value function of MAPPO and HAPPO shares nothing with the policy; leave "
                "it out"
            )
        if self.network.shared or (self.network.core != "none" and self.network.shared is False):
            raise ConfigError(
                f"network.shared={self.network.shared}, but policy and value function of MAPPO read different things, and the "
                "latter has no core; leave it out"
            )


def mappo(config: MAPPOConfig, spec: EnvSpec) -> Agent:
    n = spec.num_agents
    if n is None:
        raise ConfigError(f"{spec.name} has one agent; MAPPO and IPPO are for environments with several seats. Use PPO")
    seen = numbered_spec(spec, config.agent_ids).observation
    trained = {**seen, CENTRAL: ArraySpec((n, critic_size(config, spec)), "float32")}
    whole = dataclasses.replace(spec, observation=trained, state=None)
    one = ac.one_agent(whole)
    base = ppo(config, whole, _network(config, one))

    def policy_reads(observation: Tree, *leading: int) -> dict[str, Tree]:
        return numbered(observation, n, config.agent_ids, *leading)

    def act(
        params: ActParams, key: Array, observation: Tree, is_first: Array, core: Tree, *, greedy: bool = False
    ) -> tuple[ActOutput, Tree]:
        return base.act(params, key, policy_reads(observation, *is_first.shape), is_first, core, greedy=greedy)

    def update(
        state: AgentState, trajectory: Trajectory, key: Array, *, axis_name: str | None = None
    ) -> tuple[AgentState, UpdateOutput]:
        rows = policy_reads(trajectory.observation, *trajectory.is_first.shape)
        rows[CENTRAL] = critic_input(config, trajectory, n)
        reward = trajectory.reward
        if config.rewards == "team":
            reward = jnp.broadcast_to(jnp.mean(reward, axis=-1, keepdims=True), reward.shape)
        return base.update(
            state, trajectory._replace(observation=rows, state=(), reward=reward), key, axis_name=axis_name
        )

    return base._replace(act=act, update=update)


def _network(config: MAPPOConfig, spec: EnvSpec) -> ActorCritic:
    """Return a network whose policy reads all leaves but `central`, and whose value function reads only `central`."""
    own = actor_critic(config.network, dataclasses.replace(spec, observation=_without_central(spec.observation)))
    separate = dataclasses.replace(config.critic_network, shared=False)
    critic = actor_critic(separate, dataclasses.replace(spec, observation=spec.observation[CENTRAL]))

    def init(key: Array) -> tuple[Tree, Tree]:
        policy_key, value_key = jax.random.split(key)
        return own.init(policy_key)[0], critic.init(value_key)[1]

    def policy(weights: Tree, observation: Tree, is_first: Array, core: Tree) -> tuple[Any, Array, Tree]:
        return own.policy(weights, _without_central(observation), is_first, core)

    def value(weights: Tree, observation: Tree, features: Array) -> Array:
        return critic.value(weights, observation[CENTRAL], features)

    return own._replace(init=init, policy=policy, value=value, value_head=critic.value_head, shared=False)


def _without_central(tree: dict[str, Tree]) -> dict[str, Tree]:
    return {name: leaf for name, leaf in tree.items() if name != CENTRAL}


# -- inputs -----------------------------------------------------------------------------------------------------------


def critic_size(config: MAPPOConfig, spec: EnvSpec) -> int:
    own = own_size(spec)
    n = spec.num_agents or 1
    if config.critic == "own":
        return own + n
    if spec.state is None:
        return own * n + n
    return own + n + sum(size(leaf) for _, leaf in named_leaves(spec.state))


def critic_input(config: MAPPOConfig, trajectory: Trajectory, num_agents: int) -> Array:
    """Return the value function's input, float32 [T+1, B, N, F]: state or observations, and the seat's number.

    For dead seats (acts 2) it holds only the number.

    Source: arXiv 2103.01955, section 3 and appendix (agent-specific global state, death masking).
    """
    acts = trajectory.acts
    lead = acts.shape[:2]
    own, state = own_vector(trajectory), state_vector(trajectory)
    if config.critic == "own":
        read = own
    elif state is not None:
        read = jnp.concatenate([jnp.broadcast_to(state[:, :, None], (*acts.shape, state.shape[-1])), own], -1)
    else:
        joined = own.reshape(*lead, 1, -1)
        read = jnp.broadcast_to(joined, (*acts.shape, joined.shape[-1]))
    read = jnp.where((acts == VALUE_ONLY)[..., None], 0.0, read)
    return jnp.concatenate(
        [read, jnp.broadcast_to(jnp.eye(num_agents, dtype=jnp.float32), (*acts.shape, num_agents))], -1
    )
