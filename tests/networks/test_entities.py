"""The torso that attends over entities: a slow oracle, masks, order, sizes, and agents that learn with it."""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jsrl.errors import ConfigError
from jsrl.networks.model import EntityConfig, NetworkConfig, actor_critic
from jsrl.networks.off_policy import critic_network, policy_network
from jsrl.types import ArraySpec, Continuous, EnvSpec, MultiDiscrete
from tests.networks.weights import drawn, programs

SPEC = EnvSpec(
    {
        "observation_self": ArraySpec((10,), "float32"),
        "agents": ArraySpec((3, 10), "float32"),
        "boxes": ArraySpec((4, 15), "float32"),
        "lidar": ArraySpec((6,), "float32"),
        "sees_agents": ArraySpec((3,), "bool"),
        "sees_boxes": ArraySpec((4,), "bool"),
        "has_agents": ArraySpec((3,), "bool"),
        "has_boxes": ArraySpec((4,), "bool"),
    },
    MultiDiscrete((11, 11, 11, 2, 2)),
)
REAL = dataclasses.replace(SPEC, action=Continuous((-1.0,) * 3, (1.0,) * 3))
ENTITIES = EntityConfig(
    leaves=("agents:sees_agents", "boxes:sees_boxes", "ramps:sees_ramps"),
    value_leaves=("agents:has_agents", "boxes:has_boxes"),
    rays=("lidar",),
    heads=2,
)
CONFIG = NetworkConfig(torso="entities", entities=ENTITIES, hidden=(8, 12), activation="relu")


def rows(*leading: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        name: rng.integers(0, 2, (*leading, *leaf.shape)).astype(bool)
        if leaf.dtype == "bool"
        else rng.normal(size=(*leading, *leaf.shape)).astype(np.float32)
        for name, leaf in SPEC.observation.items()
    }


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_paper_network_has_the_published_parameter_count(precision: str) -> None:
    """In the main game, 3 against 3: policy and value function together."""
    from jsrl.experiment.configs.hide_and_seek_srl import NETWORK
    from jsrl.games.hide_and_seek.observations import observation_spec
    from jsrl.games.hide_and_seek.settings import settings_of

    spec = EnvSpec(observation_spec(settings_of("randomwalls", {"max_others": 5})), MultiDiscrete((11, 11, 11, 2, 2)))
    weights = jax.eval_shape(
        actor_critic(dataclasses.replace(NETWORK, precision=precision), spec).init, jax.random.key(0)
    )
    assert sum(leaf.size for leaf in jax.tree.leaves(weights)) == 1_626_222


def norm(x: np.ndarray, weights: dict) -> np.ndarray:
    apart = x - x.mean()
    return apart / np.sqrt((apart**2).mean() + 1e-6) * weights["scale"] + weights["bias"]


def linear(x: np.ndarray, weights: dict) -> np.ndarray:
    return x @ weights["kernel"] + weights.get("bias", 0.0)


def slow(weights: dict, seen: dict[str, np.ndarray], sets: list[tuple[str, str]], heads: int = 2) -> np.ndarray:
    """Return the features of one observation, entity by entity."""
    rays = seen["lidar"]
    circle = [
        np.maximum(linear(np.array([rays[i - 1], rays[i], rays[(i + 1) % len(rays)]]), weights["lidar_rays"]), 0.0)
        for i in range(len(rays))
    ]
    own = np.concatenate([seen["observation_self"], *circle])
    me = np.maximum(linear(own, weights["me"]), 0.0)
    entities = [me]
    for leaf, mask in sets:
        for k, row in enumerate(seen[leaf]):
            if seen[mask][k]:
                entities.append(np.maximum(linear(row, weights[leaf]) + linear(own, weights[f"{leaf}_me"]), 0.0))
    size = len(me) // heads
    joint = [linear(norm(x, weights["before_attention"]), weights["query_key_value"]) for x in entities]
    query, key, value = ([np.split(x, 3)[part].reshape(heads, size) for x in joint] for part in range(3))
    after = []
    for i, x in enumerate(entities):
        mixed = []
        for head in range(heads):
            logits = np.array([query[i][head] @ other[head] for other in key]) / math.sqrt(size)
            shares = np.exp(logits - logits.max())
            shares /= shares.sum()
            mixed.append(sum(share * other[head] for share, other in zip(shares, value, strict=True)))
        after.append(norm(x + linear(np.concatenate(mixed), weights["attended"]), weights["after_attention"]))
    x = norm(np.concatenate([me, np.mean(after, axis=0)]), weights["joined"])
    return norm(np.maximum(linear(x, weights["after_0"]), 0.0), weights["after_0_norm"])


