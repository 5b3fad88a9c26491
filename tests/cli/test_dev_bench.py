"""`jsrl dev bench`: each placement in turn, medians in a table."""

from __future__ import annotations

import pytest

from jsrl.cli import bench
from jsrl.cli.main import main
from jsrl.tools.tuning.space import Trial


def test_placements_alternate_and_medians_are_shown(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    measured = []

    def measure(experiment, limits):
        measured.append(experiment.placement)
        if experiment.placement == "apart":
            return Trial(error="the run ended with status 1")
        return Trial(env_steps_per_s=1000.0 * len(measured), start_s=2.0, means={"learner/policy_lag_mean": 0.5})

    monkeypatch.setattr(bench, "measure", measure)
    assert main(["dev", "bench", "ppo_cartpole", "--repetitions", "2"]) == 0
    assert measured == ["serial", "inline", "served", "apart"] * 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["serial", "3,000", "1,000", "-", "5,000", "0.50", "2.0"]
    assert lines[5:] == ["apart: the run ended with status 1"] * 2
    measured.clear()
    assert main(["dev", "bench", "ppo_cartpole", "--placement", "inline", "--repetitions", "1"]) == 0
    assert measured == ["inline"]
