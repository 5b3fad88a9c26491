"""Moments against NumPy, over masks and devices' shares; PopArt keeps outputs."""

import jax
import jax.numpy as jnp
import numpy as np

from jsrl.agents import normalization as norm
from jsrl.types import ArraySpec

SPEC = {
    "state": ArraySpec((3,), "float32"),
    "image": ArraySpec((4, 4, 1), "uint8"),
    "token": ArraySpec((), "int32"),
    "action_mask": ArraySpec((2,), "float32"),
}


def draw(seed: int, num_rows: int = 11, num_envs: int = 5):
    rng = np.random.default_rng(seed)
    observation = {
        "state": (rng.normal(size=(num_rows, num_envs, 3)) * [1, 10, 0.1] + [0, 100, -5]).astype(np.float32),
        "image": rng.integers(0, 255, (num_rows, num_envs, 4, 4, 1), np.uint8),
        "token": rng.integers(0, 9, (num_rows, num_envs), np.int32),
        "action_mask": np.ones((num_rows, num_envs, 2), np.float32),
    }
    return observation, (rng.random((num_rows, num_envs)) < 0.7).astype(np.float32)


def test_merging_updates_equals_numpy_over_all_unmasked_rows():
    moments, seen = norm.init_moments(SPEC), []
    for seed in range(4):
        observation, mask = draw(seed)
        moments = norm.merge_moments(moments, observation, mask)
        seen.append(observation["state"][mask > 0].astype(np.float64))
    rows = np.concatenate(seen)
    assert moments["state"].count == len(rows)
    np.testing.assert_allclose(moments["state"].mean, rows.mean(0), rtol=1e-5)
    np.testing.assert_allclose(moments["state"].variance, rows.var(0), rtol=1e-4)


def test_images_integers_and_masks_stay_as_they_are():
    observation, mask = draw(0)
    moments = norm.merge_moments(norm.init_moments(SPEC), observation, mask)
    normal = norm.normalize(moments, observation)
    assert moments["image"] == moments["token"] == moments["action_mask"] == ()
    for name in ("image", "token", "action_mask"):
        assert normal[name] is observation[name]
    np.testing.assert_allclose(np.asarray(normal["state"])[mask > 0].std(0), 1.0, rtol=1e-3)
    assert set(norm.normalize((), observation)) == set(observation)


def test_no_unmasked_row_changes_nothing():
    observation, mask = draw(0)
    start = norm.merge_moments(norm.init_moments(SPEC), observation, mask)
    same = norm.merge_moments(start, draw(1)[0], np.zeros_like(mask))
    jax.tree.map(np.testing.assert_array_equal, start, same)
    values = norm.merge_value_moments(norm.init_value_moments(), observation["state"][..., 0], np.zeros_like(mask))
    jax.tree.map(np.testing.assert_array_equal, values, norm.init_value_moments())


def test_shares_of_devices_with_unequal_counts_sum_to_the_whole():
    observation, mask = draw(3, num_envs=8)
    mask[:, :2] = 0.0  # the first device has no row at all
    whole = norm.merge_moments(norm.init_moments(SPEC), observation, mask)
    target = observation["state"][..., 1]
    whole_values = norm.merge_value_moments(norm.init_value_moments(), target, mask)

    def shares(x):
        return jnp.stack(jnp.split(x, 4, axis=1))

    def merge(observation, target, mask):
        values = norm.merge_value_moments(norm.init_value_moments(), target, mask, axis_name="d")
        return norm.merge_moments(norm.init_moments(SPEC), observation, mask, "d"), values

    got, got_values = jax.vmap(merge, axis_name="d")(jax.tree.map(shares, observation), shares(target), shares(mask))
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


def test_popart_keeps_raw_outputs():
    rng = np.random.default_rng(1)
    weights = {
        "params": {
            "torso": {"kernel": rng.normal(size=(4, 4))},
            "head": {"kernel": rng.normal(size=(4, 1)), "bias": rng.normal(size=1)},
        }
    }
    weights = jax.tree.map(jnp.float32, weights)
    features = rng.normal(size=(16, 4)).astype(np.float32)
    old = norm.merge_value_moments(norm.init_value_moments(), np.full((3,), 4.0) + np.arange(3), np.ones(3))
    new = norm.merge_value_moments(old, 1000.0 * rng.normal(size=50).astype(np.float32), np.ones(50))
    rescaled = norm.rescale_head(weights, ("params", "head"), old, new)

    def raw(moments, weights):
        head = weights["params"]["head"]
        return norm.denormalize_value(moments, features @ head["kernel"] + head["bias"])

    assert abs(float(new.std / old.std)) > 5
    np.testing.assert_allclose(raw(new, rescaled), raw(old, weights), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(rescaled["params"]["torso"]["kernel"], weights["params"]["torso"]["kernel"])
