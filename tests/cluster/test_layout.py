"""Placement of workers on hosts, and refusals; no processes."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from jsrl.cli import run as command
from jsrl.cluster.facts import HostFacts
from jsrl.cluster.launcher import placed
from jsrl.cluster.layout import Layout, evened_out, lay_out, layout_text, ranges, shares
from jsrl.cluster.this_host import read_hosts
from jsrl.envs.config import EnvConfig
from jsrl.errors import ConfigError
from jsrl.experiment import EvaluatorConfig, Experiment, InferenceConfig, LearnerConfig, ReplayConfig
from jsrl.graph.launcher import Hosts, Need
from jsrl.graph.needs import needs_of
from jsrl.graph.plan import Plan, make_plan
from jsrl.workers.kinds import Travel, find_kind, value_of
from tests.tiny_agent import STILL

WORLD = Path(__file__).parents[1] / "system" / "world"
LEARNER = Need("learner", "learns", cores=None, memory_mb=1000)
SERVER = Need("inference-0", "serves", memory_mb=500, answers=True)
RELAY = Need("parameter-server", memory_mb=300, beside="learner", stays="it keeps copies")


def actors(count: int, memory_mb: int = 100) -> list[Need]:
    return [Need(f"actor-{i}", memory_mb=memory_mb, spreads=True) for i in range(count)]


def servers(count: int, **values) -> list[Need]:
    return [dataclasses.replace(SERVER, worker=f"inference-{i}", **values) for i in range(count)]


def host(name: str, cores: int = 8, memory_mb: int = 64_000, gpus: int = 0, shares_folder: bool = False) -> HostFacts:
    return HostFacts(name, cores, memory_mb, gpus=gpus, shares_folder=shares_folder)


def counts(layout) -> dict[str, int]:
    return {each.name: sum(name.startswith("actor") for name in layout.on(each.name)) for each in layout.hosts}


def test_learner_and_servers_go_to_gpu_hosts_and_actors_share_remaining_cores():
    hosts = [host("gpu", 32, gpus=4), host("wide", 64), host("slim", 8)]
    layout = lay_out([LEARNER, SERVER, RELAY, *actors(99)], hosts)
    assert layout.on("gpu")[:3] == ["learner", "inference-0", "parameter-server"]
    assert counts(layout) == {"gpu": 28, "wide": 63, "slim": 8}  # of 28, 64 and 8 cores
    assert layout.on("wide") == [f"actor-{i}" for i in range(28, 91)]  # neighbours stay together


def test_a_host_that_joins_late_gets_its_share_by_the_fewest_moves():
    needs, hosts = [dataclasses.replace(LEARNER, cores=4), *actors(12)], [host("main"), host("a"), host("late", 12)]
    of = {"learner": "main"} | {f"actor-{i}": "main" if i < 4 else "a" for i in range(12)}
    movable = {f"actor-{i}" for i in range(12)}
    moves = evened_out(needs, hosts, of, movable)
    after = list((of | moves).values())
    assert set(moves.values()) == {"late"} and [after.count(name) for name in ("main", "a", "late")] == [3, 4, 6]
    assert evened_out(needs, hosts, of | moves, movable) == {}
    assert evened_out(needs, hosts[:2], of, {"actor-0"}) == {}  # workers that may not move stay
    assert evened_out(needs, [host("main", memory_mb=1_000), host("a", memory_mb=900)], of, movable) == {}


def test_learner_prefers_gpus_on_a_host_that_sees_the_run_folder():
    hosts = [host("login"), host("gpu", gpus=2, shares_folder=True), host("cloud", gpus=8)]
    layout = lay_out([LEARNER, SERVER, *actors(2)], hosts)
    assert layout.of["learner"] == layout.of["inference-0"] == "gpu"
    assert lay_out([dataclasses.replace(LEARNER, gpus=4)], hosts).of["learner"] == "cloud"
    layout = lay_out([LEARNER, SERVER, *actors(2)], [host("login"), host("cloud", gpus=8)])
    assert layout.of["learner"] == layout.of["inference-0"] == "cloud"
    assert lay_out([LEARNER], [host("login"), host("cloud")]).of["learner"] == "login"
    stays = dataclasses.replace(LEARNER, stays="it freezes players there")
    with pytest.raises(
        ConfigError, match="GPUs of cloud are, but it freezes players there, and that host does not see"
    ):
        lay_out([stays], [host("login"), host("cloud", gpus=8)])
    assert lay_out([stays], [host("login"), host("cloud")]).of["learner"] == "login"


def test_learner_runs_on_the_given_host():
    hosts = [host("login"), host("cloud")]
    rank = dataclasses.replace(LEARNER, worker="rank-1", follows="learner")
    layout = lay_out(placed([LEARNER, rank, *actors(2)], [], "cloud"), hosts)
    assert (layout.of["learner"], layout.of["rank-1"]) == ("cloud", "login")
    with pytest.raises(ConfigError, match="--learner-on is 'sky', but there is no such host; hosts: login, cloud"):
        lay_out(placed([LEARNER], [], "sky"), hosts)
    stays = dataclasses.replace(LEARNER, stays="it reads a recording")
    with pytest.raises(ConfigError, match="learner is to run on cloud, but it reads a recording, and that host does"):
        lay_out(placed([stays], [], "cloud"), hosts)


def test_a_learner_of_several_cpu_devices_runs_on_the_named_host_without_gpus_and_its_ranks_on_others():
    learner = dataclasses.replace(LEARNER, gpus=4)
    rank = dataclasses.replace(learner, worker="rank-1", follows="learner")
    hosts = [host("login"), host("small", gpus=1), host("cloud")]
    layout = lay_out(placed([learner, rank, *actors(2)], [], "cloud"), hosts)
    assert (layout.of["learner"], layout.of["rank-1"]) == ("cloud", "login")
    assert [need.gpus for need in layout.needs[:2]] == [0, 0]  # it may restart where there are no GPUs
    for name, there in (("small", "small"), ("", "small")):
        with pytest.raises(
            ConfigError, match=f"learner wants 4 GPUs on one host, but {there}, which has the most, has 1"
        ):
            lay_out(placed([learner], [], name), hosts)


def test_learners_of_several_policies_share_the_gpus():
    learners = [dataclasses.replace(LEARNER, worker=f"learner-{name}") for name in "abc"]
    hosts = [host("one", gpus=2), host("two", gpus=4, shares_folder=True)]
    layout = lay_out(learners, hosts)
    assert (layout.on("one"), layout.on("two")) == (["learner-b"], ["learner-a", "learner-c"])


def test_a_server_with_a_gpu_of_its_own_takes_one_that_no_learner_needs():
    alone = dataclasses.replace(SERVER, alone=True, beside="learner")
    assert lay_out([LEARNER, alone], [host("one", gpus=1), host("two", gpus=1)]).of["inference-0"] == "two"
    assert lay_out([LEARNER, alone], [host("one", gpus=2), host("two", gpus=1)]).of["inference-0"] == "one"
    assert lay_out([LEARNER, alone], [host("one", gpus=1), host("two")]).of["inference-0"] == "one"  # they share it
    second = dataclasses.replace(alone, worker="inference-1")
    layout = lay_out([LEARNER, alone, second], [host("one", gpus=2), host("two", gpus=1)])
    assert (layout.of["inference-0"], layout.of["inference-1"]) == ("one", "two")


def test_on_cpu_the_learner_leaves_half_of_its_host_to_actors():
    assert counts(lay_out([LEARNER, *actors(12)], [host("a"), host("b")])) == {"a": 4, "b": 8}


def test_workers_that_write_to_the_run_folder_stay_where_it_is_visible():
    keeper = Need("replay-0", memory_mb=10, stays="it keeps its rows there")
    watcher = Need("watch", memory_mb=10)
    held = servers(2, stays="it has a transport of its own")
    hosts = [host("a", cores=2), host("b", cores=64)]
    layout = lay_out([LEARNER, keeper, watcher, *held, *actors(4)], hosts)
    assert layout.on("a") == ["learner", "replay-0", "inference-0", "inference-1"]
    assert layout.of["watch"] == "b"
    last = layout_text(layout).splitlines()[-1]
    assert last == (
        "  Only on hosts that see the run folder: replay-0 (it keeps its rows there), inference-0 to inference-1 (2) (it has "
        "a transport of its own)."
    )
    assert "Only on hosts" not in layout_text(lay_out([LEARNER, keeper], hosts[:1]))
    shared = [hosts[0], host("b", cores=64, shares_folder=True)]
    assert set(lay_out([LEARNER, *held], shared).of.values()) == {"b"}


def test_local_workers_stay():
    needs = placed([LEARNER, *servers(2), *actors(3)], ["inference"])
    layout = lay_out(needs, [host("a"), host("b")])
    assert {layout.of[f"inference-{i}"] for i in range(2)} == {"a"} and layout.on("b")
    assert layout_text(layout).endswith("run folder: inference-0 to inference-1 (2) (--keep-here says so).")
    with pytest.raises(
        ConfigError, match="names 'actors', but this run has no such workers; it has: learner, inference, actor"
    ):
        placed(needs, ["actors"])


@pytest.mark.parametrize("alone", [False, True])  # on CPU no server has its own device
def test_on_cpu_each_server_is_placed_with_its_actors(alone: bool):
    hosts = [host("a", cores=16), host("b", cores=8), host("c", cores=8)]
    asking = [dataclasses.replace(actor, asks=f"inference-{i % 3}") for i, actor in enumerate(actors(21))]
    layout = lay_out([LEARNER, *servers(3, alone=alone), *asking], hosts)
    assert [layout.of[f"inference-{i}"] for i in range(3)] == ["a", "b", "c"]
    assert all(layout.of[f"actor-{n}"] == layout.of[f"inference-{n % 3}"] for n in range(21))
    fewer = lay_out([LEARNER, SERVER, *asking[:12]], [*hosts[:2], host("c", cores=4)])
    assert counts(fewer) == {"a": 4, "b": 5, "c": 3}  # cores matter more than locality
    assert lay_out([LEARNER, SERVER, *actors(8)], [host("a"), host("b")]).of["inference-0"] == "b"  # as most actors do


def test_each_host_without_gpus_that_has_actors_gets_its_own_server():
    """Else the loss of the only server's host stops the actors on all others."""
    e = Experiment(agent=STILL, env=EnvConfig("CartPole-v1"), placement="served", num_actors=8, num_groups=8)
    hosts = [replace(host(name, cores), address=f"10.0.0.{cores}") for name, cores in (("a", 4), ("b", 6), ("c", 2))]

    def laid(hosts: list[HostFacts], keep: tuple[str, ...] = (), **changes) -> tuple[Layout, Plan]:
        layouts: list[Layout] = []

        def place(alone: Plan) -> Hosts:
            layouts.append(lay_out(placed(needs_of(alone), keep), hosts))
            return layouts[0].hosts_of_workers

        plan = make_plan(dataclasses.replace(e, **changes), "", Path("/dev/shm/jsrl-x/1"), place=place)
        return layouts[0], plan

    layout, plan = laid(hosts)
    servers = {name: layout.of[name] for name in layout.of if name.startswith("inference")}
    assert servers == {"inference-0": "a", "inference-1": "b", "inference-2": "c"} and counts(layout)["c"]
    for job in plan.jobs:
        if job.kind == "actor":  # it asks the server of its host first
            assert servers[job.end("inference").peers[0].worker] == layout.of[job.name]
    assert {job.name for job in plan.jobs} == layout.of.keys()
    gpu = [host("gpu", gpus=1), *hosts]
    for one, _ in (laid(gpu), laid(hosts, ("inference",)), laid(hosts, deterministic=True), laid(hosts[:1])):
        assert [name for name in one.of if name.startswith("inference")] == ["inference-0"]
    assert len([name for name in laid(hosts, num_inference_servers=2)[0].of if name.startswith("inference")]) == 2


