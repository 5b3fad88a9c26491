"""Workers on hosts: who goes where, and what is refused; no processes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsrl.agents.ppo import PPOConfig
from jsrl.cli import run as command
from jsrl.envs.config import EnvConfig
from jsrl.errors import ConfigError
from jsrl.experiment import Experiment, LearnerConfig
from jsrl.launch.hosts.facts import HostFacts, read_hosts
from jsrl.launch.hosts.layout import lay_out, layout_text, ranges, shares
from jsrl.launch.hosts.needs import needs_of
from jsrl.launch.launcher import Need
from jsrl.launch.plan import make_plan
from jsrl.networks.model import NetworkConfig

SMALL = PPOConfig(network=NetworkConfig(hidden=(8,)))
LEARNER = Need("learner", "learns", cores=None, memory_mb=1000)
SERVER = Need("inference-0", "serves", memory_mb=500, travels=True, beside="learner")
RELAY = Need("parameter-server", memory_mb=300, beside="learner")


def actors(count: int, memory_mb: int = 100) -> list[Need]:
    return [Need(f"actor-{i}", memory_mb=memory_mb, travels=True, spreads=True) for i in range(count)]


def host(name: str, cores: int = 8, memory_mb: int = 64_000, gpus: int = 0, shares_folder: bool = False) -> HostFacts:
    return HostFacts(name, cores, memory_mb, gpus=gpus, shares_folder=shares_folder)


def counts(layout) -> dict[str, int]:
    return {each.name: sum(name.startswith("actor") for name in layout.on(each.name)) for each in layout.hosts}


def test_learner_and_servers_live_where_gpus_are_and_actors_share_the_cores_that_are_left():
    hosts = [host("gpu", 32, gpus=4), host("wide", 64), host("slim", 8)]
    layout = lay_out([LEARNER, SERVER, RELAY, *actors(99)], hosts)
    assert layout.on("gpu")[:3] == ["learner", "inference-0", "parameter-server"]
    assert counts(layout) == {"gpu": 28, "wide": 63, "slim": 8}  # of 28, 64 and 8 cores
    assert layout.on("wide") == [f"actor-{i}" for i in range(28, 91)]  # neighbours stay together


def test_a_learner_goes_to_the_gpus_of_a_host_that_sees_the_run_folder():
    hosts = [host("login"), host("gpu", gpus=2, shares_folder=True), host("cloud", gpus=8)]
    layout = lay_out([LEARNER, SERVER, *actors(2)], hosts)
    assert layout.of["learner"] == layout.of["inference-0"] == "gpu"
    with pytest.raises(ConfigError, match="GPUs of cloud are, but that host does not see the run folder"):
        lay_out([LEARNER], [host("login"), host("cloud", gpus=8)])
    assert lay_out([LEARNER], [host("login"), host("cloud")]).of["learner"] == "login"


def test_learners_of_several_policies_part_the_gpus():
    learners = [dataclasses.replace(LEARNER, worker=f"learner-{name}") for name in "abc"]
    hosts = [host("one", gpus=2), host("two", gpus=4, shares_folder=True)]
    layout = lay_out(learners, hosts)
    assert (layout.on("one"), layout.on("two")) == (["learner-b"], ["learner-a", "learner-c"])


def test_a_server_with_a_gpu_of_its_own_takes_one_that_no_learner_needs():
    alone = dataclasses.replace(SERVER, alone=True)
    assert lay_out([LEARNER, alone], [host("one", gpus=1), host("two", gpus=1)]).of["inference-0"] == "two"
    assert lay_out([LEARNER, alone], [host("one", gpus=2), host("two", gpus=1)]).of["inference-0"] == "one"
    assert lay_out([LEARNER, alone], [host("one", gpus=1), host("two")]).of["inference-0"] == "one"  # they share it
    second = dataclasses.replace(alone, worker="inference-1")
    layout = lay_out([LEARNER, alone, second], [host("one", gpus=2), host("two", gpus=1)])
    assert (layout.of["inference-0"], layout.of["inference-1"]) == ("one", "two")


def test_on_cpu_the_learner_leaves_half_of_its_host_to_actors():
    assert counts(lay_out([LEARNER, *actors(12)], [host("a"), host("b")])) == {"a": 4, "b": 8}


def test_what_writes_to_the_run_folder_stays_where_it_is_seen():
    keeper = Need("replay-0", memory_mb=10)
    layout = lay_out([LEARNER, keeper], [host("a", cores=2), host("b", cores=64)])
    assert layout.of["replay-0"] == "a"


def test_memory_bounds_the_actors_of_a_host_and_the_rest_go_elsewhere():
    layout = lay_out(actors(20), [host("a", cores=100, memory_mb=550), host("b", cores=1)])
    assert counts(layout) == {"a": 5, "b": 15}


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
        ([LEARNER], [host("a"), host("a")], "two hosts called 'a'"),
        ([LEARNER], [], "the list of hosts has no host"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(needs, hosts, sentence):
    with pytest.raises(ConfigError, match=sentence) as refused:
        lay_out(needs, hosts)
    assert "\n" not in str(refused.value)


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
    assert ranges(["actor-9", "actor-10", "actor-12"]) == "actor-9 to actor-10 (2), actor-12"


def test_a_plan_says_what_its_workers_need():
    e = Experiment(
        agent=SMALL, env=EnvConfig("CartPole-v1"), placement="apart", num_actors=4, num_envs=8, road="zeromq",
        learner=LearnerConfig(num_devices=2), num_inference_servers=2,
    )  # fmt: skip
    needs = {need.worker: need for need in needs_of(make_plan(e, "runs/x", Path("/dev/shm/jsrl-of-nobody/1-2")))}
    assert needs["learner"].gpus == 2 and not needs["learner"].travels and needs["learner"].beside == ""
    assert needs["inference-1"].device == "serves" and needs["inference-1"].alone and needs["inference-1"].travels
    assert needs["actor-3"].spreads and needs["actor-3"].memory_mb < needs["learner"].memory_mb
    assert needs["parameter-server"].beside == needs["evaluator"].beside == "learner"


HOSTS = [
    {"name": "gpu-1", "address": "10.0.0.5", "cores": 8, "memory_mb": 64000, "gpus": 1},
    {"name": "cpu-1", "address": "10.0.0.6", "cores": 8, "memory_mb": 64000},
]
WORDS = ["ppo_cartpole", "--placement", "served", "--num-envs", "8", "--num-actors", "4", "--plan"]


def test_the_command_prints_who_lives_where(tmp_path: Path, capsys):
    file = tmp_path / "hosts.json"
    file.write_text(json.dumps(HOSTS))
    assert command.main([*WORDS, "--hosts-file", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].split()[:2] == ["gpu-1", "10.0.0.5"] and "learner, inference-0, actor-0" in lines[-2]
    assert lines[-1].endswith("actor-1 to actor-3 (3)")
    assert command.main([*WORDS[:-1], "--hosts-file", str(file)]) == 2
    assert "give it with --plan" in capsys.readouterr().err
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


def test_the_text_has_a_line_for_each_host():
    layout = lay_out([LEARNER, *actors(3)], [host("a", cores=2), host("b"), host("c", memory_mb=10)])
    lines = layout_text(layout).splitlines()
    assert len(lines) == 4 and "learner" in lines[1] and lines[2].endswith("actor-0 to actor-2 (3)")
    assert lines[3].endswith("none")
