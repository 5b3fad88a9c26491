"""Rates, limits, medians and ratios, on numbers with known answers."""

import math

import pytest

from benchmarks.peers.works import Work, differences, mlp_parameters, nature_parameters
from benchmarks.throughput.arithmetic import Sample, physical_limit, rates, slope, spread
from benchmarks.throughput.traffic import bytes_per_row, copies


def test_the_limit_is_the_time_of_a_row_in_all_three_parts():
    # 5 us + 2 us + 1 us = 8 us a row: 125,000 rows a second on one core
    assert physical_limit(200_000, 500_000, 1_000_000, cores=1) == pytest.approx(125_000)
    assert physical_limit(200_000, 500_000, 1_000_000, cores=2) == pytest.approx(250_000)


def test_with_an_accelerator_the_slower_side_decides():
    limit = {"cores": 4, "on_accelerator": True}
    assert physical_limit(1_000, 50_000, 50_000, **limit) == pytest.approx(4_000)
    assert physical_limit(100_000, 50_000, 50_000, **limit) == pytest.approx(25_000)


def test_rates_of_a_steady_run():
    samples = [Sample(10.0 + t, 1000 + 500 * t, 3.0 + 1.5 * t) for t in range(9)]
    found = rates(samples)
    assert found["env_steps_per_s"] == pytest.approx(500)
    assert found["env_steps_per_cpu_s"] == pytest.approx(500 / 1.5)
    assert found["cores_used"] == pytest.approx(1.5)
    assert (found["window_s"], found["window_env_steps"]) == (8.0, 4000)


def test_one_update_more_or_less_at_the_end_moves_the_rate_less_than_it_would_between_ends():
    steps = [2048 * int(1.3 * t) for t in range(21)]  # a staircase: 1.3 updates a second, seen once a second
    fitted = slope(range(21), steps)
    assert abs(fitted / (1.3 * 2048) - 1) < 0.03
    ends = (steps[-1] - steps[0]) / 20
    assert abs(slope(range(21), [*steps[:-1], steps[-1] + 2048]) - fitted) < abs(ends + 2048 / 20 - ends)


def test_median_and_range_skip_missing_values():
    assert spread([3.0, math.nan, 1.0, 2.0]) == (2.0, 1.0, 3.0)
    assert all(math.isnan(value) for value in spread([]))


def test_bytes_and_copies_of_a_row():
    sizes = {"sample_bytes_per_row": 40.0, "inference_bytes_per_row": 25.0, "params_bytes_per_row": 5.0}
    assert bytes_per_row(sizes, "inline") == 45.0
    assert bytes_per_row(sizes, "served") == 70.0
    assert copies("serial", "zeromq") == copies("inline", "shared-memory") == 2
    assert copies("served", "shared-memory") == 4
    assert copies("apart", "zeromq") == 8


def test_parameters_by_hand():
    assert mlp_parameters(4, 2, continuous=False) == 2 * (4 * 64 + 64 + 64 * 64 + 64) + (64 * 2 + 2) + (64 + 1)
    assert mlp_parameters(17, 6, continuous=True) == 2 * (17 * 64 + 64 + 4160) + (64 * 6 + 6) + 65 + 6
    assert nature_parameters(4, 6) == 1_687_719


def test_differences_name_the_unequal_settings():
    work = Work("CartPole-v1", "mlp", 9155)
    same = {
        "env": "CartPole-v1", "num_envs": 16, "rollout": 128, "minibatch": 512, "epochs": 1, "gradient_steps": 4,
        "parameters": 9155, "learning_rate": 3e-4,
    }  # fmt: skip
    assert differences(work, same) == []
    assert differences(work, same | {"epochs": 4, "notes": ["async"]}) == ["epochs 4 for 1", "async"]
    assert differences(work, {k: v for k, v in same.items() if k != "parameters"}) == ["parameters None for 9155"]
