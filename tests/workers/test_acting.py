"""Acting: a group's results do not depend on its host or on other groups; cores are kept by slot; nothing compiles twice."""

from __future__ import annotations

import itertools

import jax
import numpy as np
import pytest

from jsrl.agents.dqn import DQNConfig, dqn
from jsrl.agents.ppo import PPOConfig, ppo
from jsrl.errors import StreamTimeout, UnknownPolicy
from jsrl.networks.model import NetworkConfig
from jsrl.transport.base import Request
from jsrl.types import ArraySpec, Discrete, EnvSpec, make_version
from jsrl.workers.acting import Engine, InlineInference
from tests.marks import slow

ENV = EnvSpec(ArraySpec((3,), "float32"), Discrete(5))
SIZE, GROUPS = 4, 3


def agent(core: str = "none"):
    return ppo(PPOConfig(network=NetworkConfig(hidden=(8,), core=core, core_size=6)), ENV)


@pytest.fixture(name="engine", scope="module")
def engine_fixture():
    """Return (core, greedy, sizes) -> engine with params whose policy is far from uniform."""

    def make(core="none", greedy=False, sizes=(SIZE, 2 * SIZE, GROUPS * SIZE), seed=3):
        built = agent(core)
        engine = Engine(built, ENV, num_slots=GROUPS * SIZE, sizes=sizes, seed=seed, greedy=greedy)
        params = built.init(jax.random.key(1)).params
        engine.set_params(make_version(0, 5), [np.array(x) + 0.1 for x in jax.tree.leaves(params)])
        engine.warm_up()
        return engine

    return make


def request(group: int, step: int, first: bool = False, **values) -> Request:
    rng = np.random.default_rng((group, step))
    observation = rng.normal(size=(SIZE, 3)).astype(np.float32) * 3
    return Request(observation, np.full(SIZE, first), step=step, **values)


@pytest.mark.slow
def test_actions_of_a_group_do_not_depend_on_other_groups(engine):
    """Group 2 alone in one engine, and after other groups in another: the same bits of action and log_prob."""
    alone, shared = engine(), engine()
    own = alone.serve(2, SIZE)
    seats = [shared.serve(group, SIZE) for group in range(GROUPS)]
    for step in range(5):
        for group in (1, 0):
            shared.act(seats[group], request(group, step))
        a, b = alone.act(own, request(2, step)), shared.act(seats[2], request(2, step))
        assert a.action.tobytes() == b.action.tobytes()
        assert a.log_prob.tobytes() == b.log_prob.tobytes()


@pytest.mark.slow
def test_steps_groups_and_seeds_have_independent_random_numbers(engine):
    first = engine()
    seats = [first.serve(group, SIZE) for group in range(GROUPS)]
    same = request(0, 0)
    draws = {tuple(first.act(seat, same._replace(step=step)).action) for seat in seats for step in range(10)}
    assert len(draws) > 8
    other = engine(seed=4)
    seat = other.serve(0, SIZE)
    mine = [first.act(seats[0], same._replace(step=s)).action for s in range(10)]
    theirs = [other.act(seat, same._replace(step=s)).action for s in range(10)]
    assert any((a != b).any() for a, b in zip(mine, theirs, strict=True))


def chances_to_explore(reply) -> np.ndarray:
    """Return the epsilon of each row from its log-probability: epsilon / A, or that and 1 - epsilon for the best action."""
    chance, actions = np.exp(np.asarray(reply.log_prob, np.float64)), ENV.action.num_actions
    return np.where(chance > 0.5, (1 - chance) * actions / (actions - 1), chance * actions)