def test_servers_prefer_gpus_after_the_learners():
    hosts = [host("cpu", 64), host("gpu", 8, gpus=1, shares_folder=True), host("more", 16, gpus=1)]
    learner = [LEARNER, *actors(3)]
    assert lay_out([*learner, SERVER], hosts).of["inference-0"] == "gpu"
    assert sorted(lay_out([*learner, *servers(2)], hosts).of[f"inference-{i}"] for i in range(2)) == ["gpu", "more"]
    on_cpu = lay_out([*learner, dataclasses.replace(SERVER, device="cpu")], hosts)
    assert on_cpu.of["inference-0"] == "cpu"
    assert lay_out([LEARNER, *servers(1, gpus=2)], [*hosts, host("four", gpus=4)]).of["inference-0"] == "four"


def test_actors_name_their_rank():
    e = Experiment(
        agent=STILL, env=EnvConfig("CartPole-v1"), placement="served", num_actors=4, num_envs=8,
        learner=LearnerConfig(num_ranks=2),
    )  # fmt: skip
    feeds = {need.worker: need.feeds for need in needs_of(plan_of(e))}
    assert [feeds[f"actor-{i}"] for i in range(4)] == ["learner"] * 2 + ["rank-1"] * 2
    alone = dataclasses.replace(e, learner=LearnerConfig())
    assert {need.feeds for need in needs_of(plan_of(alone))} == {""}


