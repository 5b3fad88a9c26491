"""From an experiment to processes: workers, devices, streams, and refusals before the start."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from jsrl import fields
from jsrl.agents.base import ActOutput
from jsrl.agents.dqn import DQNConfig
from jsrl.agents.happo import HAPPOConfig
from jsrl.agents.mappo import MAPPOConfig
from jsrl.agents.ppo import PPOConfig
from jsrl.agents.qmix import QMIXConfig
from jsrl.agents.vdn import RecurrentVDNConfig, VDNConfig
from jsrl.cli.command_line import parse
from jsrl.cli.plan import describe
from jsrl.control import memory_folder
from jsrl.control.memory_folder import check_memory
from jsrl.control.run import run
from jsrl.envs.config import EnvConfig
from jsrl.envs.make import make_spec
from jsrl.errors import ConfigError
from jsrl.experiment import (
    AgentReference,
    EvaluatorConfig,
    Experiment,
    InferenceConfig,
    LearnerConfig,
    PolicyConfig,
    ReplayConfig,
)
from jsrl.experiment.policies import check_team
from jsrl.graph.addresses import begin_encryption, bind_addresses, check_address
from jsrl.graph.devices import process_environment, set_flags_here
from jsrl.graph.launcher import Hosts
from jsrl.graph.machine import accelerators, within_gpu_memory
from jsrl.graph.placements import make_graph
from jsrl.graph.plan import Plan, decided, make_plan, memory_mb
from jsrl.graph.schemas import make_schemas
from jsrl.networks.model import NetworkConfig
from jsrl.references.reference import from_json, to_json
from jsrl.services.runs.limits import RUNS_AT_ONCE
from jsrl.transport.door import keys
from jsrl.transport.stream import name_at
from jsrl.types import ArraySpec
from tests.loopback import own_loopback
from tests.marks import slow
from tests.tiny_agent import STILL, still

MEMORY = Path("/dev/shm/jsrl-of-nobody/1-2")
SMALL = PPOConfig(network=NetworkConfig(hidden=(8,)))


def experiment(**values) -> Experiment:
    shape = {"rollout_length": 4, "placement": "served", "num_actors": 1}
    return Experiment(**({"agent": STILL} | shape | values))


def plan_of(graph=None, **values):
    return make_plan(experiment(**values), "runs/x", MEMORY, edit=graph)


def agent_with(act=None, core=()):
    """Return a factory of an agent whose act may break the contract."""

    def factory(spec):
        right = still(spec)
        return right._replace(act=act or right.act, initial_core=lambda rows: core)

    return AgentReference(factory)


@pytest.mark.parametrize(
    ("values", "workers"),
    [
        ({"placement": "serial"}, {"learner": 1, "actor": 1, "evaluator": 1}),
        ({"placement": "serial", "num_actors": 4}, {"learner": 1, "actor": 1, "evaluator": 1}),
        ({"placement": "inline", "num_actors": 4}, {"learner": 1, "actor": 4, "evaluator": 1}),
        ({"placement": "served"}, {"learner": 1, "inference": 1, "actor": 1, "evaluator": 1}),
        ({"placement": "apart", "num_actors": 4, "num_inference_servers": 2},
         {"learner": 1, "inference": 2, "actor": 4, "evaluator": 1}),
        ({"placement": "served", "transport": "zeromq"},
         {"learner": 1, "parameter-server": 1, "inference": 1, "actor": 1, "evaluator": 1}),
    ],
)  # fmt: skip
def test_workers_of_a_plan(values, workers):
    plan = plan_of(**values)
    kinds = [job.kind for job in plan.jobs]
    assert {kind: kinds.count(kind) for kind in kinds} == workers
    assert len({job.name for job in plan.jobs}) == len(plan.jobs)
    hosted = [group for job in plan.jobs if job.kind == "actor" for group in job.end("samples").groups]
    assert hosted == list(range(plan.experiment.groups))


def test_jobs_round_trip():
    for values in ({"placement": "served", "num_actors": 2}, {"placement": "inline"}):
        for job in plan_of(**values).jobs:
            assert from_json(json.loads(json.dumps(to_json(job)))) == job


def test_a_value_is_judged_once_between_the_command_line_and_the_plan(tmp_path, monkeypatch) -> None:
    judge, judged = fields.check_value, list[float]()
    monkeypatch.setattr(fields, "check_value", lambda *facts: (judged.append(facts[2]), judge(*facts)))
    words = ["--agent.learning-rate", "0.000317", "--agent.schedule", "linear", "--placement", "serial"]
    made = make_plan(decided(parse(words, Experiment(SMALL)).experiment)[0], str(tmp_path), tmp_path)
    agent = made.experiment.agent
    assert agent.total_updates is not None and judged.count(agent.learning_rate) == 1  # copies are not judged again


def test_only_served_actors_need_no_agent():
    for placement, expected in (("served", True), ("apart", True), ("inline", False), ("serial", False)):
        actors = [job for job in plan_of(placement=placement).jobs if job.kind == "actor"]
        assert all((job.experiment.agent is None) == expected for job in actors), placement
        assert all(job.experiment.agent is not None for job in plan_of(placement=placement).jobs if job.kind != "actor")


def test_schemas_match_the_streams():
    recurrent = PPOConfig(network=NetworkConfig(hidden=(8,), core="gru", core_size=6))
    schemas = make_schemas(experiment(agent=recurrent, num_envs=8, num_groups=2))
    assert schemas.trajectory.observation.shape == (5, 4, 4)
    assert schemas.trajectory.action.dtype == "int32"
    assert [leaf.shape for leaf in jax.tree.leaves(schemas.trajectory.core)] == [(4, 6)]
    assert schemas.state_bytes > schemas.params_bytes > 4 * 8 * 4


def test_requests_have_no_global_state():
    """It travels with the rows to the learner, whose central value function reads it."""
    e = Experiment(env=EnvConfig("particle:simple_spread_v3"), agent=MAPPOConfig(), num_envs=4, rollout_length=4)
    schemas = make_schemas(e)
    assert schemas.env.state is not None and schemas.trajectory.state != ()
    assert schemas.act.observation == schemas.env.observation == ArraySpec((3, 18), "float32")


def test_description_counts_the_workers():
    text = describe(plan_of(placement="apart", num_actors=4, num_inference_servers=2), ["0", "1"])
    table = [line.split() for line in text.splitlines() if line[:2] == "  " and line[2:3].isalpha()]
    rows = {words[0]: words for words in table}
    assert rows["actor"][1] == "4"
    assert rows["inference"][1] == "2"
    assert "in all" in text
    assert "gpu 1" in next(line for line in text.splitlines() if line.strip().startswith("inference "))
    assert "samples    shared-memory" in text
    assert "MiB" in text


def test_serial_runs_in_one_process_without_streams_between_any():
    text = describe(plan_of(placement="serial"), [])
    assert "0 (serial)" in text
    assert "in-process" in text
    assert "actor <-> inference" not in text


def test_shared_memory_grows_with_stream_capacity():
    small, large = plan_of(), plan_of(rollout_length=40)
    assert 8 * small.stream_bytes < large.stream_bytes < 11 * small.stream_bytes
    assert small.shared_memory_bytes > small.stream_bytes
    assert plan_of(transport="zeromq").shared_memory_bytes < small.shared_memory_bytes


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (agent_with(lambda p, k, o, f, c, greedy=False: (ActOutput(jnp.zeros(1), jnp.zeros(1)), c)),
         r"actions of shape \(\) and dtype float32 .* hold shape \(\) and dtype int32"),
        (agent_with(lambda p, k, o, f, c, greedy=False: (ActOutput(jnp.zeros((1, 2), jnp.int32), jnp.zeros(1)), c)),
         r"actions of shape \(2,\)"),
        (agent_with(lambda p, k, o, f, c, greedy=False: (ActOutput(jnp.zeros(1, jnp.int32), jnp.zeros((1, 3))), c)),
         r"log-probabilities of shape \(3,\) .* hold shape \(\) and dtype float32"),
        (agent_with(lambda p, k, o, f, c, greedy=False: (ActOutput(jnp.zeros(1, jnp.int32), jnp.zeros(())), c)),
         r"act returns an array of shape \[\] for one observation; expected \[1, ...\]"),
        (agent_with(lambda p, k, o, f, c, greedy=False: (ActOutput(jnp.zeros(1, jnp.int32), jnp.zeros(1)), jnp.ones(3)),
                    core=()), r"act returns a core of \[\(\(3,\), 'float32'\)\], initial_core one of \[\]"),
    ],
)  # fmt: skip
def test_mismatched_agent_is_refused_before_the_start(reference, message):
    with pytest.raises(ConfigError, match=message):
        make_schemas(experiment(agent=reference))


def test_matching_agent_is_accepted():
    make_schemas(experiment(agent=agent_with()))


def test_single_seat_agent_is_refused_for_several_seats():
    """Also one with correct actions: log-probabilities of the wrong shape would be broadcast into the rows."""
    env = EnvConfig("matrix:rps")

    def summed(params, key, observation, is_first, core, *, greedy=False):
        return ActOutput(jnp.zeros((1, 2), jnp.int32), jnp.zeros(1)), core

    with pytest.raises(ConfigError, match=r"actions of shape \(\) .* \(2,\) .* 2 seats of 'matrix:rps'.*Several seats"):
        make_schemas(experiment(agent=agent_with(), env=env))
    with pytest.raises(ConfigError, match=r"log-probabilities of shape \(\) .* hold shape \(2,\)"):
        make_schemas(experiment(agent=agent_with(summed), env=env))


TEAM = {  # agents that learn from the mean reward of their seats
    "vdn": VDNConfig(total_updates=10),
    "qmix": QMIXConfig(total_updates=10),
    "recurrent vdn": RecurrentVDNConfig(),
    "happo": HAPPOConfig(),
    "mappo": MAPPOConfig(rewards="team"),
}


@pytest.mark.parametrize("agent", TEAM)
def test_a_team_of_opposed_sides_is_refused(agent):
    """Its reward would be 0; the seats of one side, or of a game without sides, may be a team."""
    duel, hiding = make_spec(EnvConfig("matrix:biased_rps")), make_spec(EnvConfig("hide_and_seek:quadrant"))
    told = r"'one' plays the sides player_0 and player_1 of 'matrix:biased_rps', .* give each side a policy"
    with pytest.raises(ConfigError, match=told):
        check_team("one", PolicyConfig(TEAM[agent]), {"player_0": 0, "player_1": 1}, duel)
    with pytest.raises(ConfigError, match="the sides hiders and seekers"):
        check_team("one", PolicyConfig(TEAM[agent]), dict(zip(hiding.names, range(4), strict=True)), hiding)
    check_team("one", PolicyConfig(TEAM[agent]), {"player_0": 0}, duel)
    check_team("hiders", PolicyConfig(TEAM[agent]), {"hider_0": 0, "hider_1": 1}, hiding)
    for accepted in (make_spec(EnvConfig("matrix:two_step")), dataclasses.replace(duel, zero_sum=False)):
        check_team("one", PolicyConfig(TEAM[agent]), {"player_0": 0, "player_1": 1}, accepted)
    for other in (SMALL, MAPPOConfig(), AgentReference("tests:none")):
        check_team("one", PolicyConfig(other), {"player_0": 0, "player_1": 1}, duel)


@pytest.mark.slow
def test_a_team_of_opposed_sides_is_refused_before_the_start():
    options = {"env": EnvConfig("matrix:biased_rps"), "evaluator": EvaluatorConfig(enabled=False)}
    with pytest.raises(ConfigError, match=r"HAPPOConfig.*give each side a policy of its own"):
        plan_of(agent=HAPPOConfig(), **options)
    policies = {name: PolicyConfig(HAPPOConfig(), name) for name in ("player_0", "player_1")}
    plan_of(agent=None, policies=policies, **options)


@pytest.mark.parametrize(("core", "what"), [("none", "16 rows"), slow("gru", "4 environments")])
def test_minibatches_that_do_not_divide_a_teams_rows_are_refused_before_the_start(core: str, what: str) -> None:
    """HAPPO's minibatches consist of the rows of a team, not of its three seats."""
    agent = HAPPOConfig(num_minibatches=3, network=NetworkConfig(hidden=(4,), core=core))
    experiment = Experiment(env=EnvConfig("particle:simple_spread_v3"), agent=agent, num_envs=4, rollout_length=4)
    with pytest.raises(ConfigError, match=f"num_minibatches=3 does not divide the {what} of a batch; use 2 or 4"):
        make_schemas(experiment)
    make_schemas(dataclasses.replace(experiment, agent=dataclasses.replace(agent, num_minibatches=4)))


