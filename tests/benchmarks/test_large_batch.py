"""The benchmark of large batches: its scaling rule against its base experiment, and its tables."""

import pytest

from benchmarks import large_batch
from jsrl.experiment.configs import sac_pendulum


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