def fed_by(layout) -> dict[str, set[str]]:
    """Return host -> the ranks of its actors."""
    feeds = {need.worker: need.feeds for need in layout.needs}
    return {each.name: {feeds[worker] for worker in layout.on(each.name)} - {""} for each in layout.hosts}


def test_the_samples_of_a_host_go_to_one_rank_and_first_to_its_own():
    rank = dataclasses.replace(LEARNER, worker="rank-1", follows="learner")

    def spread(count: int, *hosts: HostFacts):
        feeding = [
            dataclasses.replace(one, feeds="learner" if i < count // 2 else "rank-1")
            for i, one in enumerate(actors(count))
        ]
        return lay_out([LEARNER, rank, *feeding], hosts)

    gpus = [host("main", 16, gpus=1), host("wide", 16), host("far", 16, gpus=1), host("slim", 8)]
    layout = spread(52, *gpus)
    assert layout.of["rank-1"] == "far"
    assert fed_by(layout) == {"main": {"learner"}, "wide": {"learner"}, "far": {"rank-1"}, "slim": {"rank-1"}}
    assert counts(layout) == {"main": 12, "wide": 14, "far": 17, "slim": 9}  # of 14, 16, 14 and 8 cores
    layout = spread(16, host("main"), host("a"), host("b"))
    assert all(len(ranks) == 1 for ranks in fed_by(layout).values())
    assert counts(layout) == {"main": 4, "a": 4, "b": 8}
    layout = spread(60, *[host(name, 16, gpus=2) for name in ("main", "a")], host("vast", 200))
    assert counts(layout)["vast"] > 40 and len(fed_by(layout)["vast"]) == 2  # otherwise most of its cores would be idle


def test_memory_limits_the_actors_of_a_host():
    layout = lay_out(actors(20), [host("a", cores=100, memory_mb=550), host("b", cores=1)])
    assert counts(layout) == {"a": 5, "b": 15}


def test_hosts_on_one_machine_share_its_memory():
    """Two tasks on one node, each of which may use all of it; a third has a limit of its own."""
    hosts = [host("main", 8, 4_000), *(host(name, 8, size) for name, size in (("a", 3_000), ("b", 3_000), ("c", 500)))]
    shared = [each if each.name == "main" else replace(each, machine="n1", machine_mb=4_000) for each in hosts]
    least = [("a", 18), ("b", 18), ("c", 3)]  # of 100 MB, in 4000/6500 of what they have
    needs = [LEARNER, *actors(69)]
    assert counts(lay_out(needs, shared)) == {"main": 30, **dict(least)}
    with pytest.raises(ConfigError, match=r"70 workers .* enough for 69"):
        lay_out([LEARNER, *actors(70)], shared)
    assert sum(counts(lay_out([LEARNER, *actors(90)], hosts)).values()) == 90


@pytest.mark.parametrize(
    ("needs", "hosts", "sentence"),
    [
        (
            [dataclasses.replace(LEARNER, gpus=4)],
            [host("a", gpus=2)],
            r"learner wants 4 GPUs on one host, but a, which has the most, has 2; ask for fewer \(--learner.num-devices\)",
        ),
        ([LEARNER], [host("a", memory_mb=900)], "learner needs about 1,000 MB of memory, but a has 900 MB left; give"),
        (
            [LEARNER, *actors(9)],
            [host("a", memory_mb=1300), host("b", memory_mb=200)],
            r"9 workers such as actor-0 need about 100 MB of memory each, but .* is enough for 5 \(a 3, b 2\)",
        ),
        (
            [LEARNER, *servers(1, gpus=3)],
            [host("a", gpus=2), host("b")],
            r"inference-0 wants GPU 2 \(--inference.device\), counted from 0, but a, which has the most, has 2; use",
        ),
        ([LEARNER], [host("a"), host("a")], "two hosts called 'a'"),
        ([LEARNER], [], "the list of hosts has no host"),
    ],
)
def test_layouts_that_do_not_fit_are_refused_in_one_sentence(needs, hosts, sentence):
    with pytest.raises(ConfigError, match=sentence) as refused:
        lay_out(needs, hosts)
    assert "\n" not in str(refused.value)


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.floats(0, 1e3), st.integers(0, 50)), min_size=1, max_size=8),
    st.integers(0, 200),
)
def test_shares_are_whole_bounded_and_in_proportion(ways, total):
    weights, most = [weight for weight, _ in ways], [limit for _, limit in ways]
    total = min(total, sum(most))
    found = shares(total, weights, most)
    assert sum(found) == total and all(0 <= n <= limit for n, limit in zip(found, most, strict=True))
    if sum(weights) > 0 and all(limit >= total for limit in most):
        exact = [total * weight / sum(weights) for weight in weights]
        assert all(abs(n - share) < 1 for n, share in zip(found, exact, strict=True))


