"""Bodies of control messages: a worker cannot send invalid ones, and no valid one ends a run."""

from __future__ import annotations

import math
import threading
from collections import deque
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jsrl.cluster.messages import WorkerMessages
from jsrl.control.controller import Controller
from jsrl.control.run_record import RunRecord
from jsrl.control.supervised import SupervisedWorker
from jsrl.control.supervision import Rules, Started, Supervision
from jsrl.envs.config import EnvConfig
from jsrl.experiment import AgentReference, Experiment
from jsrl.graph.launcher import ALONE, Hosts
from jsrl.services.metrics.display import make_display
from jsrl.services.runs.control import ControlClient, ControlServer
from jsrl.services.runs.control_bodies import (
    MOST,
    AnyMessage,
    Bye,
    Crash,
    Event,
    Heartbeat,
    Report,
    Stacks,
    Stage,
    complaint,
)
from jsrl.services.runs.message_limits import MAX_CHARS, TEXT_BYTES, TextBudget
from jsrl.services.runs.process import Pauses
from jsrl.services.runs.runs import RunFolder
from jsrl.services.runs.state import read_result
from jsrl.workers.kinds import find_kind
from tests.cluster.test_members import World
from tests.control.shell import BACKOFF, DEADLINES

SCORE = {"return_mean": 1.0, "return_ci95": 0.5, "episodes": 3, "return_std": 1.0, "length_mean": 9.0}
AT = {"updates": 3, "env_steps": 300}
GOOD: list[AnyMessage] = [
    Stage("learner", 0, "ready", 77),
    Heartbeat("learner", 0, 5, "update", 0.5),
    Report("learner", 0, {"learner/loss": math.nan, "learner/updates_per_s": 3.0}, AT | {"rows": 9, "ledger": {}}),
    Report("actor-0", 0, {"actor/episodes": 3.0}, {"episodes": 3}),
    Event("learner", 0, "note", "hello"),
    Event("learner", 0, "warning", "hello", {"once": "disk"}),
    Event("learner", 0, "snapshotted", "", {"updates": 3}),
    Event("learner", 0, "somebody's own", "", {"anything": [1, None, "x"]}),
    Event(
        "evaluator", 0, "evaluated", "", SCORE | AT | {"metrics": {"evaluator/return_mean": 1.0}, "version_updates": 3}
    ),
    Event("evaluator", 0, "evaluated finally", "", SCORE | {"version_updates": 3}),
    Event(
        "video-recorder", 0, "filmed", "", AT | {"metrics": {"video_recorder/return_mean": math.nan}, "file": "1.mp4"}
    ),
    Event("video-recorder", 0, "filmed finally"),
    Bye("learner", 0, AT),
]
BAD: list[tuple[AnyMessage, str]] = [
    (Report("learner", 0, {}, AT | {"updates": "x"}), r"got `str` - at `\$.updates`"),
    (Report("learner", 0, {}, AT | {"updates": -1}), r">= 0.* at `\$.updates`"),
    (Report("learner", 0, {}, AT | {"env_steps": MOST + 1}), r"<= 9007199254740992 - at `\$.env_steps`"),
    (Report("learner", 0, {}, AT | {"updates": None}), r"got `null` - at `\$.updates`"),
    (Report("learner", 0, {"env_steps": 1.0}, {}), "metric 'env_steps' has no worker in its name"),
    (Bye("learner", 0, {"updates": 0.5}), r"at `\$.updates`"),
    (Report("evaluator", 0, {}, {"evaluated finally": SCORE | {"return_mean": math.inf}}), "return_mean is inf"),
    (Report("evaluator", 0, {}, {"evaluated finally": 3}), "Expected `object`, got `int`"),
    (Report("learner", 0, {}, AT | {"finished": "x"}), r"at `\$.finished`"),
    (Event("learner", 0, "finished"), "missing required field `updates`"),
    (Event("learner", 0, "warning", "hello", {"once": ["x"]}), r"at `\$.once`"),
    (Event("evaluator", 0, "evaluated", "", SCORE | AT), "missing required field `metrics`"),
    (Event("evaluator", 0, "evaluated", "", SCORE | AT | {"metrics": {"a/b": "x"}}), r"at `\$.metrics"),
    (
        Event("evaluator", 0, "evaluated", "", SCORE | AT | {"metrics": {}, "return_mean": math.inf}),
        "return_mean is inf",
    ),
    (
        Event("evaluator", 0, "evaluated finally", "", SCORE | {"extra": b"x"}),
        "extra is b'x', expected a finite number",
    ),
    (
        Event("evaluator", 0, "evaluated finally", "", SCORE | {"metrics": [b"x"]}),
        r"metrics is \[b'x'\], expected a finite number",
    ),
    (Event("video-recorder", 0, "filmed", "", {"updates": 1, "env_steps": 1}), "missing required field `metrics`"),
    (Event("learner", 0, "saved", "", {"store": "..", "version": 1, "tags": []}), "Invalid enum value '..'"),
    (Heartbeat("learner", 0, -1), r">= 0.* at `\$.progress`"),
    (Stage("learner", 0, "building", -5), r">= 0.* at `\$.pid`"),
]
WORKERS = {"learner": "learner", "actor-0": "actor", "evaluator": "evaluator", "video-recorder": "video-recorder"}


