"""Two policies in one run: neither changes a bit of the other, both resume, and the run ends with the last."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from jsrl.agents.ppo import PPOConfig
from jsrl.cli.replay_update import replay_update
from jsrl.control import resume, start_points
from jsrl.control.progress import MAX_PROGRESS, Progress
from jsrl.control.result import Result
from jsrl.control.resume import init_points
from jsrl.control.run import run
from jsrl.control.run_record import RunRecord
from jsrl.control.start_points import begin_policies, find_start_points
from jsrl.envs.config import EnvConfig
from jsrl.errors import ConfigError, NonFiniteUpdate
from jsrl.experiment import EvaluatorConfig, Experiment
from jsrl.experiment.building import resolved_agent
from jsrl.graph.policies import PolicyPart, with_policy
from jsrl.networks.model import NetworkConfig
from jsrl.services.metrics.display import LineDisplay, make_display
from jsrl.services.runs.control_bodies import Event, Report
from jsrl.services.runs.runs import Run, RunFolder
from jsrl.services.snapshots.store import SnapshotStore
from jsrl.tools.policy import load_policy
from jsrl.transport.ledger.page import open_ledger
from jsrl.types import leaves, make_version
from jsrl.workers.director.state_file import StateFile
from jsrl.workers.jobs import StartPoint
from jsrl.workers.kinds import find_kind

SMALL = PPOConfig(network=NetworkConfig(hidden=(8,)), num_epochs=1, num_minibatches=1)
WIDER = PPOConfig(network=NetworkConfig(hidden=(16,)), num_epochs=1, num_minibatches=1)


def small(**values) -> Experiment:
    given = {
        "env": EnvConfig("CartPole-v1"),
        "num_envs": 4,
        "num_groups": 2,
        "rollout_length": 8,
        "placement": "serial",
    }
    # with a period of its own a serial run scores each one, not only a tenth of its time
    evaluator = EvaluatorConfig(enabled=True, episodes=1, final_episodes=1, num_envs=1, period_env_steps=48)
    given |= {"evaluator": evaluator}
    return Experiment(SMALL, **given | values)


def trained(tmp_path: Path, name: str, updates: int, seed: int = 5) -> Result:
    settings = {"seed": seed, "agent": WIDER}
    return run(
        small(total_env_steps=updates * 16),
        runs_dir=tmp_path,
        name=name,
        graph=lambda graph: with_policy(graph, "b", (1,), settings),
        display="log-only",
    )


def same(one: Result, other: Result, policy: str = "") -> bool:
    return same_leaves(one.params_of(policy), other.params_of(policy))


def same_leaves(one: Any, other: Any) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(a.shape == b.shape and (a == b).all() for a, b in pairs)


def test_policies_resume_at_the_newest_updates_of_which_all_have_a_good_snapshot(tmp_path: Path):
    folder = RunFolder.create(tmp_path, "two", "one")
    for policy, every in (("", (4, 8, 12)), ("b", (8, 12, 16))):
        store = SnapshotStore(folder.snapshots / policy / "state")
        for updates in every:
            store.save(make_version(0, updates), {"state": {"x": np.zeros(3)}}, meta={}, wait=True)
        store.close()
    assert resume.common_batches(folder, {"": 1, "b": 1}) == 12
    (folder.snapshots / "b" / "state" / str(make_version(0, 12)) / "manifest.json").write_text("{}")
    assert resume.common_batches(folder, {"": 1, "b": 1}) == 8
    assert resume.common_batches(folder, {"": 1, "b": 1, "c": 1}) is None


def test_a_resume_begins_a_newer_generation_than_its_snapshot_and_its_ledger(tmp_path: Path):
    folder = RunFolder.create(tmp_path, "one", "one")
    store = SnapshotStore(folder.snapshots / "state")
    meta = {"generation": 2, "updates": 5}
    store.save(make_version(2, 5), {"state": {"x": np.zeros(3)}}, meta=meta, tags=("latest",), wait=True)
    store.close()
    assert (resume.next_start_point(folder)[0].generation, resume.next_start_point(folder)[0].updates) == (3, 5)
    page = tmp_path / "page"
    open_ledger(page, 7, None)  # of learners that died before their first snapshot
    assert resume.next_start_point(folder, ledger=page)[0].generation == 8


def test_a_resume_with_another_total_says_how_a_learning_rate_jumps() -> None:
    agent = dataclasses.replace(SMALL, schedule="linear", learning_rate=1e-3)
    e = dataclasses.replace(small(total_env_steps=20 * 32), agent=agent)
    e = dataclasses.replace(e, agent=resolved_agent(e))  # as in a plan
    start = StartPoint(1, 5, "folder@5", env_steps=160)
    line = start_points._rate_line(e, start, 10 * 32)
    assert line == (
        "the learning rate jumps from 0.0005 to 0.00075: its schedule ends with the run, after 20 updates instead of 10"
    )
    for same_total, own in (
        (20 * 32, e.agent),
        (10 * 32, SMALL),
        (10 * 32, dataclasses.replace(agent, total_updates=99)),
    ):
        assert start_points._rate_line(dataclasses.replace(e, agent=own), start, same_total) == ""


@pytest.mark.nightly
def test_policies_share_no_bit_and_both_continue_exactly(tmp_path: Path) -> None:
    whole, other = trained(tmp_path, "whole", 12), trained(tmp_path, "other", 12, seed=6)
    assert same(whole, other) and not same(whole, other, "b")
    trained(tmp_path, "halves", 6)
    halves = run(small(total_env_steps=12 * 16), runs_dir=tmp_path, resume="halves", display="log-only")
    assert same(whole, halves) and same(whole, halves, "b")
    assert max(x.shape[-1] for x in leaves(whole.params_of("b"))) == 16  # its own network
    assert halves.others["b"]["updates"] == 12 and "policy b: 192 env steps, 12 updates" in str(halves)
    assert "b/evaluator/final_return_mean" in halves.metrics and "b/learner/loss" in halves.metrics
    assert sorted(path.name for path in (halves.folder / "snapshots" / "b").iterdir()) == ["params", "state"]
    env_steps, returns = Run(RunFolder(halves.folder)).curve("b/evaluator/return_mean")
    assert env_steps.size == returns.size > 1 and env_steps.max() == 192
    scores = halves.scores.others["b"]
    assert scores.env_steps.tolist() == env_steps.tolist() and scores.return_mean.tolist() == returns.tolist()
    assert np.isfinite(scores.return_std).all() and halves.scores.env_steps.size > 1
    assert "policy b: 192 env steps, 12 updates; evaluation: return" in (halves.folder / "report.txt").read_text()
    assert "learner of b " in halves.summary and "learners (2)" not in halves.summary
    own = load_policy(halves.folder, "b/latest")
    assert own.experiment.agent == WIDER and own.experiment.seed == 5
    assert same_leaves(own.params, halves.params_of("b"))
    assert same_leaves(halves.policy("latest", "b").params, own.params)
    assert halves.policy().meta["return_mean"] == halves.best["return_mean"]
    with pytest.raises(ConfigError, match=r"no policy 'c' other than the first; it has: b"):
        load_policy(halves.folder, "c/latest")
    kept = json.loads((halves.folder / "graph.json").read_text())
    assert [w["settings"]["seed"] for w in kept["workers"] if w["name"] == "learner-b"] == [5]


@pytest.mark.nightly
def test_failed_update_of_one_policy_is_saved_under_its_name_and_replayed(tmp_path: Path) -> None:
    settings = {"agent": dataclasses.replace(SMALL, learning_rate=1e38)}
    with pytest.raises(NonFiniteUpdate, match=r"failed-update/b\. Replay it with: .*replay_update \S+ --policy b$"):
        run(
            small(),
            runs_dir=tmp_path,
            name="bad",
            graph=lambda g: with_policy(g, "b", (1,), settings),
            display="log-only",
        )
    again = replay_update("bad", str(tmp_path), policy="b")
    assert any(not np.isfinite(value) for value in again.metrics.values())
    with pytest.raises(ConfigError, match="no update of experiment/bad failed"):
        replay_update("bad", str(tmp_path))


@pytest.mark.nightly
def test_each_policy_may_begin_with_the_params_of_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = trained(tmp_path, "source", 3)
    slow = {agent: dataclasses.replace(agent, learning_rate=1e-12) for agent in (SMALL, WIDER)}
    begun, said = {}, []
    monkeypatch.setattr(LineDisplay, "message", lambda _, text, level="info": said.append(text))
    for name, init_from in (("both", "source@latest,b=source@b/latest"), ("first", "source@latest")):
        begun[name] = run(
            dataclasses.replace(small(total_env_steps=16), agent=slow[SMALL]),
            runs_dir=tmp_path,
            name=name,
            init_from=init_from.replace("source", "experiment/source"),
            graph=lambda graph: with_policy(graph, "b", (1,), {"seed": 9, "agent": slow[WIDER]}),
            display="log-only",
        )
    assert all(near(one, source) for one in begun.values()) and near(begun["both"], source, "b")
    assert not near(begun["first"], source, "b")
    assert [line for line in said if "new params" in line] == [
        "policy b: new params; with --init-from b=RUN@TAG it takes a run's"
    ]


def near(one: Result, other: Result, policy: str = "") -> bool:
    pairs = zip(leaves(one.params_of(policy)), leaves(other.params_of(policy)), strict=True)
    return all(np.allclose(a, b, atol=1e-6) for a, b in pairs)


def test_initial_params_are_given_per_policy_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def source(part: str, runs_dir: object) -> str:
        if not part.startswith("old"):
            raise ConfigError(f"there is no run {part}")
        return f"store of {part}"

    monkeypatch.setattr(resume, "params_source", source)
    points = init_points("old@best,b=old@b/best", "runs")
    assert {name: point.restore for name, point in points.items()} == {
        "": "store of old@best",
        "b": "store of old@b/best",
    }
    assert all(point.params_only for point in points.values())
    assert init_points("b=old@b/best", "runs").keys() == {"b"}
    with pytest.raises(ConfigError, match="there is no run new@best"):
        init_points("c=new@best", "runs")
    with pytest.raises(ConfigError, match="names the first policy twice"):
        init_points("old@best,old@latest", "runs")
    plan: Any = SimpleNamespace(policies={"policy": None, "b": None})
    with pytest.raises(ConfigError, match=r"names the policy 'c'; .* other policies are: b\."):
        begin_policies(plan, None, init_points("c=old@best", "runs"), resumed=False, show=print)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="leave out --init-from"):
        find_start_points(RunFolder(Path("some")), "old@best", "runs")


@pytest.fixture
def record(tmp_path: Path):
    workers = {"learner": "", "learner-b": "b", "actor-1": "b", "evaluator-b": "b", "director": ""}
    e = small(total_env_steps=10_000, stop_at_return=100.0)
    parts = [PolicyPart("policy", "learner", e, (0,), ""), PolicyPart("b", "learner-b", e, (1,), "b")]
    record = RunRecord(
        e,
        RunFolder.create(tmp_path, "two", "one", seed=0),
        make_display("log-only"),
        kinds={name: find_kind(name.split("-")[0]) for name in workers},
        policies=[Progress(part) for part in parts],
        policy_of={name: policy or "policy" for name, policy in workers.items()},
    )
    yield record
    record.close()


def test_counters_and_metrics_are_kept_by_policy(record: RunRecord) -> None:
    record.report(Report("learner", 0, {"learner/loss": 1.0}, {"updates": 4, "env_steps": 40}))
    record.report(Report("learner-b", 0, {"learner/loss": 3.0}, {"updates": 9, "env_steps": 90}))
    record._tick()
    line = record.hub.latest
    assert (line["updates"], line["env_steps"], line["learner/loss"]) == (4, 40, 1.0)
    assert (line["b/updates"], line["b/env_steps"], line["b/learner/loss"]) == (9, 90, 3.0)
    assert str(record.state().others[0]) == "b: steps 90 updates 9"


def test_counts_of_other_workers_are_not_those_of_the_training(record: RunRecord) -> None:
    """A user's worker may count its own updates under these names."""
    report = Report("actor-1", 0, {}, {"updates": 10**9, "env_steps": 10**9, "finished": True})
    record.report(Report("learner-b", 0, {}, {"updates": 9, "env_steps": 90}))
    record.report(report)
    progress = record.run.policies["b"]
    assert (progress.updates, progress.env_steps, progress.kept["updates"], progress.ended) == (9, 90, 9, "")