def test_ranges_of_names():
    assert (
        ranges(["learner", "actor-0", "actor-1", "actor-2", "replay-0"]) == "learner, actor-0 to actor-2 (3), replay-0"
    )
    scattered = [f"actor-{i}" for i in (0, 2, 4, 5, 7, 9)]
    assert ranges(["learner", *scattered, "watch"]) == "learner, actor-0, actor-2, ..., actor-9 (6), watch"
    assert ranges(["actor-9", "actor-10", "actor-12"]) == "actor-9 to actor-10 (2), actor-12"


def plan_of(e: Experiment, graph: str | None = None) -> Plan:
    return make_plan(e, "runs/x", Path("/dev/shm/jsrl-of-nobody/1-2"), graph)


def test_plan_lists_the_needs_of_its_workers():
    e = Experiment(
        agent=STILL, env=EnvConfig("CartPole-v1"), placement="apart", num_actors=4, num_envs=8, transport="zeromq",
        learner=LearnerConfig(num_devices=2), num_inference_servers=2,
    )  # fmt: skip
    needs = {need.worker: need for need in needs_of(plan_of(e))}
    assert needs["learner"].gpus == 2 and not needs["learner"].stays
    server = needs["inference-1"]
    assert [needs[f"actor-{i}"].asks for i in range(4)] == ["inference-0", "inference-1"] * 2
    assert server.device == "serves" and server.alone and server.answers and not server.stays and not server.gpus
    assert needs["actor-3"].spreads and needs["actor-3"].memory_mb < needs["learner"].memory_mb
    assert needs["parameter-server"].beside == "learner" and not needs["learner"].beside
    assert not (needs["evaluator"].beside or needs["evaluator"].stays or needs["actor-3"].stays)
    judged = dataclasses.replace(e, evaluator=EvaluatorConfig(against=("other@best",)))
    assert value_of(find_kind("evaluator").travel.needs_folder, judged) == "it plays against other runs"
    on_gpu = dataclasses.replace(e, inference=InferenceConfig(device="gpu:1"))
    assert [need.gpus for need in needs_of(plan_of(on_gpu)) if need.answers] == [2, 2]


