"""User workers from a file outside jsrl: in one process, displayed, resumed, and refused where they cannot work."""

from __future__ import annotations

import functools
import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from jsrl.agents.impala import IMPALAConfig
from jsrl.agents.ppo import PPOConfig
from jsrl.agents.r2d2 import R2D2Config
from jsrl.control.run import run
from jsrl.envs.config import EnvConfig
from jsrl.errors import AgentFault, ConfigError
from jsrl.experiment import AgentReference, EvaluatorConfig, Experiment, ReplayConfig
from jsrl.graph.graph import Graph, node
from jsrl.graph.graph_file import FILE, differences, read_graph, resolve
from jsrl.graph.placements import make_graph
from jsrl.graph.plan import make_plan
from jsrl.graph.policies import with_policy
from jsrl.networks.model import NetworkConfig
from jsrl.references.importing import own_paths
from jsrl.services.runs.runs import read_metrics
from jsrl.services.snapshots.store import SnapshotStore
from jsrl.transport.ledger.reconcile import leg_ledger
from jsrl.types import leaves
from jsrl.workers.kinds import Kind, Port

WORLD = Path(__file__).parents[1] / "system" / "world"
SMALL = PPOConfig(network=NetworkConfig(hidden=(8,)), num_epochs=1, num_minibatches=1)


@pytest.fixture(autouse=True)
def importable(monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(WORLD))
    monkeypatch.delitem(sys.modules, "my_workers", raising=False)


def small(**values) -> Experiment:
    return Experiment(
        **(
            {
                "agent": SMALL,
                "env": EnvConfig("CartPole-v1"),
                "num_envs": 4,
                "num_groups": 2,
                "rollout_length": 8,
                "total_env_steps": 6 * 32,
                "placement": "serial",
                "evaluator": EvaluatorConfig(enabled=True, episodes=1, final_episodes=1, num_envs=1),
            }
            | values
        )
    )


def trained(tmp_path: Path, name: str, graph, **values) -> tuple[list, dict]:
    """Return (the final params, result.json) of a run."""
    result = run(small(**values), runs_dir=tmp_path, name=name, graph=graph, display="log-only")
    tree = SnapshotStore(result.folder / "snapshots" / "state").load("final").tree["state"]
    return leaves(tree["params"]), json.loads((result.folder / "result.json").read_text())


@pytest.fixture(name="plain", scope="module")
def plain_fixture(tmp_path_factory) -> list:
    """Return the final params of the run without any extra worker."""
    return trained(tmp_path_factory.mktemp("plain"), "plain", None)[0]


@pytest.mark.slow
def test_pass_through_worker_changes_no_bit(plain: list, tmp_path: Path) -> None:
    passed, result = trained(tmp_path, "passed", "my_workers:passed_on")
    noisy, _ = trained(tmp_path, "noisy", lambda graph: graph.insert("my_workers:AUGMENT", settings={"noise": 0.1}))
    assert all((a == b).all() for a, b in zip(plain, passed, strict=True))
    assert any((a != b).any() for a, b in zip(plain, noisy, strict=True))
    assert result["legs"]["samples.augment"]["produced"] == result["ledger"]["produced"] == 12
    assert all(leg_ledger(counts).balanced for counts in (result["ledger"], *result["legs"].values()))


@pytest.mark.slow
def test_second_reader_gets_everything_and_changes_no_bit(plain: list, tmp_path: Path) -> None:
    counted, result = trained(tmp_path, "counted", "my_workers:counted")
    assert all((a == b).all() for a, b in zip(plain, counted, strict=True))
    assert result["legs"]["samples.count"]["produced"] == result["ledger"]["produced"] == 12
    assert result["legs"]["samples.count"]["consumed"] == 12


