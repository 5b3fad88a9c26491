"""Full episodes: random policies against values measured on another implementation, an oracle seeker, robustness."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from jsrl.envs.check import random_actions
from jsrl.envs.config import EnvConfig
from jsrl.envs.make import make_game

mujoco = pytest.importorskip("mujoco")

METRICS = (
    *("seen_share", "max_box_move", "max_ramp_move", "out_of_bounds_share", "discard_episode"),
    *("num_box_lock_prep", "num_box_lock", "num_ramp_lock_prep", "num_ramp_lock"),
)
DUEL = {"n_hiders": 1, "n_seekers": 1}
BARE = {**DUEL, "n_boxes": 0, "n_ramps": 0}
NUMS = (11, 11, 11, 2, 2)


def chase(game) -> np.ndarray:
    """Return actions [B, seekers, 5] that turn and run straight to the nearest hider."""
    hiders, position = game.settings.n_hiders, game.worlds.position
    apart = position[:, None, :hiders, :2] - position[:, hiders : game.settings.n_agents, None, :2]
    nearest = (apart**2).sum(axis=-1).argmin(axis=2)
    toward = np.take_along_axis(apart, nearest[..., None, None], axis=2)[:, :, 0]
    angle = position[:, hiders : game.settings.n_agents, 3]
    wanted = np.arctan2(toward[..., 1], toward[..., 0]) + np.pi / 2
    turn = (wanted - angle + np.pi) % (2 * np.pi) - np.pi
    chosen = np.zeros((*angle.shape, 5), int)
    chosen[..., :2] = 5 + np.round(5 * toward / np.maximum(np.abs(toward).max(axis=-1, keepdims=True), 1e-6))
    chosen[..., 2] = 5 + np.clip(np.round(5 * turn / 0.67), -5, 5)
    return chosen


def play(scenario: str, options: dict, episodes: int, *, oracle: bool = False) -> dict[str, float]:
    """Return the mean statistics of episodes of random hiders, and random or chasing seekers."""
    config = EnvConfig(f"hide_and_seek:{scenario}", kwargs=options, episode_metrics=METRICS)
    teams = [2, 2] if "n_hiders" not in options else [options["n_hiders"], options["n_seekers"]]
    groups = {name: tuple(f"{name}_{i}" for i in range(n)) for name, n in zip(("hider", "seeker"), teams, strict=True)}
    game, rng = make_game(config, 16, 0, groups=groups), np.random.default_rng(1)
    game.reset()
    told: list[dict[str, float]] = []
    while len(told) < episodes:
        action = {name: rng.integers(0, NUMS, (16, len(seats), 5)) for name, seats in groups.items()}
        if oracle:
            action["seeker"] = chase(game)
        told += [episode.metrics for episode in game.step(action).episodes]
    game.close()
    return {name: float(np.mean([metrics[name] for metrics in told])) for name in METRICS}


@pytest.mark.nightly
@pytest.mark.parametrize(("scenario", "share"), [("empty", 0.38), ("quadrant", 0.28)])
def test_random_policies_without_objects(scenario: str, share: float) -> None:
    found = play(scenario, BARE, 300)
    assert found["seen_share"] == pytest.approx(share, abs=0.04)
    assert found["out_of_bounds_share"] == found["discard_episode"] == 0.0


@pytest.mark.nightly
def test_random_policies_with_objects_in_the_quadrant() -> None:
    found = play("quadrant", {}, 300)
    assert found["seen_share"] == pytest.approx(0.64, abs=0.04)
    assert found["max_box_move"] == pytest.approx(0.31, abs=0.1) and found["max_ramp_move"] == pytest.approx(
        0.59, abs=0.2
    )
    assert found["num_box_lock"] == pytest.approx(0.20, abs=0.1) and found["out_of_bounds_share"] == 0.0


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_random_policies_in_the_main_game() -> None:
    found = play("randomwalls", {}, 130)
    assert found["seen_share"] == pytest.approx(0.42, abs=0.08)
    assert found["max_box_move"] == pytest.approx(1.19, abs=0.25) and found["max_ramp_move"] == pytest.approx(
        0.68, abs=0.2
    )
    assert found["num_box_lock"] == pytest.approx(1.6, abs=0.3) and 0.0 < found["out_of_bounds_share"] < 0.08


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_random_policies_of_all_team_sizes_in_the_main_game() -> None:
    """Two to three standard errors around the values of the other implementation, which agree with SRL's curves."""
    teams = [{"n_hiders": hiders, "n_seekers": seekers} for hiders in (1, 2, 3) for seekers in (1, 2, 3)]
    played = [play("randomwalls", team, 16) for team in teams]
    found = {name: float(np.mean([each[name] for each in played])) for name in METRICS}
    assert found["seen_share"] == pytest.approx(0.39, abs=0.08)
    assert found["num_box_lock_prep"] == pytest.approx(0.82, abs=0.25)
    assert found["num_box_lock"] == pytest.approx(1.76, abs=0.5)
    assert found["num_ramp_lock_prep"] == pytest.approx(0.17, abs=0.1)
    assert found["num_ramp_lock"] == pytest.approx(0.42, abs=0.15)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_seekers_that_run_straight_to_the_hiders_among_objects() -> None:
    assert play("quadrant", {}, 100, oracle=True)["seen_share"] >= 0.85
    assert play("randomwalls", {}, 48, oracle=True)["seen_share"] == pytest.approx(0.72, abs=0.08)


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "share"), [("empty", 0.82), ("quadrant", 0.70)])
def test_a_seeker_that_runs_straight_to_the_hider(scenario: str, share: float) -> None:
    assert play(scenario, BARE, 100, oracle=True)["seen_share"] >= share


