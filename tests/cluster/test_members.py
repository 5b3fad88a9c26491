"""The hosts of a run: joining, leaving, returning; without sockets or processes, with a clock moved by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest
import zmq

from jsrl.cluster import messages as wire
from jsrl.cluster.members import (
    JOIN,
    MOST_WAITING,
    Action,
    Admit,
    AgentEnded,
    Answer,
    Closed,
    Expel,
    FilesSent,
    Forward,
    GiveKeys,
    JoinedHost,
    KeepPages,
    KeepPart,
    Lost,
    Members,
    Message,
    Notify,
    Place,
    Received,
    Relay,
    RemoteWorker,
    RemoveHalfSent,
    ReplaceJoinKey,
    Revoke,
    Send,
    SendFiles,
    Start,
    Tell,
)
from jsrl.cluster.this_host import code_digest, versions
from jsrl.services.runs.control import encoded
from jsrl.services.runs.control_bodies import Crash, Stage
from jsrl.services.runs.values import Registration
from jsrl.transport.stream import generation_at, name_at
from jsrl.workers.kinds import find_kind

HELLO = wire.Hello(
    0, session="s1", name="a", boot="b1", versions=versions(), code=code_digest(), folder="/tmp/x", address="10.0.0.2",
    cores=4, memory_mb=100,
)  # fmt: skip
KEY = "ab" * 32


class World:
    """Members, with a clock that is moved by hand, and all their actions so far."""

    def __init__(self) -> None:
        self.members, self.now_s, self.done = (
            Members("here", versions(), code_digest(), 15.0, 20.0),
            100.0,
            list[Action](),
        )
        self.keys = [zmq.curve_keypair()[0].decode() for _ in range(3)]
        for key in self.keys:
            assert self.tell(Received(JOIN, b"id", wire.Join(0, key))) == [Admit(key), Send(b"id", wire.Admitted(0))]

    def tell(self, message: Message) -> list[Action]:
        actions = self.members.handle(message, self.now_s)
        self.done += actions
        return actions

    def hear(self, host: JoinedHost, message: wire.AnyAgentMessage) -> list[wire.AnyControllerMessage]:
        """Let a host say something; return the answers."""
        return answers(self.tell(Received(host.key, b"id", message)))

    def tick(self) -> None:
        self.done += self.members.tick(self.now_s)

    def hello(self, key: int = 0, **changes: Any) -> list[wire.AnyControllerMessage]:
        """Send a hello with a host's own key; return the answers."""
        hello = msgspec.structs.replace(HELLO, **changes)
        return answers(self.tell(Received(self.keys[key], b"id", hello)))

    def join(self, key: int = 0, worker: str = "actor-0", **changes: Any) -> JoinedHost:
        """Join; return the host with a living worker."""
        (*_, welcome) = self.hello(key, **changes)
        assert isinstance(welcome, wire.Welcome)
        host = self.members.hosts[-1]
        self.place(host, worker)
        return host

    def place(self, host: JoinedHost, worker: str, incarnation: int = 0, **changes: Any) -> RemoteWorker:
        self.tell(place(host, worker, incarnation)._replace(**changes))
        return host.workers[worker, incarnation]

    @property
    def notices(self) -> list[str]:
        return [action.line for action in self.done if isinstance(action, Notify)]

    @property
    def relayed(self) -> list[bytes]:
        relayed = [action.messages for action in self.done if isinstance(action, Relay)]
        return [encoded(message) for messages in relayed for message in messages]

    @property
    def kept(self) -> list[tuple[str, int]]:
        return [(action.part.name, action.part.at) for action in self.done if isinstance(action, KeepPart)]


def place(host: JoinedHost, worker: str, incarnation: int = 0) -> Place:
    """Return a worker of a host, which binds a stream `samples` or `inference`."""
    speech = find_kind(worker.rpartition("-")[0] or worker).speech
    names = {name_at(stream, worker) for stream in ("samples", "inference")} | {generation_at("samples", worker)}
    return Place(host.membership, worker, incarnation, speech, binds=frozenset(names))


def answers(actions: list[Action]) -> list[wire.AnyControllerMessage]:
    return [action.message for action in actions if isinstance(action, Send)]


def said(worker: str, incarnation: int = 0, text: str = "building") -> bytes:
    """Return a message of a worker, as its agent sends it."""
    return encoded(Stage(worker, incarnation, text, 42))


@pytest.fixture
def world() -> World:
    return World()


