"""`Collector`: an agent's rows from an environment, for a loop of your own."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax

from jsrl.agents.base import ActParams, Agent
from jsrl.envs.base import Episode, VectorEnv
from jsrl.errors import ConfigError
from jsrl.graph.schemas import trace_agent
from jsrl.references.importing import shown_target
from jsrl.transport.base import Entry, Origin, ProducerId
from jsrl.types import GameSpec, Trajectory, make_trajectory_spec, make_version, zeros
from jsrl.workers.acting import Engine, InlineInference
from jsrl.workers.actor.policies import ActingPolicy
from jsrl.workers.actor.streams import Streams
from jsrl.workers.actor.worker import Actor, ActorSettings
from jsrl.workers.base import NullReporter


class Collector:
    """Plays an agent, and returns the rows that an actor of a run would write: `trajectory = collect(params)`.

    Open episodes, cores and the stream of random numbers go on from one call to the next, so it is an object. The rows are
    those of group 0 of a run with this seed: reset flags, ignored rows, discounts, cores and bootstrap rows included.

    Attributes:
      episodes: those that ended in the last call.
    """

    def __init__(self, agent: Agent, env: VectorEnv, num_rows: int, *, seed: int = 0) -> None:
        """Reset the environment, and compile the agent's `act`.

        Args:
          agent: for `env.spec`. num_rows: T of each trajectory. seed: of the agent's random numbers.
        """
        spec, size = env.spec, env.num_envs
        if isinstance(spec, GameSpec):
            raise ConfigError(
                f"environment {spec.name!r} has several seats, and a Collector takes environments of one agent; train with "
                "jsrl.run there."
            )
        _, acts = trace_agent(agent, spec)
        core = acts.core if agent.store_core else ()
        schema = make_trajectory_spec(spec, acts.extras, core, num_rows=num_rows, num_envs=size)
        engine = Engine(agent, spec, num_slots=size, sizes=[size], seed=seed)
        params: Any = HeldParams()
        self._params, self._block, self._calls = params, HeldBlock(schema), itertools.count()
        client = InlineInference(engine, params, {0: engine.serve(0, size)})
        policy = ActingPolicy(Streams(lambda _: (client, self._block)))
        settings = ActorSettings(num_rows, poll_s=0.0, environment=shown_target(spec.name))
        self.episodes: list[Episode] = []
        self._actor = Actor("collector", settings, {0: lambda: env}, [policy], NullReporter())
        self._actor.setup()

    def __call__(self, params: ActParams) -> Trajectory:
        """Return the next trajectory [T+1, B, ...], numpy arrays; its versions count the calls.

        Raises:
          EnvironmentFault: the environment raised, or returned invalid values.
        """
        self._params.put(make_version(0, next(self._calls)), params)
        self.episodes, self._block.committed = [], None
        while self._block.committed is None:
            if self._actor.step():
                self.episodes += self._actor.groups[0].latest.episodes
        trajectory: Trajectory = self._block.committed
        return trajectory


class HeldParams:
    """A params stream of this process alone."""

    def __init__(self) -> None:
        self._newest = list[tuple[int, Sequence[Any]]]()

    def put(self, version: int, params: ActParams) -> None:
        self._newest = [(version, jax.tree.leaves(params))]

    def poll(self, _policy: int = 0) -> tuple[int, Sequence[Any]] | None:
        return self._newest.pop() if self._newest else None

    def close(self) -> None:
        """Do nothing."""


class HeldBlock:
    """A sample stream that nobody reads, and its only block: a committed trajectory belongs to the caller."""

    def __init__(self, schema: Trajectory) -> None:
        self._schema = schema
        self.committed: Trajectory | None = None

    def reserve(self, _timeout_s: float) -> HeldBlock:
        self.trajectory: Trajectory = zeros(self._schema)
        return self

    def commit(self, group: int, origin: Origin | None = None) -> Entry:
        self.committed = self.trajectory
        return Entry(ProducerId("", 0), group, 0, origin)

    def abandon(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
