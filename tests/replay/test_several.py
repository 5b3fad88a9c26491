"""Several updates in one call: each has columns and a key of its own, in order."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jsrl.agents.base import ActParams, Agent, AgentState, UpdateOutput
from jsrl.agents.minibatches import several_updates, update_keys
from tests.replay.streams import World


def test_each_update_learns_from_its_own_columns_with_its_own_key():
    def update(state: Any, t: Any, key: Any, *, axis_name: str | None = None) -> Any:
        seen = jnp.stack([t.reward.sum(), t.core.sum(), jax.random.uniform(key)])
        extra = state.extra.at[state.updates].set(seen)
        return state._replace(extra=extra, updates=state.updates + 1), UpdateOutput({"sum": seen[0]}, t.reward[0])

    t = World(6, 4, core=True).trajectory()
    state = AgentState(ActParams(()), (), (), jnp.zeros((3, 3)), jnp.zeros((), jnp.int32))
    agent = several_updates(Agent(None, None, None, update), 3)  # type: ignore[arg-type]
    state, output = jax.jit(agent.update)(state, t, jax.random.key(0))
    parts = [slice(0, 2), slice(2, 4), slice(4, 6)]
    np.testing.assert_allclose(state.extra[:, 0], [t.reward[:, part].sum() for part in parts], rtol=1e-5)
    np.testing.assert_allclose(state.extra[:, 1], [np.sum(t.core[part]) for part in parts], rtol=1e-5)
    assert state.updates == 3 and len(set(state.extra[:, 2].tolist())) == 3
    np.testing.assert_array_equal(output.priorities, t.reward[0])
    np.testing.assert_allclose(output.metrics["sum"], t.reward.sum() / 3, rtol=1e-5)


def test_draws_and_updates_of_one_call_have_different_keys():
    keys = [jax.random.key_data(key).tolist() for number in range(3) for key in update_keys(jax.random.key(0), number)]
    assert len({tuple(key) for key in keys}) == 6