def test_join_key_admits_keys_of_hosts_which_alone_may_join(world: World):
    assert not answers(world.tell(Received(JOIN, b"id", HELLO))) and not world.members.hosts
    assert not answers(world.tell(Received(world.keys[0], b"id", wire.Join(0, world.keys[1]))))  # a key admits no other
    assert len(world.notices) == 2 and "with the wrong key for that" in world.notices[0]
    assert {world.join().name, world.join(1, session="s2", name="b", boot="b2").name} == {"a", "b"}
    with pytest.raises(ValueError, match="key 'no key'"):
        wire.Join(0, "no key")


def test_keys_that_do_not_join_are_dropped_after_a_while(world: World):
    world.join()
    for number in range(MOST_WAITING):
        world.tell(Received(JOIN, b"id", wire.Join(0, f"{number:040}")))
    expelled = [action.key for action in world.done if isinstance(action, Expel)]
    assert expelled == world.keys[1:]
    (answer,) = world.hello(1, session="s2", name="b", boot="b2")
    assert isinstance(answer, wire.Refused)


def test_revoked_host_is_removed_with_the_join_key_and_none_of_its_name_joins(world: World):
    host, other = world.join(), world.join(1, session="s2", name="b", boot="b2")
    world.tell(Revoke(set()))  # as read at the start of the run
    actions = world.tell(Revoke({"a"}))
    told, expelled, *_ = actions
    assert (
        isinstance(told, Send) and isinstance(told.message, wire.Refused) and told.message.membership == host.membership
    )
    assert expelled == Expel(host.key)  # after the answer, which would not reach it any more
    assert Lost(host) in actions and ReplaceJoinKey() in actions and world.members.hosts == [other]
    exited = host.workers["actor-0", 0].exit
    assert exited is not None and exited.with_host and host.leaves and not other.leaves
    (answer,) = world.hello(2, session="s3")
    assert isinstance(answer, wire.Refused) and answer.text == "the key of a was revoked."
    assert not world.tell(Revoke({"a"})) and world.members.hosts == [other]
    assert world.tell(Revoke({"a", "c"})) == [ReplaceJoinKey()]  # it is not in the run, but may know the join key


def test_names_that_were_revoked_before_the_run_began_leave_its_join_key(world: World):
    assert not world.tell(Revoke({"a"})) and isinstance(world.hello()[0], wire.Refused)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"versions": versions() | {"python": "3.9.1"}}, "a has python 3.9.1 and the controller has"),
        ({"versions": versions() | {"jax": "0.1.0"}}, "a has jax 0.1.0 and the controller has"),
        ({"versions": {}}, "a has jsrl none and the controller has"),
        ({"code": "other"}, "but with other sources; install the same commit"),
        ({"name": "here"}, "another host is called here; give this one a name with --name"),
        ({"name": "n" * 65}, "expected a name of 1 to 64 characters (--name)"),
        ({"cores": 0}, "with 0 cores"),
        ({"lacks": "9 MB free in /tmp, and needs at least 16"}, "a has only 9 MB free in /tmp, and needs at least 16;"),
    ],
)
def test_unsuitable_host_is_refused_and_may_try_again(world: World, changes, sentence):
    (answer,) = world.hello(**changes)
    assert isinstance(answer, wire.Refused) and sentence in answer.text and world.notices[-1].endswith(answer.text)
    assert not world.members.hosts
    world.join()


def test_ever_fewer_refusals_are_shown(world: World):
    for number in range(9):
        world.hello(number % 3, name=f"mine-{number}", cores=0)
    shown = [notice.partition(":")[0].removeprefix("a host could not join") for notice in world.notices]
    assert shown == ["", " (2 times so far)", " (4 times so far)", " (8 times so far)"]


def test_heartbeats_are_answered_with_the_clock_of_the_agent(world: World):
    host = world.join()
    beat = wire.Beat(host.membership, 7.25, [said("actor-0")], [wire.Usage("actor-0", 0, 42, "running", 1.5, 10, 3)])
    assert world.hear(host, beat) == [wire.BeatReceived(host.membership, 7.25)]
    life = host.workers["actor-0", 0]
    assert world.relayed == [said("actor-0")] and life.pid == 42 and life.usage.cpu_s == 1.5


