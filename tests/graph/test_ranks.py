"""Learners of several ranks in a graph: which streams each rank reads, refusals, and the jobs of each rank."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from jsrl.agents.bc import BCConfig
from jsrl.agents.dqn import DQNConfig
from jsrl.cli.plan import describe
from jsrl.envs.config import EnvConfig
from jsrl.errors import ConfigError
from jsrl.experiment import Experiment, LearnerConfig, ReplayConfig
from jsrl.experiment.automatic import Machine, decided_for
from jsrl.graph.check import check
from jsrl.graph.devices import process_environment
from jsrl.graph.drawing import draw
from jsrl.graph.graph import Graph, ranks_of
from jsrl.graph.needs import needs_of
from jsrl.graph.placements import make_graph, with_ranks
from jsrl.graph.plan import make_plan
from jsrl.graph.policies import policies_of, policy_of, with_policy
from tests.tiny_agent import STILL


def experiment(ranks: int = 2, **values) -> Experiment:
    given = {"num_envs": 16, "num_actors": 4, "num_groups": 8, "rollout_length": 8, "placement": "served"}
    given["learner"] = LearnerConfig(num_ranks=ranks, num_devices=2)
    return Experiment(**({"agent": STILL, "env": EnvConfig("CartPole-v1")} | given | values))


def test_each_rank_reads_the_groups_of_its_own_actors():
    graph = make_graph(experiment())
    check(graph)
    learner, rank = graph.worker("learner"), graph.worker("rank-1")
    assert learner.end("samples").groups == (0, 1, 2, 3) and rank.end("samples").groups == (4, 5, 6, 7)
    assert ranks_of(graph, rank) == ranks_of(graph, learner) == [learner, rank]
    assert ranks_of(graph, graph.worker("actor-0")) == [graph.worker("actor-0")]
    assert "ranks      rank-1 <-> learner" in str(graph) and "ranks" in draw(graph)
    assert Graph.from_json(json.loads(json.dumps(graph.to_json()))) == graph
    (part,) = policies_of(graph, experiment()).values()
    assert part.learner == "learner" and part.groups == tuple(range(8)) and policy_of(graph, rank) == part.name


def test_rank_jobs_have_their_own_share_and_devices(tmp_path: Path):
    plan = make_plan(experiment(), str(tmp_path), tmp_path)
    learner, rank = plan.job("learner"), plan.job("rank-1")
    assert learner.end("ranks").address == f"ipc://{tmp_path}/ranks.learner"
    assert [peer.worker for peer in learner.end("ranks").peers] == ["rank-1"]
    assert [peer.worker for peer in rank.end("ranks").peers] == ["learner"]
    assert [peer.worker for peer in rank.end("samples").peers] == ["actor-2", "actor-3"]
    assert (learner.end("samples").leg, rank.end("samples").leg) == ("samples", "samples.rank-1")
    for job in (learner, rank):
        assert "device_count=2" in process_environment(plan, job, [])["XLA_FLAGS"]
    assert "rank <-> learner" in describe(plan, []) and "8 of 16 columns each" in describe(plan, [])


def test_rank_0_is_placed_like_a_learner_and_other_ranks_follow(tmp_path: Path):
    needs = {need.worker: need for need in needs_of(make_plan(experiment(), str(tmp_path), tmp_path))}
    assert not needs["learner"].answers and not needs["learner"].stays
    assert (
        not needs["rank-1"].asks
        and not needs["rank-1"].stays
        and needs["rank-1"].follows == "learner"
        and not needs["learner"].follows
    )
    assert needs["inference-0"].answers and needs["actor-3"].asks == "inference-0"


def test_two_learners_have_their_own_ranks():
    one = experiment(ranks=1)
    graph = with_policy(make_graph(one), "b", (4, 5, 6, 7), {"learner": LearnerConfig(num_ranks=2)})
    graph = with_ranks(graph, "learner-b", 2)
    check(graph)
    parts = policies_of(graph, one)
    assert parts["b"].groups == (4, 5, 6, 7) and parts["b"].experiment.learner.num_ranks == 2
    assert graph.worker("rank-b-1").end("samples").groups == (6, 7)
    assert [rank.name for rank in ranks_of(graph, graph.worker("rank-b-1"))] == ["learner-b", "rank-b-1"]
    with pytest.raises(ConfigError, match=r"learner has 2 ranks in this graph, but learner.num_ranks is 1"):
        policies_of(with_ranks(make_graph(one), "learner", 2), one)
    with pytest.raises(ConfigError, match="give each learner its ranks afterwards"):
        with_policy(make_graph(experiment()), "b", (6, 7))


def test_options_incompatible_with_ranks_are_refused():
    with pytest.raises(ConfigError, match="3 ranks of learner; use 2 or 4 ranks"):
        with_ranks(make_graph(experiment(ranks=1)), "learner", 3)
    with pytest.raises(ConfigError, match=r"learner has ranks already"):
        with_ranks(make_graph(experiment()), "learner", 2)
    with pytest.raises(
        ConfigError, match=r"learner.num_ranks=2 .* cannot be combined with replay. Leave one of them out"
    ):
        dataclasses.replace(experiment(), agent=DQNConfig(), replay=ReplayConfig())
    for name, values in {
        "placement serial": {"placement": "serial"},
        "recording='here'": {"agent": BCConfig(), "recording": "here"},
        "learner.split=actor-critic": {"learner": LearnerConfig(num_ranks=2, split="actor-critic")},
    }.items():
        with pytest.raises(ConfigError, match=rf"cannot be combined with {name}"):
            experiment(**values)
    with pytest.raises(
        ConfigError, match=r"3 actors cannot be divided evenly among learner.num_ranks=2; use num_actors 2"
    ):
        experiment(num_actors=3, num_groups=6, num_envs=12)
    with pytest.raises(ConfigError, match="in whole groups of 2; use batch_envs 8"):
        experiment(batch_envs=6, max_policy_lag=1, learner=LearnerConfig(num_ranks=2))
    with pytest.raises(ConfigError, match=r"8 environments of each rank cannot be split over learner.num_devices=3"):
        experiment(learner=LearnerConfig(num_ranks=2, num_devices=3))


def test_automatic_number_of_actors_is_divisible_by_ranks():
    auto = experiment(num_actors="auto", num_groups=None, placement="inline", num_envs=48)
    for cores in (1, 5, 8):
        assert decided_for(auto, Machine(cores), lambda: None)[0].actors % 2 == 0
