"""An agent combined with a ring on the device: one call adds, draws and updates, in place, the same on any devices."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jsrl.agents.base import MADE, Agent, UpdateOutput, adopt
from jsrl.agents.hyperparameters import with_hyperparameters
from jsrl.agents.minibatches import update_keys
from jsrl.errors import ConfigError
from jsrl.experiment.settings import ReplayConfig
from jsrl.replay.device.agent import on_device
from jsrl.types import spec_of
from jsrl.workers.attached.directed import DirectorGate
from jsrl.workers.learner.seams import LearnerState
from tests.fake_devices import STRICT, fake_devices
from tests.replay.learning import toy_agent
from tests.replay.streams import World

N, T = 4, 5
CONFIG = ReplayConfig(capacity=400, batch_size=16, window=1, min_size=60, updates_per_call=3, prioritised=True)


def test_updates_start_at_min_size_with_k_per_call():
    world = World(N, T)
    first = world.trajectory()
    agent = on_device(toy_agent(), CONFIG, spec_of(first), total_updates=30).agent
    update = jax.jit(agent.update, donate_argnums=0)
    state = jax.jit(agent.init)(jax.random.key(0))
    losses = []
    for step in range(12):
        state, output = update(state, first if step == 0 else world.trajectory(), jax.random.key(step))
        ready = (step + 1) * N * T >= CONFIG.min_size
        assert output.metrics[MADE] == (3 if ready else 0)
        assert output.metrics["replay/size"] == min((step + 1) * T, 99) * N
        losses.append(float(output.metrics["loss"]))
        assert output.priorities is None
    assert losses[:2] == [0.0, 0.0]
    assert state.updates == state.extra.made == 30
    assert state.extra.agent["seen"] == 30 * 16
    assert min(losses[2:]) > 0
    assert 0.1 < state.params.weights["kernel"][0] < 1.1  # the true value is 1


def least_weights(config: ReplayConfig, total_updates: int) -> list[float]:
    """Return the smallest importance weight of each update; priorities are the rewards, whatever was learned before."""

    def update(state, windows, key, *, axis_name=None):
        least = {"least": windows.sampling.min()}
        return state._replace(updates=state.updates + 1), UpdateOutput(least, windows.reward[0])

    world = World(N, T)
    first = world.trajectory()
    agent = on_device(toy_agent()._replace(update=update), config, spec_of(first), total_updates=total_updates).agent
    state, program, found = agent.init(jax.random.key(0)), jax.jit(agent.update), []
    for step in range(7):
        state, output = program(state, first if step == 0 else world.trajectory(), jax.random.key(step))
        found.append(float(output.metrics["least"]))
    return found


@pytest.mark.slow
def test_exponent_of_importance_weights_rises_to_its_end():
    options = {
        "capacity": 400,
        "batch_size": 32,
        "window": 1,
        "min_size": N * T,
        "updates_per_call": 1,
        "prioritised": True,
    }
    risen = least_weights(ReplayConfig(**options, beta=1.0, beta_end=1.0), 4)
    rising = least_weights(ReplayConfig(**options, beta=0.0, beta_end=1.0), 4)
    assert max(risen[1:]) < 0.9
    np.testing.assert_allclose(rising, np.array(risen) ** [0.0, 0.25, 0.5, 0.75, 1.0, 1.0, 1.0], rtol=1e-4)


def test_a_call_copies_no_ring():
    world = World(N, T)
    config = ReplayConfig(capacity=200_000 * N, batch_size=16, min_size=1, updates_per_call=3, prioritised=True)
    first = world.trajectory()
    agent = on_device(toy_agent(), config, spec_of(first)).agent
    state = jax.eval_shape(agent.init, jax.random.key(0))
    memory = jax.jit(agent.update, donate_argnums=0).lower(state, first, jax.random.key(0)).compile().memory_analysis()
    ring_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state.extra.ring))
    assert memory.alias_size_in_bytes >= 0.99 * ring_bytes
    assert memory.temp_size_in_bytes < 0.02 * ring_bytes


def test_bad_update_changes_nothing_and_can_be_replayed():
    """The second call meets a window that makes the loss NaN: the state before it is kept, with its windows."""
    world = World(N, T)
    first = world.trajectory()
    own = toy_agent(poison=40.0)
    combined = on_device(own, CONFIG, spec_of(first))
    update = jax.jit(combined.agent.update, donate_argnums=0)
    state = jax.jit(combined.agent.init)(jax.random.key(0))
    state, _ = update(state, first, jax.random.key(0))
    for step in range(1, 20):
        state, output = update(state, world.trajectory(), jax.random.key(step))
        if not np.isfinite(output.metrics["loss"]):
            break
    before, windows, number = jax.jit(combined.failed)(state)
    assert number >= 0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((before, state.extra.ring.tree)))
    _, key = update_keys(jax.random.key(step), number)
    _, output = jax.jit(own.update)(before, windows, key)
    assert np.isnan(output.metrics["loss"])
    assert (windows.reward[0] > 40.0).any()
    assert before.updates == state.updates
    kept = np.asarray(state.extra.ring.tree[0])[np.asarray(state.extra.failure.ids)]
    assert (
        kept > 2.0 * CONFIG.epsilon**CONFIG.alpha
    ).all()  # the windows' priorities stay; an error of 0 gives half of that


def test_snapshot_excludes_rows_by_default():
    world = World(N, T)
    first = world.trajectory()
    for save in (False, True):
        config = ReplayConfig(capacity=400, batch_size=16, prioritised=True, min_size=10, save=save)
        combined = on_device(toy_agent(), config, spec_of(first))
        init = jax.jit(combined.agent.init)
        state, _ = jax.jit(combined.agent.update)(init(jax.random.key(0)), first, jax.random.key(1))
        packed = combined.pack(state)
        back = combined.unpack(packed, lambda init=init: init(jax.random.key(5)))
        assert jax.tree.structure(back) == jax.tree.structure(state)
        assert back.extra.ring.written == (T if save else 0)
        assert back.extra.made == state.extra.made == 1
        np.testing.assert_array_equal(back.params.weights["kernel"], state.params.weights["kernel"])


def test_a_copied_or_fresh_state_takes_over_the_learners_rows():
    """No trajectory is left out between: else windows would go from rows to others that do not follow them."""
    combined = on_device(toy_agent(), CONFIG, spec_of(World(N, T).trajectory()))
    state = combined.agent.init(jax.random.key(0))
    copied = state._replace(extra=state.extra._replace(made=np.int32(7)))
    state = state._replace(extra=state.extra._replace(ring=state.extra.ring._replace(written=np.int32(T))))
    nothing: Any = None
    gate = DirectorGate(
        nothing,
        nothing,
        lambda values, updates: copied,
        nothing,
        None,
        nothing,
        freezes=False,
        on_policy=False,
        meta={},
    )
    gate._next = copied
    taken = gate.before(LearnerState(3, 3, 3, state), nothing)
    assert taken.extra.ring.written == T and taken.extra.made == 7


def test_an_explored_agent_with_replay_begins_with_the_params_of_another_run():
    """As --init-from and a director's reset do; the state has no rows yet."""
    agent = with_hyperparameters(CONFIG, lambda config: toy_agent(), {"alpha": 0.5})
    combined = on_device(agent, CONFIG, spec_of(World(N, T).trajectory()))
    fresh, other = (jax.jit(combined.agent.init)(jax.random.key(seed)) for seed in (0, 1))
    found = combined.unpack(adopt(combined.agent, combined.pack(fresh), other.params), lambda: fresh)
    assert jax.tree.structure(found) == jax.tree.structure(fresh) and found.params is other.params


