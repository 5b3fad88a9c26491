"""Actor and critic of an agent on two devices: each side updates its own copy of the state, in its own thread.

Both sides get the same batches, in order, and start each update with the newest params that have arrived from the other side.
Neither gets more than `max_lead` calls ahead of the other; with 0 they take turns, critic first, which
is what the agent's own `update` does.

    main thread   batch n, copied once  ->  queue of each side
    critic side   wait for its turn, take policy's newest, update on device 1, publish to device 0
    policy side   wait for its turn, take critic's newest, update on device 0, publish to device 1 and to the acting workers

Source: Mei et al., 2023, "Spreeze: High-Throughput Parallel Reinforcement Learning Framework" (arXiv 2312.06126).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jsrl.agents.base import MADE, Agent, AgentState, ReplayExtra, Split, Update
from jsrl.agents.finite import CHECKS, describe_non_finite, non_finite_metrics
from jsrl.agents.minibatches import several_updates
from jsrl.errors import NonFiniteUpdate
from jsrl.experiment.building import agent_name, check_split
from jsrl.types import Array, Trajectory, Tree
from jsrl.workers.acting import UPDATE_STREAM, stream_key
from jsrl.workers.jobs import Job
from jsrl.workers.learner.build_updater import checked, replay_on_device

if TYPE_CHECKING:
    from jsrl.replay.device.agent import OnDevice

POLICY, CRITIC = 0, 1
NAMES = ("policy", "critic")


@dataclass
class Side:
    """One of the two networks in training.

    Attributes:
      call: (state, params of the other side, batch, key) -> (state, metrics, published), compiled. made: calls.
      published: on its own device, and `sent` on the other's. newest: metrics since the main thread's last look.
    """

    name: str
    device: jax.Device
    function: Any
    call: Any = None
    state: Any = None
    published: Any = None
    sent: Any = None
    made: int = 0
    newest: dict[str, Array] = field(default_factory=dict)
    waiting: list[Any] = field(default_factory=list)


class SplitUpdate:
    """Two updates on two devices, as an Updater whose state is itself. Batches come whole: [1, T+1, B, ...]."""

    def __init__(
        self,
        agent: Agent,
        updates: tuple[Update, Update],
        devices: Sequence[jax.Device],
        key: Array,
        *,
        max_lead: int,
        updates_per_call: int = 1,
        ring: OnDevice | None = None,
    ) -> None:
        assert agent.split is not None
        self.agent, self._split, self._key = agent, agent.split, key
        self._max_lead, self._per_call, self._ring = max_lead, updates_per_call, ring
        takes, publishes = _exchange(agent.split)
        donated = () if ring is None else (0,)  # a ring keeps the state before a failure itself
        self._sides = [
            Side(NAMES[i], devices[i], jax.jit(_side(updates[i], takes[i], publishes[i]), donate_argnums=donated))
            for i in (POLICY, CRITIC)
        ]
        self._publish = [jax.jit(lambda state, p=publish: _copied(p(state))) for publish in publishes]
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._closed = False
        self._given = self._late = 0
        self._threads: list[threading.Thread] = []

    # -- what a learner calls -----------------------------------------------------------------------------------------

    @property
    def params(self) -> Tree:
        """Return the newest params of the policy."""
        with self._changed:
            return self._sides[POLICY].published[0]

    def fresh(self, key: Array) -> AgentState:
        return self._packed(self.agent.init(key))

    def _packed(self, state: AgentState) -> AgentState:
        return state if self._ring is None else self._ring.pack(state)

    def make(self, key: Array) -> Any:
        """Make the state on both devices, and start."""
        return self._begin([jax.jit(self.agent.init)(jax.device_put(key, side.device)) for side in self._sides])

    def place(self, saved: AgentState) -> Any:
        """Put a state on both devices, and start."""
        host = jax.tree.map(np.array, saved)
        return self._begin([self._unpacked(host, side) for side in self._sides])

    def _unpacked(self, host: Tree, side: Side) -> Any:
        """Return a packed state on a side's device, with an empty ring where it was left out."""

        def fresh() -> Any:
            return jax.jit(self.agent.init)(jax.device_put(jax.random.key(0), side.device))

        packed = jax.device_put(host, side.device)
        return packed if self._ring is None else self._ring.unpack(packed, fresh)

    def _begin(self, states: list[Any]) -> Any:
        for side, state, publish in zip(self._sides, states, self._publish, strict=True):
            side.state = jax.device_put(state, side.device)
            side.published = publish(side.state)
            side.sent = jax.block_until_ready(jax.device_put(side.published, self._other(side).device))
        return self

    def compile(self, state: Any, batch: Trajectory) -> None:
        """Compile both updates for arrays like these, and start the threads."""
        one = _whole(batch)
        for side in self._sides:
            given, device_key = jax.device_put((one, self._key), side.device)
            side.call = side.function.lower(side.state, self._other(side).sent, given, device_key).compile()
        for side in self._sides:
            thread = threading.Thread(target=self._run, args=(side,), name=f"{side.name}-side", daemon=True)
            self._threads.append(thread)
            thread.start()

    def __call__(self, state: Any, batch: Trajectory, number: int) -> tuple[Any, Any, None]:
        """Give both sides a batch [1, T+1, B, ...]; return the metrics of the updates that ended since the last call.

        The batch is copied. Waits if the slower side is `max_lead` calls behind (0: until both have made this one).

        Raises:
          NonFiniteUpdate: a side's update made a metric that is not finite; nothing of it was published.
        """
        copied, key = _whole(batch), jax.random.fold_in(self._key, number)
        with self._changed:
            for side in self._sides:
                side.waiting.append((copied, key))
            self._given += 1
            self._changed.notify_all()
            self._await(self._given - self._max_lead)
            metrics: dict[str, Array] = {}
            for side in self._sides:
                metrics |= side.newest
                side.newest = {}
        return self, (metrics | ({MADE: np.float32(self.late())} if self._ring is not None else {}), self.params), None

    def late(self) -> int:
        """Return the updates of the critic that have ended since the last call of this."""
        with self._changed:
            late, self._late = self._late, 0
        return late

    def fetch(self, tree: Tree) -> Tree:
        return jax.tree.map(np.array, tree)

    def saved(self, state: Any) -> AgentState:
        """Return the snapshot of the agent's whole state, once both sides are idle; a ring is the critic's."""
        return self.fetch(self._joined())

    def _joined(self) -> Any:
        with self._changed:
            self._await(self._given)
            policy, critic = (side.state for side in self._sides)
        joined = self._split.join(*jax.tree.map(np.array, (_own(policy), _own(critic))))
        if not isinstance(critic.extra, ReplayExtra):
            return joined
        return self._packed(joined._replace(extra=critic.extra._replace(agent=joined.extra)))

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(10.0)

    def _await(self, made: int) -> None:
        """Wait until both sides have made `made` calls (the lock is held)."""
        while self._error is None and min(side.made for side in self._sides) < made:
            self._changed.wait()
        if self._error is not None:
            raise self._error

    # -- a side's thread ----------------------------------------------------------------------------------------------

    def _other(self, side: Side) -> Side:
        return self._sides[CRITIC if side is self._sides[POLICY] else POLICY]

    def _may_begin(self, side: Side) -> bool:
        """Return whether a side has a batch and is not too far ahead; when taking turns, the critic is first."""
        if not side.waiting:
            return False
        other = self._other(side).made
        if self._max_lead == 0:
            return other == side.made + (side is self._sides[POLICY])
        return side.made - other < self._max_lead

    def _run(self, side: Side) -> None:
        try:
            while True:
                with self._changed:
                    while not self._may_begin(side):
                        if self._closed or self._error is not None:
                            return
                        self._changed.wait()
                    batch, key = side.waiting.pop(0)
                    other = self._other(side)
                    taken, behind = other.sent, side.made + (side is self._sides[POLICY]) - other.made
                self._update(side, taken, batch, key, max(0, behind))
        except BaseException as error:
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()

    def _update(self, side: Side, taken: Tree, batch: Trajectory, key: Array, behind: int) -> None:
        given, device_key = jax.device_put((batch, key), side.device)
        state, metrics, published = side.call(side.state, taken, given, device_key)
        sent = jax.block_until_ready(jax.device_put(published, self._other(side).device))
        values = jax.device_get(metrics)
        bad = non_finite_metrics(values)
        if bad:
            raise NonFiniteUpdate(
                f"call {side.made + 1} of the {side.name}'s side gave {describe_non_finite(bad, values)}; nothing of it was "
                "published. Continue from the last snapshot (--resume); without learner.split the failed update is kept."
            )
        for name in CHECKS:
            values.pop(name, None)
        with self._changed:
            side.state, side.published, side.sent = state, published, sent
            side.made += 1
            self._late += int(values.get(MADE, 0)) if side is self._sides[CRITIC] else 0
            side.newest = values | {f"split_{side.name}_staleness": np.float32(behind * self._per_call)}
            self._changed.notify_all()


