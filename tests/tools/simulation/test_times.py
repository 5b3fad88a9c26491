"""Service times: straight lines through measurements, files, and calibrations from runs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import pytest

from jsrl.agents.impala import IMPALAConfig
from jsrl.envs.config import EnvConfig
from jsrl.errors import ConfigError
from jsrl.experiment import Experiment
from jsrl.tools.simulation.calibration import INLINE, SERVED, Measured, Variant, calibrate, fitted, measured, variants
from jsrl.tools.simulation.times import Cost, EnvTimes, ParamsTimes, ServiceTimes, Updates, fit, read_times
from jsrl.tools.simulation.timing import time_environments, time_params, time_updates
from jsrl.tools.tuning.space import Trial
from tests.marks import slow

EXPERIMENT = Experiment(
    agent=IMPALAConfig(),
    env=EnvConfig("CartPole-v1"),
    num_envs=32,
    batch_envs=32,
    rollout_length=20,
    max_policy_lag=None,
)


def test_a_line_has_no_part_below_zero():
    assert fit([]) == Cost()
    line = fit([(2, 0.5), (4, 0.7)])
    assert (line.call_s, line.row_s) == (pytest.approx(0.3), pytest.approx(0.1))
    assert fit([(4, 1.0)]).of(4) == pytest.approx(1.0)
    assert fit([(2, 1.0), (4, 0.5)]) == Cost(0.75, 0.0)
    assert fit([(2, 0.1), (4, 0.4)]).call_s == 0.0


def test_times_round_trip_and_other_files_are_refused(tmp_path: Path):
    times = ServiceTimes("mine", EnvTimes(Cost(0.001, 0.002), shape=(0.5, 1.5)), hop_s=1e-4)
    times.save(tmp_path / "times.json")
    assert read_times(tmp_path / "times.json") == times
    with pytest.raises(ConfigError, match="measure them first with `jsrl dev simulate --calibrate NAME`"):
        read_times(tmp_path / "none.json")
    (tmp_path / "other.json").write_text('[{"name": "a"}]')
    with pytest.raises(ConfigError, match="is no file of service times"):
        read_times(tmp_path / "other.json")
    (tmp_path / "later.json").write_text('{"format": 2}')
    with pytest.raises(ConfigError, match="has format 2, this version reads 1"):
        read_times(tmp_path / "later.json")


def test_calibration_runs_one_and_four_actors():
    runs = variants(EXPERIMENT, (INLINE, SERVED))
    shapes = {(run.placement, run.far, run.experiment.actors): run.experiment for run in runs}
    assert set(shapes) == {(p, far, n) for p in (INLINE, SERVED) for far in (False, True) for n in (1, 4)}
    small, large = shapes[SERVED, True, 1], shapes[SERVED, True, 4]
    assert (small.num_envs, small.groups, small.encrypted) == (8, 1, True)
    assert (large.num_envs, large.groups, shapes[SERVED, False, 4].encrypted) == (32, 8, False)
    odd = dataclasses.replace(EXPERIMENT, num_envs=6, batch_envs=6)
    assert {run.experiment.actors for run in variants(odd, (INLINE,))} == {1, 3}


def measured_run(placement: str, size: int, actors: int, **fields) -> Measured:
    """A run in which a step costs 1 ms + 0.1 ms a row, acting 0.5 ms of it, and an update 10 ms + 20 us a row on one core."""
    batch, steps = 4 * size * actors * 10, 100.0 * actors
    updates = steps * size / batch
    cpu = (0.001 + 0.0001 * size) * steps
    shares = {"actor/act_share": 0.05, "learner/wait_batch_share": 1 - (0.01 + 2e-5 * batch) * updates}
    learner = (0.01 + 2e-5 * batch) * updates
    return Measured(
        placement, False, actors, 1, size, 10, batch, steps * size, steps, updates,
        actor_cpu=cpu, learner_cpu=learner, shares=shares, **fields,
    )  # fmt: skip


def test_fitted_times_reproduce_their_runs():
    runs = [measured_run(INLINE, size, actors) for size, actors in ((8, 1), (4, 4))]
    times = fitted(runs, EnvTimes(step=Cost(0.0001, 0.00005)))
    for size in (4, 8):
        whole = times.env.step.of(size) + times.actor.act.of(size) + times.actor.own.of(size)
        assert whole == pytest.approx(0.001 + 0.0001 * size, rel=0.01)
        assert times.actor.act.of(size) == pytest.approx(0.0005, rel=0.01)
    for one in runs:
        assert times.learner.update.of(one.batch_rows) == pytest.approx(0.01 + 2e-5 * one.batch_rows, rel=0.01)
    assert times.learner.threads == pytest.approx(1.0, rel=0.01)
    server = [measured_run(SERVED, 8, 1, calls=100.0, call_rows=8.0, server_cpu=0.2)]
    asked = fitted([*runs, *server], EnvTimes())
    answer_s = asked.server.gather + asked.server.act.of(8) + asked.server.request.of(8)
    assert answer_s == pytest.approx(0.002, rel=0.01)  # 100 times a second
    timed = fitted([*runs, *server], EnvTimes(), [(1, 0.0001), (9, 0.0009)])  # acting alone: 0.1 ms a row
    assert timed.server.act.row_s == pytest.approx(0.0001) and timed.server.act.of(8) >= 0.000799


def test_reading_params_is_no_part_of_a_step():
    runs = [measured_run(INLINE, size, actors, reuse=2) for size, actors in ((8, 1), (4, 4))]
    params = ParamsTimes(near=0.002)
    bare, told = fitted(runs, EnvTimes()).actor, fitted(runs, EnvTimes(), params=params).actor
    for one in runs:
        versions = 2 * one.updates / (one.steps / one.actors)  # of one actor with each of its steps
        assert bare.own.of(one.group_size) - told.own.of(one.group_size) == pytest.approx(0.002 * versions, rel=0.01)


@pytest.mark.slow
def test_params_are_timed_alone():
    times = time_params(EXPERIMENT, versions=3)
    assert 0.0 < times.near < 0.05 and 0.0 < times.far < 0.05


def test_updates_timed_alone_leave_the_rest_of_the_learner_to_each_batch():
    runs = [measured_run(INLINE, size, actors) for size, actors in ((8, 1), (4, 4))]
    alone = [Updates(rows, 1.5e-5 * rows, 0.75e-5 * rows) for rows in (100, 1_000)]  # two threads
    learner = fitted(runs, EnvTimes(), updates=alone).learner
    assert learner.threads == pytest.approx(2.0) and learner.update.of(1_000) == pytest.approx(0.0075)
    for one in runs:  # 10 ms + 20 us a row in the run
        assert learner.batch.of(one.batch_rows) == pytest.approx(0.01 + 0.5e-5 * one.batch_rows, rel=0.01)


@pytest.mark.parametrize("columns", [[2], slow([64, 2])])
def test_updates_are_timed_alone(columns: list[int]):
    falling = dataclasses.replace(EXPERIMENT, agent=IMPALAConfig(schedule="linear"))
    times = time_updates(falling, columns, seconds=0.05)
    assert [each.rows for each in times] == [20 * size for size in sorted(columns)]
    assert all(each.cpu_s > 0.0 and each.wall_s > 0.0 for each in times)


def test_servers_of_their_own_device_are_measured_as_servers():
    """Else actors and servers cost nothing in the model."""
    apart = dataclasses.replace(EXPERIMENT, placement="apart", num_actors=4, num_groups=4)
    means = {"inference/rows_per_s": 3_200.0, "inference/batch_rows_mean": 16.0, "system/inference_cpu_share": 0.2}
    speed = Trial(env_steps_per_s=3_200.0, means=means | {"system/actor_cpu_share": 0.4})
    seen = measured(Variant("apart", False, apart), speed)
    times = fitted([seen], EnvTimes())
    assert seen.placement == SERVED
    assert times.actor.asking.of(8) == pytest.approx(0.4 / 400) and times.server.gather > 0.0
    assert ServiceTimes(measured=[msgspec.to_builtins(seen)]).lacks(served=True, far=False) == ""


def test_calibration_of_a_serial_run_is_refused():
    with pytest.raises(ConfigError, match="a serial run is one process, which shows no waits"):
        calibrate(EXPERIMENT, ("serial",))


def test_missing_measurements_are_reported():
    times = ServiceTimes(measured=[{"placement": INLINE, "far": False}])
    assert times.lacks(served=False, far=False) == ""
    assert times.lacks(served=True, far=True) == "inference servers over TCP between hosts"
    assert ServiceTimes().lacks(served=True, far=True) == ""  # written by hand


def test_environments_are_timed_alone():
    sleeping = EnvConfig("tests.tools.simulation.test_times:make_sleeper")
    times = time_environments(dataclasses.replace(EXPERIMENT, env=sleeping), [1, 2], seconds=0.3)
    assert times.step_idle.of(1) >= 0.002 and times.step_idle.of(2) >= 0.004
    assert 8 <= times.episode_steps <= 22  # ten steps and the reset, and on a busy machine a part of the next episode


@pytest.mark.slow
def test_environments_with_several_seats_are_timed_alone():
    tictactoe = EnvConfig("pettingzoo:pettingzoo.classic.tictactoe_v3")
    times = time_environments(dataclasses.replace(EXPERIMENT, env=tictactoe), [1, 2], seconds=0.3)
    assert times.cpu_s(2) >= times.cpu_s(1) > 0.0
    assert 5 <= times.episode_steps <= 12


def make_sleeper():
    import time

    import gymnasium

    class Sleeper(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0.0, 1.0, (2,))
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            self.steps = 0
            return self.observation_space.low, {}

        def step(self, action):
            time.sleep(0.002)
            self.steps += 1
            return self.observation_space.low, 1.0, False, self.steps == 10, {}

    return Sleeper()