@pytest.mark.slow
def test_second_learner_on_the_same_rows_is_independent(
    tmp_path: Path,
) -> None:
    agent = IMPALAConfig(network=NetworkConfig(hidden=(8,)))
    values = {
        "agent": agent,
        "max_policy_lag": None,
        "max_minutes": 2.0,
    }  # a learner that delays the others is a failure

    def both(graph: Graph) -> Graph:
        from jsrl.experiment.graphs.broadcast import two_learners

        return two_learners(graph).replace("learner-b", settings={"total_env_steps": 6 * 32})

    alone = run(small(**values), runs_dir=tmp_path, display="log-only")
    e = small(total_env_steps=12 * 32, **values)
    together = run(e, runs_dir=tmp_path, graph=both, display="log-only")
    assert (alone.updates, together.others["b"]["updates"], together.updates) == (6, 6, 12)
    params = zip(leaves(alone.params), leaves(together.params_of("b")), strict=True)
    assert all((a == b).all() for a, b in params)
    legs = json.loads((together.folder / "result.json").read_text())["legs"]
    assert legs["samples.learner-b"]["produced"] >= 24
    with pytest.raises(
        ConfigError, match=r"learner-b trains on rows that the policy 'policy' chose, .* .--max-policy-lag none"
    ):
        run(small(), runs_dir=tmp_path, graph=both, display="log-only")


@pytest.mark.slow
def test_transform_worker_queries_a_server_for_entropy_rewards(
    tmp_path: Path,
) -> None:

    def weighted(weight: float):
        from jsrl.experiment.graphs.relabel import with_entropy

        return lambda graph: with_entropy(graph).replace("relabel", settings={"weight": weight, "updates": 12})

    plain, _ = trained(tmp_path, "plain", None)
    nothing, _ = trained(tmp_path, "nothing", weighted(0.0))
    relabeled, result = trained(tmp_path, "relabeled", weighted(2.0))
    assert all((a == b).all() for a, b in zip(plain, nothing, strict=True))
    assert any((a != b).any() for a, b in zip(plain, relabeled, strict=True))
    assert result["legs"]["samples.relabel"]["consumed"] == result["ledger"]["produced"] == 12
    metrics = read_metrics(next(tmp_path.glob("*/relabeled/metrics.jsonl")))
    weight, bonus = metrics["relabel/weight"][-1], metrics["relabel/bonus_mean"][-1]
    assert weight == pytest.approx(2.0 * (1 - 5 / 12))  # the last batch was made with the params of update 5
    assert weight < bonus / 0.5 and bonus < 2.0 * 0.75  # two actions: at most log 2 = 0.69


@pytest.mark.nightly
def test_entropy_rewards_are_deterministic_with_processes(tmp_path: Path) -> None:
    """A run in one process equals one of many: tests/control/test_determinism.py."""
    plain, _ = trained(tmp_path, "plain", None, deterministic=True)
    processes = {"placement": "inline", "num_actors": 2}
    passed, _ = trained(tmp_path, "passed", "my_workers:passed_on", deterministic=True, **processes)
    assert all((a == b).all() for a, b in zip(plain, passed, strict=True))


@pytest.mark.slow
def test_user_workers_are_shown_and_resume(tmp_path: Path) -> None:
    def changed(graph: Graph) -> Graph:
        return graph.insert("my_workers:AUGMENT", settings={"noise": 0.0}).add(
            node("watch", "my_workers:WATCH", params="params")
        )

    first = run(small(), runs_dir=tmp_path, name="one", graph=changed, display="log-only")
    columns = read_metrics(first.folder / "metrics.jsonl")
    assert {"augment/change_share", "watch/params_updates", "watch/measure_share"} <= columns.keys()
    assert "augment  " in first.summary and "watch  " in first.summary
    kept = read_graph(first.folder)
    assert kept.worker("augment").settings == {"noise": 0.0}
    again = run(small(total_env_steps=8 * 32), runs_dir=tmp_path, resume="one", display="log-only")
    log = (again.folder / "logs" / "controller.log").read_text()
    assert (
        f"it continues with its changed graph ({FILE}): --placement and --num-actors do not" in log
        and again.updates == 8
    )
    other = run(small(total_env_steps=9 * 32), runs_dir=tmp_path, resume="one", graph=lambda g: g, display="log-only")
    log = (other.folder / "logs" / "controller.log").read_text()
    assert "graph: the worker augment is gone" in log and other.updates == 9