def test_an_unknown_environment_is_refused():
    with pytest.raises(ConfigError, match="CartPole-v1"):
        make_schemas(experiment(env=EnvConfig("CartPol-v1")))


# -- devices and threads ----------------------------------------------------------------------------------------------


def environments(gpus: list[str], **values) -> dict[str, dict[str, str]]:
    """Return kind -> environment variables of its process."""
    plan = plan_of(**values)
    return {job.kind: process_environment(plan, job, gpus) for job in plan.jobs}


FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"


def visible(given: dict[str, dict[str, str]]) -> dict[str, str]:
    return {kind: variables["CUDA_VISIBLE_DEVICES"] for kind, variables in given.items()}


def test_without_an_accelerator_all_workers_use_the_cpu():
    given = environments([], placement="served")
    assert all(v["JAX_PLATFORMS"] == "cpu" and v["CUDA_VISIBLE_DEVICES"] == "" for v in given.values())
    assert given["actor"]["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in given["learner"]
    assert not any(FRACTION in variables for variables in given.values())


def test_served_shares_one_gpu_by_stated_parts():
    given = environments(["0"], placement="served", num_inference_servers=2, num_actors=2)
    assert visible(given) == {"learner": "0", "inference": "0", "actor": "", "evaluator": ""}
    assert given["learner"][FRACTION] == "0.60"
    assert float(given["inference"][FRACTION]) == pytest.approx(0.15)
    assert float(given["learner"][FRACTION]) + 2 * float(given["inference"][FRACTION]) <= 0.95
    assert given["actor"]["JAX_PLATFORMS"] == given["evaluator"]["JAX_PLATFORMS"] == "cpu"


def test_workers_divide_the_part_of_a_gpu_that_they_may_use(monkeypatch):
    given = environments(["0"], placement="served")
    assert within_gpu_memory(given["learner"]) == given["learner"]
    monkeypatch.setenv(FRACTION, "0.45")  # half of a GPU
    assert [within_gpu_memory(given[kind])[FRACTION] for kind in ("learner", "inference")] == ["0.300", "0.150"]
    alone = environments(["0"], placement="inline")
    assert within_gpu_memory(alone["learner"])[FRACTION] == "0.45"


def test_apart_gives_inference_the_last_gpu_or_shares_the_only_one():
    assert visible(environments(["0", "1"], placement="apart")) == {
        "learner": "0", "inference": "1", "actor": "", "evaluator": ""}  # fmt: skip
    one = environments(["0"], placement="apart")
    assert (one["learner"]["CUDA_VISIBLE_DEVICES"], one["inference"]["JAX_PLATFORMS"]) == ("0", "cpu")
    assert FRACTION not in one["learner"]


def test_inline_leaves_all_gpus_to_the_learner_alone():
    given = environments(["2", "3"], placement="inline")
    assert visible(given) == {"learner": "2,3", "actor": "", "evaluator": ""}
    assert FRACTION not in given["learner"]


@pytest.mark.parametrize("placement", ["serial", "inline", "served", "apart"])
def test_devices_follow_the_graph_and_not_its_placement(placement):
    given = functools.partial(environments, ["0", "1"], placement=placement, num_actors=2, num_envs=4)
    alone, beside, inline = (
        given(graph=f"jsrl.experiment.graphs.{name}")
        for name in ("architectures:own_devices", "architectures:beside_learner", "architectures:all_inline")
    )
    assert (alone["learner"]["CUDA_VISIBLE_DEVICES"], alone["inference"]["CUDA_VISIBLE_DEVICES"]) == ("0", "1")
    assert FRACTION not in alone["learner"]
    assert (beside["learner"]["CUDA_VISIBLE_DEVICES"], beside["inference"]["CUDA_VISIBLE_DEVICES"]) == ("0,1", "0")
    assert beside["learner"][FRACTION] == "0.60"
    assert "inference" not in inline and inline["learner"]["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_a_server_on_the_learner_s_gpu_by_index_shares_its_memory():
    given = environments(["0"], placement="apart", inference=InferenceConfig(device="gpu:0"))
    assert visible(given) == {"learner": "0", "inference": "0", "actor": "", "evaluator": ""}
    assert float(given["learner"][FRACTION]) + float(given["inference"][FRACTION]) <= 0.95


def test_apart_by_index_gives_the_learner_the_others():
    given = environments(["4", "5", "6"], placement="apart", inference=InferenceConfig(device="gpu:0"))
    assert (given["learner"]["CUDA_VISIBLE_DEVICES"], given["inference"]["CUDA_VISIBLE_DEVICES"]) == ("5,6", "4")
    assert FRACTION not in given["learner"]


def test_servers_on_a_host_without_the_learner_share_its_gpus():
    plan = plan_of(placement="served", num_inference_servers=3, num_actors=3, num_envs=6)
    here = {"inference-1", "inference-2", "actor-0"}
    given = {name: process_environment(plan, plan.job(name), ["0", "1"], here) for name in (*here, "inference-0")}
    devices = [given[f"inference-{i}"]["CUDA_VISIBLE_DEVICES"] for i in range(3)]
    assert devices == ["", "0", "1"] and given["inference-0"]["JAX_PLATFORMS"] == "cpu"  # which was not placed here
    assert given["inference-1"]["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false" and FRACTION not in given["inference-1"]
    assert given["actor-0"]["JAX_PLATFORMS"] == "cpu"
    home = process_environment(plan, plan.job("learner"), ["0"], {"learner", "actor-1"})
    assert home["CUDA_VISIBLE_DEVICES"] == "0" and FRACTION not in home  # no other process shares its GPU


def test_inference_on_cpu_by_choice():
    given = environments(["0"], placement="served", inference=InferenceConfig(device="cpu"))
    assert given["inference"]["JAX_PLATFORMS"] == "cpu"
    assert FRACTION not in given["learner"]


@pytest.mark.parametrize(("gpus", "tail"), [([], r"use auto, cpu\."), (["0", "1"], r"or gpu:0 to gpu:1\.")])
def test_missing_gpu_is_refused(gpus, tail):
    with pytest.raises(ConfigError, match=rf"inference\.device is gpu:2, but this host shows {len(gpus)}.*{tail}"):
        environments(gpus, inference=InferenceConfig(device="gpu:2"))


def test_missing_gpus_are_refused_before_the_start(tmp_path, monkeypatch):
    ranks = experiment(placement="inline", num_actors=2, learner=LearnerConfig(num_ranks=2))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    with pytest.raises(ConfigError, match="2 ranks of one learner are on a host with 1 accelerator"):
        run(ranks, runs_dir=tmp_path / "runs", display="quiet")
    assert not (tmp_path / "runs").exists()


def test_deterministic_runs_use_kernels_with_a_fixed_order(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/nowhere")
    given = environments(["0"], placement="served", deterministic=True)
    for worker in ("learner", "inference"):
        assert given[worker]["XLA_FLAGS"] == "--xla_dump_to=/nowhere --xla_gpu_deterministic_ops=true"
    assert "XLA_FLAGS" not in environments(["0"], placement="served")["learner"]
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_deterministic_ops=false")
    assert "XLA_FLAGS" not in environments(["0"], placement="served", deterministic=True)["learner"]


def test_flags_of_a_deterministic_serial_run_stay_in_its_process(monkeypatch):
    seen = []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setattr(jax, "local_devices", lambda: seen.append(os.environ["XLA_FLAGS"]))
    for before in ("--xla_dump_to=/nowhere", None):
        monkeypatch.delenv("XLA_FLAGS", raising=False) if before is None else monkeypatch.setenv("XLA_FLAGS", before)
        set_flags_here(experiment(placement="serial"))
        set_flags_here(experiment(placement="inline", deterministic=True))
        assert not seen
        set_flags_here(experiment(placement="serial", deterministic=True))
        assert seen.pop() == f"{before or ''} --xla_gpu_deterministic_ops=true".strip()
        assert os.environ.get("XLA_FLAGS") == before


def test_threads_of_workers_do_not_depend_on_the_cores():
    plain = environments([], placement="served", learner=LearnerConfig(threads=3))
    assert [plain[kind]["PJRT_NPROC"] for kind in ("learner", "inference", "actor")] == ["3", "1", "1"]
    assert "PJRT_NPROC" not in environments([], placement="served")["learner"]
    fixed = environments([], placement="served", learner=LearnerConfig(threads=3), deterministic=True)
    assert {own["PJRT_NPROC"] for own in fixed.values()} == {"3"}  # as in a serial run


@pytest.mark.slow
def test_a_serial_run_computes_with_its_threads_on_any_number_of_cores():
    program = """
import os
os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])
from jsrl.experiment import Experiment, LearnerConfig
from jsrl.graph.devices import set_flags_here
from jsrl.graph.machine import xla_threads
assert xla_threads() is None
set_flags_here(Experiment(placement="serial", learner=LearnerConfig(threads=3)))
assert "PJRT_NPROC" not in os.environ
print(xla_threads())
"""
    environment = {name: value for name, value in os.environ.items() if name != "PJRT_NPROC"}
    command = [sys.executable, "-c", program]
    ran = subprocess.run(
        command, env={**environment, "JAX_PLATFORMS": "cpu"}, capture_output=True, text=True, check=False
    )
    assert ran.stdout == "3\n", ran.stderr


@pytest.mark.parametrize(
    ("values", "most_mb", "sentence"),
    [
        (
            {"agent": DQNConfig(), "placement": "serial", "replay": ReplayConfig(capacity=10**9)},
            24_000,
            r"\(1 learner 3\d,\d{3}\), but may use 24,000 MB.*smaller --replay.capacity \(now 1,000,000,000\)",
        ),
        (
            {"agent": DQNConfig(), "placement": "inline", "replay": ReplayConfig(kind="host", capacity=10**9)},
            24_000,
            r"\(1 replay 48,\d{3}.*--replay.capacity",
        ),
        (
            {"placement": "inline", "num_actors": 64, "num_envs": 64},
            16_000,
            r"needs about 19,\d{3} MB.*64 actors 19,200.* may use 16,000 MB here. Use fewer environments or actors",
        ),
    ],
)
def test_a_run_that_needs_more_memory_than_it_may_use_is_refused(values, most_mb, sentence, monkeypatch):
    plan = plan_of(**values)
    monkeypatch.setattr(memory_folder, "usable_memory_bytes", lambda: most_mb << 20)
    with pytest.raises(ConfigError, match=sentence):
        check_memory(plan)
    monkeypatch.setattr(memory_folder, "usable_memory_bytes", lambda: 10**12)
    check_memory(plan)


def test_runs_at_once_share_the_memory_that_they_may_use(monkeypatch):
    plan = plan_of(placement="inline", num_actors=4, num_envs=4)
    monkeypatch.setattr(memory_folder, "usable_memory_bytes", lambda: 4_000 << 20)
    check_memory(plan)
    monkeypatch.setenv(RUNS_AT_ONCE, "3")
    with pytest.raises(
        ConfigError, match=r"may use 1,333 MB here, one of 3 runs at once. Use fewer runs at once, fewer env"
    ):
        check_memory(plan)


def test_replay_on_a_gpu_needs_no_memory_of_the_host(monkeypatch):
    plan = plan_of(agent=DQNConfig(), placement="serial", replay=ReplayConfig(capacity=10**9))
    monkeypatch.setattr(memory_folder, "usable_memory_bytes", lambda: 4_000 << 20)
    monkeypatch.setattr(memory_folder, "accelerators", lambda: ["0"])
    check_memory(plan)


def test_a_serial_run_is_one_process():
    serial, inline = (plan_of(placement=placement) for placement in ("serial", "inline"))
    assert sum(memory_mb(serial, job) for job in serial.jobs) < 400 < sum(memory_mb(inline, job) for job in inline.jobs)


def test_fake_devices_are_for_the_learner_only(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2 --xla_dump_to=/nowhere")
    given = environments([], placement="served", learner=LearnerConfig(num_devices=4))
    flags = given["learner"]["XLA_FLAGS"].split()
    assert "--xla_force_host_platform_device_count=4" in flags
    assert "--xla_dump_to=/nowhere" in flags
    assert sum("device_count" in flag for flag in flags) == 1
    assert int(given["learner"]["PJRT_NPROC"]) >= 8
    assert "device_count" not in given["inference"]["XLA_FLAGS"]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "0"}, []),
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, ["2", "3"]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, []),
    ],
)
def test_accelerators_follow_the_visible_devices(monkeypatch, variables, expected):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert accelerators() == expected