def test_orders_are_sent_again_in_order_until_the_host_confirms_them(world: World):
    host, keys = world.join(), wire.Keys(1, b"c", b"s")
    begin = wire.Begin(host.membership, "actor", "actor-0", 0, b"{}", {})
    actions = [GiveKeys(host.membership, keys, KEY), Start(host.membership, begin), Forward("actor-0", 0, b"final")]
    actions += [
        Tell(host.membership, wire.Signal(host.membership, "actor-0", 0, "pause")),
        Start(host.membership, begin),
    ]
    orders = [answer for action in actions for answer in answers(world.tell(action))]
    assert orders == [
        wire.Keys(host.membership, b"c", b"s", number=1),
        wire.Begin(host.membership, "actor", "actor-0", 0, b"{}", {}, number=2),
        wire.WorkerCommand(host.membership, "actor-0", 0, b"final", number=3),
        wire.Signal(host.membership, "actor-0", 0, "pause", number=4),
    ]  # a worker is started once
    again = []
    for world.now_s, executed in ((101.0, 0), (106.0, 0), (107.0, 2), (112.0, 3), (118.0, 3), (119.0, 4), (125.0, 4)):
        again.append(world.hear(host, wire.Beat(host.membership, 7.25, [], executed=executed))[1:])
    assert again == [[], orders, [], [], orders[3:], [], []]  # they may be on their way


def test_worker_starts_once_its_host_has_its_files(world: World):
    host = world.join()
    begin = wire.Begin(host.membership, "learner", "actor-0", 0, b"{}", {}, keeps=["snapshots/state"])
    assert world.tell(Start(host.membership, begin, True)) == [SendFiles(host, "actor-0", 0, ["snapshots/state"], ())]
    world.hear(host, wire.FilePart(host.membership, wire.Part("snapshots/state/1/x", 0, b"early", True)))
    assert not world.kept and host.workers["actor-0", 0].begin is None
    sent = FilesSent(host.membership, "actor-0", 0)
    assert answers(world.tell(sent)) == [msgspec.structs.replace(begin, number=1)]
    assert not world.tell(sent) and not world.tell(FilesSent(host.membership, "actor-0", 1))
    world.hear(host, wire.FilePart(host.membership, wire.Part("snapshots/state/1/x", 0, b"1", True)))
    assert world.kept == [("snapshots/state/1/x", 0)]


def test_worker_that_is_killed_before_its_start_does_not_start(world: World):
    host = world.join()
    begin = wire.Begin(host.membership, "learner", "actor-0", 0, b"{}", {}, keeps=["snapshots/state"])
    world.tell(Start(host.membership, begin, True))
    assert not world.tell(Tell(host.membership, wire.Signal(host.membership, "actor-0", 0, "kill")))
    exited = host.workers["actor-0", 0].exit
    assert exited is not None and exited.text == "ended before its start"
    assert not world.tell(FilesSent(host.membership, "actor-0", 0)) and not world.tell(Start(host.membership, begin))


def test_exit_is_recorded_once(world: World):
    host = world.join()
    world.hear(host, wire.Exited(host.membership, "actor-0", 0, -9, "killed", "the end"))
    world.hear(host, wire.Exited(host.membership, "actor-0", 0, 0, "again", ""))
    life = host.workers["actor-0", 0]
    assert (life.exit.status, life.exit.text, life.tail) == (-9, "killed", "the end")
    assert host.num_living == 0


def test_last_words_of_an_ended_worker_are_not_passed_on_again(world: World):
    """They are repeated over each new connection, and their text would use up what the worker may say."""
    host = world.join()
    crash = encoded(Crash("actor-0", 0, "ValueError", "it crashed", "x" * 60_000))
    world.hear(host, wire.WorkerMessages(host.membership, [crash]))
    world.hear(host, wire.Exited(host.membership, "actor-0", 0, 1, "exit 1", ""))
    for _ in range(100):
        world.hear(host, wire.WorkerMessages(host.membership, [crash]))
    assert world.relayed == [crash] and not world.members.drops


def test_only_replies_to_questions_are_kept(world: World):
    host = world.join()
    question = wire.TextRequest(host.membership, 3, "actor-0", 0, "tail", 10.0)
    assert answers(world.tell(Tell(host.membership, question))) == [question]
    for number in (3, 3, 2, 4):
        world.hear(host, wire.TextReply(host.membership, number, f"text {number}"))
    assert [action for action in world.done if isinstance(action, Answer)] == [Answer(3, "text 3")]
    assert world.members.drops[host.key].count == 3


