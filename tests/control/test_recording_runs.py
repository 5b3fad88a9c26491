"""Runs with recordings: a run records its training data, a trained policy is recorded, and cloning learns it."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import jax
import numpy as np
import pytest

from jsrl.agents.bc import BCConfig
from jsrl.agents.ppo import PPOConfig
from jsrl.cli.plan import describe
from jsrl.cli.record import record_policy
from jsrl.control.run import run
from jsrl.envs.config import EnvConfig
from jsrl.envs.make import make_spec
from jsrl.envs.seats import view_of
from jsrl.errors import ConfigError, RecordingError, SpecMismatch
from jsrl.experiment import EvaluatorConfig, Experiment, PolicyConfig, ReplayConfig
from jsrl.experiment.building import build_agent
from jsrl.experiment.configs.chase import config as chase
from jsrl.experiment.dividing import alike_seats
from jsrl.graph.addresses import learner_leg
from jsrl.graph.placements import make_graph
from jsrl.graph.plan import make_plan
from jsrl.graph.policies import policies_of
from jsrl.graph.recording_plan import facts_of, other_environment
from jsrl.networks.model import NetworkConfig
from jsrl.services.recordings.recordings import SEQUENCE, open_recording, read_chunk
from jsrl.services.runs.runs import RunFolder
from jsrl.tools.policy import Policy, load_policy
from jsrl.tools.write_recording import RecordedEpisode, write_recording
from jsrl.types import ArraySpec, Discrete, EnvSpec, MultiDiscrete

SMALL = NetworkConfig(hidden=(16,))
ONE_STEP = RecordedEpisode(np.zeros((2, 4)), np.ones(1), np.ones(1))


def recorded_run(folder: Path, **changes) -> Experiment:
    values = {
        "agent": PPOConfig(network=SMALL, num_minibatches=1, num_epochs=1),
        "env": EnvConfig("CartPole-v1"),
        "num_envs": 4,
        "rollout_length": 16,
        "total_env_steps": 640,
        "placement": "serial",
        "record": str(folder),
        "evaluator": EvaluatorConfig(enabled=False),
    }
    return Experiment(**(values | changes))


def cloning(folder: Path, **changes) -> Experiment:
    values = {
        "agent": BCConfig(network=SMALL, learning_rate=1e-2, normalize_observations=True),
        "env": EnvConfig("CartPole-v1"),
        "num_envs": 32,
        "rollout_length": 1,
        "max_policy_lag": None,
        "total_env_steps": 40 * 32,
        "placement": "serial",
        "recording": str(folder),
        "evaluator": EvaluatorConfig(enabled=False),
    }
    return Experiment(**(values | changes))


def quietly(experiment: Experiment, tmp_path: Path, **options):
    return run(experiment, runs_dir=tmp_path / "runs", display="quiet", **options)


def same(one, two) -> None:
    jax.tree.map(np.testing.assert_array_equal, one, two)


@pytest.fixture(scope="module")
def recording(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    env = EnvConfig("CartPole-v1", reward_scale=0.1)
    result = quietly(recorded_run(folder / "rows", env=env), folder)
    assert result.ledger["consumed"] == 10
    return folder / "rows"


@pytest.mark.slow
def test_a_run_records_every_trajectory_that_it_was_trained_on(recording):
    found = open_recording(recording)
    assert found.env_steps == 640
    (source,) = found.manifest.sources
    assert source.name.startswith("experiment/") and (source.seed, source.actions) == (0, "learning")
    for chunk in found.chunks:
        place, first, action, reward = read_chunk(found, chunk, ["observation", "is_first", "action", "reward"])
        assert set(np.unique(reward[:, :-1][~first[:, 1:]])) == {1.0}  # raw
        assert place.shape == (chunk.count, 17, 4, 4)
        np.testing.assert_array_equal(place[:-1, -1], place[1:, 0])  # row T is row 0 of the next one
        assert first[0, 0].all() and set(np.unique(action)) == {0, 1}


@pytest.mark.slow
def test_resumed_cloning_equals_uninterrupted_cloning(recording, tmp_path):
    whole = quietly(cloning(recording), tmp_path, name="whole")
    assert (whole.updates, whole.env_steps, whole.ledger["consumed"]) == (40, 1280, 40)
    half = quietly(cloning(recording, total_env_steps=20 * 32), tmp_path, name="half")
    assert half.updates == 20
    later = quietly(cloning(recording), tmp_path, resume="experiment/half")
    assert later.updates == 40
    same(whole.params, later.params)
    losses = whole.metrics["learner/loss"]
    assert np.isfinite(losses[~np.isnan(losses)]).all()


@pytest.mark.slow
def test_cloning_in_processes_equals_serial(recording, tmp_path):
    one = quietly(cloning(recording), tmp_path, name="one")
    two = quietly(cloning(recording, placement="served"), tmp_path, name="two")
    assert two.updates == 40
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), one.params, two.params)


@pytest.mark.nightly
def test_actors_in_processes_record(tmp_path):
    e = recorded_run(tmp_path / "rows", placement="inline", num_actors=2, num_groups=2, max_policy_lag=1)
    result = quietly(e, tmp_path)
    found = open_recording(tmp_path / "rows")
    assert {chunk.path.name.split("-")[1] for chunk in found.chunks} == {"0", "1"}
    # actors commit a little more than the learner takes; each committed trajectory is in a file
    assert sum(chunk.count for chunk in found.chunks) >= result.ledger["consumed"] >= 20
    log = (result.folder / "logs" / "controller.log").read_text()
    assert "recorded" in log and "0 not recorded" in log


@pytest.mark.nightly  # checks how well it learns
def test_a_recorded_policy_is_cloned(recording, tmp_path):
    """Recorded greedily, an expert's rows hold one action per observation: cloning ends up agreeing with nearly all."""
    e = recorded_run(tmp_path / "unused", total_env_steps=30_000, num_envs=16, rollout_length=64)
    e = dataclasses.replace(e, record=None, agent=PPOConfig(network=SMALL, learning_rate=2e-3, num_epochs=10))
    quietly(e, tmp_path, name="expert")
    told = record_policy(
        "experiment/expert", tmp_path / "rows", tag="latest", episodes=20, num_envs=4, rollout_length=32,
        runs_dir=str(tmp_path / "runs"),
    )  # fmt: skip
    assert told.episodes >= 20 and told.return_mean > 150
    assert open_recording(tmp_path / "rows").env_steps == told.env_steps
    clone = cloning(
        tmp_path / "rows",
        total_env_steps=600 * 64,
        num_envs=64,
        evaluator=EvaluatorConfig(final_episodes=20, episodes=4),
    )
    result = quietly(clone, tmp_path, name="clone")
    assert result.final["return_mean"] > 0.6 * told.return_mean
    losses = result.metrics["learner/loss"]
    assert losses[~np.isnan(losses)][-1] < 0.35  # ln 2 = 0.69 is chance level