def test_scores_of_a_very_long_run_take_a_bounded_memory(record: RunRecord) -> None:
    progress = record.run.policies["policy"]
    for number in range(3 * MAX_PROGRESS):
        progress.evaluated({"env_steps": number, "return_mean": 9.0 if number == 101 else number / 1e6})
        assert progress.curve[-1][0] == number
    assert MAX_PROGRESS / 2 < len(progress.curve) <= MAX_PROGRESS
    assert progress.curve[0][0] == 0 and (101, 9.0) in progress.curve and progress.curve == sorted(progress.curve)


def test_state_of_a_director_is_kept_with_snapshots_of_the_first_policy_only(record: RunRecord, tmp_path: Path) -> None:
    """Versions of the other policy's learner are higher for ever, once it was restarted."""
    states = StateFile(tmp_path / "director", None, pytest.fail)
    events = [Event("learner", 0, "saving", "", {"version": make_version(0, 5)})]
    events += [Event("learner-b", 1, "saving", "", {"version": make_version(1, updates)}) for updates in range(8)]
    for worker, _, facts in (forward for event in events for forward in record.event(event)):
        assert worker == "director"
        states.write(facts["version"], {})
    assert [path.name for path in states.folder.iterdir()] == [f"state-{make_version(0, 5)}.json"]