def test_resume_finds_no_difference_in_equal_settings_with_arrays_and_partials() -> None:
    settings = {"weights": np.ones(3), "scale": functools.partial(round, ndigits=2)}
    graph = make_graph(small()).insert("my_workers:AUGMENT", settings=settings)
    stored = Graph.from_json(json.loads(json.dumps(graph.to_json())))
    assert differences(stored, graph) == []
    changed = graph.replace("augment", settings=settings | {"weights": np.zeros(3)})
    assert differences(stored, changed) == ["graph: the worker augment has other settings"]


@pytest.mark.slow
def test_stored_graph_that_contradicts_options_is_refused(tmp_path: Path) -> None:
    first = run(small(num_groups=None), runs_dir=tmp_path, name="one", graph="my_workers:passed_on", display="log-only")
    words = r"no actor steps the groups \[1, 2, 3\] .* continues with the changed graph .* or give --graph"
    with pytest.raises(ConfigError, match=words):
        more = small(num_groups=None, placement="inline", num_actors=4)
        run(more, runs_dir=tmp_path, resume="one", display="log-only")
    kept = json.loads((first.folder / "experiment.json").read_text())["fields"]
    assert kept["placement"] == "serial" and (first.folder / "result.json").exists(), "a refused resume changed the run"
    content = (first.folder / FILE).read_bytes()
    (first.folder / FILE).write_bytes(content[:100])
    with pytest.raises(ConfigError, match=rf"{FILE} cannot be read: .* --graph own continues"):
        run(small(num_groups=None, total_env_steps=7 * 32), runs_dir=tmp_path, resume="one", display="log-only")
    assert (first.folder / FILE).read_bytes() == content[:100]
    (first.folder / FILE).write_bytes(content)
    run(
        small(num_groups=None, total_env_steps=7 * 32),
        runs_dir=tmp_path,
        resume="one",
        graph=lambda graph: graph.insert("my_workers:AUGMENT", settings={"noise": 0.1}),
        display="log-only",
    )
    log = (first.folder / "logs" / "controller.log").read_text()
    assert "the worker augment has other settings ({'noise': 0.0} -> {'noise': 0.1})" in log