class Rig:
    """A controller that has started nothing and reads the messages of the test."""

    def __init__(self, folder) -> None:
        agent, env = AgentReference("tests.replay.learning:acting_toy"), EnvConfig("CartPole-v1")
        experiment = Experiment(agent=agent, env=env, total_env_steps=10_000)
        kinds = {name: find_kind(kind) for name, kind in WORKERS.items()}
        run = RunFolder.create(folder, "bodies", "one", seed=0)
        self.record = RunRecord(experiment, run, make_display("log-only"), kinds=kinds)
        self.controller = Controller.__new__(Controller)
        self.control = ControlServer(f"ipc://{folder}/control")
        self.controller._record, self.controller._control = self.record, self.control
        self.controller._supervision = self.controller._machine = Supervision(
            {name: Rules(kind, 0, (name,)) for name, kind in WORKERS.items()}, DEADLINES, BACKOFF, tells_absent=True
        )
        self.controller._pauses, self.controller._actions = Pauses(), deque()
        self.controller._plan = SimpleNamespace(kinds=kinds, hosts=ALONE)  # type: ignore[assignment]
        self.told: list[str] = []
        self.record.display.message = lambda text, level="info": self.told.append(text)  # type: ignore[method-assign]
        self.controller._workers = {name: self._life(name) for name in WORKERS}

    def _life(self, name: str) -> SupervisedWorker:
        job: Any = type("job", (), {"name": name, "incarnation": 0, "kind": WORKERS[name]})
        self.controller._tell(Started(name, 0))
        return SupervisedWorker(job, SimpleNamespace(host="", exit=None), self.controller._supervision.lives[name])  # type: ignore[arg-type]

    def receive(self, message: AnyMessage) -> None:
        """Read a message as if it came from the socket."""
        self.controller._receive(msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=AnyMessage))

    def close(self) -> None:
        self.control.close()
        self.record.close()


@pytest.fixture
def rig(tmp_path):
    rig = Rig(tmp_path)
    yield rig
    rig.close()


class Sender:
    """The sending end of a worker, without its thread: `sent` has the messages that it lets pass."""

    def __init__(self, worker: str) -> None:
        made: Any = ControlClient.__new__(ControlClient)
        made.worker, made.incarnation, made.speech = worker, 0, find_kind(WORKERS[worker]).speech
        made._budget, made._num_left_out, made._paying = TextBudget(), 0, threading.Lock()
        made._outgoing, made._wake_up = SimpleQueue(), SimpleNamespace(wake=lambda: None)
        self._client: ControlClient = made

    def send(self, message: AnyMessage) -> int:
        """Send it; return how many messages were sent so far."""
        fields = {name: getattr(message, name) for name in message.__struct_fields__[2:]}
        self._client.send(type(message), **fields)
        return self._client._outgoing.qsize()

    def taken(self) -> list[bytes]:
        """Return the messages that it has sent since the last call."""
        return [self._client._outgoing.get() for _ in range(self._client._outgoing.qsize())]


@pytest.mark.parametrize("message", GOOD, ids=lambda m: f"{type(m).__name__} {getattr(m, 'name', '')}")
def test_valid_messages_are_sent_and_received(rig, message) -> None:
    assert Sender(message.worker).send(message) == 1
    rig.receive(message)
    assert rig.controller._workers[message.worker].life.left == isinstance(message, Bye)


@pytest.mark.parametrize(("message", "why"), BAD)
def test_a_worker_that_sends_an_invalid_message_learns_why(message, why) -> None:
    with pytest.raises(ValueError, match=f"is wrong: .*{why}"):
        Sender(message.worker).send(message)


OTHER_KINDS: list[AnyMessage] = [
    Event("actor-0", 0, "evaluated", "", SCORE | AT | {"metrics": {"evaluator/return_mean": 1.0}}),
    Event("actor-0", 0, "evaluated finally", "", SCORE),
    Event("evaluator", 0, "finished", "", AT),
    Event("evaluator", 0, "evaluated", "", SCORE | AT | {"metrics": {"learner/loss": 1.0}}),
    Report("actor-0", 0, {"evaluator/return_mean": 9999.0}, {}),
    Report("actor-0", 0, {"ledger/consumed": 9999.0}, {}),
    Report("actor-0", 0, {"controller/restarts": 9999.0}, {}),
]


@pytest.mark.parametrize("message", OTHER_KINDS, ids=lambda m: f"{m.worker} {getattr(m, 'name', 'report')}")
def test_a_worker_says_and_measures_only_what_its_kind_does(message) -> None:
    with pytest.raises(ValueError, match=f"a worker of kind {WORKERS[message.worker]} does not"):
        Sender(message.worker).send(message)