def test_result_counts_no_updates_that_a_restart_rolled_back(record: RunRecord) -> None:
    for worker in ("learner", "learner-b"):
        record.report(Report(worker, 0, {}, {"updates": 9, "env_steps": 90}))
        record.report(Report(worker, 1, {}, {"updates": 4, "env_steps": 40}))  # it began at the last snapshot
    record.report(Report("actor-1", 0, {}, {"env_steps": 123}))
    assert record.run.last_updates == {"policy": 4, "b": 4}  # of the newest learners
    assert (record.run.updates, record.run.env_steps) == (9, 90)  # lines of metrics do not go back
    result = record.result()
    assert (result.updates, result.env_steps) == (4, 40)
    assert (result.others["b"]["updates"], result.others["b"]["env_steps"]) == (4, 40)


def finished(worker: str) -> Event:
    return Event(worker, 0, "finished", "", {"updates": 300, "env_steps": 9_600})


def evaluated(worker: str, score: float) -> Event:
    facts = {"updates": 3, "env_steps": 48, "return_mean": score, "metrics": {"evaluator/return_mean": score}}
    return Event(worker, 0, "evaluated", "", facts)


def confirmed(worker: str, score: float, updates: int = 3) -> Event:
    return Event(worker, 0, "confirmed", "", {"updates": updates, "return_mean": score, "episodes": 4})