def _side(update: Update, take: Any, publish: Any) -> Any:
    """Return one call of a side: take the other side's publication, update, publish."""

    def call(
        state: AgentState, taken: Tree, batch: Trajectory, key: Array
    ) -> tuple[AgentState, dict[str, Array], Tree]:
        state, output = update(take(state, taken), batch, key)
        return state, output.metrics, _copied(publish(state))

    return call


def _exchange(split: Split) -> tuple[Any, Any]:
    """Return (takes, publishes) of the policy's and the critic's side, for states with or without a ring."""

    def through(take: Any) -> Any:
        def taken(state: AgentState, published: Tree) -> AgentState:
            own = take(_own(state), published)
            extra: Any = state.extra
            return own._replace(extra=extra._replace(agent=own.extra)) if isinstance(extra, ReplayExtra) else own

        return taken

    publishes = [lambda state, p=p: p(_own(state)) for p in (split.publish_policy, split.publish_critic)]
    return [through(split.take_critic), through(split.take_policy)], publishes


def _own(state: AgentState) -> AgentState:
    """Return the agent's own state, without a ring."""
    return state._replace(extra=state.extra.agent) if isinstance(state.extra, ReplayExtra) else state


def _copied(tree: Tree) -> Tree:
    return jax.tree.map(jnp.copy, tree)


def _whole(batch: Trajectory) -> Trajectory:
    """Return a copy of a batch [1, T+1, B, ...] without its device axis."""
    return jax.tree.map(lambda x: np.array(x[0]), batch)


def split_update(job: Job, agent: Agent, devices: list[jax.Device]) -> SplitUpdate:
    """Return the two updates of an agent's policy and critics, each with the experiment's replay."""
    e = job.experiment
    check_split(agent, agent_name(e.agent))
    assert agent.split is not None
    updates = [checked(agent._replace(update=u), e).update for u in (agent.split.policy, agent.split.critic)]
    rings = [replay_on_device(agent._replace(update=u), job) for u in updates]
    sides = [
        several_updates(agent._replace(update=u), e.updates_per_call) if ring is None else ring.agent
        for u, ring in zip(updates, rings, strict=True)
    ]
    ring = rings[0]
    return SplitUpdate(
        sides[0],
        (sides[0].update, sides[1].update),
        devices,
        stream_key(e.seed, UPDATE_STREAM),
        max_lead=e.split_lead,
        updates_per_call=e.updates_per_call,
        ring=ring,
    )
