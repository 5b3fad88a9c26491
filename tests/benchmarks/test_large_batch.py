"""The benchmark of large batches: its scaling rule against its base experiment, and its tables."""

import math

import pytest

from benchmarks import large_batch
from jsrl.experiment.configs import sac_pendulum


def test_the_smallest_batch_is_the_experiment_itself():
    config, how = sac_pendulum.config(), large_batch.scaling(128, "scaled", 4.0)
    assert (how.learning_rate, how.tau) == (config.agent.learning_rate, config.agent.tau)
    assert how.batch == config.replay.batch_size
    assert how.batch * how.updates / large_batch.ENV_STEPS_PER_CALL == config.replay.samples_per_insert
    assert config.num_envs * config.rollout_length == large_batch.ENV_STEPS_PER_CALL


@pytest.mark.parametrize(("batch", "factor"), [(512, 2.0), (2048, 4.0), (16384, 4.0)])
def test_steps_grow_with_the_root_of_the_batch_up_to_the_cap(batch, factor):
    how, base = large_batch.scaling(batch, "scaled", 4.0), large_batch.scaling(128, "scaled", 4.0)
    assert how.learning_rate == pytest.approx(factor * base.learning_rate)
    assert how.tau == pytest.approx(factor * base.tau)
    assert how.updates == base.updates / factor
    assert large_batch.scaling(batch, "fixed", 4.0) == base._replace(batch=batch)


@pytest.mark.slow
def test_its_arguments_are_experiment_options():
    from jsrl.cli.command_line import parse

    asked = parse([*large_batch.scaling(1024, "scaled", 4.0).options, "--placement", "serial"], sac_pendulum.config())
    assert asked.experiment.replay.batch_size == 1024
    assert asked.experiment.updates_per_call == 23
    assert asked.experiment.agent.learning_rate == pytest.approx(1e-3 * math.sqrt(8))


def test_the_tables():
    def block(arm, **figures):
        return {"arm": arm, "figures": figures}

    one = {"env_steps": 5000.0, "agent_updates": 4000.0, "cpu_s": 20.0, "fresh_return": -150.0}
    raw = {
        "options": {"batch": [128, 256], "learning_batch": [128], "rules": ["scaled"], "cap": 4.0},
        "blocks": [
            block("rate 128", rows_per_cpu_s=50_000.0, cpu_ms_per_update=2.56, matrix_share=0.6),
            block("scaled 128", reached=1.0, **one),
            block("scaled 128", reached=0.0, **one | {"env_steps": 7000.0, "fresh_return": math.nan}),
        ],
    }
    lines = large_batch.table(raw).splitlines()
    assert lines[2] == "| 128 | 50,000 | 2.56 | 0.60 |"
    assert lines[3] == "| 256 | - | - | - |"
    assert lines[-1] == (
        "| scaled, 128 | 0.001 | 1 | 1 of 2 | 6,000 (5,000 to 7,000) | 4,000 (4,000 to 4,000) | 20.0 (20.0 to 20.0) | -150 |"
    )
