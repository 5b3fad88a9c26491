"""Moments against NumPy, with masks and device shards; PopArt keeps raw outputs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jsrl.agents import normalization as norm
from jsrl.services.snapshots.store import SnapshotStore
from jsrl.types import ArraySpec

SPEC = {
    "state": ArraySpec((3,), "float32"),
    "image": ArraySpec((4, 4, 1), "uint8"),
    "bytes": ArraySpec((2, 3), "uint8"),
    "flags": ArraySpec((2,), "bool"),
    "token": ArraySpec((), "int32"),
    "action_mask": ArraySpec((2,), "float32"),
}


def draw(seed: int, num_rows: int = 11, num_envs: int = 5):
    rng = np.random.default_rng(seed)
    observation = {
        "state": (rng.normal(size=(num_rows, num_envs, 3)) * [1, 10, 0.1] + [0, 100, -5]).astype(np.float32),
        "image": rng.integers(0, 255, (num_rows, num_envs, 4, 4, 1), np.uint8),
        "bytes": rng.integers(90, 250, (num_rows, num_envs, 2, 3), np.uint8),
        "flags": rng.random((num_rows, num_envs, 2)) < 0.5,
        "token": rng.integers(0, 9, (num_rows, num_envs), np.int32),
        "action_mask": np.ones((num_rows, num_envs, 2), np.float32),
    }
    return observation, (rng.random((num_rows, num_envs)) < 0.7).astype(np.float32)


def split_in_four(x):
    return jnp.stack(jnp.split(x, 4, axis=1))


def test_merging_updates_equals_numpy_over_all_unmasked_rows():
    moments, seen, merge = norm.init_moments(SPEC), [], jax.jit(norm.merge_moments)
    for seed in range(4):
        observation, mask = draw(seed)
        moments = merge(moments, observation, mask)
        seen.append(observation["state"][mask > 0].astype(np.float64))
    rows = np.concatenate(seen)
    assert moments["state"].count == len(rows)
    np.testing.assert_allclose(moments["state"].mean, rows.mean(0), rtol=1e-5)
    np.testing.assert_allclose(moments["state"].variance, rows.var(0), rtol=1e-4)


def test_bytes_are_normalized_and_images_flags_integers_and_masks_are_not():
    observation, mask = draw(0)
    moments = jax.jit(norm.merge_moments)(norm.init_moments(SPEC), observation, mask)
    normal = norm.normalize(moments, observation)
    for name in ("image", "flags", "token", "action_mask"):
        assert moments[name] == () and normal[name] is observation[name]
    rows = observation["bytes"][mask > 0].astype(np.float64)
    np.testing.assert_allclose(normal["bytes"][mask > 0], (rows - rows.mean(0)) / rows.std(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(np.asarray(normal["state"])[mask > 0].std(0), 1.0, rtol=1e-3)
    assert set(norm.normalize((), observation)) == set(observation)


def test_outliers_are_clipped_at_ten_standard_deviations():
    moments = norm.Moments(jnp.array(100.0), jnp.array([5.0, -1.0]), jnp.array([4.0, 0.0]))
    seen = jnp.array([[7.0, -1.0], [1e9, 0.0], [-1e9, -1.001]])  # the second value never changed before
    np.testing.assert_allclose(norm.normalize(moments, seen), [[1.0, 0.0], [10.0, 10.0], [-10.0, -10.0]], rtol=1e-5)


def test_no_unmasked_row_changes_nothing():
    (observation, mask), merge = draw(0), jax.jit(norm.merge_moments)
    start = merge(norm.init_moments(SPEC), observation, mask)
    same = merge(start, draw(1)[0], np.zeros_like(mask))
    jax.tree.map(np.testing.assert_array_equal, start, same)
    merge_values = jax.jit(norm.merge_value_moments)
    values = merge_values(norm.init_value_moments(), observation["state"][..., 0], np.zeros_like(mask))
    jax.tree.map(np.testing.assert_array_equal, values, norm.init_value_moments())


@pytest.mark.slow
def test_device_shards_with_unequal_counts_sum_to_the_total():
    observation, mask = draw(3, num_envs=8)
    mask[:, :2] = 0.0  # the first device has no unmasked row
    whole = norm.merge_moments(norm.init_moments(SPEC), observation, mask)
    target = observation["state"][..., 1]
    whole_values = norm.merge_value_moments(norm.init_value_moments(), target, mask)

    def merge(observation, target, mask):
        values = norm.merge_value_moments(norm.init_value_moments(), target, mask, axis_name="d")
        return norm.merge_moments(norm.init_moments(SPEC), observation, mask, "d"), values

    got, got_values = jax.vmap(merge, axis_name="d")(
        jax.tree.map(split_in_four, observation), split_in_four(target), split_in_four(mask)
    )
    for device in range(4):
        mine = jax.tree.map(lambda x, d=device: x[d], (got, got_values))
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4), mine, (whole, whole_values))


def test_value_moments_follow_the_targets():
    moments = norm.init_value_moments()
    rng = np.random.default_rng(0)
    for _ in range(50):
        target = rng.normal(30.0, 4.0, (64, 8)).astype(np.float32)
        moments = norm.merge_value_moments(moments, target, np.ones_like(target))
    np.testing.assert_allclose([moments.mean, moments.std], [30.0, 4.0], rtol=0.02)
    np.testing.assert_allclose(
        norm.denormalize_value(moments, norm.normalize_value(moments, target)), target, rtol=1e-5
    )


def far_targets(ratio, *, num_updates=100):
    """Yield (targets, mask) of each update: a mean of `ratio` standard deviations that drifts by a few of them."""
    rng = np.random.default_rng(2)
    for update in range(num_updates):
        target = rng.normal(ratio + 0.02 * update, 1.0, (16, 8)).astype(np.float32)
        yield target, (rng.random(target.shape) < 0.8).astype(np.float32)


@pytest.mark.parametrize("ratio", [0.0, 500.0, -5000.0])
def test_moments_equal_float64_where_the_mean_is_far_from_0(ratio):
    values, moments = norm.init_value_moments(), norm.init_moments(ArraySpec((), "float32"))
    merge, merge_values = jax.jit(norm.merge_moments), jax.jit(norm.merge_value_moments)
    weight = first = second = 0.0
    seen = []
    for target, mask in far_targets(ratio):
        values, moments = merge_values(values, target, mask), merge(moments, target, mask)
        rows = target[mask > 0].astype(np.float64)
        weight, first, second = (
            0.99 * old + 0.01 * new
            for old, new in ((weight, 1.0), (first, rows.mean()), (second, np.square(rows).mean()))
        )
        seen.append(rows)
    mean = first / weight
    std = np.sqrt(second / weight - mean**2)
    np.testing.assert_allclose(values.std, std, rtol=1e-3)
    np.testing.assert_allclose((values.mean - mean) / std, 0.0, atol=5e-3)
    rows = np.concatenate(seen)
    np.testing.assert_allclose(np.sqrt(moments.variance), rows.std(), rtol=1e-3)
    np.testing.assert_allclose((moments.mean - rows.mean()) / rows.std(), 0.0, atol=5e-3)
    np.testing.assert_allclose(norm.normalize_value(values, target), (target - mean) / std, atol=0.01)


@pytest.mark.parametrize("ratio", [500.0, 5000.0])
def test_four_devices_equal_one_where_the_mean_is_far_from_0(ratio):
    one = one_each = norm.init_value_moments(), norm.init_moments(ArraySpec((), "float32"))

    def merge(moments, target, mask, axis_name=None):
        values = norm.merge_value_moments(moments[0], target, mask, axis_name=axis_name)
        return values, norm.merge_moments(moments[1], target, mask, axis_name)

    together = jax.jit(merge)
    apart = jax.jit(jax.vmap(lambda *x: merge(*x, axis_name="d"), axis_name="d", in_axes=(None, 0, 0)))
    for target, mask in far_targets(ratio, num_updates=20):
        one = together(one, target, mask)
        every = apart(one_each, split_in_four(target), split_in_four(mask))
        for device in range(4):
            mine = jax.tree.map(lambda x, d=device: x[d], every)
            jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4), mine, one)  # float32 at 5000: 5e-4
        one_each = mine


def test_moments_continue_bit_for_bit_from_a_snapshot(tmp_path):
    updates = list(far_targets(500.0, num_updates=4))
    merge = jax.jit(norm.merge_value_moments)
    moments = norm.init_value_moments()
    for target, mask in updates[:2]:
        moments = merge(moments, target, mask)
    store = SnapshotStore(tmp_path / "snapshots")
    store.save(1, jax.tree.map(np.asarray, moments), wait=True)
    loaded, _ = store.load(template=norm.init_value_moments())
    assert store.close()
    for target, mask in updates[2:]:
        moments, loaded = (merge(x, target, mask) for x in (moments, loaded))
    jax.tree.map(np.testing.assert_array_equal, loaded, moments)
    assert loaded.std == moments.std


def test_popart_keeps_raw_outputs_where_the_mean_is_far_from_0():
    """The mean moves from 5000 to 5000.5 standard deviations; the resolution of float32 in raw units is 5e-4."""
    features = np.random.default_rng(3).normal(size=(16, 4)).astype(np.float32)
    head = {"kernel": jnp.full((4, 1), 0.3), "bias": jnp.full((1,), 0.7)}
    old = norm.ValueMoments(jnp.ones(()), jnp.float32(5000.0), jnp.float32(1.0))
    new = norm.ValueMoments(jnp.ones(()), jnp.float32(5000.5), jnp.float32(1.21))
    rescaled = norm.rescale_head(head, (), old, new)
    expected = (np.float64(0.7) + 5000.0 - 5000.5) / 1.1
    np.testing.assert_allclose(rescaled["bias"], expected, rtol=1e-6)
    raw, same = (
        norm.denormalize_value(m, features @ h["kernel"] + h["bias"]) for m, h in ((old, head), (new, rescaled))
    )
    np.testing.assert_allclose(raw, same, atol=1e-3)


def test_popart_keeps_raw_outputs():
    merge, rescale = jax.jit(norm.merge_value_moments), jax.jit(norm.rescale_head, static_argnums=1)
    rng = np.random.default_rng(1)
    weights = {
        "params": {
            "torso": {"kernel": rng.normal(size=(4, 4))},
            "head": {"kernel": rng.normal(size=(4, 1)), "bias": rng.normal(size=1)},
        }
    }
    weights = jax.tree.map(jnp.float32, weights)
    features = rng.normal(size=(16, 4)).astype(np.float32)
    old = merge(norm.init_value_moments(), np.full((3,), 4.0) + np.arange(3), np.ones(3))
    new = merge(old, 1000.0 * rng.normal(size=50).astype(np.float32), np.ones(50))
    rescaled = rescale(weights, ("params", "head"), old, new)

    def raw(moments, weights):
        head = weights["params"]["head"]
        return norm.denormalize_value(moments, features @ head["kernel"] + head["bias"])

    assert abs(float(new.std / old.std)) > 5
    np.testing.assert_allclose(raw(new, rescaled), raw(old, weights), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(rescaled["params"]["torso"]["kernel"], weights["params"]["torso"]["kernel"])