def test_only_the_newest_and_living_incarnations_are_kept(world: World):
    host = world.join()
    for incarnation in range(1, 50):
        world.place(host, "actor-0", incarnation)
        world.place(host, "actor-1", incarnation)
        if incarnation != 7:  # this one does not end
            world.hear(host, wire.Exited(host.membership, "actor-0", incarnation, -9, "killed", "the end"))
        world.hear(host, wire.Exited(host.membership, "actor-1", incarnation, -9, "killed", "the end"))
    assert [key[1] for key in host.workers if key[0] == "actor-0"] == [0, 7, 48, 49]
    assert [key[1] for key in host.workers if key[0] == "actor-1"] == [48, 49]
    assert [remote.incarnation for remote in host.living_workers] == [0, 7]


def test_silent_host_is_lost_and_its_later_messages_are_ignored(world: World):
    host = world.join()
    world.now_s += 15.0
    world.tick()
    joined = world.notices.copy()
    for _ in range(2):
        world.now_s += 2.5
        world.tick()
    assert world.members.hosts == [host]
    (silent,) = world.notices[len(joined) :]
    assert silent == "host a has sent no message for 15 s, the length of its lease: after 20 s it is lost"
    world.now_s += 0.1
    world.tick()
    exited = host.workers["actor-0", 0].exit
    assert not world.members.hosts and exited.status is None
    assert exited.text == "lost with its host a: it sent no message for 20 s"
    late = [
        wire.Beat(host.membership, 1.0, [b"late"]),
        wire.WorkerMessages(host.membership, [b"late"]),
        wire.Exited(host.membership, "actor-0", 0, 0, "", ""),
        wire.Pages(host.membership, {"samples/ledger": bytes(wire.PAGE_BYTES)}),
        wire.FilePart(host.membership, wire.Part("snapshots/state/tags/latest.json", 0, b"late", True)),
    ]
    for message in late * 200:
        assert not world.tell(Received(host.key, b"id", message))
    assert not world.tell(Place(host.membership, "actor-1", 0, find_kind("actor").speech))  # it was lost meanwhile
    assert world.notices[-1].endswith("it sent no message for 20 s")


def test_host_whose_connection_closed_is_lost_sooner_unless_it_returns(world: World):
    host = world.join()
    world.now_s += 6.0
    world.tell(Closed(b"id"))  # for want of heartbeats: its link is down
    world.now_s += 8.5
    world.tick()
    assert world.members.hosts == [host]
    world.hear(host, wire.Beat(host.membership, 1.0, []))
    world.now_s += 0.5
    world.tell(Closed(b"id"))
    world.now_s += 8.0
    world.tick()
    assert world.members.hosts == [host]
    world.hear(host, wire.Beat(host.membership, 2.0, []))  # it has returned
    world.now_s += 8.5
    world.tick()
    assert world.members.hosts == [host]
    world.hear(host, wire.Beat(host.membership, 3.0, []))
    world.tell(Closed(b"another"))
    world.tell(Closed(b"id"))
    world.now_s += 8.1
    world.tick()
    assert not world.members.hosts
    assert host.lost == "its connection was closed, and it did not return within 8 s"


def test_a_host_is_away_soon_after_its_connection_closed_and_when_it_is_long_silent(world: World):
    host = world.join()
    seen, beat, closed = [], (0.0, "beat"), (0.5, "closed")
    for passed_s, happens in ((7.9, ""), (0.2, ""), beat, closed, (0.9, ""), (0.2, ""), beat):
        world.now_s += passed_s
        if happens == "beat":
            world.hear(host, wire.Beat(host.membership, 1.0, []))
        elif happens == "closed":
            world.tell(Closed(b"id"))
        seen.append(host.is_away(world.now_s))
    assert seen == [False, True, False, False, False, True, False]
    assert world.members.hosts == [host]  # its workers are not replaced yet


def test_returning_agent_has_a_new_membership_and_no_workers(world: World):
    host = world.join()
    (answer,) = world.hello()  # the same process, after its lease had ended
    assert isinstance(answer, wire.Welcome) and answer.membership > host.membership
    assert host.lost and "joined again without workers" in host.workers["actor-0", 0].exit.text
    assert [h.membership for h in world.members.hosts] == [answer.membership]