@pytest.mark.parametrize(
    ("graph", "words"),
    [
        ("nowhere:edit", "nowhere:edit.*there is no module 'nowhere' on sys.path"),
        ("./nowhere.py:edit", r"there is no file \./nowhere\.py; the working directory is"),
        ("my_workers:nothing", "no 'nothing'; expected a function .* Functions there: .*augmented, passed_on"),
        ("my_workers", "expected module:function"),
        ("my_workers:Augment", "has 'Augment', but it is a class; expected a function"),
        (lambda graph: None, r"returned None, expected a Graph; end the function with `return graph`"),
        (lambda graph: graph.insert("my_workers:NOBODY"), "my_workers:NOBODY' cannot be imported"),
        (lambda graph: graph.insert("my_workers:Augment"), "a kind of worker is a jsrl.workers.kinds.Kind"),
    ],
)
def test_invalid_graph_file_is_refused_before_the_start(tmp_path: Path, graph, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        run(small(), runs_dir=tmp_path, graph=graph, display="log-only")


@pytest.mark.parametrize("inside", ["", "package"])
def test_a_graph_may_be_named_by_the_path_of_its_file(tmp_path: Path, monkeypatch, inside: str) -> None:
    (tmp_path / inside).mkdir(exist_ok=True)
    if inside:
        (tmp_path / inside / "__init__.py").touch()
    file = tmp_path / inside / f"edits{inside}.py"
    file.write_text("def four(graph):\n    return graph.with_stream('samples', blocks=4)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    graph, changed = resolve(small(), f"./{inside}/edits{inside}.py:four")
    assert changed and graph.stream("samples").blocks == 4
    assert str(tmp_path) in own_paths()  # so that workers can import it
    assert resolve(small(), f"{'package.' if inside else ''}edits{inside}:four")[0] == graph


@pytest.mark.slow
def test_reader_of_two_policies_with_other_leaves_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ports = tuple(Port(name, "samples", "reads", schemas=("trajectory",)) for name in ("one", "two"))
    spy = Kind("spy", "spies", "nowhere:Spy", ports=ports)
    monkeypatch.setattr(sys.modules[__name__], "SPY", spy, raising=False)

    def edit(graph: Graph) -> Graph:
        graph = with_policy(
            graph, "b", (1,), {"agent": R2D2Config(burn_in=2), "replay": ReplayConfig(window=8, min_size=64)}
        )
        graph = graph.add(node("spy", f"{__name__}:SPY", one="samples", two="samples-b"))
        return graph.with_stream("samples", routing="broadcast").with_stream("samples-b", routing="broadcast")

    words = r"spy belongs to 'policy' and reads rows of 'b' \(samples-b\), .* add a worker for each policy"
    with pytest.raises(ConfigError, match=words):
        make_plan(small(), str(tmp_path), tmp_path, edit=edit)


def test_kind_of_the_script_itself_is_refused_for_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = importlib.import_module("my_workers").WATCH
    monkeypatch.setattr(sys.modules["__main__"], "MINE", watch, raising=False)

    def edit(graph: Graph) -> Graph:
        return graph.add(node("watch", "__main__:MINE", params=graph.params))

    assert make_plan(small(), str(tmp_path), tmp_path, edit=edit).kinds["watch"] == watch
    with pytest.raises(ConfigError, match="__main__:MINE of watch is in the script or notebook itself"):
        make_plan(small(placement="inline"), str(tmp_path), tmp_path, edit=edit)


def raises(*args, **kwargs):
    raise ZeroDivisionError("not ready yet")


@pytest.mark.parametrize(
    ("values", "error"), [({"agent": AgentReference(raises)}, AgentFault), ({}, KeyboardInterrupt)]
)
def test_run_that_failed_before_it_began_leaves_no_folder(tmp_path: Path, values, error) -> None:
    def interrupted(graph: Graph) -> Graph:
        raise KeyboardInterrupt

    with pytest.raises(error):
        run(
            small(**values),
            runs_dir=tmp_path / "runs",
            name="one",
            graph=None if values else interrupted,
            display="log-only",
        )
    assert not (tmp_path / "runs").exists()


@pytest.mark.nightly
def test_two_chained_workers_before_replay_change_no_bit(tmp_path: Path) -> None:
    values = {
        "agent": AgentReference("tests.replay.learning:acting_toy", {"poison": 1e9}),
        "replay": ReplayConfig(kind="host", capacity=200, batch_size=8, min_size=32, window=3, prioritised=True),
        "max_policy_lag": None,
    }

    def twice(graph: Graph) -> Graph:
        first = graph.insert("my_workers:AUGMENT", settings={"noise": 0.0})
        return first.insert("my_workers:AUGMENT", stream="samples-augment", name="second", settings={"noise": 0.0})

    plain, _ = trained(tmp_path, "plain", None, **values)
    passed, result = trained(tmp_path, "passed", twice, **values)
    assert all((a == b).all() for a, b in zip(plain, passed, strict=True))
    legs = {name: ledger["produced"] for name, ledger in result["legs"].items()}
    assert legs["samples-augment-second.replay-0"] == legs["samples-augment.second"] >= 12
