"""The arms of benchmarks/hide_and_seek_league.py and hide_and_seek_batches.py."""

import argparse

import pytest

from benchmarks import hide_and_seek_batches, hide_and_seek_league
from jsrl.directors.league import League


def test_only_the_league_has_an_opponent_that_learns() -> None:
    league, alone = (hide_and_seek_league.experiment_of(arm, "quadrant", 1000, 3) for arm in hide_and_seek_league.ARMS)
    assert set(league.policies) == {"main", "hunter"} and isinstance(league.director, League)
    assert alone.policies == {"main": league.policies["main"]} and alone.director is None
    assert alone.env == league.env and alone.env.kwargs["n_boxes"] == 0
    assert (alone.seed, alone.total_env_steps) == (league.seed, league.total_env_steps) == (3, 1000)


@pytest.mark.parametrize("scale", [1, 8])
def test_a_larger_batch_has_more_worlds_and_else_the_same_settings(scale: int) -> None:
    args = argparse.Namespace(map_scale=2.0, env_steps=1000, seed=3)
    made = hide_and_seek_batches.experiment_of(scale, args)
    assert made.num_envs == 32 * scale and made.rows_per_update == scale * 32 * made.rollout_length
    assert made.env.kwargs["map_scale"] == 2.0 and made.env.kwargs["n_hiders"] == 1
    assert made.policies == hide_and_seek_batches.experiment_of(1, args).policies


def test_seconds_count_from_the_first_snapshot() -> None:
    clock = hide_and_seek_batches.Clock()
    clock.cpu_s = {1: 20.0, 5: 27.54}
    assert clock.since_first(1) == 0.0 and clock.since_first(5) == 7.5
