"""Policy and critics of an off-policy agent as two updates, made of the steps that its own `update` is made of.

Each side draws its own batches and keeps its own copy of the state; what it does not train is as new as what the other side
published last. Where both take turns, critics first, SAC's sides do together what its own update does; the targets of TD3
and DDPG move with the critics, and so with the policy as it was one update earlier.
"""

from __future__ import annotations

from typing import Any, Protocol

from jsrl.agents import off_policy as off
from jsrl.agents.base import AgentState, Split, UpdateOutput
from jsrl.agents.off_policy import Transition
from jsrl.agents.rows import RowMasks
from jsrl.types import Array, Trajectory, Tree


class CriticStep(Protocol):
    """How the critics, and then the targets, move."""

    def __call__(
        self, state: AgentState, batch: Transition, counts: RowMasks, key: Array, axis_name: str | None, /
    ) -> tuple[AgentState, dict[str, Array], Array]:
        """Return the state after one step, metrics and error [B]; `key` is that of the whole update."""
        ...


class PolicyStep(Protocol):
    """How the policy moves."""

    def __call__(
        self, state: AgentState, batch: Transition, counts: RowMasks, key: Array, axis_name: str | None, /
    ) -> tuple[AgentState, dict[str, Array]]:
        """Return the state after one step, and metrics; `key` is that of the whole update."""
        ...


def make_split(critic_step: CriticStep, policy_step: PolicyStep, *, gamma: float, num_agents: int | None) -> Split:
    """Return an agent's `split` from its two steps.

    The agent's state: params.weights is Published, learner_params a NamedTuple whose first field are the online critics, and
    opt_state one whose field `critics` is that of the critics.
    """
    options: Any = {"gamma": gamma, "num_agents": num_agents}

    def critic(
        state: AgentState, trajectory: Trajectory, key: Array, *, axis_name: str | None = None
    ) -> tuple[AgentState, UpdateOutput]:
        batch, counts, _ = off.prepare(state.params.moments, trajectory, **options, axis_name=axis_name)
        state, metrics, error = critic_step(state, batch, counts, key, axis_name)
        priorities = off.priorities(error, batch.mask, num_agents)
        return state._replace(updates=state.updates + 1), UpdateOutput(metrics, priorities)

    def policy(
        state: AgentState, trajectory: Trajectory, key: Array, *, axis_name: str | None = None
    ) -> tuple[AgentState, UpdateOutput]:
        batch, counts, moments = off.prepare(state.params.moments, trajectory, **options, axis_name=axis_name)
        state, metrics = policy_step(state, batch, counts, key, axis_name)
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