def test_replay_workers_are_placed_with_the_learner_if_memory_allows(monkeypatch):
    replay = ReplayConfig(kind="host", capacity=10_000, min_size=100, num_replays=2)
    e = Experiment(
        agent=STILL, env=EnvConfig("CartPole-v1"), placement="served",
        num_actors=2, num_envs=4, replay=replay,
    )  # fmt: skip
    needs = needs_of(plan_of(e))
    size_mb = {need.worker: need.memory_mb for need in needs}
    assert [need.beside for need in needs if need.worker.startswith("replay")] == ["learner"] * 2
    wide, small = host("wide"), host("small", memory_mb=size_mb["learner"] + size_mb["replay-0"])
    assert lay_out(needs, [wide, host("other")]).of["replay-1"] == "wide"
    assert lay_out(needs, [small, host("other")]).of["replay-1"] == "other"
    stays = placed(needs, ["inference"])  # which takes the memory of workers that can run elsewhere
    small = host("small", memory_mb=size_mb["learner"] + size_mb["inference-0"])
    assert lay_out(stays, [small, host("other")]).on("small") == ["learner", "inference-0"]
    saved = dataclasses.replace(e, replay=dataclasses.replace(replay, save=True))
    assert {n.stays for n in needs_of(plan_of(saved)) if n.worker.startswith("replay")} == {"it keeps its rows there"}