def test_min_size_above_the_ring_size_is_refused():
    """400 rows are 100 of each of 4 environments, of which the newest is only the end of a window."""
    first = spec_of(World(N, T).trajectory())
    on_device(toy_agent(), dataclasses.replace(CONFIG, min_size=396), first)
    with pytest.raises(ConfigError, match=r"min_size 397 is never reached.* at most 396 rows of 4 environments"):
        on_device(toy_agent(), dataclasses.replace(CONFIG, min_size=397), first)


def four_devices() -> None:
    """1 and 4 devices: the same states after the same trajectories, on every device."""
    from jsrl.parallel import data_parallel, split_devices
    from tests.parallel_cases import replicas

    assert len(jax.devices()) == 4
    results = []
    for devices in (jax.devices()[:1], jax.devices()):
        world = World(N, T)
        first = world.trajectory()
        agent: Agent = on_device(toy_agent(), CONFIG, spec_of(first), total_updates=30).agent
        parallel = data_parallel(agent.update, devices)
        state = parallel.place(agent.init(jax.random.key(0)))
        for step in range(8):
            batch = split_devices(first if step == 0 else world.trajectory(), len(devices))
            state, _ = parallel(state, batch, jax.random.key(step))
        for other in replicas(state)[1:]:
            jax.tree.map(np.testing.assert_array_equal, other, replicas(state)[0])
        results.append(parallel.fetch(state))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), *results)
    assert results[0].updates == 18


@pytest.mark.slow
def test_four_devices_equal_one():
    environment = fake_devices(4)
    program = "from tests.replay.test_on_device import four_devices; four_devices()"
    root = str(Path(__file__).parents[2])
    ran = subprocess.run(
        [sys.executable, *STRICT, "-c", program], env=environment, cwd=root, capture_output=True, text=True,
        timeout=200, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-4000:]


def test_uniform_replay_compiles_one_program_for_runs_of_any_length():
    first = World(N, T).trajectory()

    def program(config, total_updates):
        agent = on_device(toy_agent(), config, spec_of(first), total_updates=total_updates).agent
        state = jax.eval_shape(agent.init, jax.random.key(0))
        return jax.jit(agent.update).lower(state, first, jax.random.key(0)).as_text()

    for prioritised in (False, True):
        config = dataclasses.replace(CONFIG, prioritised=prioritised)
        assert (program(config, 30) == program(config, 60)) == (not prioritised)
