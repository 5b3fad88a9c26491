"""Different seats and one agent: one policy per group of equal seats, named after them."""

from __future__ import annotations

import dataclasses

import pytest

from jsrl.agents.ppo import PPOConfig
from jsrl.cli import run as command
from jsrl.control.run import run
from jsrl.envs.config import EnvConfig
from jsrl.envs.make import make_spec
from jsrl.experiment import EvaluatorConfig, Experiment, PolicyConfig
from jsrl.experiment.dividing import alike_seats, divided
from jsrl.experiment.policies import find_seats
from jsrl.graph.plan import may_need_policies
from jsrl.graph.policies import taken_names
from jsrl.networks.model import NetworkConfig
from jsrl.types import ArraySpec, Discrete, GameSpec, Seat

TAG = EnvConfig("particle:simple_tag_v3")
PPO = PPOConfig(network=NetworkConfig(hidden=(8,)), num_epochs=1, num_minibatches=1)
TAGGED = Experiment(
    agent=PPO,
    env=TAG,
    name="tagged",
    num_envs=4,
    rollout_length=8,
    total_env_steps=2 * 32,
    placement="serial",
    evaluator=EvaluatorConfig(enabled=False),
)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("adversary_0:1 adversary_1:1 agent_0:2", {"adversary": ["adversary_0", "adversary_1"], "agent": ["agent_0"]}),
        ("eve_0:1 bob_0:2 alice_0:2", {"eve": ["eve_0"], "policy_1": ["bob_0", "alice_0"]}),
        ("Seeker-10:1 hider:2 Seeker-11:1", {"seeker": ["Seeker-10", "Seeker-11"], "hider": ["hider"]}),
        ("1:1 2:2", {"policy_0": ["1"], "policy_1": ["2"]}),
        ("a_0:1 a_1:2", {"a": ["a_0"], "policy_1": ["a_1"]}),
        ("a_0:1 b_0:1", {"policy_0": ["a_0", "b_0"]}),
        ("scout:1 evaluator:2", {"scout": ["scout"], "policy_1": ["evaluator"]}),
        ("critic:1 actor_0:2 actor_1:2", {"critic": ["critic"], "policy_1": ["actor_0", "actor_1"]}),
        ("a[0]:1 b*:2 b_c:2 d?:3", {"a": ["a[0]"], "b": ["b*", "b_c"], "d": ["d?"]}),
    ],
)
def test_groups_are_named_after_the_common_part_of_seat_names(names, expected):
    sized = [name.split(":") for name in names.split()]
    seats = tuple(Seat(name, ArraySpec((int(size),), "float32"), Discrete(2)) for name, size in sized)
    assert {name: list(own) for name, own in alike_seats(seats, taken_names()).items()} == expected
    policies = {name: PolicyConfig(PPO, seats=tuple(own)) for name, own in expected.items()}
    found = find_seats(policies, GameSpec(seats), shared=False)
    assert {name: list(own) for name, own in found.items()} == expected


def test_equal_seats_share_a_policy_and_different_seats_do_not():
    made, line = divided(TAGGED, make_spec(TAG))
    assert made.agent is None and list(made.policies) == ["adversary", "agent"]
    assert made.policies["agent"] == PolicyConfig(PPO, seats=("agent_0",))
    assert (
        "2 policies with the same options: adversary plays adversary_0, adversary_1, adversary_2; agent plays agent_0"
        in line
    )
    spread = EnvConfig("particle:simple_spread_v3")
    assert divided(dataclasses.replace(TAGGED, env=spread), make_spec(spread))[1] is None
    assert not may_need_policies(dataclasses.replace(TAGGED, env=EnvConfig()))
    assert may_need_policies(dataclasses.replace(TAGGED, env=EnvConfig("jaxmarl:MPE_simple_tag_v3")))
    assert not may_need_policies(made)


@pytest.mark.nightly
def test_run_divides_policies_announces_them_and_resumes(tmp_path, monkeypatch, capsys):
    result = run(TAGGED, runs_dir=tmp_path, name="one", display="quiet")
    assert result.updates == 2 and result.others["agent"]["updates"] == 2 and result.first_policy == "adversary"
    assert "adversary plays adversary_0" in (result.folder / "logs" / "controller.log").read_text()
    again = run(TAGGED, runs_dir=tmp_path, resume="one", display="quiet", total_env_steps=4 * 32)
    assert again.updates == 4 and again.others["agent"]["updates"] == 4
    monkeypatch.chdir(tmp_path)
    assert command.main(["mappo", "--env.id", "particle:simple_speaker_listener_v4", "--plan"]) == 0
    text = capsys.readouterr().out
    assert "speaker plays speaker_0; listener plays listener_0" in text and "learner-listener" in text
