"""Runs with replay: on the device and through replay workers; repeated, resumed, and stopped by a bad update."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from jsrl.agents.dqn import DQNConfig
from jsrl.agents.finite import PRIORITIES, non_finite_metrics
from jsrl.agents.ppo import PPOConfig
from jsrl.agents.r2d2 import R2D2Config
from jsrl.agents.sac import SACConfig
from jsrl.cli.plan import describe
from jsrl.cli.replay_update import replay_update
from jsrl.control.run import run
from jsrl.control.start_points import _check_totals
from jsrl.envs.config import EnvConfig
from jsrl.errors import ConfigError, NonFiniteUpdate
from jsrl.experiment import AgentReference, EvaluatorConfig, Experiment, LearnerConfig, PolicyConfig, ReplayConfig
from jsrl.graph.graph import Graph, node
from jsrl.graph.plan import make_plan
from jsrl.graph.policies import with_policy
from jsrl.networks.model import NetworkConfig
from jsrl.replay.device.ring import init_ring, ring_shape
from jsrl.replay.host.replay import HostReplay
from jsrl.services.runs.runs import RunFolder
from jsrl.services.snapshots.store import SnapshotStore
from jsrl.transport.stream import Stream
from jsrl.types import leaves
from jsrl.workers.jobs import StartPoint
from jsrl.workers.learner.build_updater import checked, missed_ratio, unseen_rows
from jsrl.workers.learner.updaters import reported
from jsrl.workers.memory import kept_rows
from jsrl.workers.play import Player, player_settings
from tests.marks import nightly
from tests.replay.learning import toy_agent
from tests.replay.streams import World

REPLAY = ReplayConfig(capacity=2_000, batch_size=16, min_size=200, prioritised=True, updates_per_env_step=0.125)


def experiment(kind: str, *, poison: float = 1e9, **changes) -> Experiment:
    replay = dataclasses.replace(REPLAY, kind=kind, **changes.pop("replay", {}))
    values = {
        "agent": AgentReference("tests.replay.learning:acting_toy", {"poison": poison}),
        "env": EnvConfig("CartPole-v1"),
        "num_envs": 8,
        "rollout_length": 4,
        "total_env_steps": 1_600,
        "placement": "serial",
        "replay": replay,
        "evaluator": EvaluatorConfig(enabled=False),
    }
    return Experiment(**(values | changes))


def test_the_plan_shows_replay_on_the_device(tmp_path):
    e = experiment("device", num_envs=16, placement="served")
    assert e.updates_per_call == 8  # 0.125 x 16 x 4
    assert (e.updates_per_batch, e.last_number) == (8, 25 * 8)
    assert e.total_updates == 22 * 8  # 200 env steps are there with the fourth batch
    text = describe(make_plan(e, str(tmp_path), tmp_path), [])
    assert "replay (device): 2,000 env steps of 34 B" in text
    assert "8 updates per call; 0.125 updates per env step, from 200 env steps on" in text
    assert [job.kind for job in make_plan(e, str(tmp_path), tmp_path).jobs] == ["learner", "inference", "actor"]


def test_whole_updates_that_miss_the_ratio_are_reported(tmp_path):
    e = experiment("device", num_envs=2, rollout_length=1)  # an update per 8 env steps is asked for, of batches of 2
    assert e.updates_per_call == 1
    assert "1 update per call; 0.5 updates per env step" in describe(make_plan(e, str(tmp_path), tmp_path), [])
    assert "is 0.125, an update per 8 env steps, but batches have 2 and get 1: 0.5 per env step" in missed_ratio(e)
    kept = (
        experiment("device"),
        experiment("host"),
        dataclasses.replace(e, num_envs=7),
        dataclasses.replace(e, replay=None),
    )
    assert [missed_ratio(each) for each in kept] == [""] * 4


@pytest.mark.parametrize(
    ("kind", "changes", "total", "rest"),
    [
        ("device", {}, (50 - 6) * 4, (25 - 6) * 4),  # the seventh batch of 32 env steps completes the 200
        ("device", {"save": True}, (50 - 6) * 4, 25 * 4),
        ("host", {}, 1_400 // 8, 600 // 8),
        ("host", {"save": True}, 1_400 // 8, 800 // 8),
        ("host", {"updates_per_env_step": None}, 44, 19),  # no ratio: as many as batches of the actors
    ],
)
def test_schedules_count_the_updates_that_will_be_made(kind, changes, total, rest, tmp_path):
    """Replay fills first; after a resume it fills again, unless it saves its rows."""
    job = make_plan(experiment(kind, replay=changes), str(tmp_path), tmp_path).job("learner")
    assert job.experiment.total_updates == job.total_updates == total
    half = StartPoint(1, 100, "folder@100", env_steps=800, unmade=24)
    assert dataclasses.replace(job, start_point=half).total_updates == 76 + rest


@pytest.mark.slow
def test_rows_that_no_window_of_a_recurrent_agent_holds_are_reported(tmp_path):
    small = {"agent": R2D2Config(burn_in=4, network=NetworkConfig(hidden=(4,), core="gru", core_size=4))}
    for length, window, words in (
        (32, 24, "so the other 8 rows are never learned from; use --rollout-length 24"),
        (24, 24, ""),
    ):
        e = experiment("device", rollout_length=length, replay={"window": window}, **small)
        assert words in (said := unseen_rows(make_plan(e, str(tmp_path), tmp_path).job("learner"))) and bool(
            said
        ) == bool(words)
    plain = experiment("device", agent=DQNConfig(), rollout_length=32)
    assert unseen_rows(make_plan(plain, str(tmp_path), tmp_path).job("learner")) == ""


@pytest.mark.parametrize("prioritised", [True, False])
@pytest.mark.parametrize("kind", ["device", "host"])
def test_the_plan_knows_the_memory_of_a_replay_before_the_start(kind, prioritised, tmp_path):
    replay = {"capacity": 40_000, "prioritised": prioritised}
    plan = make_plan(experiment(kind, replay=replay), str(tmp_path), tmp_path)
    job = plan.job("learner" if kind == "device" else "replay-0")
    spec = job.schemas.trajectory
    if kind == "device":
        ring = jax.eval_shape(functools.partial(init_ring, ring_shape(ReplayConfig(**replay), spec), spec))
        allocated = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(ring))
    else:
        rows = HostReplay(ReplayConfig(**replay), spec).rows
        allocated = sum(leaf.nbytes for leaf in (*leaves(rows.rows), rows.fresh, rows.after_gap)) + 9 * 40_000
    assert kept_rows(job) == pytest.approx(allocated, rel=0.03)
    saved = dataclasses.replace(job, experiment=experiment(kind, replay=replay | {"save": True}))
    assert kept_rows(saved) == 2 * kept_rows(job)  # a snapshot
    if kind == "device" and not prioritised:
        split = dataclasses.replace(job.experiment, learner=LearnerConfig(split="actor-critic"))
        assert kept_rows(dataclasses.replace(job, experiment=split)) == 2 * kept_rows(job)  # a buffer on each device


@pytest.mark.parametrize("kind", ["device", "host"])
def test_both_kinds_of_replay_check_priorities_alike(kind):
    e, toy = experiment(kind), toy_agent()
    windows, state = World(4, 1).trajectory()._replace(sampling=np.ones(4, np.float32)), toy.init(jax.random.key(0))

    def update(*given, **axis):
        new, output = toy.update(*given, **axis)
        return new, output._replace(priorities=output.priorities * np.nan)

    _, output = checked(toy._replace(update=update), e).update(state, windows, jax.random.key(0))
    assert non_finite_metrics(output.metrics) == [PRIORITIES]
    assert PRIORITIES not in reported({name: float(value) for name, value in output.metrics.items()})[0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["device", "host"])
def test_updates_are_those_that_were_made_everywhere(kind, tmp_path):
    """In result.json, metrics, scores, snapshots and after a resume, which fills the buffer again."""
    e = experiment(
        kind,
        agent=DQNConfig(network=NetworkConfig(hidden=(8,))),
        total_env_steps=640,
        replay={"prioritised": False},
        evaluator=EvaluatorConfig(episodes=1, num_envs=1, final_episodes=1, period_env_steps=320),
    )
    for total in (640, 1_280):
        e = dataclasses.replace(e, total_env_steps=total)
        result = run(e, runs_dir=tmp_path, name="a", resume="a" if total > 640 else None, display="quiet")
        store = SnapshotStore(result.folder / "snapshots" / "state")
        made = int(store.load("final").tree["state"]["updates"])
        lines = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
        assert store.meta("final")["updates"] == result.updates == lines[-1]["updates"] == made
        assert json.loads((result.folder / "result.json").read_text())["updates"] == made
        assert result.final["version_updates"] == made
        ages = {
            name.rpartition("_")[0]
            for line in lines
            for name in line
            if name.startswith(("learner/policy", "learner/window"))
        }
        assert ages == {"learner/policy_lag" if kind == "device" else "learner/window_age"}
        scores = [line for line in lines if "evaluator/version_updates" in line]
        assert all(line["updates"] == line["evaluator/version_updates"] <= made for line in scores)
        if kind == "device":
            assert made == total // 640 * (20 - 6) * 4  # at a resume the next 6 batches fill again
        else:
            assert abs(made - total // 640 * 440 // 8) <= 8  # the limiter's tolerance


def test_replay_workers_may_ask_for_several_updates_per_env_step(tmp_path):
    """Their number is that of the whole run: schedules, evaluations and resumes count on it."""
    e = experiment("host", replay={"updates_per_env_step": 4.0})
    assert (e.total_updates, e.last_number, e.evaluation_period) == (4 * 1_400, 4 * 1_600, 4 * 40)
    job = SimpleNamespace(name="video-recorder", experiment=e, start_point=StartPoint(), in_process=True)
    shared = player_settings(job, 1, 60.0, 5)
    assert Player._env_steps(SimpleNamespace(_shared=shared), 6_400) == 1_600
    free = experiment("host", replay={"updates_per_env_step": None})
    for each, env_steps, refused in ((e, 1_600, False), (e, 1_601, True), (free, 1_600, False)):
        plan = make_plan(each, str(tmp_path), tmp_path)
        starts = {name: StartPoint(updates=10**6, env_steps=env_steps) for name in plan.policies}
        with pytest.raises(ConfigError, match="has trained 1,601 env steps") if refused else contextlib.nullcontext():
            _check_totals(plan, RunFolder(tmp_path), starts)


def test_the_plan_puts_replay_workers_between_actors_and_learner(tmp_path):
    e = experiment("host", placement="inline", num_actors=2, replay={"num_replays": 2})
    plan = make_plan(e, str(tmp_path), tmp_path)
    assert [job.name for job in plan.jobs] == ["learner", "replay-0", "replay-1", "actor-0", "actor-1"]
    assert all(job.experiment.agent is None for job in plan.jobs if job.kind == "replay")
    text = describe(plan, [])
    for words in ("actor -> replay", "replay -> learner", "learner -> replay      priorities", "replay (host)"):
        assert words in text


def test_the_plan_shows_the_replay_of_a_second_policy(tmp_path):
    def with_replay(graph: Graph) -> Graph:
        graph = with_policy(graph, "b", (1,), {"replay": dataclasses.replace(REPLAY, kind="host")})
        drawn = Stream("batches-b", "samples", "b", schema="batches", groups=(0,), blocks=4)
        back = Stream("priorities-b", "samples", "b", schema="priorities", groups=(0,), blocks=16, feedback=True)
        replay = node("replay-b-0", "replay", samples="samples-b", batches=drawn.name, priorities=back.name)
        return graph.add(replay, drawn, back).connect("learner-b", samples=drawn.name, priorities=back.name)

    e = dataclasses.replace(experiment("device", placement="inline", num_groups=2), replay=None)
    text = describe(make_plan(e, str(tmp_path), tmp_path, edit=with_replay), [])
    for words in (
        "replay-b -> learner-b  batches-b  shared-memory: batches of about",
        "replay (host): 2,000 env steps",
    ):
        assert words in text


@pytest.mark.parametrize("kind", ["device", "host"])
def test_core_used_only_for_acting_is_not_stored_and_windows_start_anywhere(kind, tmp_path):
    agent = DQNConfig(exploration="ladder")
    spec = make_plan(experiment(kind, agent=agent), str(tmp_path), tmp_path).schemas
    assert leaves(spec.act.core) and not leaves(spec.trajectory.core)
    assert ring_shape(ReplayConfig(capacity=2_000, prioritised=True), spec.trajectory).stride == 1


@pytest.mark.slow
def test_three_algorithms_of_one_game_each_train_on_their_own_data(tmp_path):
    network, small = NetworkConfig(hidden=(8,)), {"capacity": 500, "batch_size": 8, "min_size": 80}
    policies = {
        "dqn": PolicyConfig(
            DQNConfig(network=network), "agent_0", replay=ReplayConfig(updates_per_env_step=0.25, **small)
        ),
        "sac": PolicyConfig(
            SACConfig(network=network), "agent_1", replay=ReplayConfig(updates_per_env_step=0.125, **small)
        ),
        "ppo": PolicyConfig(PPOConfig(network=network, num_epochs=1, num_minibatches=1), "agent_2"),
    }
    e = Experiment(
        env=EnvConfig("particle:simple_spread_v3"),
        policies=policies,
        num_envs=4,
        rollout_length=8,
        total_env_steps=10 * 32,
        placement="serial",
        evaluator=EvaluatorConfig(enabled=False),
    )
    result = run(e, runs_dir=tmp_path, display="quiet")
    rows = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    last = {name: value for row in rows for name, value in row.items()}
    assert (last["replay/size"], last["sac/replay/size"]) == (320.0, 320.0) and "ppo/replay/size" not in last
    assert last["ppo/learner/policy_lag_max"] == 0.0
    updates = {"": result.updates} | {name: other["updates"] for name, other in result.others.items()}
    assert updates == {"": 8 * 8, "sac": 8 * 4, "ppo": 10}  # the third batch completes the 80 rows
    for policy, count in updates.items():
        store = SnapshotStore(result.folder / "snapshots" / policy / "state")
        assert (policy, int(store.load("final").tree["state"]["updates"])) == (policy, count)
    for ledger in (result.ledger, *result.legs.values()):
        assert ledger["produced"] == ledger["consumed"] == 10


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["serial", nightly("served")])
def test_dqn_on_the_ladder_runs(placement, tmp_path):
    agent = DQNConfig(exploration="ladder", network=NetworkConfig(hidden=(8,)))
    result = run(experiment("device", agent=agent, placement=placement), display="quiet", runs_dir=str(tmp_path))
    assert result.ended == "total_env_steps"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"replay": {"capacity": 100}}, "replay.min_size is 200; use at most replay.capacity, 100"),
        ({"replay": {"updates_per_env_step": 0.0}}, "updates_per_env_step is 0.0; it must be above 0"),
        ({"replay": {"updates_per_call": 3}}, "updates_per_env_step=0.125 asks for 4 updates per batch of 32"),
        ({"replay": {"num_replays": 2}}, "num_replays=2 needs replay.kind=host"),
        ({"replay": {"kind": "host", "num_replays": 2}}, "only 1 actor"),
        ({"batch_envs": 4, "max_policy_lag": None}, "keeps a column for each environment"),
    ],
)
def test_invalid_options_are_refused_with_valid_ones(changes, message):
    kind = changes.get("replay", {}).pop("kind", "device") if "replay" in changes else "device"
    with pytest.raises(ConfigError, match=message):
        experiment(kind, **changes)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["device", "host"])
def test_serial_runs_are_bit_identical(kind, tmp_path):
    results = [run(experiment(kind), runs_dir=tmp_path, name=name, display="quiet") for name in ("one", "two")]
    assert results[0].env_steps == results[1].env_steps >= 1_600
    assert results[0].updates == results[1].updates > 50
    jax.tree.map(np.testing.assert_array_equal, results[0].params, results[1].params)
    assert float(results[0].params["weights"]["bias"] if isinstance(results[0].params, dict) else 1) != 0
    drawn = results[0].metrics.get("replay/drawn")
    if kind == "host":
        assert abs(drawn[-1] - 2.0 * (results[0].metrics["replay/inserted"][-1] - 200)) <= 100


@pytest.mark.slow
@pytest.mark.parametrize("save", [False, True])
@pytest.mark.parametrize("kind", ["device", "host"])
def test_run_continues_from_its_snapshot(kind, save, tmp_path):
    e = experiment(kind, replay={"save": save})
    first = run(e, runs_dir=tmp_path, name="a", display="quiet")
    again = run(dataclasses.replace(e, total_env_steps=3_200), runs_dir=tmp_path, resume="a", display="quiet")
    assert again.updates > first.updates
    assert again.env_steps >= 3_200
    held = again.metrics["replay/size"]
    assert np.nanmax(held) >= (1_900 if save else 1_500)


@pytest.mark.nightly
def test_resumed_run_with_free_replay_counts_the_inserted_env_steps(tmp_path):
    """It makes many more updates than the env steps of its batches suggest."""
    e = experiment("host", replay={"updates_per_env_step": None, "min_size": 32}, total_env_steps=400)
    first = run(e, runs_dir=tmp_path, name="a", display="quiet")
    assert 400 <= first.env_steps < 500 and first.updates > 2 * e.total_updates
    again = run(dataclasses.replace(e, total_env_steps=600), runs_dir=tmp_path, resume="a", display="quiet")
    assert 600 <= again.env_steps < 700 and again.updates > first.updates
    assert again.metrics["env_steps"].max() < 700
    with pytest.raises(ConfigError, match=f"has trained {again.env_steps:,} env steps, more than"):
        run(e, runs_dir=tmp_path, resume="a", display="quiet")


@pytest.mark.slow
def test_processes_with_two_replay_workers_and_threads(tmp_path):
    e = experiment(
        "host", placement="inline", num_actors=2, total_env_steps=6_000, max_policy_lag=None,
        replay={"num_replays": 2, "threads": 2, "updates_per_call": 2},
    )  # fmt: skip
    result = run(e, runs_dir=tmp_path, name="a", display="quiet")
    assert result.ended == "total_env_steps"
    last = {name: values[-1] for name, values in result.metrics.items()}
    assert last["replay/trajectories_received"] >= 6_000 / 16
    assert last["replay/priorities_late"] < 0.2 * last["replay/drawn"]
    assert result.updates % 2 == 0
    counters = [json.loads((result.folder / "replay" / str(i) / "counters.json").read_text()) for i in range(2)]
    limiters = [c["limiter"] for c in counters]
    assert sum(limiter["inserted"] for limiter in limiters) >= 6_000
    for limiter in limiters:  # one whose actor starts late may be filling still
        assert abs(limiter["drawn"] - 2 * max(0, limiter["inserted"] - 100)) <= 150


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["device", "host"])
def test_bad_update_ends_the_run_and_can_be_replayed(kind, tmp_path):
    """CartPole's reward is 1, so a poison of 0.5 makes the first update fail."""
    with pytest.raises(NonFiniteUpdate, match="made loss = nan"):
        run(experiment(kind, poison=0.5), runs_dir=tmp_path, name="a", display="quiet")
    again = replay_update("a", str(tmp_path))
    assert np.isnan(again.metrics["loss"]) and "learning.py:" in again.first_nan()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(again.state))
    assert again.batch.is_first.shape == (1, 2, 16)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["device", "host"])
def test_a_bad_gradient_ends_the_run_before_it_is_saved(kind, tmp_path):
    e = experiment(kind)
    e = dataclasses.replace(e, agent=AgentReference("tests.replay.learning:acting_toy", {"poison_gradient": 0.5}))
    with pytest.raises(NonFiniteUpdate, match="made a state with NaN or infinity in it"):
        run(e, runs_dir=tmp_path, name="a", display="quiet")
    again = replay_update("a", str(tmp_path))
    assert np.isfinite(again.metrics["loss"])
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(again.state))
    assert np.isnan(again.new_state.params.weights["kernel"]).all()
    saved = SnapshotStore(tmp_path / "experiment" / "a" / "snapshots" / "state").load_snapshot("latest")
    assert np.isfinite(saved.tree["state"]["params"]["weights"]["kernel"]).all()
