"""check_agent passes sound agents and names what a broken one did; the check of an update's output."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jsrl.agents.base import ActOutput, UpdateOutput
from jsrl.agents.check import check_agent
from jsrl.agents.check_act import act_log_prob
from jsrl.agents.checking import Broken, Checked
from jsrl.agents.dqn import DQNConfig, dqn
from jsrl.agents.finite import PRIORITIES, STATE, describe_non_finite, with_output_check, with_state_check
from jsrl.agents.impala import IMPALAConfig, impala
from jsrl.agents.ppo import PPOConfig, ppo
from jsrl.errors import AgentFault, ConfigError
from jsrl.experiment import AgentReference
from jsrl.experiment.building import build_agent
from jsrl.networks.model import NetworkConfig
from jsrl.types import ArraySpec, Continuous, Discrete, EnvSpec, GameSpec, MultiDiscrete, Seat
from tests.agents.mistakes import DISCRETE, OFF_POLICY, ON_POLICY, REAL, in_minibatches, off_policy, on_policy
from tests.marks import marked
from tests.replay.learning import toy_agent
from tests.replay.streams import World

SMALL = NetworkConfig(hidden=(16,))
RECURRENT = NetworkConfig(hidden=(16,), core="lstm", core_size=8)
LINE = ArraySpec((3,), "float32")
SPEC = EnvSpec(LINE, Discrete(3))

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


SOUND_DAILY = {("ppo", "recurrent"), ("impala", "agents")}
FACTORIES = {"ppo": (ppo, PPOConfig), "impala": (impala, IMPALAConfig)}


@pytest.mark.slow  # compiling takes minutes
@pytest.mark.parametrize(
    ("algorithm", "kind"),
    [
        pytest.param(algorithm, kind, marks=() if (algorithm, kind) in SOUND_DAILY else pytest.mark.nightly)
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
    assert "devices_equal_one" in report.checks


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["masked", "agents"])
def test_dqn_on_the_ladder_passes(kind):
    masked = EnvSpec({"x": LINE, "action_mask": ArraySpec((3,), "bool")}, Discrete(3))
    spec = {"masked": masked, "agents": SOUND["agents"][0]}[kind]
    report = check_agent(dqn(DQNConfig(network=SMALL, exploration="ladder"), spec), spec)
    assert {"act_resets_core", "update_contract"} <= set(report.checks)


@pytest.mark.slow
@pytest.mark.parametrize("mistake", ["", "policy later"])
def test_an_off_policy_agent_passes_whether_its_policy_learns_at_once_or_later(mistake):
    report = check_agent(off_policy(mistake), REAL)
    assert {"update_weighs_columns", "devices_draw_apart", "devices_sum", "act_log_prob"} <= set(report.checks)


@pytest.mark.slow
def test_a_recurrent_agent_passes():
    report = check_agent(on_policy(), DISCRETE)
    assert {"act_resets_core", "update_resets_core", "update_bootstraps", "devices_agree"} <= set(report.checks)


QUICK = ("counts in a closure", "writes to params", "raises")
DAILY = (
    "draws at another temperature",
    "auxiliary loss without mask",
    "time limits terminate",
    "mean over devices",
    "advantages around a local mean",
)


@pytest.mark.parametrize("mistake", marked(ON_POLICY, slow=DAILY, nightly=ON_POLICY.keys() - {*QUICK, *DAILY}))
def test_mistakes_of_a_recurrent_agent_are_named(mistake):
    with pytest.raises(AgentFault, match=ON_POLICY[mistake]) as caught:
        check_agent(on_policy(mistake), DISCRETE)
    assert len(str(caught.value)) < 400, "no arrays"


QUICK_OFF_POLICY = ("the same noise", "critic stays")
DAILY_OFF_POLICY = ("weights by the share's largest", "weights by the largest of all columns", "signed priorities")


@pytest.mark.parametrize(
    "mistake",
    marked(OFF_POLICY, slow=DAILY_OFF_POLICY, nightly=OFF_POLICY.keys() - {*QUICK_OFF_POLICY, *DAILY_OFF_POLICY}),
)
def test_mistakes_of_an_off_policy_agent_are_named(mistake):
    with pytest.raises(AgentFault, match=OFF_POLICY[mistake]):
        check_agent(off_policy(mistake), REAL)


def test_mistakes_behind_minibatches_of_each_device_are_named():
    local, mean = "advantages around a local mean", "mean over devices"
    for mistake in (local, mean):
        with pytest.raises(AgentFault, match=ON_POLICY[mistake]):
            check_agent(in_minibatches(on_policy(mistake)), DISCRETE)


@pytest.mark.slow
def test_minibatches_of_each_device_pass():
    shuffle = jax.random.permutation
    report = check_agent(in_minibatches(on_policy()), DISCRETE)
    assert {"devices_sum", "devices_equal_one"} <= set(report.checks)
    assert jax.random.permutation is shuffle


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 6])
def test_densities_are_compared_in_any_number_of_dimensions(size):
    def tried(times, *, bounded=False, jacobian=True, clipped=False):
        def act(params, key, observation, is_first, core, *, greedy=False):
            noise = jax.random.normal(key, (8, size))
            u = 0.5 * observation[:, :1] + 0.7 * noise
            log_prob = -0.5 * jnp.sum((noise / times) ** 2 + jnp.log(2 * jnp.pi * (0.7 * times) ** 2), -1)
            if bounded and jacobian:
                log_prob -= jnp.sum(2 * (jnp.log(2.0) - u - jax.nn.softplus(-2 * u)), -1)
            u = jnp.clip(u, -1.0, 1.0) if clipped else u
            return ActOutput(jnp.tanh(u) if bounded else u, log_prob), core

        spec = EnvSpec(LINE, Continuous((-1.0,) * size, (1.0,) * size, "rescale"))
        checked = Checked(off_policy()._replace(act=act), spec, 8, 8, 0)
        checked.state = checked.trained = checked.agent.init(checked.key)
        act_log_prob(checked)

    for right in ({}, {"bounded": True}, {"clipped": size == 1}):
        tried(1.0, **right)
    for wrong in ({"times": 2.0}, {"times": 0.5}, {"times": 1.0, "bounded": True, "jacobian": False}):
        with pytest.raises(Broken, match=r"densities exp\(log_prob\) are off by [0-9.e+]+ times"):
            tried(**wrong)


def test_errors_of_built_agents_give_no_advice_to_call_check_agent() -> None:
    agent = build_agent(AgentReference(lambda spec: on_policy("raises")), DISCRETE)
    with pytest.raises(AgentFault, match=r"raised ValueError at .*: raises\.?$") as caught:
        check_agent(agent, DISCRETE)
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_config_is_no_agent() -> None:
    with pytest.raises(ConfigError, match=r"got PPOConfig, expected an Agent: give it build_agent\(config, spec\)"):
        check_agent(PPOConfig(), SPEC)


def test_of_several_seats_one_policy_plays_all() -> None:
    def act(params, key, observation, is_first, core, *, greedy=False):
        return ActOutput(jnp.zeros(8, jnp.int32), jnp.zeros(8)), core

    game = GameSpec((Seat("a", LINE, Discrete(3)), Seat("b", LINE, Discrete(3))))
    given = []

    def make(spec):
        given.append(spec)
        return on_policy()._replace(act=act)

    agent = build_agent(AgentReference(make), game)
    assert given == [game.view(game.names)]
    with pytest.raises(AgentFault, match=r"act: action is int32\[8\], expected int32\[8, 2\]"):
        check_agent(agent, game)
    unlike = GameSpec((Seat("a", LINE, Discrete(3)), Seat("b", LINE, Discrete(4))))
    with pytest.raises(ConfigError, match="cannot be played by one policy"):
        check_agent(agent, unlike)


WINDOWS = World(4, 1).trajectory()._replace(sampling=np.ones(4, np.float32))
TOY = toy_agent()


def changed(change):
    """Return the toy agent's update, whose output a function (state, output) -> (state, output) changes."""

    def update(state, windows, key, *, axis_name=None):
        return change(*TOY.update(state, windows, key, axis_name=axis_name))

    return update


