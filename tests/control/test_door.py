"""What an update breaks is said before any worker starts, alike for batches, replay on the device and replay workers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from jsrl.agents.sac import SACConfig
from jsrl.control.run import run
from jsrl.envs.config import EnvConfig
from jsrl.errors import AgentFault, ConfigError
from jsrl.experiment import AgentReference, Experiment, LearnerConfig, ReplayConfig
from jsrl.graph.schemas import make_schemas
from tests.replay.learning import acting_toy
from tests.tiny_agent import TinyConfig

REPLAY = {
    "batches": None,
    "device": ReplayConfig(capacity=64, min_size=8, window=2, batch_size=6),
    "host": ReplayConfig("host", capacity=64, min_size=8, window=2, batch_size=6),
}
MISTAKES = {
    r"raised NameError at .*test_door.py:\d+, .*undefined.*: name 'undefined'": lambda state, out, t: undefined,  # noqa: F821
    r"raised TypeError at .*test_door.py:\d+, .*reshape": lambda state, out, t: t.reward.reshape(-1, 7),
    r"update returned AgentState, expected \(AgentState, UpdateOutput\)": lambda state, out, t: state,
    r"\.extra was absent and is float32\[3\] now": lambda state, out, t: (state._replace(extra=jnp.zeros(3)), out),
    r"metric 'errors' has shape \((4|6),\)": lambda state, out, t: (
        state,
        out._replace(metrics={"errors": t.reward[0]}),
    ),
    r"metric 'of' is dict": lambda state, out, t: (state, out._replace(metrics={"of": {"a": jnp.zeros(())}})),
    r"metric 'update_share', but": lambda state, out, t: (state, out._replace(metrics={"update_share": 0.0})),
}
PRIORITIES = {
    "needs an agent that returns priorities": lambda state, out, t: (state, out._replace(priorities=None)),
    r"priorities of shape \[\], expected \[6\]": lambda state, out, t: (state, out._replace(priorities=jnp.zeros(()))),
}


def door(change, replay, *, prioritised=False, devices=1):
    def factory(spec):
        agent = acting_toy(spec, priorities=prioritised)

        def update(state, trajectory, key, *, axis_name=None):
            return change(*agent.update(state, trajectory, key, axis_name=axis_name), trajectory)

        return agent._replace(update=update)

    chosen = REPLAY[replay]
    if chosen is not None and prioritised:
        chosen = ReplayConfig(chosen.kind, capacity=64, min_size=8, window=2, batch_size=6, prioritised=True)
    placement = "serial" if replay == "device" else "inline"
    door_of(factory, LearnerConfig(num_devices=devices), replay=chosen, placement=placement)


def door_of(factory, learner, **options):
    env, agent = EnvConfig("CartPole-v1"), AgentReference(factory)
    options = {"placement": "inline"} | options
    make_schemas(Experiment(env=env, agent=agent, num_envs=4, rollout_length=4, learner=learner, **options))


@pytest.mark.parametrize("replay", REPLAY)
def test_an_update_that_breaks_the_contract_is_refused_at_the_door(replay) -> None:
    door(lambda state, out, t: (state, out), replay)
    for words, change in MISTAKES.items():
        with pytest.raises((AgentFault, ConfigError), match=words) as caught:
            door(change, replay)
        assert len(str(caught.value)) < 600


@pytest.mark.parametrize("replay", ["device", "host"])
def test_priorities_are_refused_at_the_door(replay) -> None:
    door(lambda state, out, t: (state, out), replay, prioritised=True)
    for words, change in PRIORITIES.items():
        with pytest.raises((AgentFault, ConfigError), match=words):
            door(change, replay, prioritised=True)


def test_the_update_is_traced_with_one_devices_share() -> None:
    def expects(columns):
        return lambda state, out, t: (state, out) if t.is_first.shape == columns else undefined  # noqa: F821

    door(expects((5, 2)), "batches", devices=2)
    door(expects((3, 3)), "host", devices=2)


def test_the_update_is_traced_with_the_axis_of_the_devices() -> None:
    seen = []

    def factory(spec):
        agent = acting_toy(spec)

        def update(state, trajectory, key, *, axis_name=None):
            seen.append(jax.lax.axis_size(axis_name))
            jnp.ones(3).reshape(7 if seen[-1] == 2 else 3)
            return agent.update(state, trajectory, key, axis_name=axis_name)

        return agent._replace(update=update)

    door_of(factory, LearnerConfig(num_devices=1))
    with pytest.raises(AgentFault, match=r"raised TypeError at .*test_door.py:\d+, .*reshape"):
        door_of(factory, LearnerConfig(num_devices=2))
    assert seen == [1, 2]


@pytest.mark.parametrize(
    ("agent", "learner", "way_out"),
    [
        (TinyConfig(), LearnerConfig(num_devices=32), "lower learner.num_devices"),
        (SACConfig(), LearnerConfig(split="actor-critic"), "leave learner.split out"),
    ],
)
def test_a_serial_run_with_too_few_devices_leaves_no_folder(agent, learner, way_out, tmp_path) -> None:
    experiment = Experiment(
        env=EnvConfig("probe:continuous"),
        agent=agent,
        num_envs=32,
        rollout_length=8,
        learner=learner,
        placement="serial",
    )
    with pytest.raises(ConfigError, match=rf"the learner wants \d+ devices.*; {way_out}"):
        run(experiment, runs_dir=tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_traceback_of_an_agents_error_has_only_its_own_lines() -> None:
    with pytest.raises(AgentFault) as caught:
        door(lambda state, out, t: undefined, "batches")  # noqa: F821
    frames, frame = [], caught.value.__cause__.__traceback__
    while frame is not None:
        frames.append(frame.tb_frame.f_code.co_filename)
        frame = frame.tb_next
    assert len(frames) < 6 and frames[-1] == __file__ and not any("site-packages" in name for name in frames)