@functools.cache
def made():
    """Return (network, the policy's weights, the value function's)."""
    network = programs(actor_critic(CONFIG, SPEC))
    return network, *drawn(network.init)


def features(network, policy, seen) -> np.ndarray:
    leading = seen["lidar"].shape[:-1]
    return np.asarray(network.policy(policy, seen, np.zeros(leading, bool), ())[1])


def test_equals_a_slow_oracle_and_the_value_function_may_use_extra_entities() -> None:
    network, policy, value = made()
    seen = rows(2, 3)
    found, values = features(network, policy, seen), np.asarray(network.value(value, seen, ()))
    assert found.shape == (2, 3, 12)
    for t in range(2):
        for b in range(3):
            one = {name: leaf[t, b].astype(np.float64) for name, leaf in seen.items()}
            wanted = slow(policy["torso"], one, [("agents", "sees_agents"), ("boxes", "sees_boxes")])
            np.testing.assert_allclose(found[t, b], wanted, atol=2e-5)
            wanted = slow(value["torso"], one, [("agents", "has_agents"), ("boxes", "has_boxes")])
            np.testing.assert_allclose(values[t, b], linear(wanted, value["head"])[0], atol=2e-5)


def test_masked_rows_have_no_effect_and_order_does_not_matter() -> None:
    network, policy, _ = made()
    seen = rows(16)
    before = features(network, policy, seen)
    other = {name: leaf.copy() for name, leaf in seen.items()}
    other["boxes"][seen["sees_boxes"] == 0] = 1e6
    for mask in ("has_agents", "has_boxes"):
        other[mask] = 1 - other[mask]
    np.testing.assert_array_equal(features(network, policy, other), before)
    for name in ("boxes", "sees_boxes"):
        other[name] = other[name][:, ::-1]
    np.testing.assert_allclose(features(network, policy, other), before, atol=1e-5)
    other["boxes"] = other["boxes"] + 1.0
    assert (np.abs(features(network, policy, other) - before).max(axis=1) > 1e-3).any()


def test_all_entities_masked_is_finite() -> None:
    network, policy, _ = made()
    seen = {name: leaf & False if leaf.dtype == bool else leaf for name, leaf in rows(16).items()}

    def squares(weights):
        return jnp.sum(network.policy(weights, seen, np.zeros(16, bool), ())[1] ** 2)

    gradient = jax.jit(jax.grad(squares))(policy)
    assert np.isfinite(features(network, policy, seen)).all()
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))
    assert not np.any(gradient["torso"]["boxes"]["kernel"]) and np.any(gradient["torso"]["me"]["kernel"])


def test_bfloat16_is_close_to_float32() -> None:
    network, policy, _ = made()
    rounded = programs(actor_critic(NetworkConfig(**{**vars(CONFIG), "precision": "bfloat16"}), SPEC))
    seen = rows(16)
    exact, near = features(network, policy, seen), features(rounded, policy, seen)
    assert 1e-5 < np.abs(exact - near).max() < 0.1


def test_published_network_size() -> None:
    """Policy and value function of the main game without their cores' norms and heads: 128 wide, 256 after the pooling."""
    shapes = {"observation_self": (10,), "agents": (5, 10), "boxes": (9, 15), "ramps": (2, 15), "lidar": (30,)}
    spec = EnvSpec(
        {name: ArraySpec(shape, "float32") for name, shape in shapes.items()}, MultiDiscrete((11, 11, 11, 2, 2))
    )
    entities = EntityConfig(leaves=("agents", "boxes", "ramps"), rays=("lidar",))
    config = NetworkConfig(torso="entities", entities=entities, hidden=(128, 256))
    policy, _ = jax.eval_shape(actor_critic(config, spec).init, jax.random.key(0))
    rays, me = 9 * 4, 281 * 128
    entity = sum((280 + features + 1) * 128 for features in (10, 15, 15))
    attention = 4 * 129 * 128 + 2 * 256
    after = 2 * 256 + 257 * 256 + 2 * 256
    total = sum(x.size for x in jax.tree.leaves(policy["torso"]))
    assert total == rays + me + entity + attention + after