def test_a_run_ends_when_the_training_of_every_policy_has_ended(
    record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    record.event(finished("learner"))
    assert record.run.reason is None
    record.event(evaluated("evaluator-b", 99.0))
    assert record.run.reason is None
    record.event(evaluated("evaluator-b", 110.0))
    assert record.run.reason is None  # it has to be confirmed
    record.event(confirmed("evaluator-b", 99.0))
    assert record.run.reason is None  # a lucky score
    record.event(confirmed("evaluator-b", 101.0, updates=0))
    assert record.run.reason is None  # of its initial params
    record.event(evaluated("evaluator-b", 120.0))
    record.event(confirmed("evaluator-b", 101.0))
    assert record.run.reason == "total_env_steps"  # of the first; b ended by its return
    said: list[str] = []
    monkeypatch.setattr(record.display, "message", lambda text, level="info": said.append(text))
    record.event(confirmed("evaluator-b", 102.0))  # one in transit
    assert said == []
    record.event(evaluated("evaluator-b", 80.0))
    result = record.result()
    assert result.others["b"]["ended"] == "stop_at_return"
    assert result.others["b"]["evaluation"]["return_mean"] == 120.0 and result.evaluation == {}
    columns = result.metrics
    assert np.nanmax(columns["b/evaluator/return_mean"]) == 120.0 and "evaluator/return_mean" not in columns


def test_a_run_ends_by_the_reports_of_learners_that_have_finished(record: RunRecord) -> None:
    """Their events `finished` were lost."""
    facts = {"updates": 300, "env_steps": 9_600}
    record.report(Report("learner", 0, {}, facts | {"finished": True}))
    record.report(Report("learner-b", 0, {}, facts | {"finished": False}))
    assert record.run.reason is None
    record.report(Report("learner-b", 0, {}, facts | {"finished": True}))
    assert record.run.reason == "total_env_steps"


def test_a_final_score_counts_once_also_if_its_event_was_lost(record: RunRecord) -> None:
    score = {"return_mean": 7.0, "return_ci95": 1.0, "episodes": 4}
    record.report(Report("evaluator-b", 0, {}, {"evaluated finally": score}))
    assert record.run.finals == {"evaluator-b"} and record.result().others["b"]["final"] == score
    record.report(Report("evaluator-b", 0, {}, {"evaluated finally": score | {"return_mean": 8.0}}))
    assert record.result().others["b"]["final"] == score


def test_the_display_shows_game_frames_beside_env_steps(record: RunRecord) -> None:
    assert record.state().action_repeat == 1
    record.experiment = dataclasses.replace(record.experiment, env=EnvConfig("ALE/Pong-v5"))
    assert record.state().action_repeat == 4


def test_limits_of_the_run_end_every_policy(record: RunRecord) -> None:
    record.event(finished("learner-b"))
    record.end("max_minutes")
    outcome = record.result()
    assert outcome.ended == "max_minutes" and outcome.others["b"]["ended"] == "total_env_steps"