@pytest.mark.slow
@pytest.mark.parametrize(("first", "shape"), [("adversary", (3, 16)), ("agent", (1, 14))])
def test_of_several_policies_only_the_first_ones_rows_are_recorded(tmp_path, monkeypatch, first, shape):
    e = Experiment(PPOConfig(network=SMALL), EnvConfig("particle:simple_tag_v3"), placement="serial")
    game = make_spec(e.env)
    groups = sorted(alike_seats(game.seats).items(), key=lambda group: group[0] != first)

    def untrained(*args, **kwargs) -> list[Policy]:
        found = []
        for name, seats in groups:
            spec, places = game.view(list(seats)), tuple(map(game.names.index, seats))
            params = build_agent(e.agent, spec).init(jax.random.key(0)).params
            found.append(Policy(e, spec, params, 0, {}, view_of(name, places), seats))
        return found

    monkeypatch.setattr("jsrl.cli.record.load_players", untrained)
    monkeypatch.setattr("jsrl.cli.record.RunFolder.open", lambda run, runs_dir: RunFolder(Path("x") / run))
    told = record_policy(
        "run", tmp_path / "rows", episodes=2, num_envs=2, rollout_length=5
    )  # 4 minibatches do not divide 10
    recording = open_recording(tmp_path / "rows")
    assert told.env_steps == recording.env_steps
    earned = 0.0
    for chunk in recording.chunks:
        observation, reward = read_chunk(recording, chunk, ["observation", "reward"])
        assert observation.shape[-2:] == shape
        earned += reward[:, :-1].sum()
        with np.load(chunk.path) as file:
            assert file[SEQUENCE].tolist() == list(range(chunk.count))
    assert told.return_mean == pytest.approx(earned / (told.episodes * shape[0]), rel=1e-4)
    with pytest.raises(RecordingError, match=r"x/run@best with seed 1"):
        record_policy("run", tmp_path / "rows", num_envs=2, rollout_length=5, seed=1)
    again = record_policy("run", tmp_path / "rows", episodes=2, num_envs=2, rollout_length=5)
    assert again.seed == 2
    found = open_recording(tmp_path / "rows")
    first, last = (read_chunk(found, found.chunks[place], ["observation"])[0] for place in (0, -1))
    assert not np.array_equal(first[0, 0], last[0, 0])


def test_recordings_count_actions_from_0_whatever_their_space():
    first, other = (EnvSpec(ArraySpec((3,), "float32"), Discrete(2, start=start)) for start in (0, 5))
    assert facts_of(first) == facts_of(other)
    assert facts_of(first)["fields"]["action"]["fields"] == {"num_actions": 2}
    assert facts_of(EnvSpec(first.observation, MultiDiscrete((2, 3), (1, 1)))) == facts_of(
        EnvSpec(first.observation, MultiDiscrete((2, 3)))
    )