def test_off_policy_networks_embed_entities_before_they_read_the_action() -> None:
    weights = jax.eval_shape(critic_network(CONFIG, REAL, num_critics=2).init, jax.random.key(0))
    assert weights["torso"]["me"]["kernel"].shape[-1] == 8
    assert weights["MLP_0"]["Dense_0"]["kernel"].shape == (2, 16 + 3, 12)  # features, action; layer after the pooling
    outputs = policy_network(CONFIG, REAL).init
    assert jax.eval_shape(outputs, jax.random.key(0))["head"]["gaussian"]["kernel"].shape == (12, 6)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"leaves": ()}, "names none; the observation has .*LEAF:MASK"),
        ({"leaves": ("ramps:sees_ramps",)}, "names ramps:sees_ramps; the observation has"),
        ({"leaves": ("lidar",)}, "lidar:; expected a leaf"),
        ({"leaves": ("boxes:sees_agents",)}, "boxes:sees_agents; expected a leaf"),
        ({"leaves": ("boxes:sees_boxes", "boxes")}, "name boxes; expected each leaf once"),
        ({"rays": ("boxes",), "leaves": ("agents",)}, "name boxes; expected each leaf once, and rays .n."),
        ({"heads": 3}, "hidden.0., here .8, 12., in 3 heads"),
    ],
)
def test_mismatched_inputs_are_refused(changed: dict, told: str) -> None:
    entities = EntityConfig(**{**vars(ENTITIES), "value_leaves": (), **changed})
    with pytest.raises(ConfigError, match=told):
        actor_critic(NetworkConfig(**{**vars(CONFIG), "entities": entities}), SPEC)
    with pytest.raises(ConfigError, match="write LEAF or LEAF:MASK"):
        EntityConfig(leaves=("boxes:sees:boxes",))


def test_masks_of_numbers_are_refused() -> None:
    """Normalised, the mask of an entity that is always there would become 0."""
    for dtype in ("bool", "uint8", "float32"):
        spec = dataclasses.replace(SPEC, observation={**SPEC.observation, "sees_boxes": ArraySpec((4,), dtype)})
        if dtype == "bool":
            actor_critic(CONFIG, spec)
            continue
        with pytest.raises(ConfigError, match=rf"the mask sees_boxes is {dtype}: .*Use bool"):
            actor_critic(CONFIG, spec)


@pytest.mark.nightly
@pytest.mark.parametrize("core", ["none", "lstm"])
def test_agents_update_with_it_in_hide_and_seek(core: str) -> None:
    """PPO with the visibility masks; its value function, if it has its own torso, uses the masks of existing entities."""
    from jsrl.agents.check import check_agent
    from jsrl.agents.ppo import PPOConfig, ppo
    from jsrl.games.hide_and_seek.observations import observation_spec
    from jsrl.games.hide_and_seek.settings import settings_of

    entities = EntityConfig(
        leaves=("agent_qpos_qvel:mask_aa_obs", "box_obs:mask_ab_obs", "ramp_obs:mask_ar_obs"),
        value_leaves=() if core != "none" else ("agent_qpos_qvel:mask_aa_obs_spoof", "box_obs:mask_ab_obs_spoof"),
        rays=("lidar",),
    )
    seat = observation_spec(settings_of("quadrant", {}))
    spec = EnvSpec(
        {name: leaf.batched(2) for name, leaf in seat.items()}, MultiDiscrete((11, 11, 11, 2, 2)), num_agents=2
    )
    network = NetworkConfig(torso="entities", entities=entities, hidden=(16, 16), core=core, core_size=16)
    agent = ppo(PPOConfig(network=network, num_epochs=1, num_minibatches=1, normalize_observations=True), spec)
    check_agent(agent, spec)
