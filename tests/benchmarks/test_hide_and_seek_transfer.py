"""The tasks and the classifier of benchmarks/hide_and_seek_transfer.py."""

import numpy as np
import pytest

pytest.importorskip("mujoco")

from benchmarks.hide_and_seek_transfer import classify, env_of, game_of
from jsrl.envs.make import make_spec
from jsrl.games.hide_and_seek.game import TASKS


def test_all_tasks_have_the_observations_of_the_game() -> None:
    game = game_of(1, 0)
    seats = [make_spec(env).seats[0] for env in (game.env, *(env_of(task, game.env) for task in TASKS))]
    assert len(seats) == 6 and all(seat.observation == seats[0].observation for seat in seats)
    assert {seat.action for seat in seats} == {seats[0].action}


def test_classifier_tells_what_the_states_contain_and_nothing_else() -> None:
    rng = np.random.default_rng(0)
    counts = rng.binomial(6, 0.5, 600)
    noise = rng.normal(size=(600, 8))
    told = noise.copy()
    told[:, 0] = counts + 0.05 * rng.normal(size=600)
    assert classify(told, counts, 150)["right"] > 0.75
    found = classify(noise, counts, 150)
    assert found["right"] < found["most frequent"] + 0.1 < 0.55
