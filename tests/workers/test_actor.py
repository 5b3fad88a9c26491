"""The actor writes exactly the row table, against a scripted server over in-process transports."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from jsrl.envs.base import EnvStep, Episode
from jsrl.envs.seats import SeatView
from jsrl.services.metrics.metrics import Meter
from jsrl.transport.base import InferenceSpec, ProducerId, Reply
from jsrl.transport.table import bind_inference, bind_samples, connect_inference, connect_samples
from jsrl.types import ArraySpec, Discrete, EnvSpec, make_trajectory_spec, make_version, map_tree
from jsrl.workers.actor.environments import Tally
from jsrl.workers.actor.policies import ActingPolicy, write_version
from jsrl.workers.actor.streams import Ends, Streams
from jsrl.workers.actor.worker import Actor, ActorSettings
from jsrl.workers.base import NullReporter

T, B = 4, 2
ENV = EnvSpec(ArraySpec((2,), "float32"), Discrete(100))
EXTRAS, CORE = {"value": ArraySpec((), "float32")}, (ArraySpec((3,), "float32"),)
ACT = InferenceSpec(ENV.observation, ENV.action.array, ArraySpec((), "float32"), EXTRAS, CORE)
SPEC = make_trajectory_spec(ENV, EXTRAS, CORE, num_rows=T, num_envs=B)
numbers = itertools.count()


class Counted:
    """Slot b ends an episode (terminated for even ones) every 3 + b steps; everything is a function of the clock."""

    spec, num_envs = ENV, B

    def __init__(self, group: int) -> None:
        self.group, self.clock, self.actions, self.closed = group, 0, [], False

    def at(self, t: int) -> EnvStep:
        """Return the result of the step before row t: the row table's rows, 3 + b and an ignored one per episode."""
        period = np.arange(B) + 4
        is_first = t % period == 0
        over = (t + 1) % period == 0  # row t is a last observation
        terminated = over & ((t // period) % 2 == 0)
        observation = np.stack([np.full(B, 1000 * self.group + t), np.arange(B)], -1).astype(np.float32)
        reward = np.where(is_first, 0.0, t + 10 * np.arange(B)).astype(np.float32)
        episodes = [Episode(b, float(t), 3 + b, bool(terminated[b])) for b in np.flatnonzero(over)] if t else []
        acts = np.full(B, (t % 2) ^ 1, np.uint8)
        return EnvStep(observation, is_first, reward, 1.0 - terminated.astype(np.float32), acts, episodes)

    def reset(self) -> EnvStep:
        self.clock = 0
        return self.at(0)

    def step(self, action) -> EnvStep:
        self.actions.append(np.array(action))
        self.clock += 1
        return self.at(self.clock)

    def close(self) -> None:
        self.closed = True


class Rig:
    """An actor of some groups, a scripted server and a consumer, in one thread."""

    def __init__(self, groups=(0,), blocks: int = 4, max_lag: int | None = None, taps=(), **settings) -> None:
        number = next(numbers)
        self.consumer = bind_samples(f"local:actor-{number}", SPEC, blocks_per_producer=blocks)
        self.server = bind_inference(f"local:actor-{number}", ACT)
        self.envs = {group: Counted(group) for group in groups}
        identity = ProducerId("actor-0", 0)

        def connect(sizes):
            client = connect_inference(self.server.address, ACT, identity, sizes, timeout_s=1.0)
            self.producer = connect_samples(self.consumer.address, SPEC, identity, 8, 1.0)
            return client, self.producer

        environments = {group: (lambda env=env: env) for group, env in self.envs.items()}
        of_policy = {k: settings.pop(k) for k in ("start_updates", "updates_per_batch") if k in settings}
        self.streams = Streams(connect)
        policy = ActingPolicy(self.streams, max_lag=max_lag, taps=taps, **of_policy)
        self.actor = Actor("actor-0", ActorSettings(T, poll_s=0.0, **settings), environments, [policy], NullReporter())
        self.actor.setup()
        self.asked: dict[int, list] = {group: [] for group in groups}
        self.saved: list = []
        self.updates = 0

    def answer(self, only=None) -> int:
        """Answer requests (of one group: the others wait), by a rule that a test can check row by row."""
        asked = self.saved + self.server.collect(100, 0.0)
        found = [r for r in asked if only is None or r.group == only]
        self.saved = [r for r in asked if only is not None and r.group != only]
        for r in found:
            step = r.request.step
            self.asked[r.group].append(r.request._replace(observation=r.request.observation.copy()))
            action = np.array([step % 90, step % 90 + 5], np.int32) + r.group
            core = (np.full((B, 3), float(step), np.float32),) if r.request.wants_core else ()
            extras = {"value": np.full(B, step + 0.25, np.float32)}
            version = make_version(0, self.updates)
            self.server.reply(r, Reply(action, np.full(B, -float(step), np.float32), extras, version, core))
        return len(found)

    def turn(self, times: int = 1, only=None) -> int:
        made = 0
        for _ in range(times):
            self.answer(only)
            made += self.actor.step()
        return made

    def leases(self) -> list:
        return [self.consumer.get(0.0) for _ in range(self.consumer.pending())]


def expected_rows(env: Counted, begin: int, group: int = 0) -> dict[str, np.ndarray]:
    steps = [env.at(t) for t in range(begin, begin + T + 1)]
    return {
        "observation": np.stack([s.observation for s in steps]),
        "is_first": np.stack([s.is_first for s in steps]),
        "reward": np.stack([s.reward for s in steps[1:]]),
        "discount": np.stack([s.discount for s in steps[1:]]),
        "acts": np.stack([s.acts for s in steps]),  # row T has them too: they decide whether its value bootstraps
        "log_prob": np.stack([np.full(B, -float(t)) for t in range(begin, begin + T)]),
        "action": np.stack([np.array([t % 90, t % 90 + 5]) + group for t in range(begin, begin + T)]),
    }


def test_rows_follow_the_table_and_trajectories_are_contiguous():
    rig = Rig(blocks=8)
    rig.turn(5 * T)
    leases = rig.leases()
    assert [lease.entry.sequence for lease in leases] == [0, 1, 2, 3, 4]
    endings = 0
    for n, lease in enumerate(leases):
        rows = lease.trajectory
        for name, wanted in expected_rows(rig.envs[0], n * T).items():
            np.testing.assert_array_equal(getattr(rows, name)[: len(wanted)], wanted, err_msg=f"{name} of {n}")
        np.testing.assert_array_equal(rows.extras["value"][:T, 0], np.arange(n * T, n * T + T) + 0.25)
        np.testing.assert_array_equal(rows.core[0], np.full((B, 3), float(n * T)))  # the core of row 0's reply
        for leaf in (rows.action, rows.reward, rows.discount, rows.log_prob, rows.version):
            assert not leaf[T].any(), "the bootstrap row has only observation, is_first and acts"
        endings += int(rows.is_first[:T].sum())
    for one, other in itertools.pairwise(leases):
        np.testing.assert_array_equal(one.trajectory.observation[T], other.trajectory.observation[0])
        np.testing.assert_array_equal(one.trajectory.is_first[T], other.trajectory.is_first[0])
    assert endings > 4  # episodes did end inside trajectories and at their ends


def test_environments_of_a_group_share_the_time_to_make_them(monkeypatch):
    limits = []
    monkeypatch.setattr(NullReporter, "entering", lambda heard, call, steps: limits.append(steps))
    Rig(makes=B)
    assert limits[:2] == [B, 1]  # making them, and their first reset


def test_the_environment_gets_the_action_of_its_row():
    rig = Rig()
    rig.turn(6)
    np.testing.assert_array_equal(np.stack(rig.envs[0].actions)[:, 0], np.arange(6))


def test_requests_carry_row_steps_and_core_request_at_row_0():
    rig = Rig()
    rig.turn(2 * T)
    asked = rig.asked[0]
    assert [r.step for r in asked] == list(range(2 * T))
    assert [r.wants_core for r in asked] == [t % T == 0 for t in range(2 * T)]
    np.testing.assert_array_equal(asked[5].observation, rig.envs[0].at(5).observation)


def test_versions_equal_those_of_the_replies():
    rig = Rig()
    for t in range(T):
        rig.updates = 10 + t
        rig.turn()
    np.testing.assert_array_equal(rig.leases()[0].trajectory.version[:T, 0], make_version(0, 10) + np.arange(T))


@pytest.mark.parametrize(
    ("max_lag", "per_batch", "expected"), [(0, 1, [0, 1, 2]), (2, 1, [0, -1, 0]), (0, 3, [0, 3, 6])]
)
def test_trajectory_n_waits_for_the_version_required_by_max_lag(max_lag, per_batch, expected):
    rig = Rig(max_lag=max_lag, updates_per_batch=per_batch)
    rig.turn(2 * T + 1)
    # Row 0 of the first trajectory does not have its number yet; it waits for the current version of the run.
    assert [rig.asked[0][n * T].min_updates for n in range(3)] == expected


def test_without_max_lag_actors_do_not_wait():
    rig = Rig(max_lag=None)
    rig.turn(T + 1)
    assert {r.min_updates for r in rig.asked[0]} == {-1}


def test_group_ahead_leaves_blocks_to_the_group_a_batch_needs():
    """Group 1 gets no replies for a while; with 2 blocks for each, group 0 takes 2 and no more."""
    rig = Rig(groups=(0, 1), blocks=4, max_ahead=1)
    rig.turn(5 * T, only=0)
    assert [lease.entry.group for lease in rig.leases()] == [0, 0]
    rig.turn(T, only=1)
    (lease,) = rig.leases()
    assert lease.entry.group == 1


class LostServer:
    """An actor's streams whose server is lost, and found at once, `away` attempts later."""

    def __init__(self, rig: Rig, away: int = 0) -> None:
        self.rig, self.away = rig, away
        rig.server.close()
        rig.server = bind_inference(f"{rig.server.address}-again", ACT)
        rig.streams.connect = self.connect

    def connect(self, timeout_s, lost):
        self.away -= 1
        if self.away >= 0:
            return None
        return Ends(
            connect_inference(self.rig.server.address, ACT, ProducerId("actor-0", 0), {0: B}, timeout_s=1.0),
            self.rig.producer,
        )


def test_number_of_an_abandoned_trajectory_is_skipped():
    """So that replay does not join rows from before a lost server with rows after it."""
    rig = Rig(blocks=8)
    rig.turn(2 * T + 1)
    LostServer(rig)
    rig.turn(2 + T)
    entries = [lease.entry for lease in rig.leases()]
    assert [entry.sequence for entry in entries] == [0, 1, 2]
    assert [entry.origin for entry in entries] == [(ProducerId("actor-0", 0), number) for number in (0, 1, 3)]


class Heard:
    """A tap that notes when it is called: with how many trajectories committed, and the number of the one that was."""

    def __init__(self) -> None:
        self.calls: list = []

    def before_commit(self, trajectory) -> None:
        self.calls.append(self.rig.consumer.pending())

    def after_commit(self, entry) -> None:
        self.calls.append(entry.origin.sequence)

    def close(self) -> None:
        self.calls.append("closed")


def test_a_session_drops_what_was_open_and_keeps_what_lasts():
    tap = Heard()
    rig = tap.rig = Rig(blocks=8, taps=[tap])
    rig.turn(T + 2)
    LostServer(rig, away=3)
    assert rig.turn(5) == 0 and rig.turn(T) == T * B
    first = rig.asked[0][-T]
    assert not first.observation[:, 0].any() and first.wants_core and first.step == T  # row 0 of the open trajectory
    lease = rig.leases()[1]
    for name, wanted in expected_rows(rig.envs[0], 0).items():
        if name not in ("action", "log_prob"):  # they tell the steps of the whole run
            np.testing.assert_array_equal(getattr(lease.trajectory, name)[: len(wanted)], wanted, err_msg=name)
    facts = rig.actor.close()
    assert facts == {"env_steps": (2 * T + 2) * B, "episodes": facts["episodes"], "trajectories": 2}
    assert tap.calls == [0, 0, 1, 2, "closed"]


def test_reply_waits_for_a_free_block():
    rig = Rig(blocks=2)
    assert rig.turn(2 * T) == 2 * T * B
    for _ in range(5):
        assert rig.turn() == 0  # both blocks are committed; the reply to row 8 has arrived and waits
    assert len(rig.envs[0].actions) == 2 * T
    first = rig.consumer.get(0.0)
    rig.consumer.release(first)
    assert rig.turn(T) == T * B
    rest = rig.leases()
    assert [lease.entry.sequence for lease in rest] == [1, 2]
    for name, wanted in expected_rows(rig.envs[0], 2 * T).items():
        np.testing.assert_array_equal(getattr(rest[1].trajectory, name)[: len(wanted)], wanted, err_msg=name)
    assert [r.step for r in rig.asked[0]][:9] == list(range(9))  # requested once each


def test_groups_share_an_actor_and_have_their_own_trajectories():
    rig = Rig(groups=(3, 5, 6), blocks=12)
    rig.turn(3 * 3 * T)
    by_group: dict[int, list] = {}
    for lease in rig.leases():
        by_group.setdefault(lease.entry.group, []).append(map_tree(np.array, lease.trajectory))
    assert set(by_group) == {3, 5, 6}
    for group, trajectories in by_group.items():
        for n, rows in enumerate(trajectories):
            for name, wanted in expected_rows(rig.envs[group], n * T, group).items():
                np.testing.assert_array_equal(getattr(rows, name)[: len(wanted)], wanted, err_msg=f"{name} of {group}")


def test_closing_abandons_the_open_trajectory_and_closes_the_environments():
    rig = Rig()
    rig.turn(T + 2)
    facts = rig.actor.close()
    assert facts["env_steps"] == (T + 2) * B
    assert facts["trajectories"] == 1
    assert rig.envs[0].closed
    assert (rig.consumer.ledger.received, rig.consumer.ledger.balanced) == (1, True)


def test_episodes_are_counted_once():
    rig = Rig(blocks=8)
    rig.turn(20)
    ended = sum(len(rig.envs[0].at(t).episodes) for t in range(1, 21))
    assert rig.actor.report()[1]["episodes"] == ended > 5


def test_a_reply_has_one_version_one_for_each_environment_or_one_for_each_seat():
    row = np.zeros((2, 2), np.int64)
    for version, wanted in (
        (7, [[7, 7], [7, 7]]),
        (np.array([1, 2]), [[1, 1], [2, 2]]),
        (np.array([[1, 2], [3, 4]]),) * 2,
    ):
        write_version(row, version)
        np.testing.assert_array_equal(row, wanted)
    single = np.zeros(2, np.int64)
    write_version(single, np.array([5, 6]))
    np.testing.assert_array_equal(single, [5, 6])


def test_the_return_is_that_of_the_first_policys_seats():
    """In a zero-sum game the mean over all seats is 0, however well a policy plays."""
    tally = Tally(Meter("actor"), SeatView("chaser", (1,)), None)
    tally.stepped(1, [Episode(0, 0.0, 5, True, returns=(-9.0, 9.0)), Episode(0, 0.0, 5, True, returns=(-7.0, 7.0))])
    assert tally.report()[0]["actor/return_mean"] == 8.0
