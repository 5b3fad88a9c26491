"""The agent contract: a NamedTuple of pure functions over pytrees. It uses no processes, sockets or files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from jsrl.agents.rows import row_masks
from jsrl.types import Array, Trajectory, Tree

MADE = "replay/updates_made"  # metric: 0 before the ring has `min_size` rows


class ActParams(NamedTuple):
    """Everything that acting needs; the only part that is published.

    Attributes:
      weights: network variables. moments: observation moments (a jsrl.agents.normalization.Moments tree, or ()).
    """

    weights: Tree
    moments: Tree = ()


class AgentState(NamedTuple):
    """The whole state of an agent, as a pytree of arrays.

    Attributes:
      params: ActParams, published. learner_params: critics, targets; never published.
      opt_state: the optimizer's. extra: everything else that snapshots keep (value moments, temperatures, ...).
      updates: int32 scalar: updates so far.
    """

    params: ActParams
    learner_params: Tree
    opt_state: Tree
    extra: Tree
    updates: Array


class Failure(NamedTuple):
    """The update whose metrics were not finite. number: its place in its call (-1: none). ids, weights: its windows."""

    number: Array
    ids: Array
    weights: Array


class ReplayExtra(NamedTuple):
    """AgentState.extra of an agent with replay. agent: its own extra. ring: () in a snapshot without rows.

    made: int32, updates of the agent so far.
    """

    agent: Tree
    ring: Any
    made: Array
    failure: Failure


class ActOutput(NamedTuple):
    """What `act` chose.

    Attributes:
      action: [B, ...], unclipped. log_prob: [B], of the stored action. extras: tree of [B, ...], stored beside it.
      distribution: parameters of the distribution of the action, name -> [B, ...]: logits, mean and log_std, or values. Only
        exported policies use it.
    """

    action: Array
    log_prob: Array
    extras: Tree = ()
    distribution: Any = ()


class UpdateOutput(NamedTuple):
    """The output of an update besides the new state.

    Attributes:
      metrics: flat dict of scalars, already reduced over devices.
      priorities: new priorities of replay [B, ...], or None. If trajectories carry `game`: jsrl.extend.row_scores; the
        agent's config then has `scores_rows = True`, and rows of games that are only scored train nothing (train_only).
    """

    metrics: dict[str, Array]
    priorities: Any = None


class Act(Protocol):
    """The signature of `Agent.act`."""

    def __call__(
        self, params: ActParams, key: Array, observation: Tree, is_first: Array, core: Tree, *, greedy: bool = False
    ) -> tuple[ActOutput, Tree]:
        """Choose actions for observations [B, ...]; rows with is_first start from a fresh core. `key` is consumed."""
        ...


class Update(Protocol):
    """The signature of `Agent.update`."""

    def __call__(
        self, state: AgentState, trajectory: Trajectory, key: Array, *, axis_name: str | None = None
    ) -> tuple[AgentState, UpdateOutput]:
        """Learn from one batch [T+1, B, ...]; under pmap, B is this device's share and `axis_name` the device axis."""
        ...


class Split(NamedTuple):
    """An actor-critic agent as two updates, each for a copy of the state on a device of its own.

    The policy's side owns `params` (with the moments) and `extra`, the critic's side the rest, targets included.

    Attributes:
      policy, critic: update of one side's part of the state; the rest stays unchanged.
      publish_policy, publish_critic: (state) -> what the other side needs from this side.
      take_policy, take_critic: (state of the other side, what this side published) -> the other side's state with it.
      join: (state of the policy's side, state of the critic's side) -> the agent's whole state.
    """

    policy: Update
    critic: Update
    publish_policy: Callable[[AgentState], Tree]
    publish_critic: Callable[[AgentState], Tree]
    take_policy: Callable[[AgentState, Tree], AgentState]
    take_critic: Callable[[AgentState, Tree], AgentState]
    join: Callable[[AgentState, AgentState], AgentState]


class Agent(NamedTuple):
    """An algorithm as a value.

    Attributes:
      init: (key) -> AgentState, the same in every process.
      initial_core: (batch_size) -> core [B, ...], () without one.
      act, update: see Act and Update.
      split: two updates for two devices; None: not supported.
      adopt: (fresh state, another run's params) -> a state that begins with these params, target networks and schedules
        included; None: only `params` is replaced.
      store_core: whether trajectories carry the core before row 0; False: only acting reads it.
    """

    init: Callable[[Array], AgentState]
    initial_core: Callable[[int], Tree]
    act: Act
    update: Update
    split: Split | None = None
    adopt: Callable[[AgentState, ActParams], AgentState] | None = None
    store_core: bool = True


def adopt(agent: Agent, state: AgentState, params: ActParams) -> AgentState:
    if agent.adopt is not None:
        return agent.adopt(state, params)
    return state._replace(params=params)


def with_extra(
    agent: Agent, begin: Callable[[Tree], Any], update: Callable[..., tuple[AgentState, Any, UpdateOutput]]
) -> Agent:
    """Return the agent with more in its state: `extra` is a NamedTuple, whose field `agent` is the agent's own extra.

    Args:
      begin: own extra -> the NamedTuple of a new state.
      update: (own state, NamedTuple, trajectory, key, axis_name) -> (own state, NamedTuple, output); its `agent` is not read.
    """

    def begun(state: AgentState) -> AgentState:
        return state._replace(extra=begin(state.extra))

    def updated(
        state: AgentState, trajectory: Trajectory, key: Array, *, axis_name: str | None = None
    ) -> tuple[AgentState, UpdateOutput]:
        kept: Any = state.extra
        own, kept, output = update(state._replace(extra=kept.agent), kept, trajectory, key, axis_name)
        return own._replace(extra=kept._replace(agent=own.extra)), output

    def adopted(state: AgentState, params: ActParams) -> AgentState:
        kept: Any = state.extra
        own = adopt(agent, state._replace(extra=kept.agent), params)
        return own._replace(extra=kept._replace(agent=own.extra))

    return agent._replace(init=lambda key: begun(agent.init(key)), update=updated, adopt=adopted)


def row_mask(trajectory: Trajectory) -> Array:
    """Return the policy mask of rows 0..T-1 (jsrl.agents.rows): float32 [T, B] ([T, B, N] where agents exist)."""
    return row_masks(trajectory).policy