def test_workers_that_count_rows_stay_with_the_run_folder(monkeypatch):
    monkeypatch.syspath_prepend(str(WORLD))
    monkeypatch.delitem(sys.modules, "my_workers", raising=False)
    e = Experiment(agent=STILL, env=EnvConfig("CartPole-v1"), placement="served", num_actors=2, num_envs=4)
    needs = {need.worker: need for need in needs_of(plan_of(e, "my_workers:augmented"))}
    assert needs["augment-0"].stays == "its kind does not say that it may leave the run folder"
    kind = find_kind("my_workers:AUGMENT")
    monkeypatch.setattr("my_workers.AUGMENT", kind._replace(travel=Travel(needs_folder="")))
    needs = {need.worker: need for need in needs_of(plan_of(e, "my_workers:augmented"))}
    assert needs["augment-0"].stays == "it counts what it reads in the run folder"


HOSTS = [
    {"name": "gpu-1", "address": "10.0.0.5", "cores": 8, "memory_mb": 64000, "gpus": 1},
    {"name": "cpu-1", "address": "10.0.0.6", "cores": 8, "memory_mb": 64000},
]
WORDS = ["ppo_cartpole", "--placement", "served", "--num-envs", "8", "--num-actors", "4", "--plan"]


def test_command_prints_the_placement(tmp_path: Path, capsys):
    file = tmp_path / "hosts.json"
    file.write_text(json.dumps(HOSTS))
    assert command.main([*WORDS, "--hosts-file", str(file)]) == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert re.search(r"learner +1 +gpu 0 \(60% of memory\)", text) and re.search(r"inference +1 +gpu 0 \(30%", text)
    assert re.search(r"actor +4 +cpu", text) and re.search(
        r"actor -> learner +samples +zeromq \(tcp, encrypted\): ", text
    )
    assert lines[-2].split()[:2] == ["gpu-1", "10.0.0.5"] and "learner, inference-0, actor-0" in lines[-2]
    assert lines[-1].endswith("actor-2 to actor-3 (2), evaluator")
    elsewhere = [*WORDS, "--hosts-file", str(file), "--learner-on", "cpu-1"]
    assert command.main(elsewhere) == 0 and "learner" in capsys.readouterr().out.splitlines()[-1]
    assert command.main([*WORDS[:-1], "--hosts-file", str(file)]) == 2
    assert "it needs --plan" in capsys.readouterr().err
    assert command.main([*WORDS, "--placement", "serial", "--hosts-file", str(file)]) == 2
    assert "a serial run has one process" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[]", "has no host"),
        ('{"name": "a"}', "is no list of hosts"),
        ('[{"name": "a", "cores": 0, "memory_mb": 5}]', "host 'a': cores is 0; expected at least one core"),
        ('[{"name": "a", "cores": 2, "memory_mb": 5, "gpu": 1}]', "unknown field `gpu`"),
        ("[" * 100_000, "is no list of hosts"),
        (json.dumps([HOSTS[0], HOSTS[0]]), "two hosts called 'gpu-1'"),
    ],
)
def test_a_file_that_lists_no_hosts_is_refused(text, sentence, tmp_path: Path):
    file = tmp_path / "hosts.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        read_hosts(file)
    with pytest.raises(ConfigError, match="cannot be read from"):
        read_hosts(tmp_path / "nothing")


def test_text_has_one_line_per_host():
    layout = lay_out([LEARNER, *actors(3)], [host("a", cores=2), host("b"), host("c", memory_mb=10)])
    lines = layout_text(layout).splitlines()
    assert len(lines) == 4 and "learner" in lines[1] and lines[2].endswith("actor-0 to actor-2 (3)")
    assert lines[3].endswith("none")
    assert lines[0].index("GPUs") + len("GPUs") == lines[1].index(" 0 ") + 2


def test_other_ranks_of_a_learner_go_to_hosts_that_do_not_see_the_run_folder() -> None:
    rank = dataclasses.replace(LEARNER, worker="rank-1", follows="learner")
    for gpus in (0, 2):
        hosts = [HostFacts("main", 8, 8_000, gpus=gpus), HostFacts("far", 8, 8_000, gpus=gpus)]
        assert lay_out([LEARNER, rank], hosts).of == {"learner": "main", "rank-1": "far"}
