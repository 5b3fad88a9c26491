"""Both algorithms on the probe environments: the answers are known, so a failure shows which part is wrong."""

import jax
import numpy as np
import pytest

from jsrl.agents import normalization as norm
from jsrl.agents.impala import IMPALAConfig, impala
from jsrl.agents.ppo import PPOConfig, ppo
from jsrl.networks.model import NetworkConfig, actor_critic
from tests.agents.compiled import compiled
from tests.marks import nightly

pytestmark = pytest.mark.slow  # compiling takes minutes in total

GAMMA = 0.7
SMALL = NetworkConfig(hidden=(32,))


def make_ppo(spec, *, network=SMALL, **options):
    common = {"learning_rate": 0.01, "gamma": GAMMA, "num_epochs": 4, "num_minibatches": 4, "entropy_coef": 0.001}
    return ppo(PPOConfig(**{**common, "network": network, **options}), spec)


def make_impala(spec, *, network=SMALL, **options):
    common = {"learning_rate": 0.01, "gamma": GAMMA, "optimizer": "adam", "entropy_coef": 0.001}
    return impala(IMPALAConfig(**{**common, "network": network, **options}), spec)


MAKERS = {"ppo": (make_ppo, 1), "impala": (make_impala, 6)}  # updates are smaller by that factor


BY_PPO = pytest.mark.parametrize("algorithm", ["ppo", nightly("impala")], indirect=True)


@pytest.fixture(params=MAKERS)
def algorithm(request):
    return MAKERS[request.param]


def values(state, network, spec, observation):
    """Raw values of observations [K, ...], each the first of its episode."""

    def of(state, observation):
        observation = norm.normalize(state.params.moments, observation[None])
        rows = observation.shape[1]
        core = network.initial_core(rows)
        _, features, _ = network.policy(state.params.weights, observation, np.ones((1, rows), bool), core)
        value = network.value(state.learner_params, observation, features)[0]
        return norm.denormalize_value(state.extra, value) if state.extra != () else value

    return compiled(of)(state, observation)


SEEN = ("seen_reward", [[-1.0], [1.0]], [-1.0, 1.0])
DELAYED = ("delayed_reward", [[0.0], [1.0]], [GAMMA, 1.0])


@pytest.mark.parametrize(
    ("algorithm", "case", "scaled"),
    [
        pytest.param("ppo", SEEN, True, id="ppo-seen-scaled"),
        pytest.param("ppo", DELAYED, False, id="ppo-delayed"),
        pytest.param("impala", DELAYED, False, id="impala-delayed"),
        nightly("ppo", SEEN, False, id="ppo-seen"),
        nightly("ppo", DELAYED, True, id="ppo-delayed-scaled"),
        nightly("impala", SEEN, True, id="impala-seen-scaled"),
        nightly("impala", SEEN, False, id="impala-seen"),
        nightly("impala", DELAYED, True, id="impala-delayed-scaled"),
    ],
    indirect=["algorithm"],
)
def test_values_match_the_probe(algorithm, probe, play, case, scaled):
    (make, effort), (name, observation, expected) = algorithm, case
    env = probe(name)
    options = {"normalize_values": True, "normalize_observations": True} if scaled else {}
    played = play(make(env.spec, **options), env, num_updates=40 * effort)
    got = values(played.state, actor_critic(SMALL, env.spec), env.spec, np.asarray(observation, np.float32))
    np.testing.assert_allclose(got, expected, atol=0.06)


def test_a_truncation_bootstraps_where_a_termination_does_not(algorithm, probe, play):
    """Truncated after one row of reward 1, with a last observation that looks the same: v = 1 / (1 - gamma)."""
    make, effort = algorithm
    env = probe("constant_reward", True)
    played = play(make(env.spec, gamma=0.5), env, num_updates=60 * effort)
    got = values(played.state, actor_critic(SMALL, env.spec), env.spec, np.zeros((1, 1), np.float32))
    np.testing.assert_allclose(got, [2.0], atol=0.1)


SOLVED = {"discrete": 0.9, "multi_discrete": 0.85, "continuous": 0.6, "squashed": 0.6}


@pytest.mark.parametrize(
    ("name", "kind"),
    [  # the code of distributions is the same in both
        *(nightly("ppo", kind) if kind == "continuous" else ("ppo", kind) for kind in SOLVED),
        *(nightly("impala", kind) if kind != "discrete" else ("impala", kind) for kind in SOLVED),
    ],
)
def test_policies_find_the_rewarded_action_and_play_it_greedily(probe, play, name, kind):
    make, effort = MAKERS[name]
    env = probe("matching_reward", kind)
    agent = make(env.spec)
    played = play(agent, env, num_updates=40 * effort)
    assert played.score > SOLVED[kind], played.metrics[-1]
    if kind == "discrete":
        observation, is_first = np.array([[-1.0], [1.0]], np.float32), np.ones(2, bool)
        act = jax.jit(agent.act, static_argnames="greedy")
        for seed in range(3):
            reply, _ = act(played.state.params, jax.random.key(seed), observation, is_first, (), greedy=True)
            assert np.asarray(reply.action).tolist() == [0, 1]


@BY_PPO
def test_masked_actions_are_never_played_and_dict_observations_are_read(algorithm, probe, play):
    make, effort = algorithm
    env = probe("masked_reward")
    played = play(make(env.spec), env, num_updates=40 * effort)
    assert 0.9 < played.score <= 1.0
    assert set(np.unique(played.trajectory.action)) == {0, 1}


@BY_PPO
def test_agents_sharing_a_policy_act_in_turns(algorithm, probe, play):
    make, effort = algorithm
    env = probe("agents_reward")
    played = play(make(env.spec), env, num_updates=40 * effort)
    assert played.score > 0.9
    assert played.trajectory.log_prob.shape == (9, 64, 2)


@pytest.mark.parametrize("core", ["gru", nightly("lstm")])
@BY_PPO
def test_recurrent_policy_remembers(algorithm, probe, play, core):
    make, effort = algorithm
    env = probe("remembered_reward")
    network = NetworkConfig(hidden=(32,), core=core, core_size=32)
    whole_trace = {"gae_lambda": 1.0} if make is make_ppo else {}  # the action's reward comes three rows after the cue
    agent = make(env.spec, network=network, learning_rate=0.005, gamma=0.9, entropy_coef=0.02, **whole_trace)
    played = play(agent, env, num_updates=(80 if make is make_ppo else 50) * effort)
    assert played.score > 0.8, played.metrics[-1]


@pytest.mark.nightly
def test_feed_forward_cannot_remember(probe, play):
    env = probe("remembered_reward")
    assert abs(play(make_ppo(env.spec, gamma=0.9), env, num_updates=50).score) < 0.35


@pytest.mark.parametrize(
    "options",
    [
        {"returns": "vtrace"},
        {"value_clip": 0.2, "dual_clip": 3.0, "value_loss": "huber", "schedule": "linear", "total_updates": 40},
        nightly({"target_kl": 0.05}),
        nightly({"optimizer": "rmsprop", "num_minibatches": 1, "num_epochs": 8}),
    ],
    ids="-".join,
)
def test_ppo_learns_with_its_options(probe, play, options):
    env = probe("matching_reward")
    played = play(make_ppo(env.spec, **options), env, num_updates=40)
    assert played.score > 0.85, played.metrics[-1]
    assert all(np.isfinite(list(m.values())).all() for m in played.metrics)
