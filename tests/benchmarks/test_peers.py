"""Drivers of other libraries: their output is parsed, failures are reported, missing ones are named."""

import json
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks.peers.works import Work
from benchmarks.throughput import peers
from benchmarks.throughput.end_to_end import BenchmarkError
from benchmarks.throughput.session import work_of
from jsrl.errors import ConfigError

FAKE = Path(__file__).parent / "world" / "fake_peer.py"
WORK = Work("CartPole-v1", "mlp", 9155)


@pytest.fixture
def fake():
    return peers.Peer("fake", Path(sys.executable), FAKE)


def line(**changes):
    return json.dumps({"peer": "x", "env_steps": 600, "seconds": 2.0, "cpu_s": 3.0} | changes)


def test_last_result_line_is_parsed():
    found = peers.parse("\n".join(["{'not': json", line(env_steps=1), line(), '{"epoch": 3}', "[info] bye"]))
    assert found["env_steps"] == 600
    assert found["env_steps_per_s"] == 300.0
    assert found["env_steps_per_cpu_s"] == 200.0


def test_a_driver_is_run_with_its_work_and_threads(fake):
    found = peers.drive(fake, WORK, {"threads": 2}, 0.2, 0.05)
    assert found["work"]["minibatch"] == 512
    assert found["setting"] == {"threads": 2}
    assert found["threads_seen"] == "2"
    assert found["seconds"] >= 0.2
    assert found["env_steps"] == 2048 * found["updates"]
    assert 0 < found["first_update_s"] < 30
    assert found["pss_mb"] > 1


def test_a_driver_that_fails_is_quoted(fake):
    with pytest.raises(BenchmarkError, match="no such thing"):
        peers.drive(fake, WORK, {"fail": True}, 0.2, 0.05)


def test_settings_are_tried_and_the_best_kept(fake):
    tried = [peers.attempt(fake, WORK, setting, 0.1, 0.05) for setting in peers.variants(fake)]
    assert [t["setting"] for t in tried] == [{"threads": 1}, {"fail": True}]
    assert "no such thing" in tried[1]["error"]
    assert peers.choose(tried) == [{"threads": 1}]


def test_another_number_of_environments_keeps_the_rows_of_an_update():
    asked = Namespace(name="ppo_cartpole", against="sb3", num_envs=32)
    assert (work_of(asked).num_envs, work_of(asked).rollout) == (32, 64)
    asked.num_envs = None
    assert (work_of(asked).num_envs, work_of(asked).rollout) == (16, 128)
    asked.num_envs = 48
    with pytest.raises(ConfigError, match="must divide the 2048 rows"):
        work_of(asked)