def output(**fields):
    return changed(lambda state, out: (state, out._replace(**fields)))


def extra(value):
    return changed(lambda state, out: (state._replace(extra=value(state.extra)), out))


def shapes_of(update, **given):
    state = jax.eval_shape(TOY.init, jax.random.key(0))
    return jax.eval_shape(with_output_check(update, ("lag_mean",), **given), state, WINDOWS, jax.random.key(0))


REFUSED = {
    r"\.extra\['log'\] was absent and is float32\[3\] now; keep names": extra(lambda e: e | {"log": jnp.zeros(3)}),
    r"\.extra\['seen'\] was float32\[\] and is bfloat16\[\] now": extra(
        lambda e: jax.tree.map(lambda x: x.astype(jnp.bfloat16), e)
    ),
    r"\.extra\['seen'\] was float32\[\] and is absent now": extra(lambda e: ()),
    r"\.params\.weights\['bias'\] was float32\[\] and is float32\[1\] now": changed(
        lambda s, out: (
            s._replace(params=s.params._replace(weights=s.params.weights | {"bias": s.params.weights["bias"][None]})),
            out,
        )
    ),
    r"metric 'losses' is dict, expected a scalar": output(metrics={"losses": {"policy": jnp.zeros(())}}),
    r"metric 'phase' is str, expected a scalar": output(metrics={"phase": "late"}),
    r"metric 'errors' has shape \(4,\), expected a scalar": output(metrics={"errors": jnp.zeros(4)}),
    r"metrics is list, expected a dict": output(metrics=[1.0]),
    r"metric .lag_mean., but jsrl": output(metrics={"lag_mean": 1.0}),
    r"metric .clip_share., but NAME_share": output(metrics={"clip_share": 1.0}),
}


