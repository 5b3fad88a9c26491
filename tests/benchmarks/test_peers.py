"""Drivers of other libraries: their output is parsed, failures are reported, missing ones are named."""

import json
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks.peers.works import Work
from benchmarks.throughput import peers
from benchmarks.throughput.end_to_end import BenchmarkError
from benchmarks.throughput.session import with_repetitions, work_of
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


def test_no_result_is_none():
    assert peers.parse('nothing\n{"peer": "x"}\n') is None


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


def test_fastest_and_most_efficient_settings_may_differ():
    results = [
        {"setting": {"threads": 1}, "env_steps_per_s": 100.0, "env_steps_per_cpu_s": 90.0},
        {"setting": {"threads": 2}, "env_steps_per_s": 120.0, "env_steps_per_cpu_s": 60.0},
    ]
    assert peers.choose(results) == [{"threads": 2}, {"threads": 1}]
    assert peers.choose(results[:1]) == [{"threads": 1}]


def test_missing_peer_names_the_install_command(tmp_path):
    assert "install.py sb3" in peers.find("sb3", tmp_path)
    (tmp_path / "sb3.failed").write_text("no wheel for this machine\nmore")
    assert peers.find("sb3", tmp_path) == "could not be installed: no wheel for this machine"
    (tmp_path / "sb3").mkdir()
    (tmp_path / "sb3" / "installed.json").write_text("{}")
    assert peers.find("sb3", tmp_path).driver.is_file()


def test_stored_settings_are_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "SETTINGS", tmp_path / "settings.json")
    peers.SETTINGS.write_text("{}")
    assert peers.kept_settings("sb3", "ppo_cartpole") == [{}]
    peers.keep_settings("sb3", "ppo_cartpole", [{"threads": 2}], "raw.json")
    assert peers.kept_settings("sb3", "ppo_cartpole") == [{"threads": 2}]
    assert peers.kept_settings("sbx", "ppo_cartpole") == [{}]


def test_participants_and_repetitions():
    assert with_repetitions("sb3, rllib:1", 3) == {"sb3": 3, "rllib": 1}
    for wrong, said in (("sb4", "no peer 'sb4'"), ("sb3:0", "at least 1"), ("sb3:x", "at least 1")):
        with pytest.raises(ConfigError, match=said):
            with_repetitions(wrong, 3)


def test_another_number_of_environments_keeps_the_rows_of_an_update():
    asked = Namespace(name="ppo_cartpole", against="sb3", num_envs=32)
    assert (work_of(asked).num_envs, work_of(asked).rollout) == (32, 64)
    asked.num_envs = None
    assert (work_of(asked).num_envs, work_of(asked).rollout) == (16, 128)
    asked.num_envs = 48
    with pytest.raises(ConfigError, match="must divide the 2048 rows"):
        work_of(asked)
