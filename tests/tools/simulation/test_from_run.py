"""Service times from the metrics of a run: they predict that run, and one with more actors."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from jsrl.cluster.facts import HostFacts
from jsrl.envs.config import EnvConfig
from jsrl.errors import ConfigError
from jsrl.experiment import EvaluatorConfig
from jsrl.references.reference import to_json
from jsrl.services.runs.runs import RunFolder
from jsrl.tools.simulation.calibration import from_run
from jsrl.tools.simulation.outcome import ENVIRONMENTS, simulate
from jsrl.tools.simulation.system import lay_out_on
from jsrl.tools.simulation.times import read_times
from tests.tiny_agent import STILL
from tests.tools.simulation.test_times import EXPERIMENT

ALONE = EvaluatorConfig(enabled=False)
STEP_S, RATE = 0.045, 2 * 2 / 0.045  # two actors of two environments each; their steps take 45 ms
SHARES = {
    "actor/env_share": 0.9,
    "actor/act_share": 0.05,
    "system/actor_cpu_share": 0.1,
    "system/learner_cpu_share": 0.05,
}


def test_times_of_a_run_predict_it_and_one_with_more_actors(tmp_path: Path) -> None:
    env = EnvConfig("benchmarks.scale.sleeping:Sleeping", kwargs={"step_s": STEP_S * 0.9 / 2, "size": 8})
    inline = dataclasses.replace(
        EXPERIMENT, agent=STILL, env=env, num_envs=4, batch_envs=4, num_actors=2, placement="inline", evaluator=ALONE
    )
    folder = RunFolder.create(tmp_path, "experiment", "seen", config=to_json(inline))
    line = SHARES | {"learner/wait_batch_share": 0.95, "actor/env_steps_per_s": RATE}
    lines = [
        line | {"env_steps": int(RATE * second), "updates": second, "wall_s": float(second)} for second in range(20)
    ]
    folder.metrics_path.write_text("".join(f"{json.dumps(one)}\n" for one in lines))
    times = from_run("seen", str(tmp_path))
    times.save(tmp_path / "times.json")
    assert read_times(tmp_path / "times.json") == times
    hosts = [HostFacts("one", 64, 64_000)]
    again = simulate(lay_out_on(inline, hosts)[1], times)
    assert again.env_steps_per_s == pytest.approx(RATE, rel=0.1)
    more = dataclasses.replace(inline, num_envs=16, batch_envs=16, num_actors=8)
    outcome = simulate(lay_out_on(more, hosts)[1], times)
    assert outcome.env_steps_per_s == pytest.approx(4 * RATE, rel=0.1) and outcome.bottleneck == (ENVIRONMENTS, "")


@pytest.mark.parametrize(
    ("placement", "lines", "sentence"),
    [
        ("serial", 20, "was serial: one process shows no waits"),
        ("inline", 3, "has 3 lines of metrics, expected 4 or more"),
        ("inline", 0, "has 0 lines of metrics, expected 4 or more"),
    ],
)
def test_serial_and_short_runs_are_refused(tmp_path: Path, placement: str, lines: int, sentence: str) -> None:
    experiment = dataclasses.replace(EXPERIMENT, placement=placement, evaluator=ALONE)
    folder = RunFolder.create(tmp_path, "experiment", "seen", config=to_json(experiment))
    folder.metrics_path.write_text("".join(f'{{"wall_s": {n}.0, "env_steps": {n}}}\n' for n in range(lines)))
    with pytest.raises(ConfigError, match=sentence):
        from_run("seen", str(tmp_path))


def test_of_stacks_only_the_newest_frames_are_sent() -> None:
    pytest.importorskip("ale_py")
    env, hosts = EnvConfig("ALE/Breakout-v5"), [HostFacts("one", 64, 64_000)]
    e = dataclasses.replace(
        EXPERIMENT, agent=STILL, env=env, num_envs=4, batch_envs=4, num_actors=2, placement="served", evaluator=ALONE
    )
    sent = lay_out_on(e, hosts)[1].bytes
    frame, rows, steps = 84 * 84, 1, e.rollout_length  # four groups of one game
    assert sent.request == pytest.approx(rows * frame, rel=0.2)  # and headers
    assert sent.trajectory == pytest.approx(rows * frame * (4 + steps), rel=0.2)
