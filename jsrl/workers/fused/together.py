"""Several fused runs in one compiled program. Each keeps its own worker, folder, snapshots and end."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jsrl.agents.base import ActParams, AgentState
from jsrl.agents.hyperparameters import with_fields
from jsrl.errors import ConfigError
from jsrl.experiment.building import resolved_agent
from jsrl.parallel import OnEach
from jsrl.types import Array, Tree
from jsrl.workers.base import Reporter, Worker
from jsrl.workers.fused.program import Envs, Made, Program
from jsrl.workers.fused.worker import FusedState, FusedUpdate, build_fused
from jsrl.workers.jobs import Job
from jsrl.workers.kinds import build_worker
from jsrl.workers.learner.batching import Batch
from jsrl.workers.learner.build import with_total
from jsrl.workers.learner.build_updater import make_updater, trained_agent
from jsrl.workers.learner.seams import Lifecycle


class Together:
    """The states of the members, and the call that makes the updates of all.

    The first member that asks for its next updates makes the call; the others then take what it made for them. A member whose
    updates are all made, or were not finite, stays as it is.

    On a CPU the members are computed one after another inside the program, so that each has the bits of its run alone, and
    a vectorised program would be no faster; on an accelerator they are vectorised.

    Args:
      jobs: of the members' fused workers.

    Attributes:
      vectorised: whether the members are. members: in order. pending: number of a member -> what the last call made for it.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs, self.vectorised = list(jobs), jax.default_backend() != "cpu"
        self.members: list[Member] = []
        self._begun: list[FusedState] = []
        self._state: FusedState | None = None  # leaves [N, ...] of the agents, [D, N, ...] of the environments
        self._params: Tree = None  # [N, ...], numpy
        self.pending: dict[int, Made] = {}
        self._values = varied_numbers([with_total(job).agent for job in jobs])

    def build(self, job: Job, reporter: Reporter) -> Worker:
        """Return a worker of a member's run."""
        if job.kind != "fused":
            return build_worker(job, reporter)
        return build_fused(job, reporter, functools.partial(Member, self))

    def begin(self, number: int, state: FusedState) -> Share:
        """Take the first state of the next member; members begin in order."""
        self._begun.append(state)
        return Share(self, number)

    def compile(self) -> None:
        """Compile the program, once all members have begun."""
        if len(self._begun) < len(self._jobs):
            return
        axes = {"in_axes": (None, None, 0, None), "out_axes": (None, 0, None)}
        self._run = OnEach(self._run_all, self.members[0].devices, **axes, donate=(1, 2))
        agents, envs = zip(*self._begun, strict=True)
        self._state = FusedState(_stacked(agents, 0), _stacked(envs, 1))
        self._params = jax.device_get(self._state.params)
        self._begun.clear()
        self._run.compile(self._values, *self._state, np.ones(len(self.members), np.int32))

    def _run_all(
        self, values: dict[str, Array], agents: AgentState, envs: Envs, limits: Array, axis_name: str
    ) -> tuple[AgentState, Envs, Made]:
        def one(member: tuple[dict[str, Array], AgentState, Envs, Array]) -> tuple[AgentState, Envs, Made]:
            values, agent, envs, limit = member
            return self._program(values).run(agent, envs, limit, axis_name)

        members = values, agents, envs, limits
        return jax.vmap(one)(members) if self.vectorised else jax.lax.map(one, members)

    def _program(self, values: dict[str, Array]) -> Program:
        """Return the program of a member with these numbers of its agent."""
        program, job = self.members[0].program, self._jobs[0]
        if not values:
            return program
        e = with_total(job)
        config: Any = resolved_agent(e)
        if getattr(config, "target_env_steps", None) is not None:
            values = {**values, "target_env_steps": None}  # resolved; checks cannot compare traced numbers
        agent = trained_agent(with_fields(e, {"agent": with_fields(config, values)}), job.schemas.env, {})
        return dataclasses.replace(program, agent=make_updater(agent, job)[0].agent)

    def take(self, number: int) -> Made:
        """Return what the next call made for a member."""
        if number not in self.pending:
            self._call()
        return self.pending.pop(number)

    def _call(self) -> None:
        assert not self.pending, f"members {sorted(self.pending)} have not taken the updates of the last call"
        limits = [min(self.members[0].pace.size, member.left) if member.goes_on else 0 for member in self.members]
        assert self._state is not None
        begun_s = time.perf_counter()
        agents, envs, made = self._run(self._values, *self._state, np.array(limits, np.int32))
        made, self._params = jax.device_get((made, agents.params))
        self._state = FusedState(agents, envs)
        self.members[0].pace.took(time.perf_counter() - begun_s, int(made.batches.max()))
        self.pending = {i: jax.tree.map(lambda x, i=i: x[i], made) for i, limit in enumerate(limits) if limit}

    def params(self, number: int) -> ActParams:
        if self._state is None:
            return self._begun[number].params
        return jax.tree.map(lambda x: x[number], self._params)

    def state(self, number: int) -> FusedState:
        if self._state is None:
            return self._begun[number]
        agents, envs = self._state
        return FusedState(_part(agents, number, 0), _part(envs, number, 1))