@pytest.mark.slow
def test_the_plan_shows_recordings_and_has_no_actors(recording, tmp_path):
    plan = make_plan(cloning(recording, placement="served", evaluator=EvaluatorConfig()), str(tmp_path), tmp_path)
    assert [job.kind for job in plan.jobs] == ["learner", "evaluator"]
    assert "640 recorded env steps" in describe(plan, [])
    plan = make_plan(recorded_run(tmp_path / "rows"), str(tmp_path), tmp_path)
    assert "recording  a copy of each trajectory" in describe(plan, [])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"recording": None}, ConfigError, "give --recording DIR"),
        ({"env": EnvConfig("Acrobot-v1")}, SpecMismatch, "observation: the recording .* has ArraySpec"),
        ({"rollout_length": 17}, RecordingError, "trajectories of 16 rows, but rollout_length is 17"),
    ],
)
def test_mismatched_recordings_are_refused_before_the_start(recording, tmp_path, changes, error, message):
    e = cloning(recording, **changes)
    with pytest.raises(error, match=message):
        describe(make_plan(e, str(tmp_path), tmp_path), [])
    with pytest.raises(error, match=message):
        quietly(e, tmp_path)


@pytest.mark.slow
def test_recordings_with_another_action_transform_are_refused(tmp_path):
    squashed = EnvConfig("Pendulum-v1", action_transform="squash")
    quietly(recorded_run(tmp_path / "rows", env=squashed, total_env_steps=64), tmp_path)
    with pytest.raises(SpecMismatch, match=r"action: the recording .*squash.*rescale"):
        quietly(cloning(tmp_path / "rows", env=EnvConfig("Pendulum-v1")), tmp_path)


def test_of_several_policies_each_learns_from_its_own_recording(tmp_path):
    policies = {name: PolicyConfig(BCConfig(), seats=name) for name in ("chaser", "runner")}
    e = cloning(tmp_path, agent=None, env=chase().env, policies=policies)
    graph = make_graph(e)
    parts = policies_of(graph, e)
    assert [part.experiment.recording for part in parts.values()] == [str(tmp_path / name) for name in policies]
    assert [learner_leg(graph, part.learner) for part in parts.values()] == ["samples", "samples-runner"]
    for name in policies:
        (tmp_path / name).mkdir()
        (tmp_path / name / "recording.json").write_text("{}")
    with pytest.raises(
        RecordingError, match=r"holds several recordings: chaser, runner; name one, such as .*/chaser\."
    ):
        open_recording(tmp_path)


@pytest.mark.nightly
def test_two_policies_are_cloned_from_their_recordings_and_resumed(tmp_path):
    quietly(dataclasses.replace(chase(), placement="serial", total_env_steps=4096), tmp_path, name="expert")
    runs_dir = str(tmp_path / "runs")
    for name in ("chaser", "runner"):
        record_policy("chase/expert", tmp_path / "rows" / name, tag=f"{name}/latest", episodes=2, runs_dir=runs_dir)
    policies = {name: PolicyConfig(BCConfig(network=SMALL), seats=name) for name in ("chaser", "runner")}
    e = cloning(tmp_path / "rows", agent=None, env=chase().env, policies=policies)
    whole = quietly(e, tmp_path, name="whole")
    half = quietly(dataclasses.replace(e, total_env_steps=20 * 32), tmp_path, name="half")
    assert half.updates == 20
    both = quietly(e, tmp_path, resume="experiment/half")
    for result in (whole, both):
        assert [counts["consumed"] for counts in (result.ledger, result.legs["samples-runner"])] == [40, 40]
    for policy in ("chaser/latest", "runner/latest"):
        same(*(load_policy(str(result.folder), policy).params for result in (whole, both)))


def test_a_recording_of_another_environment_with_equal_spaces_is_said(tmp_path):
    write_recording(tmp_path, EnvConfig("CartPole-v1", max_episode_steps=9), [ONE_STEP], source="me")
    for env, told in (
        (
            EnvConfig("CartPole-v1"),
            r"env.max_episode_steps 9 \(here None\): the policy learns from another environment",
        ),
        (EnvConfig("CartPole-v1", max_episode_steps=9, reward_scale=0.1), "^$"),
    ):
        assert re.search(told, other_environment(open_recording(tmp_path), cloning(tmp_path, env=env)))


@pytest.mark.parametrize("other", [{"replay": ReplayConfig()}, {"record": "elsewhere"}])
def test_recording_refuses_options_that_need_actors(other):
    with pytest.raises(ConfigError, match="without actors"):
        cloning(Path("x"), **other)
