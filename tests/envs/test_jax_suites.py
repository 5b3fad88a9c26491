"""Suites of environments in JAX: their rows in the fused program and in actors, truncations, and what is refused."""

from __future__ import annotations

import sys

import pytest

from jsrl import EnvConfig, check_env, make_env
from jsrl.envs.config import JAX_SUITES
from jsrl.errors import ConfigError, MissingExtra
from tests.envs.jax_rows import NUM_ENVS, assert_rows_agree
from tests.marks import nightly, slow

pytestmark = [  # of the suites and what they import
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Brax System, piplines and environments:UserWarning"),
]

LIMIT = 12
LIMITED = [
    slow("gymnax:CartPole-v1", {"max_steps_in_episode": LIMIT}),
    slow("brax:inverted_pendulum", {"episode_length": LIMIT, "backend": "spring"}),
    slow("jaxmarl:MPE_simple_spread_v3", {"max_steps": LIMIT}),
    slow("jaxmarl:overcooked", {"max_steps": LIMIT, "layout": "cramped_room"}),
    nightly("jaxmarl:HeuristicEnemySMAX", {"max_steps": LIMIT}),
    nightly("craftax:Craftax-Classic-Symbolic-v1", {"max_timesteps": LIMIT}),
]


@pytest.mark.parametrize(("name", "kwargs"), LIMITED)
def test_rows_of_a_suite_are_the_same_fused_and_in_actors(name: str, kwargs: dict) -> None:
    pytest.importorskip(name.partition(":")[0])
    endings = assert_rows_agree(EnvConfig(name, kwargs=kwargs))
    assert len(endings) >= 3 * NUM_ENVS and not all(endings), "the limit of steps is a truncation"


@pytest.mark.parametrize(("name", "kwargs"), LIMITED)
def test_a_suite_keeps_the_last_observation_and_the_contract(name: str, kwargs: dict) -> None:
    pytest.importorskip(name.partition(":")[0])
    assert check_env(EnvConfig(name, kwargs=kwargs), steps=3 * LIMIT).episodes >= NUM_ENVS


@pytest.mark.parametrize("suite", JAX_SUITES)
def test_a_missing_suite_names_its_extra(suite: str, monkeypatch) -> None:
    for part in (suite, {"brax": "brax.envs", "craftax": "craftax.craftax_env"}.get(suite, suite)):
        monkeypatch.setitem(sys.modules, part, None)
    with pytest.raises(MissingExtra, match=rf"environment '{suite}:Some' needs .*pip install .*\[{suite}\]"):
        make_env(EnvConfig(f"{suite}:Some"), 1, 0)


@pytest.mark.parametrize(
    ("name", "kwargs", "told"),
    [
        ("gymnax:Cartpole", {}, r"gymnax has no environment 'Cartpole'; nearest: CartPole-v1"),
        (
            "gymnax:CartPole-v1",
            {"gravitas": 1},
            r"env.kwargs has 'gravitas'; the parameters of CartPole-v1 are max_steps",
        ),
        ("brax:aunt", {}, r"Brax has no environment 'aunt'; it has ant, "),
        ("jaxmarl:overcook", {}, r"JaxMARL has no environment 'overcook'; nearest: overcooked"),
        (
            "jaxmarl:overcooked",
            {"layout": "cramp_room"},
            r"overcooked has no layout 'cramp_room'; nearest: cramped_room",
        ),
        ("jaxmarl:overcooked", {"cooks": 3}, r"'jaxmarl:overcooked' could not be made with kwargs \{'cooks': 3\}"),
        ("craftax:Craftax-v1", {}, r"Craftax has no environment 'Craftax-v1'; it has Craftax-Symbolic-v1"),
    ],
)
def test_unknown_names_are_answered(name: str, kwargs: dict, told: str) -> None:
    pytest.importorskip(name.partition(":")[0])
    with pytest.raises(ConfigError, match=told):
        make_env(EnvConfig(name, kwargs=kwargs), 1, 0)