@pytest.mark.parametrize("name", ["warning", "note"])
def test_warnings_without_end_cost_no_report_and_no_membership(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world, sender = World(), Sender("actor-0")
    host = world.join()  # with actor-0
    monkeypatch.setattr("jsrl.services.runs.control.time", SimpleNamespace(monotonic=lambda: world.now_s))
    stacks = Stacks("actor-0", 0, "x" * MAX_CHARS)
    others: list[AnyMessage] = [
        Report("actor-0", 0, {f"actor/{second}/{number}": 1.0 for number in range(10)}, {"episodes": 3})
        for second in range(100)
    ]
    for second, report in enumerate(others):
        for number in range(100):
            sender.send(Event("actor-0", 0, name, f"reward {second}.{number} is odd: {'x' * 300}"))
        for message in [report] + [stacks] * (second in (0, 50)):
            sender.send(message)
        world.now_s += 1.0
        world.hear(host, WorkerMessages(host.membership, sender.taken()))
    heard = [msgspec.msgpack.decode(frame, type=AnyMessage) for frame in world.relayed]
    assert not host.lost and host.key not in world.members.drops
    assert [message for message in heard if isinstance(message, Report)] == others and heard.count(stacks) == 2
    said = [message.text for message in heard if isinstance(message, Event)]
    assert 1_000 < len(said) < 2_000 and sum("some are left out" in text for text in said) == 1


@pytest.mark.parametrize("message", [*OTHER_KINDS, *(message for message, _ in BAD)])
def test_what_a_worker_may_not_say_is_dropped_where_it_enters_over_tcp(rig, message) -> None:
    rig.controller._plan.hosts = Hosts("10.0.0.1", {message.worker: "10.0.0.2"})
    for _ in range(3):
        rig.receive(message)
    assert [line.partition(":")[0] for line in rig.told] == [
        f"a message of {message.worker} was dropped{number}" for number in ("", " (2 so far)")
    ]
    rig.receive(Event(message.worker, 0, "note", "hello"))
    assert rig.told[2:] == [f"{message.worker}: hello"]


def test_text_above_the_limit_is_dropped_where_it_enters_over_tcp(rig) -> None:
    rig.controller._plan.hosts = Hosts("10.0.0.1", {"learner": "10.0.0.2"})
    for _ in range(100):
        rig.receive(Event("learner", 0, "note", "x" * MAX_CHARS))
    assert sum(line.startswith("learner: ") for line in rig.told) == TEXT_BYTES // MAX_CHARS


def test_error_of_a_failed_run_is_kept_with_escapes(rig) -> None:
    rig.record.fail(ValueError("in red: \x1b[31m\nnext line"))
    assert read_result(rig.record.folder.path)["error"] == "ValueError: in red: \\x1b[31m\nnext line"


TEXTS = st.text("aB0_/. \x00é☃𝄞", max_size=5)  # one to four bytes each
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | TEXTS | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
NAMES = ["updates", "env_steps", "metrics", "once", "ledger", *SCORE]
FACTS = st.dictionaries(st.sampled_from(NAMES) | TEXTS, ANYTHING, max_size=4)
NUMBERS = st.integers(-(2**63), 2**64 - 1)
METRICS = st.dictionaries(
    st.sampled_from(["a/b", "actor/episodes", "env_steps", "learner/x_share"]), st.floats(), max_size=3
)
WHO = st.sampled_from(list(WORKERS))
EVENTS = st.sampled_from(
    ["evaluated", "evaluated finally", "filmed", "filmed finally", "saved", "warning", "note", "other"]
)
MESSAGES = st.one_of(
    st.builds(Stage, WHO, st.just(0), TEXTS, NUMBERS),
    st.builds(Heartbeat, WHO, st.just(0), NUMBERS, TEXTS, st.floats()),
    st.builds(Report, WHO, st.just(0), METRICS, FACTS),
    st.builds(Event, WHO, st.just(0), EVENTS, TEXTS, FACTS | FACTS.map(lambda f: SCORE | AT | f)),
    st.builds(Crash, WHO, st.just(0), TEXTS, TEXTS, TEXTS),
    st.builds(Stacks, WHO, st.just(0), TEXTS),
    st.builds(Bye, WHO, st.just(0), FACTS),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(message=MESSAGES)
def test_no_message_that_is_sent_ends_a_run(rig, message) -> None:
    try:
        Sender(message.worker).send(message)
    except ValueError:
        return
    rig.receive(message)
    rig.record.hub.tick(rig.record.run.env_steps, rig.record.run.updates)
    assert rig.record.run.reason is None
    assert 0 <= rig.record.run.updates <= MOST and 0 <= rig.record.run.env_steps <= MOST
    assert rig.record.result().ended == "interrupted"  # it can be written as JSON


@given(facts=FACTS)
def test_finished_needs_both_counts(facts) -> None:
    right = all(isinstance(facts.get(name), int) and 0 <= facts[name] <= MOST for name in ("updates", "env_steps"))
    if not right and not any(isinstance(facts.get(name), float) for name in ("updates", "env_steps")):
        assert complaint(Event("learner", 0, "finished", "", facts))