DIGEST = """
import hashlib
import numpy as np
from jsrl.envs.config import EnvConfig
from jsrl.envs.make import make_game
from jsrl.envs.check import random_actions

metrics = ("max_box_move", "num_box_lock", "seen_share")
config = EnvConfig("hide_and_seek:randomwalls", kwargs={"horizon": 50}, episode_metrics=metrics)
game, rng, told = make_game(config, 2, 3), np.random.default_rng(0), hashlib.sha256()
step = game.reset()
for _ in range(120):
    step = game.step(random_actions(game, step.observation, rng))
    for seat in game.spec.names:
        for leaf in step.observation[seat].values():
            told.update(np.ascontiguousarray(leaf).tobytes())
    told.update(step.reward.tobytes())
    told.update(repr([(episode.returns, episode.metrics) for episode in step.episodes]).encode())
game.close()
print(told.hexdigest())
"""


@pytest.mark.slow
def test_two_processes_play_the_same_bits() -> None:
    digests = [
        subprocess.run([sys.executable, "-c", DIGEST], capture_output=True, text=True, timeout=120, check=True).stdout
        for _ in range(2)
    ]
    assert digests[0] == digests[1] and len(digests[0].strip()) == 64


def robust(decisions: int) -> None:
    """Play all team sizes at random; all values stay finite, and no agent leaves the ground."""
    rng = np.random.default_rng(0)
    for hiders in (1, 2, 3):
        for seekers in (1, 2, 3):
            options = {"n_hiders": hiders, "n_seekers": seekers, "max_others": 5}
            game = make_game(EnvConfig("hide_and_seek:randomwalls", kwargs=options), 4, hiders * 10 + seekers)
            step = game.reset()
            for _ in range(decisions // 36):
                step = game.step(random_actions(game, step.observation, rng))
                assert game.worlds.position[:, : hiders + seekers, 2].max() <= 3.0
                assert np.isfinite(step.state).all() and np.isfinite(step.reward).all()
                assert all(np.isfinite(seen["lidar"]).all() for seen in step.observation.values())
            assert game.discarded == 0
            for world in game.worlds.worlds:
                warnings = world.simulation.warning
                assert not sum(int(warnings[i].number) for i in range(len(warnings)))
            game.close()


@pytest.mark.slow
def test_random_play_stays_sound() -> None:
    robust(1000)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_long_random_play_stays_sound() -> None:
    robust(20_000)


def test_jacobian_is_always_dense() -> None:
    """MuJoCo 4.0.0 factorises the sparse Jacobian wrongly, and would choose it from 60 degrees of freedom on."""
    options = {"n_hiders": 3, "n_seekers": 3, "n_boxes": 9}
    game = make_game(EnvConfig("hide_and_seek:randomwalls", kwargs=options), 1, 0)
    game.reset()
    model = game.worlds.worlds[0].model
    assert model.nv == 68 and model.opt.jacobian == mujoco.mjtJacobian.mjJAC_DENSE
    game.close()