@pytest.mark.parametrize("words", REFUSED)
def test_an_update_that_breaks_the_contract_is_refused_before_it_runs(words) -> None:
    with pytest.raises(AgentFault, match=words):
        shapes_of(REFUSED[words])


def test_priorities_are_one_for_each_window_where_sampling_needs_them() -> None:
    shapes_of(TOY.update, prioritised=True)
    shapes_of(output(priorities=jnp.zeros(())))  # nobody uses them
    with pytest.raises(ConfigError, match="needs an agent that returns priorities"):
        shapes_of(output(priorities=None), prioritised=True)
    for wrong, shape in ((jnp.zeros(()), r"\[\]"), (jnp.zeros((4, 1)), r"\[4, 1\]")):
        with pytest.raises(AgentFault, match=rf"priorities of shape {shape}, expected \[4\]: one for each window"):
            shapes_of(output(priorities=wrong), prioritised=True)


def test_priorities_that_are_not_finite_are_found_and_named() -> None:
    state, key = jax.jit(TOY.init)(jax.random.key(0)), jax.random.key(0)
    bad, negative = (output(priorities=jnp.array([1.0, worst, 0.0, 2.0])) for worst in (jnp.nan, -1.0))
    for update, found in ((TOY.update, []), (negative, [PRIORITIES]), (bad, [PRIORITIES])):
        _, out = jax.jit(with_state_check(update, prioritised=True))(state, WINDOWS, key)
        metrics = {name: float(value) for name, value in out.metrics.items()}
        assert [name for name, value in metrics.items() if np.isnan(value)] == found and metrics[STATE] == 0.0
    assert describe_non_finite([PRIORITIES], metrics).startswith("priorities that are not all finite and 0 or more")
    _, out = with_state_check(bad)(state, WINDOWS, key)
    assert PRIORITIES not in out.metrics and isinstance(out, UpdateOutput)
