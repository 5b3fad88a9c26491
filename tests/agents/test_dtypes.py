"""Dtypes of states: the same with 64-bit JAX, so that snapshots load with either."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from jsrl.types import map_tree, spec_of
from tests.agents.test_hyperparameters import CASES, rows_for
from tests.marks import marked


@pytest.mark.parametrize(
    "name", marked(CASES, slow={"dqn", "sac", "r2d2", "qmix"}, nightly={"impala", "td3", "mappo", "happo"})
)
def test_64_bit_jax_changes_no_dtype_of_a_state(name):
    make, config, spec = CASES[name]
    wanted = {"normalize_observations", "normalize_values"} & {field.name for field in dataclasses.fields(config)}
    agent = make(dataclasses.replace(config, **dict.fromkeys(wanted, True)), spec)
    observation = map_tree(lambda leaf: leaf.batched(2).zeros(), spec.observation)

    def shapes():
        state, core = jax.eval_shape(agent.init, jax.random.key(0)), jax.eval_shape(lambda: agent.initial_core(2))

        def act(params, core):
            return agent.act(params, jax.random.key(0), observation, np.ones(2, bool), core)[1]

        rows = rows_for(agent, spec)
        learned = jax.eval_shape(agent.update, state, rows, jax.random.key(0))[0]
        return spec_of((state, core, jax.eval_shape(act, state.params, core), learned))

    usual = shapes()
    with jax.enable_x64(True):
        assert shapes() == usual