@pytest.mark.slow
@pytest.mark.parametrize("merged", [False, True], ids=["serial", "served"])
def test_dqn_episode_keeps_its_epsilon_in_any_batch(merged):
    built, episodes, steps = dqn(DQNConfig(exploration="ladder", epsilon=0.4), ENV), 30, 4
    engine = Engine(built, ENV, num_slots=GROUPS * SIZE, sizes=[GROUPS * SIZE], seed=3)
    params = built.init(jax.random.key(1)).params
    params = params._replace(weights=params.weights._replace(updates=np.int32(1)))
    engine.set_params(make_version(0, 1), jax.tree.leaves(params))
    seats, rng = [engine.serve(group, SIZE) for group in range(GROUPS)], np.random.default_rng(0)
    seen = np.zeros((episodes, steps, GROUPS, SIZE))
    for step in range(episodes * steps):
        order = rng.permutation(GROUPS)
        for company in (order[: 1 + step % 3], order[1 + step % 3 :]):  # one group or several, in any order, padded
            asked = [(seats[group], request(group, step, first=step % steps == 0)) for group in company]
            replies = engine.act_merged(asked) if merged else [engine.act(*one) for one in asked]
            for group, reply in zip(company, replies, strict=True):
                seen[step // steps, step % steps, group] = chances_to_explore(reply)
    np.testing.assert_allclose(seen, np.broadcast_to(seen[:, :1], seen.shape), rtol=0.02)
    places = (np.log(seen[:, 0]) / np.log(0.4) - 1) / 7
    assert len(np.unique(places.round(4))) > 0.9 * places.size  # each its own
    np.testing.assert_allclose(np.quantile(places, [0.1, 0.5, 0.9]), [0.1, 0.5, 0.9], atol=0.06)


@pytest.mark.parametrize("core", ["none", slow("gru")])
def test_padding_and_other_rows_do_not_change_greedy_actions(engine, core):
    """Two groups in a batch padded from 8 to 12 rows, against each alone."""
    merged, apart = engine(core, greedy=True, sizes=(GROUPS * SIZE,)), engine(core, greedy=True)
    seats_m, seats_a = ([e.serve(group, SIZE) for group in (0, 1)] for e in (merged, apart))
    for step in range(4):
        asked = [request(group, step, first=step == 0, wants_core=True) for group in (0, 1)]
        together = merged.act_merged(list(zip(seats_m, asked, strict=True)))
        for seat, one, reply in zip(seats_a, asked, together, strict=True):
            single = apart.act(seat, one)
            np.testing.assert_array_equal(reply.action, single.action)
            np.testing.assert_allclose(reply.log_prob, single.log_prob, atol=1e-5)
            for x, y in zip(jax.tree.leaves(reply.core), jax.tree.leaves(single.core), strict=True):
                np.testing.assert_allclose(x, y, atol=1e-5)


@pytest.mark.slow
def test_cores_are_kept_by_slot_reset_on_is_first_and_returned_as_they_were_before(engine):
    """The reply's core is the one before the row; the agent's own act with it gives the engine's result."""
    built, e = agent("gru"), engine("gru", greedy=True)
    seats = [e.serve(group, SIZE) for group in range(2)]
    act = jax.jit(built.act, static_argnames="greedy")
    expected = {group: built.initial_core(SIZE) for group in range(2)}
    for step in range(6):
        for group in (0, 1):
            asked = request(group, step, wants_core=True)
            asked.is_first[:] = [step == 0, step == 3 and group == 1, False, step == 0]
            reply = e.act(seats[group], asked)
            before = expected[group]
            for x, y in zip(jax.tree.leaves(reply.core), jax.tree.leaves(before), strict=True):
                np.testing.assert_allclose(x, y, atol=1e-6)
            output, expected[group] = act(
                e._params, jax.random.key(0), asked.observation, asked.is_first, before, greedy=True
            )
            np.testing.assert_array_equal(reply.action, output.action)
    assert any(np.abs(np.asarray(x)).max() > 0.01 for x in jax.tree.leaves(expected[0])), "cores stayed empty"


@pytest.mark.slow
def test_core_is_returned_only_on_request(engine):
    e = engine("gru")
    seat = e.serve(0, SIZE)
    assert e.act(seat, request(0, 0)).core == ()
    assert jax.tree.leaves(e.act(seat, request(0, 1, wants_core=True)).core)[0].shape[0] == SIZE
    feed_forward = engine()
    assert feed_forward.act(feed_forward.serve(0, SIZE), request(0, 0, wants_core=True)).core == ()


@pytest.mark.parametrize("core", ["none", slow("gru")])
def test_nothing_is_compiled_after_the_warm_up(engine, core):
    e = engine(core)
    seats = [e.serve(group, SIZE) for group in range(GROUPS)]
    warm = e.compilations
    assert warm == 3
    for step, count in enumerate(itertools.chain(range(1, GROUPS + 1), range(GROUPS, 0, -1))):
        for mix in itertools.permutations(range(GROUPS), count):
            e.act_merged([(seats[group], request(group, step, wants_core=group == 0)) for group in mix])
        e.act(seats[0], request(0, step))
        e.set_params(make_version(0, step), [np.array(x) for x in jax.tree.leaves(e._params)])
    assert e.compilations == warm


def test_version_belongs_to_the_params_used(engine):
    e = engine()
    seat = e.serve(0, SIZE)
    assert e.act(seat, request(0, 0)).version == make_version(0, 5)
    e.set_params(make_version(1, 6), [np.array(x) for x in jax.tree.leaves(e._params)])
    assert e.act(seat, request(0, 1)).version == make_version(1, 6)


class Params:
    """A params transport where versions appear when the test adds them."""

    def __init__(self) -> None:
        self.newest: tuple[int, list[np.ndarray]] | None = None
        self.waited: list[int] = []

    def poll(self, policy: int = 0):
        newest, self.newest = self.newest, None
        return newest

    def wait(self, policy: int, min_updates: int, timeout_s: float) -> None:
        self.waited.append(min_updates)
        if self.newest is None:
            raise StreamTimeout("nothing")

    def close(self) -> None: ...


def test_inline_refuses_unknown_policy(engine):
    e = engine()
    client = InlineInference(e, Params(), {0: e.serve(0, SIZE)})
    with pytest.raises(UnknownPolicy, match=r"policy 2; it serves 0 \(policy\)"):
        client.send(0, request(0, 0, policy=2))
    client.send(0, request(0, 0))
    assert client.receive(0.0)[1].policy == 0


def test_inline_waits_for_the_version_that_a_request_names(engine):
    e = engine()
    values = [np.array(x) for x in jax.tree.leaves(e._params)]
    params = Params()
    client = InlineInference(e, params, {0: e.serve(0, SIZE), 1: e.serve(1, SIZE)})
    with pytest.raises(StreamTimeout, match="no request is pending"):
        client.receive(0.0)
    client.send(0, request(0, 0, min_updates=7))
    client.send(1, request(1, 0, min_updates=5))
    assert client.receive(0.0)[0] == 1  # version 5 is new enough for it
    with pytest.raises(StreamTimeout):
        client.receive(0.01)
    assert params.waited == [7]
    params.newest = (make_version(0, 6), values)
    with pytest.raises(StreamTimeout):
        client.receive(0.01)
    params.newest = (make_version(0, 7), values)
    group, reply = client.receive(0.01)
    assert (group, reply.version) == (0, make_version(0, 7))
    client.send(0, request(0, 1, min_updates=9))
    client.send(0, request(0, 1, min_updates=7))  # in place of the one before
    assert client.receive(0.0)[1].version == make_version(0, 7)
    with pytest.raises(StreamTimeout, match="no request is pending"):
        client.receive(0.0)


@pytest.mark.slow
def test_two_servers_have_independent_random_numbers():
    built = agent()
    params = [np.array(x) for x in jax.tree.leaves(built.init(jax.random.key(1)).params)]
    drawn = []
    for number in (0, 1):
        made = Engine(built, ENV, num_slots=2 * SIZE, sizes=[2 * SIZE], seed=3, number=number)
        made.set_params(make_version(0, 5), params)
        seats = [made.serve(group, SIZE) for group in range(2)]
        asked = [[(seat, request(group, step)) for group, seat in enumerate(seats)] for step in range(5)]
        drawn.append([reply.action.tolist() for pairs in asked for reply in made.act_merged(pairs)])
    assert drawn[0] != drawn[1]
