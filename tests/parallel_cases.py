"""Cases of test_parallel.py, run as `python parallel_cases.py CASE` with 4 fake devices."""

import sys
import traceback

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jsrl.agents.base import ActParams, AgentState, UpdateOutput, row_mask
from jsrl.agents.devices import mean_gradient
from jsrl.parallel import data_parallel, join_devices, split_devices
from jsrl.types import Trajectory

T, B, F = 6, 8, 5
OPTIMIZER = optax.chain(optax.clip_by_global_norm(0.05), optax.sgd(0.5))


def init():
    weights = {"kernel": jnp.linspace(-1.0, 1.0, F), "bias": jnp.ones(())}
    return AgentState(ActParams(weights), (), OPTIMIZER.init(weights), (), jnp.zeros((), jnp.int32))


def make_batch(seed):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(T + 1, B)).astype(np.float32)
    acts = np.ones((T + 1, B), np.uint8)
    acts[:, :3] = 0  # devices see 0, 1, 2 and 2 acting environments
    acts[2:, 4] = 0
    is_first = rng.random((T + 1, B)) < 0.2
    observation = {"x": rng.normal(size=(T + 1, B, F)).astype(np.float32)}
    return Trajectory(observation, is_first, rows, rows, rows, acts, rows, (), rows, np.zeros((B, 2), np.float32))


def update(state, batch, key, *, axis_name=None):
    """Least squares over the masked rows, with a penalty on the weights."""

    def loss(weights, mean):
        predicted = batch.observation["x"][:-1] @ weights["kernel"] + weights["bias"]
        value = mean(jnp.square(predicted - batch.reward[:-1])) + 0.1 * jnp.sum(jnp.square(weights["kernel"]))
        return value, value

    gradient, value = mean_gradient(loss, state.params.weights, row_mask(batch), axis_name)
    steps, opt_state = OPTIMIZER.update(gradient, state.opt_state)
    params = ActParams(optax.apply_updates(state.params.weights, steps))
    metrics = {"loss": value, "grad_norm": optax.tree.norm(gradient)}
    return AgentState(params, (), opt_state, (), state.updates + 1), UpdateOutput(metrics)


def update_with_priorities(state, batch, key, *, axis_name=None):
    state, output = update(state, batch, key, axis_name=axis_name)
    return state, output._replace(priorities=batch.reward.sum(0))


def replicas(tree):
    """Return each device's copy of the tree (numpy)."""
    count = len(jax.tree.leaves(tree)[0].addressable_shards)
    return [jax.tree.map(lambda x, d=d: np.array(x.addressable_shards[d].data), tree) for d in range(count)]


def assert_trees_close(a, b, **tolerance):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **tolerance), a, b)


def equal():
    key = jax.random.key(0)
    results = []
    for devices in (jax.devices()[:1], jax.devices()):
        parallel = data_parallel(update, devices)
        state, norms = parallel.place(init()), []
        for seed in range(20):
            state, output = parallel(state, split_devices(make_batch(seed), len(devices)), key)
            norms.append(float(output.metrics["grad_norm"]))
        for replica in replicas(state)[1:]:
            assert_trees_close(replica, replicas(state)[0], rtol=0, atol=0)
        assert len(replicas(state)) == len(devices)
        results.append((parallel.fetch(state), norms))
    bare = jax.jit(update)(init(), make_batch(0), key)[1].metrics["grad_norm"]
    np.testing.assert_allclose(results[1][1][0], bare, rtol=1e-5)
    assert min(results[0][1]) > 0.05  # gradients were clipped
    assert_trees_close(results[0], results[1], rtol=1e-5, atol=1e-6)
    assert results[1][0].updates == 20


def place():
    parallel = data_parallel(update)
    batch, key = split_devices(make_batch(0), 4), jax.random.key(0)
    mine = init()
    first = parallel.place(mine)
    again = parallel.place(first)  # a copy too
    second, _ = parallel(first, batch, key)
    assert all(x.is_deleted() for x in jax.tree.leaves(first))  # donated
    assert_trees_close(parallel.fetch(again), init())
    assert_trees_close(mine, init())
    host = parallel.fetch(second)
    kept = jax.tree.map(np.copy, host)
    parallel(second, batch, key)
    assert_trees_close(host, kept, rtol=0, atol=0)  # fetched arrays belong to the caller
    assert_trees_close(parallel.fetch(parallel.place(host)), kept, rtol=0, atol=0)
    keeping = data_parallel(update, donate=False)
    third = keeping.place(mine)
    keeping(third, batch, key)
    assert not any(x.is_deleted() for x in jax.tree.leaves(third))


def loop():
    parallel = data_parallel(update)
    state, batch, key = parallel.place(init()), split_devices(make_batch(0), 4), jax.random.key(0)
    for _ in range(50):
        state, _ = parallel(state, batch, key)
    assert parallel.fetch(state).updates == 50


def priorities():
    parallel = data_parallel(update_with_priorities)
    batch = make_batch(0)
    _, output = parallel(parallel.place(init()), split_devices(batch, 4), jax.random.key(0))
    assert output.priorities.shape == (4, B // 4)
    np.testing.assert_allclose(join_devices(output.priorities), batch.reward.sum(0), rtol=1e-6)


def compile():
    parallel = data_parallel(update)
    batch, key = split_devices(make_batch(0), 4), jax.random.key(0)
    state = parallel.place(init())
    parallel.compile(state, batch, key)
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, _seconds, **_: compiled.append(name) if "backend_compile" in name else None
    )
    state, _ = parallel(state, batch, key)
    assert not compiled, compiled
    state, _ = parallel(state, split_devices(make_batch(1), 4), key)
    assert not compiled, compiled
    assert parallel.fetch(state).updates == 2


if __name__ == "__main__":
    assert len(jax.devices()) == 4
    for name in sys.argv[1:]:
        try:
            globals()[name]()
            sys.stdout.write(f"passed {name}\n")
        except Exception:
            traceback.print_exc()