@functools.partial(jax.jit, static_argnums=1)
def _stacked(trees: Sequence[Tree], axis: int) -> Any:
    return jax.tree.map(lambda *x: jnp.stack(x, axis), *trees)


@functools.partial(jax.jit, static_argnums=2)
def _part(tree: Tree, number: int, axis: int) -> Any:
    return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, number, axis, keepdims=False), tree)


class Share:
    """The state of a member: its part of all."""

    def __init__(self, together: Together, number: int) -> None:
        self._together, self._number = together, number

    @property
    def agent(self) -> AgentState:
        return self._together.state(self._number).agent

    @property
    def envs(self) -> Envs:
        return self._together.state(self._number).envs

    @property
    def params(self) -> ActParams:
        return self._together.params(self._number)


class Member(FusedUpdate):
    """The updater of one of several runs in a program; its states are Shares."""

    def __init__(self, together: Together, *own: Any) -> None:
        super().__init__(*own)
        self._together, self._is_closed = together, False
        self._number = len(together.members)
        together.members.append(self)
        first = together.members[0]
        self.pace, self.fresh_on_each = first.pace, first.fresh_on_each  # compiled once

    def make(self, key: Array) -> Any:
        return self._together.begin(self._number, super().make(key))

    def place(self, saved: AgentState) -> Any:
        return self._together.begin(self._number, super().place(saved))

    def compile(self, state: Any, batch: Any) -> None:
        self._together.compile()

    def _call(self, state: Any, batch: Any) -> tuple[Any, Made]:
        return state, self._together.take(self._number)

    @property
    def goes_on(self) -> bool:
        return super().goes_on and not self._is_closed

    def lifecycle(self) -> Lifecycle:
        return TakesAll(self._together, self._number)

    def close(self) -> None:
        self._is_closed = True
        self._together.pending.pop(self._number, None)


class TakesAll(Lifecycle):
    """Before it leaves, a member takes the updates of the last call: its state has them already."""

    def __init__(self, together: Together, number: int) -> None:
        self._together, self._number = together, number

    def last(self) -> Batch | None:
        found: Any = np.int32(0)
        return Batch(found, [0], 0) if self._number in self._together.pending else None


def varied_numbers(agents: Sequence[Any]) -> dict[str, np.ndarray]:
    """Return the numbers in which the members' agents differ, name -> float32 [N].

    Raises:
      ConfigError: they differ in something else.
    """
    first = agents[0]
    names = [name for name in getattr(type(first), "explorable", ()) if _is_varied(agents, name)]
    for agent in agents[1:]:
        if with_fields(agent, {name: getattr(first, name) for name in names}) != first:
            raise ConfigError(
                "runs in one program may differ in their seeds and in these numbers of the agent: "
                f"{', '.join(getattr(type(first), 'explorable', ())) or 'none'}. Run them one after another."
            )
    return {name: np.array([getattr(agent, name) for agent in agents], np.float32) for name in names}


def _is_varied(agents: Sequence[Any], name: str) -> bool:
    values = [getattr(agent, name) for agent in agents]
    return len(set(values)) > 1 and all(isinstance(value, int | float) for value in values)
