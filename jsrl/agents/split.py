"""Policy and critics of an off-policy agent as two updates, made of the steps of its own `update`.

Each side draws its own batches and keeps its own copy of the state; the other side's part is as new as its last publication.
If the sides take turns, critics first, SAC's sides together do what its own update does. The targets of TD3 and DDPG move with
the critics, and so follow the policy of one update earlier.
"""

from __future__ import annotations

from typing import Any, Protocol

from jsrl.agents import off_policy as off
from jsrl.agents.base import AgentState, Split, UpdateOutput
from jsrl.agents.off_policy import Transition
from jsrl.types import Array, Trajectory, Tree


class CriticStep(Protocol):
    """A step of the critics, then of the targets."""

    def __call__(
        self, state: AgentState, batch: Transition, key: Array, axis_name: str | None, /
    ) -> tuple[AgentState, dict[str, Array], Array]:
        """Return the state after one step, metrics and error [B]; `key` is that of the whole update."""
        ...


class PolicyStep(Protocol):
    """A step of the policy."""

    def __call__(
        self, state: AgentState, batch: Transition, key: Array, axis_name: str | None, /
    ) -> tuple[AgentState, dict[str, Array]]:
        """Return the state after one step, and metrics; `key` is that of the whole update."""
        ...


def make_split(critic_step: CriticStep, policy_step: PolicyStep, *, gamma: float, num_agents: int | None) -> Split:
    """Return an agent's `split` from its two steps.

    The agent's state: params.weights is ActingWeights; the first field of learner_params are the online critics; the field
    `critics` of opt_state is their optimizer state.
    """
    options: Any = {"gamma": gamma, "num_agents": num_agents}

    def critic(
        state: AgentState, trajectory: Trajectory, key: Array, *, axis_name: str | None = None
    ) -> tuple[AgentState, UpdateOutput]:
        batch, _ = off.prepare(state.params.moments, trajectory, **options, axis_name=axis_name)
        state, metrics, error = critic_step(state, batch, key, axis_name)
        priorities = off.priorities(error, batch.mask, num_agents)
        return state._replace(updates=state.updates + 1), UpdateOutput(metrics, priorities)

    def policy(
        state: AgentState, trajectory: Trajectory, key: Array, *, axis_name: str | None = None
    ) -> tuple[AgentState, UpdateOutput]:
        batch, moments = off.prepare(state.params.moments, trajectory, **options, axis_name=axis_name)
        state, metrics = policy_step(state, batch, key, axis_name)
        updates = state.updates + 1
        params = state.params._replace(weights=state.params.weights._replace(updates=updates), moments=moments)
        return state._replace(params=params, updates=updates), UpdateOutput(metrics)

    def take_policy(state: AgentState, published: Tree) -> AgentState:
        params, extra = published
        return state._replace(params=params, extra=extra)

    def take_critic(state: AgentState, published: Tree) -> AgentState:
        learned: Any = state.learner_params
        return state._replace(learner_params=learned._replace(**{learned._fields[0]: published}))

    def publish_policy(state: AgentState) -> Tree:
        return state.params, state.extra

    def publish_critic(state: AgentState) -> Tree:
        return state.learner_params[0]

    def join(of_policy: AgentState, of_critic: AgentState) -> AgentState:
        trained: Any = of_critic.opt_state
        ours: Any = of_policy.opt_state
        opt_state = ours._replace(critics=trained.critics)
        return of_policy._replace(
            learner_params=of_critic.learner_params, opt_state=opt_state, updates=of_critic.updates
        )

    return Split(policy, critic, publish_policy, publish_critic, take_policy, take_critic, join)