def test_repeated_hello_of_an_agent_that_waits_for_its_welcome_is_one_membership(world: World):
    """Agents repeat it every 0.5 s; a busy controller answers later."""
    answers = [answer for _ in range(3) for answer in world.hello()]
    assert len(answers) == 3 and {answer.membership for answer in answers} == {1}
    assert len(world.notices) == 1 and len(world.members.hosts) == 1
    (answer,) = world.hello(membership=1)  # its lease has ended since, before it could say anything
    assert answer.membership == 2
    (host,) = world.members.hosts
    world.hear(host, wire.Beat(host.membership, 1.0, []))
    (answer,) = world.hello()
    assert answer.membership == 3


def test_a_new_agent_of_the_same_host_ends_the_old_lease_at_once(world: World):
    host = world.join()
    refused, welcome = world.hello(1, session="s2")
    assert isinstance(refused, wire.Refused) and "taken the place" in refused.text and isinstance(welcome, wire.Welcome)
    assert host.workers["actor-0", 0].exit is not None
    (answer,) = world.hello(0)  # the old one has lost its place and its key
    assert isinstance(answer, wire.Refused) and "another agent has taken its place" in answer.text
    (answer,) = world.hello(2, session="s3", boot="b2")
    assert isinstance(answer, wire.Refused) and "another host is called a" in answer.text


def test_a_host_that_leaves_is_lost_at_once(world: World):
    host = world.join()
    world.hear(host, wire.Leaving(host.membership, "its agent was told to end"))
    assert not world.members.hosts and "told to end" in host.workers["actor-0", 0].exit.text


def test_a_host_that_wants_to_leave_stays_until_its_workers_have_moved(world: World):
    host = world.join()
    beat = wire.Beat(host.membership, 1.0, [], leaves="its agent was told to end")
    assert world.hear(host, beat) == [wire.BeatReceived(host.membership, 1.0)]
    assert world.members.hosts == [host] and world.members.staying == []
    assert world.notices[-1] == "host a leaves (its agent was told to end): 1 worker must move"
    world.hear(host, wire.Exited(host.membership, "actor-0", 0, 0, "left", ""))
    (farewell,) = world.hear(host, beat)
    assert isinstance(farewell, wire.Farewell) and "its agent was told to end" in farewell.text
    assert not world.members.hosts and host.workers["actor-0", 0].exit.status == 0


def test_a_host_speaks_for_no_other(world: World):
    host = world.join()
    other = world.join(1, session="s2", name="b")
    world.hear(other, wire.Exited(host.membership, "actor-0", 0, 0, "", ""))
    assert host.workers["actor-0", 0].exit is None
    assert msgspec.structs.replace(host.facts, name="b") == other.facts


def test_connection_that_breaks_again_and_again_is_reported(world: World):
    """Each large message breaks it if packets are too large for the network. The host's beats still arrive."""
    host, reports = world.join(), list[str]()
    for world.now_s in (100.0, 130.0, 300.0, 330.0, 360.0, 390.0):
        world.hear(host, wire.Beat(host.membership, 1.0, []))
        actions = world.tell(Closed(b"id"))
        reports += [f"{world.now_s:g}: {action.line}" for action in actions if isinstance(action, Notify)]
    (report,) = reports
    assert report.startswith("360: the connection to host a broke 3 times within 120 s.") and "mtu" in report


def give_keys(world: World, host: JoinedHost) -> None:
    world.tell(GiveKeys(host.membership, wire.Keys(host.membership, b"c", b"s"), KEY))


def name(worker: str, incarnation: int = 0, key: str = KEY, stream: str = "inference") -> Registration:
    return Registration(f"{stream}.{worker}", f"tcp://{key}@10.0.0.2:7", incarnation, 42, "a")


def test_host_may_register_only_streams_of_its_living_workers(world: World):
    host = world.join()
    world.place(host, "inference-0", 0)
    world.place(host, "inference-1", 1)
    generation = Registration("samples.inference-0.generation", "3", 0, 42, "a")  # of a worker that reads samples
    fine = [name("inference-0"), name("inference-1", 1), generation]
    wrong = [
        name("learner", stream="samples"),  # runs elsewhere
        name("inference-1"),  # of an earlier incarnation
        name("inference-0", key="cd" * 32),  # bound with another key
        dataclasses.replace(fine[0], address="shm:/dev/shm/x/y"),
        dataclasses.replace(generation, address="tcp://10.0.0.9:7"),
        dataclasses.replace(generation, name="samples.learner.generation"),
        name("inference-0", stream="x" * 300),
    ]
    beat = wire.Beat(host.membership, 1.0, [], [], [*fine, *wrong])
    world.hear(host, beat)
    assert world.members.names() == [generation]  # it has no keys yet
    give_keys(world, host)
    world.hear(host, beat)
    assert {entry.name: entry for entry in world.members.names()} == {entry.name: entry for entry in fine}
    world.hear(host, wire.Exited(host.membership, "inference-0", 0, -9, "killed", ""))
    assert world.members.names() == fine[1:2]
    world.place(host, "inference-0", 1)
    world.hear(host, beat)  # names of its earlier incarnation are late
    assert world.members.names() == fine[1:2]
    world.tell(AgentEnded("a", "gone"))
    assert not world.members.names()


