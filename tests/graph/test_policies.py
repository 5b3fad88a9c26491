"""Several policies in one graph: which learner trains on which streams, refusals, and the jobs of each policy."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from jsrl.agents.dqn import DQNConfig
from jsrl.agents.impala import IMPALAConfig
from jsrl.agents.ppo import PPOConfig
from jsrl.cli.plan import describe
from jsrl.envs.config import EnvConfig
from jsrl.errors import ConfigError
from jsrl.experiment import Experiment, PolicyConfig, ReplayConfig
from jsrl.graph.addresses import leg_of
from jsrl.graph.check import check, check_groups
from jsrl.graph.graph import Graph, Link
from jsrl.graph.placements import make_graph
from jsrl.graph.plan import make_plan
from jsrl.graph.policies import policies_at, policies_of, with_policy
from jsrl.networks.model import NetworkConfig
from tests.tiny_agent import STILL

REPLAY = ReplayConfig(kind="host", num_replays=2, capacity=2_000, batch_size=16, min_size=200)


def experiment(**values) -> Experiment:
    given = {"env": EnvConfig("CartPole-v1"), "num_envs": 16, "num_actors": 4, "num_groups": 8, "rollout_length": 8}
    given["placement"] = "served"
    return Experiment(DQNConfig() if "replay" in values else PPOConfig(), **(given | values))


def divided(values: dict | None = None, **settings) -> Graph:
    return with_policy(make_graph(experiment(**values or {})), "b", (6, 7), settings or None)


ALL = [
    {"placement": placement, "transport": transport} | more
    for placement in ("serial", "inline", "served", "apart")
    for transport in ("shared-memory", "zeromq")
    for more in ({}, {"num_inference_servers": 2})
]
ALL += [{"placement": "inline", "replay": REPLAY, "max_policy_lag": None}]


@pytest.mark.parametrize("values", ALL, ids=str)
def test_graphs_per_policy_are_valid_in_every_placement_and_share_no_stream(values) -> None:
    e = experiment(**values)
    graph = with_policy(make_graph(e), "b", (5, 6, 7))
    check(graph)
    check_groups(graph, e)
    assert Graph.from_json(graph.to_json()) == graph
    for worker in graph.workers:
        policies = {graph.stream(link.stream).policy for link in worker.links}
        assert len(policies) == 1, worker
    first, second = policies_of(graph, e).values()
    assert (first.groups, second.groups) == ((0, 1, 2, 3, 4), (5, 6, 7))
    assert (first.folder, second.folder, second.learner) == ("", "b", "learner-b")
    assert second.experiment.num_envs == 6 and second.experiment.group_size == e.group_size


@pytest.mark.parametrize("first", ["as-run", "inline"])
@pytest.mark.parametrize("second", ["as-run", "inline"])
def test_actors_belong_to_the_first_policy_wherever_it_acts(first: str, second: str) -> None:
    """Its seed is that of their environments: else bits would depend on the placement."""
    policies = {
        "chaser": PolicyConfig(STILL, "chaser", placement=first),
        "runner": PolicyConfig(STILL, "runner", placement=second),
    }
    e = dataclasses.replace(experiment(), agent=None, policies=policies)
    graph = make_graph(e)
    check(graph)
    for worker in graph.workers:
        if worker.kind == "actor":
            assert policies_at(graph, worker) == ("chaser", "runner")


def test_policy_has_its_learner_settings_and_group_batches() -> None:
    graph = divided(seed=7, agent=PPOConfig(learning_rate=1.0), total_env_steps=64)
    first, second = policies_of(graph, experiment(seed=3)).values()
    assert (first.experiment.seed, second.experiment.seed) == (3, 7)
    assert second.experiment.agent.learning_rate == 1.0 and second.experiment.total_updates == 2
    assert (first.experiment.rows_per_update, second.experiment.rows_per_update) == (12 * 8, 4 * 8)
    learner = graph.worker("learner-b")
    assert leg_of(graph, graph.stream("samples-b"), learner) == "samples-b.learner-b"
    e = experiment()
    assert policies_of(make_graph(e), e)["policy"].experiment is e  # one policy: the graph stays as it is


def test_policy_jobs_have_its_schemas_seed_and_folders(tmp_path: Path) -> None:
    wide = PPOConfig(network=NetworkConfig(hidden=(256, 256)))
    plan = make_plan(experiment(placement="served"), str(tmp_path), tmp_path, lambda g: divided(seed=7, agent=wide))
    jobs = {job.name: job for job in plan.jobs}
    assert {name for name, job in jobs.items() if job.policy == "b"} == {
        "learner-b", "inference-b", "actor-3", "evaluator-b",
    }  # fmt: skip
    for name, job in jobs.items():
        own = job.policy == "b"
        assert job.experiment.seed == (7 if own else 0), name
        assert job.snapshots == tmp_path / "snapshots" / ("b" if own else ""), name
    assert jobs["inference-b"].schemas.params_bytes > 10 * jobs["inference-0"].schemas.params_bytes
    text = describe(plan, [])
    assert "policy 'b': learner-b trains PPOConfig, seed 7, on 4 environments" in text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda g: g.with_stream("params-b", policy="policy"), "learner and learner-b train the same policy 'policy'"),
        (lambda g: g.with_stream("samples-b", policy="c"), "samples-b is of the policy 'c', which no learner trains"),
        (
            lambda g: g.with_stream("samples-b", policy="policy"),
            r"actor-3 has samples \(6, 7\) of the policy 'policy', but params of 'b'; all policies that play in",
        ),
        (lambda g: g.with_stream("params-b", policy="a/b"), r"policy name 'a/b'"),
        (
            lambda g: g.replace("learner-b", settings={"sede": 3}),
            r"learner-b has the settings 'sede'; a learner takes a dict with any of: agent, seed",
        ),
        (lambda g: g.replace("learner-b", settings=3), r"learner-b is told 3"),
    ],
)
def test_invalid_policies_are_refused(change, words: str) -> None:
    graph = divided({"placement": "inline"})
    check(graph)
    with pytest.raises(ConfigError, match=words):
        check(change(graph))


def test_options_that_do_not_fit_policy_groups_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"learner-b, which trains on the groups 6, 7: batch_envs=8 is not"):
        policies_of(divided({"batch_envs": 8, "max_policy_lag": 1}), experiment(batch_envs=8, max_policy_lag=1))
    with pytest.raises(ConfigError, match=r"reads trajectory from samples-b, but its replay is kind host; connect"):
        policies_of(
            divided(agent=DQNConfig(), replay=dataclasses.replace(REPLAY, num_replays=1), max_policy_lag=None),
            experiment(),
        )
    with pytest.raises(ConfigError, match=r"record is for runs with one policy; this graph has 2: policy, b"):
        policies_of(divided(), experiment(record="somewhere"))
    with pytest.raises(ConfigError, match=r"the policy b is given the groups 7, 8; give it some, but not all of 0, 1"):
        with_policy(make_graph(experiment()), "b", (7, 8))
    with pytest.raises(ConfigError, match="divides a graph of one policy"):
        with_policy(divided(), "c", (0,))


@pytest.mark.slow
def test_learner_may_train_on_another_policys_rows_with_the_same_leaves(tmp_path: Path) -> None:
    def shared(agent) -> Graph:
        graph = divided({"placement": "inline"}, agent=agent).with_stream(
            "samples", routing="broadcast", groups=tuple(range(8))
        )
        learner = graph.worker("learner-b")
        graph = graph.replace("learner-b", links=(learner.link("params"), Link("samples", "samples")))
        links = (Link("samples", "samples", (6, 7)), Link("params", "params"))
        graph = graph.replace("actor-3", links=links)
        return dataclasses.replace(graph, streams=tuple(s for s in graph.streams if s.name != "samples-b"))

    e = experiment(placement="inline", max_policy_lag=None)
    plan = make_plan(e, str(tmp_path), tmp_path, shared(IMPALAConfig()))
    assert plan.job("learner-b").policy == "b" and plan.policies["b"].groups == tuple(range(8))
    recurrent = IMPALAConfig(network=NetworkConfig(core="gru"))
    with pytest.raises(ConfigError, match=r"learner-b trains 'b' on rows of 'policy' \(samples\)"):
        make_plan(e, str(tmp_path), tmp_path, shared(recurrent))


@pytest.mark.parametrize("name", ["learner", "actor", "parameter_server", "system", "state"])
def test_names_that_runs_use_themselves_are_refused_for_further_policies(name: str):
    e = experiment()
    with pytest.raises(ConfigError, match=rf"a policy is called '{name}', a name that metrics .*'{name}_1'"):
        policies_of(with_policy(make_graph(e), name, (6, 7)), e)