def test_accelerators_of_a_container_are_counted_from_zero(monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    shown = ["nvidia3", "nvidia6", "nvidiactl", "nvidia-uvm", "nvidia-caps"]
    monkeypatch.setattr(Path, "glob", lambda folder, pattern: [folder / name for name in shown])
    assert accelerators() == ["0", "1"]


REPLAY = ReplayConfig(kind="host", num_replays=2, capacity=2_000, batch_size=16, min_size=200)


def addresses_of(plan: Plan) -> dict[str, str]:
    """Return every ZeroMQ stream that a plan binds, by its registered name."""
    ends = [(job, end) for job in plan.jobs for _, end in job.ends]
    return {name_at(e.stream.name, job.name): e.address for job, e in ends if e.address and e.address[:4] != "shm:"}


NAMES = ("samples.learner", "inference.inference-0", "inference.inference-1", "relayed.parameter-server")


def test_streams_within_a_host_are_unix_sockets_in_the_runs_own_folder() -> None:
    plan = plan_of(transport="zeromq", num_inference_servers=2, num_actors=2)
    assert addresses_of(plan) == {name: f"ipc://{plan.memory_folder}/{name}" for name in NAMES}
    assert plan.keys is None
    assert plan.job("learner").end("params").address == f"shm:{plan.memory_folder}/params.learner"
    assert "transport zeromq (ipc)" in describe(plan, [])


def test_too_long_socket_paths_are_refused_with_the_remedy() -> None:
    e = experiment(transport="zeromq")
    with pytest.raises(ConfigError, match=r"has 1[56]\d bytes, at most 107 .* export TMPDIR=/tmp"):
        bind_addresses(make_graph(e), e, Path("/" + "d" * 150))


def test_first_port_in_use_is_refused_before_the_start() -> None:
    host = own_loopback()
    with socket.create_server((host, 0)) as server:
        bind = f"{host}:{server.getsockname()[1]}"
        with pytest.raises(
            ConfigError, match=rf"bind is {bind}, but another process listens .* or --bind {host} for free"
        ):
            check_address(experiment(transport="zeromq", bind=bind))
    check_address(experiment(transport="zeromq", bind=bind))


def test_hosts_of_a_stream_determine_its_transport() -> None:
    """One actor is remote: its streams use TCP, and the params of local workers use shared memory."""
    e = experiment(num_actors=2)
    found = bind_addresses(make_graph(e), e, MEMORY, Hosts("10.0.0.1", {"actor-1": "10.0.0.7"}))
    here = "tcp://10.0.0.1:0"
    assert found["samples", "learner"] == here and found["inference", "inference-0"] == here
    assert found["params", "learner"] == f"shm:{MEMORY}/params.learner"
    away = bind_addresses(make_graph(e), e, MEMORY, Hosts("10.0.0.1", {"learner": "fd00::7"}))
    assert away["samples", "learner"] == away["params", "learner"] == "tcp://[fd00::7]:0"


def test_encrypt_means_tcp_with_keys() -> None:
    plan = plan_of(transport="zeromq", encrypt=True)
    assert set(addresses_of(plan).values()) == {"tcp://127.0.0.1:0"} and plan.keys == "runs/x/keys"


@pytest.mark.parametrize(
    ("bind", "expected"),
    [
        ("10.0.0.5", ["tcp://10.0.0.5:0"] * 4),
        ("10.0.0.5:7000", [f"tcp://10.0.0.5:{port}" for port in range(7000, 7004)]),
        ("[fd00::5]:7000", [f"tcp://[fd00::5]:{port}" for port in range(7000, 7004)]),
    ],
)
def test_reachable_streams_use_the_run_keys(bind: str, expected: list[str]) -> None:
    plan = plan_of(transport="zeromq", bind=bind, num_inference_servers=2, num_actors=2)
    assert [addresses_of(plan)[name] for name in NAMES] == expected
    assert plan.keys == "runs/x/keys" and {job.keys for job in plan.jobs} == {plan.keys}
    assert not Path("runs/x/keys").exists()  # only a start creates them
    text = describe(plan, [])
    assert "transport zeromq (tcp, encrypted)" in text and "samples    zeromq (tcp, encrypted)" in text


def test_each_stream_of_replay_workers_has_a_port_of_its_own() -> None:
    plan = plan_of(
        agent=DQNConfig(),
        transport="zeromq",
        bind="127.0.0.1:7000",
        replay=REPLAY,
        placement="inline",
        num_actors=2,
        max_policy_lag=None,
    )
    assert sorted(addresses_of(plan).values()) == [f"tcp://127.0.0.1:{port}" for port in range(7000, 7006)]


def test_exhausted_ports_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"--bind 127\.0\.0\.1:65534 leaves 2 ports for its streams, too few for relayed"
    ):
        plan_of(transport="zeromq", bind="127.0.0.1:65534")


def test_zeromq_without_encryption_is_refused_before_the_start(monkeypatch) -> None:
    monkeypatch.setattr(keys.zmq, "has", lambda what: False)
    plan_of(transport="zeromq")
    with pytest.raises(ConfigError, match="built without CURVE"):
        plan_of(transport="zeromq", bind="0.0.0.0")


def test_start_creates_keys_for_encrypted_streams_and_refuses_readable_ones(tmp_path: Path) -> None:
    e = experiment(transport="zeromq", bind="10.0.0.5")
    told: list[str] = []
    begin_encryption(experiment(), None, show=told.append)
    begin_encryption(experiment(), str(tmp_path / "joined"), show=told.append)
    assert told == [] and (tmp_path / "joined" / "server.key").exists()
    begin_encryption(e, str(tmp_path / "keys"), show=told.append)
    path = tmp_path / "keys" / "client.key"
    assert told == [f"streams listen on 10.0.0.5 and are encrypted; ends on other hosts need {path}"] and path.exists()
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="mode 0644"):
        begin_encryption(e, str(tmp_path / "keys"), show=told.append)