def test_host_relays_params_with_its_own_key_only(world: World):
    host = world.join()
    give_keys(world, host)
    own, foreign = f"tcp://{KEY}@10.0.0.2:8", f"tcp://{'cd' * 32}@10.0.0.2:9"
    beat = wire.Beat(host.membership, 1.0, [], relays={"params.learner": own, "params.other": foreign})
    world.hear(host, beat)
    assert host.relays == {"params.learner": own}
    for wrong in ("../x", "a/b", "a..b"):
        with pytest.raises(ValueError, match="stream"):
            wire.RunNames(1, [], {}, {wrong: ["tcp://10.0.0.1:7"]})


def test_later_incarnation_of_a_stream_wins(world: World):
    for number in range(2):
        host = world.join(number, session=f"s{number}", name=f"h{number}", boot=f"b{number}")
        give_keys(world, host)
        world.place(host, "inference-0", 1 - number)
        world.hear(host, wire.Beat(host.membership, 1.0, [], [], [name("inference-0", 1 - number)]))
    assert world.members.names() == [name("inference-0", 1)]


def test_files_are_accepted_only_for_folders_of_living_workers(world: World):
    host = world.join()
    begin = wire.Begin(host.membership, "evaluator", "actor-0", 0, b"{}", {}, keeps=["snapshots/params"])
    world.tell(Start(host.membership, begin))
    for name in ("snapshots/params/tags/best.json", "snapshots/params-2/x", "snapshots/state/tags/latest.json"):
        world.hear(host, wire.FilePart(host.membership, wire.Part(name, 0, b"1", True)))
    assert world.kept == [("snapshots/params/tags/best.json", 0)]
    world.hear(host, wire.Exited(host.membership, "actor-0", 0, 0, "", ""))
    world.hear(host, wire.FilePart(host.membership, wire.Part("snapshots/params/tags/best.json", 0, b"2", True)))
    assert len(world.kept) == 1
    world.place(host, "actor-0", 1)
    world.tell(Start(host.membership, msgspec.structs.replace(begin, incarnation=1)))
    world.tell(AgentEnded("a", "gone"))
    assert RemoveHalfSent(("snapshots/params/",)) in world.done


def test_older_pages_of_a_broken_connection_do_not_replace_newer_ones(world: World):
    host = world.join()
    world.place(host, "actor-0", 1, legs=("samples",))
    for number, page in ((1, b"a"), (3, b"c"), (2, b"b")):
        pages = wire.Pages(host.membership, {"samples/ledger": page * wire.PAGE_BYTES}, number)
        world.hear(host, pages)
    kept = [action.pages for action in world.done if isinstance(action, KeepPages)]
    assert [pages["samples/ledger"][:1] for pages in kept] == [b"a", b"c"]


def test_host_may_send_the_logs_of_its_own_workers_only(world: World):
    host = world.join()
    world.hear(host, wire.Exited(host.membership, "actor-0", 0, 1, "", ""))
    for name, at in (("actor-0", 0), ("actor-0", wire.MOST_LOG_BYTES), ("actor-1", 0), ("controller", 0)):
        world.hear(host, wire.FilePart(host.membership, wire.Part(f"logs/{name}.log", at, b"1", True)))
    assert world.kept == [("logs/actor-0.log", 0)]


def test_host_has_lived_as_long_as_its_last_membership_until_the_end_of_its_agent_is_reported(world: World):
    """A broken link is often noticed first by its silence. This must not count as a failed start of the agent."""
    world.join()
    world.now_s += 3_600.0
    assert world.members.lived_s("a", world.now_s) == 3_600.0
    world.tick()
    assert not world.members.hosts
    world.now_s += 10.0
    assert world.members.lived_s("a", world.now_s) == 3_600.0
    world.tell(AgentEnded("a", "ssh a ended with status 255"))
    assert world.members.lived_s("a", world.now_s) == 0.0
