from __future__ import annotations

import warnings

import pytest

from jsrl.envs.config import AtariConfig, EnvConfig
from jsrl.games.probes import PROBES
from tests.contracts.env_contract import *  # noqa: F403
from tests.marks import nightly, slow

COUNTING = "tests.envs.scripted:Counting"
VECTOR = "tests.envs.scripted:counting_vector"
CONFIGS = [
    EnvConfig("CartPole-v1"),
    EnvConfig("Pendulum-v1", max_episode_steps=20, action_transform="squash"),
    EnvConfig("Blackjack-v1"),
    EnvConfig("HalfCheetah-v5", max_episode_steps=30),
    slow(EnvConfig("ALE/Breakout-v5", atari=AtariConfig(max_frames=160))),
    EnvConfig("MiniGrid-DoorKey-5x5-v0", wrappers=("minigrid.wrappers:ImgObsWrapper",)),
    slow(EnvConfig("envpool:CartPole-v1")),
    slow(EnvConfig("envpool:HalfCheetah-v4", max_episode_steps=30)),
    EnvConfig(COUNTING),
    EnvConfig(COUNTING, kwargs={"truncates": True}, wrappers=("tests.envs.scripted:DoubledReward",)),
    *(EnvConfig(VECTOR, kwargs={"mode": mode}) for mode in ("NextStep", "SameStep", "Disabled")),
    *(EnvConfig(f"probe:{name}") for name in PROBES),
]
ANOTHER_ATARI = EnvConfig("ALE/Breakout-v5", atari=AtariConfig(episodic_life=True, repeat_action_probability=0.25))


@pytest.fixture(
    params=[*CONFIGS, nightly(ANOTHER_ATARI)],
    ids=lambda config: f"{config.id}-{config.kwargs}-{config.backend}",
)
def config(request):
    suite = {"ALE/": "ale_py", "MiniGrid": "minigrid", "envpool": "envpool", "HalfCheetah": "mujoco"}
    for key, module in suite.items():
        if request.param.id.startswith(key):
            pytest.importorskip(module)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        yield request.param
