"""check_agent passes sound agents and names what a broken one did."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jsrl.agents.base import UpdateOutput
from jsrl.agents.check import check_agent
from jsrl.agents.dqn import DQNConfig, dqn
from jsrl.agents.impala import IMPALAConfig, impala
from jsrl.agents.ppo import PPOConfig, ppo
from jsrl.errors import AgentFault
from jsrl.networks.model import NetworkConfig
from jsrl.types import ArraySpec, Continuous, Discrete, EnvSpec, MultiDiscrete
from tests.fake_devices import fake_devices

SMALL = NetworkConfig(hidden=(16,))
RECURRENT = NetworkConfig(hidden=(16,), core="lstm", core_size=8)
LINE = ArraySpec((3,), "float32")
SPEC = EnvSpec(LINE, Discrete(3))
GOOD = impala(IMPALAConfig(network=SMALL), SPEC)
GOOD_RECURRENT = impala(IMPALAConfig(network=RECURRENT), SPEC)

SOUND = {
    "recurrent": (SPEC, RECURRENT),
    "masked dict": (
        EnvSpec(
            {"x": LINE, "n": ArraySpec((), "int32"), "action_mask": ArraySpec((5,), "bool")}, MultiDiscrete((2, 3))
        ),
        SMALL,
    ),
    "squashed": (EnvSpec(LINE, Continuous((-1.0,), (1.0,), "squash")), SMALL),
    "agents": (EnvSpec(ArraySpec((2, 3), "float32"), Discrete(3), num_agents=2), SMALL),
    "image": (EnvSpec(ArraySpec((16, 16, 3), "uint8"), Discrete(3)), SMALL),
}


DAILY = {("ppo", "image"), ("ppo", "squashed"), ("ppo", "recurrent"), ("impala", "masked dict"), ("impala", "agents")}
FACTORIES = {"ppo": (ppo, PPOConfig), "impala": (impala, IMPALAConfig)}


@pytest.mark.slow  # compiling takes minutes
@pytest.mark.parametrize(
    ("algorithm", "kind"),
    [
        pytest.param(algorithm, kind, marks=() if (algorithm, kind) in DAILY else pytest.mark.nightly)
        for algorithm in FACTORIES
        for kind in SOUND
    ],
)
def test_sound_agents_pass(algorithm, kind):
    (make, config), (spec, network) = FACTORIES[algorithm], SOUND[kind]
    agent = make(config(network=network, normalize_observations=True, normalize_values=True), spec)
    report = check_agent(agent, spec)
    assert {"act_outputs", "update_contract", "update_ignores_masked_rows"} <= set(report.checks)
    assert ("act_resets_core" in report.checks) == (kind == "recurrent")
    assert ("act_obeys_mask" in report.checks) == (kind == "masked dict")
    assert report.update_s <= report.update_compile_s


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["masked", "agents"])
def test_dqn_on_the_ladder_passes(kind):
    masked = EnvSpec({"x": LINE, "action_mask": ArraySpec((3,), "bool")}, Discrete(3))
    spec = {"masked": masked, "agents": SOUND["agents"][0]}[kind]
    report = check_agent(dqn(DQNConfig(network=SMALL, exploration="ladder"), spec), spec)
    assert {"act_resets_core", "update_contract"} <= set(report.checks)


def after_act(change, agent=GOOD):
    def act(*arguments, greedy=False):
        output, core = agent.act(*arguments, greedy=greedy)
        return change(output, core, arguments, greedy)

    return agent._replace(act=act)


def after_update(change):
    def update(state, trajectory, key, *, axis_name=None):
        new, output = GOOD.update(state, trajectory, key, axis_name=axis_name)
        return change(new, output, state, trajectory)

    return GOOD._replace(update=update)


def never_resets(*arguments, greedy=False):
    params, key, observation, is_first, core = arguments
    return GOOD_RECURRENT.act(params, key, observation, jnp.zeros_like(is_first), core, greedy=greedy)


def forgets(*arguments, greedy=False):
    params, key, observation, is_first, core = arguments
    return GOOD_RECURRENT.act(params, key, observation, jnp.ones_like(is_first), core, greedy=greedy)


def learns_from_last_observations(state, trajectory, key, *, axis_name=None):
    return GOOD.update(
        state, trajectory._replace(is_first=jnp.zeros_like(trajectory.is_first)), key, axis_name=axis_name
    )


BROKEN = {
    "init: updates is .* expected an int32 scalar 0": GOOD._replace(
        init=lambda key: GOOD.init(key)._replace(updates=jnp.asarray(0.0))
    ),
    r"initial_core\(8\): leaf core has shape \(1, 8\), expected the batch axis": GOOD._replace(
        initial_core=lambda batch_size: jnp.zeros((1, 8))
    ),
    r"act: action is float32\[8\], expected int32\[8\]": after_act(
        lambda output, core, *_: (output._replace(action=output.action.astype(jnp.float32)), core)
    ),
    r"act: log_prob is float32\[8, 1\], expected float32\[8\]": after_act(
        lambda output, core, *_: (output._replace(log_prob=output.log_prob[:, None]), core)
    ),
    r"act: actions .* are not all in 0..\[2\]": after_act(
        lambda output, core, *_: (output._replace(action=output.action + 3), core)
    ),
    r"greedy log_prob of the first 1 rows alone and in a batch differ.*rows must not mix": after_act(
        lambda output, core, *_: (output._replace(log_prob=output.log_prob - output.log_prob.shape[0]), core)
    ),
    r"act\(greedy=True\) with two keys: leaf  differs": after_act(
        lambda output, core, arguments, greedy: (
            output._replace(action=jax.random.randint(arguments[1], output.action.shape, 0, 3)),
            core,
        )
    ),
    "act: the core after is_first, from two different cores": GOOD_RECURRENT._replace(act=never_resets),
    "act: the core that comes in changes nothing without is_first": GOOD_RECURRENT._replace(act=forgets),
    "update: updates is 0 after the first update": after_update(
        lambda new, output, state, _: (new._replace(updates=state.updates), output)
    ),
    "update: params are what they were": after_update(
        lambda new, output, state, _: (new._replace(params=state.params), output)
    ),
    r"update: metric 'loss' has shape \(9, 8\), expected a scalar": after_update(
        lambda new, output, _, trajectory: (new, UpdateOutput({"loss": trajectory.reward}))
    ),
    "update: metric 'loss' is nan": after_update(
        lambda new, output, *_: (new, UpdateOutput({"loss": jnp.asarray(np.nan)}))
    ),
    r"update: the new state: .*updates was int32\[\] and is float32\[\] now": after_update(
        lambda new, output, *_: (new._replace(updates=new.updates.astype(jnp.float32)), output)
    ),
    "update with other actions, log_probs and rewards in rows before is_first": GOOD._replace(
        update=learns_from_last_observations
    ),
}


@pytest.mark.parametrize("message", BROKEN)
def test_broken_agents_are_refused_with_the_reason(message):
    with pytest.raises(AgentFault, match=message):
        check_agent(BROKEN[message], SPEC)


DEVICES = """
from jsrl.agents.check import check_agent
from jsrl.agents.ppo import PPOConfig, ppo
from jsrl.errors import AgentFault
from jsrl.networks.model import NetworkConfig
from jsrl.types import ArraySpec, Discrete, EnvSpec

spec = EnvSpec(ArraySpec((3,), "float32"), Discrete(3))
agent = ppo(PPOConfig(network=NetworkConfig(hidden=(16,))), spec)
assert "devices" in check_agent(agent, spec).checks
alone = agent._replace(update=lambda state, trajectory, key, *, axis_name=None: agent.update(state, trajectory, key))
try:
    check_agent(alone, spec)
except AgentFault as fault:
    assert "device 0 and device 1 (sum gradients and moments over axis_name)" in str(fault), fault
    print("caught")
"""


@pytest.mark.slow
def test_diverging_devices_are_detected():
    environment = fake_devices(2)
    command = [sys.executable, "-c", DEVICES]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0 and "caught" in ended.stdout, ended.stderr[-3000:]
