"""`jsrl dev simulate`: hosts from one file, times from another."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from jsrl.cli.simulate import main
from jsrl.tools.simulation.speed import disturbed, interval, loop_s
from jsrl.tools.simulation.times import ActorTimes, Cost, EnvTimes, LearnerTimes, ServerTimes, ServiceTimes

HOSTS = [
    {"name": "home", "cores": 8, "memory_mb": 64_000, "address": "10.0.0.1"},
    {"name": "away", "cores": 64, "memory_mb": 64_000, "address": "10.0.0.2", "out_mbit": 100},
]
TIMES = ServiceTimes(
    env=EnvTimes(step=Cost(0.0, 0.0001)),
    actor=ActorTimes(act=Cost(0.0001), own=Cost(0.0001), asking=Cost(0.0001)),
    server=ServerTimes(act=Cost(0.0001, 1e-6)),
    learner=LearnerTimes(update=Cost(0.005, 1e-6)),
    far_hop_s=2e-4,
)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts.json").write_text(json.dumps(HOSTS))
    TIMES.save(tmp_path / "times-impala.json")
    return tmp_path


@pytest.mark.slow
def test_layout_is_simulated_and_plotted(files: Path, capsys):
    words = [
        "hosts.json",
        "impala",
        "--num-actors",
        "4",
        "--placement",
        "inline",
        "--seconds",
        "2",
        "--page",
        "page.html",
    ]
    calibrated(1.5, 0.01).save(files / "times-impala.json")
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert "warning: the machine was busy during the calibration" in err
    assert re.search(r"a real run is expected at [0-9,]+ to [0-9,]+ env steps/s", out)
    assert "env steps/s trained" in out and "limit" in out and "network out of away" in out and "policy lag" in out
    page = (files / "page.html").read_text()
    assert "Simulated, not measured" in page and "<svg" in page and "How busy everything is" in page


def calibrated(busy_cores: float, *loops_s: float) -> ServiceTimes:
    measured = [{"placement": "inline", "far": True, "loop_s": seconds} for seconds in loops_s]
    return msgspec.structs.replace(TIMES, machine={"busy_cores": busy_cores, "cores": 2}, measured=measured)


def test_an_interval_is_as_wide_as_the_model_and_the_calibration_are_wrong():
    assert interval(130.0, calibrated(0.1, 0.01, 0.011)) == (pytest.approx(100.0), pytest.approx(169.0))
    assert interval(120.0, TIMES) == (pytest.approx(100.0), pytest.approx(144.0))  # of a run: nothing more is known


def test_a_calibration_on_a_busy_machine_is_not_trusted():
    assert disturbed(TIMES) == disturbed(calibrated(0.4, 0.01, 0.012)) == ""
    assert "other programs kept 1.9 of 2 cores busy before it began" in disturbed(calibrated(1.9, 0.01))
    assert "its cores were 50% slower in one trial than in another" in disturbed(calibrated(0.1, 0.01, 0.015))


def test_invalid_simulations_are_refused_in_one_sentence(files: Path, capsys):
    assert main(["hosts.json", "impala", "--placement", "serial"]) == 2
    assert "a serial run is one process" in capsys.readouterr().err
    assert main(["impala"]) == 2
    assert "give a file of hosts and an experiment, or --calibrate" in capsys.readouterr().err
    assert main(["hosts.json", "ppo", "--num-actors", "2"]) == 2
    assert "measure them first with `jsrl dev simulate --calibrate NAME`" in capsys.readouterr().err
    assert main(["other.json", "ppo", "--num-actors", "2"]) == 2
    assert "other.json" in capsys.readouterr().err
    (files / "hosts.json").write_text('[{"name": "a", "cores": 1, "memory_mb": 100, "out_mbit": -1}]')
    assert main(["hosts.json", "impala"]) == 2
    assert "out_mbit is -1" in capsys.readouterr().err
    (files / "hosts.json").write_text('[{"name": "a", "cores": 1, "memory_mb": 100, "core_speed": 0}]')
    assert main(["hosts.json", "impala"]) == 2
    assert "core_speed is 0.0" in capsys.readouterr().err
    assert main(["--calibrate", "mappo_speaker_listener"]) == 2
    assert "it knows runs of one policy without a director" in capsys.readouterr().err
    assert main(["--core-speed", "impala"]) == 2
    assert "no speed of the calibrated cores; calibrate again" in capsys.readouterr().err


def test_core_speed_compares_this_machine_with_the_calibrated_one(files: Path, capsys):
    msgspec.structs.replace(TIMES, machine={"loop_s": loop_s()}).save(files / "times-impala.json")
    assert main(["--core-speed", "impala"]) == 0
    found = capsys.readouterr().out
    assert 0.1 < float(found.split()[1]) < 10 and '"core_speed"' in found
