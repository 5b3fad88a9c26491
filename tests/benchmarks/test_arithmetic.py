"""Rates, limits, medians and ratios on known numbers; hashes of params; verdicts over pairs; the rule of large batches."""

import argparse
import json
import math

import numpy as np
import pytest

from benchmarks import golden, large_batch, paired
from benchmarks.peers.works import Work, differences, mlp_parameters, nature_parameters
from benchmarks.throughput.arithmetic import Sample, physical_limit, rates, slope, spread
from benchmarks.throughput.traffic import bytes_per_row, copies
from jsrl.experiment.configs import sac_pendulum


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


def test_hash_covers_values_shapes_and_types_but_not_names():
    tree = {"a": np.arange(6, dtype=np.float32), "b": np.zeros(2, np.float32)}
    same = {"y": tree["a"], "x": tree["b"]}
    assert golden.digest(tree) == golden.digest(same)
    for changed in (np.nextafter(tree["a"], 9), tree["a"].reshape(2, 3), tree["a"].astype(np.float64)):
        assert golden.digest(tree | {"a": changed}) != golden.digest(tree)


@pytest.mark.nightly
def test_a_case_is_compared_with_a_commit_and_with_a_file(tmp_path, capsys):
    file = tmp_path / "golden.json"
    assert golden.main(["HEAD", "HEAD", "--cases", "ppo_masked", "--steps", "3000", "--json", str(file)]) == 0
    kept = json.loads(file.read_text())
    kept["hashes"]["ppo_masked seed 0"]["before"] = "of other params"
    file.write_text(json.dumps(kept))
    assert golden.main([str(file), "HEAD", "--cases", "ppo_masked"]) == 1
    assert "DIFFERS" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("low", "high", "told"),
    [(0.98, 1.02, "passed"), (0.94, 0.96, "failed"), (0.95, 1.01, "not resolved"), (0.5, 2.0, "not resolved")],
)
def test_a_verdict_follows_from_the_interval(low, high, told):
    assert paired.verdict({"low": low, "high": high}) == told


class Played:
    """Updates that take a known time plus noise."""

    def __init__(self, seed, us):
        self.random, self.us = np.random.default_rng(seed), us

    def block(self, name, updates, extra=0.0):
        us = self.us * (1 + extra) * np.exp(0.02 * self.random.standard_normal())
        return {"us_per_row": us, "cpu_s": updates * 0.01}


@pytest.mark.parametrize(("extra", "told"), [(0.0, "passed"), (paired.PLANTED, "failed")])
def test_planted_slowdown_is_detected(extra, told, capsys):
    given = argparse.Namespace(pairs=30, block_cpu_s=0.1)
    assert paired.measure("ppo_cartpole", Played(0, 10.0), Played(1, 10.0), given, extra) == told
    assert told in capsys.readouterr().out


def test_the_smallest_batch_is_the_experiment_itself():
    config, how = sac_pendulum.config(), large_batch.scaling(128, "scaled", 4.0)
    assert (how.learning_rate, how.tau) == (config.agent.learning_rate, config.agent.tau)
    assert how.batch == config.replay.batch_size
    assert how.updates / large_batch.ENV_STEPS_PER_CALL == config.replay.updates_per_env_step
    assert config.num_envs * config.rollout_length == large_batch.ENV_STEPS_PER_CALL


@pytest.mark.parametrize(("batch", "factor"), [(512, 2.0), (2048, 4.0), (16384, 4.0)])
def test_steps_grow_with_the_root_of_the_batch_up_to_the_cap(batch, factor):
    how, base = large_batch.scaling(batch, "scaled", 4.0), large_batch.scaling(128, "scaled", 4.0)
    assert how.learning_rate == pytest.approx(factor * base.learning_rate)
    assert how.tau == pytest.approx(factor * base.tau)
    assert how.updates == base.updates / factor
    assert large_batch.scaling(batch, "fixed", 4.0) == base._replace(batch=batch)
