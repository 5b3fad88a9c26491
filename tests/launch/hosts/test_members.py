"""The hosts of a run: joining, leaving, returning; without sockets or processes, with a clock moved by hand."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import pytest
import zmq

from jsrl.errors import ConfigError
from jsrl.launch.hosts.facts import code_digest, versions
from jsrl.launch.hosts.join_key import ENDED, JOIN, MOST_WAITING, JoinKey, has_moved, read_key
from jsrl.launch.hosts.kept_files import MOST_LOG_BYTES, PAGE_BYTES, name_here
from jsrl.launch.hosts.members import AGAIN_S, MOST_CODE_BYTES, JoinedHost, Members, RemoteWorker
from jsrl.launch.hosts.messages import (
    Admitted,
    Beat,
    BeatReceived,
    Begin,
    CodePart,
    Exited,
    Farewell,
    Hello,
    Join,
    KeptFile,
    Keys,
    Leaving,
    Pages,
    Refused,
    RunNames,
    Signal,
    TextReply,
    Usage,
    Welcome,
    WorkerCommand,
    WorkerMessages,
)
from jsrl.runs.control import encoded
from jsrl.runs.control_bodies import Stage
from jsrl.runs.values import Registration
from jsrl.transport.meeting.keys import load_client_keys
from jsrl.transport.stream import epoch_at, name_at
from jsrl.workers.kinds import find_kind

HELLO = Hello(
    0, session="s1", name="a", boot="b1", versions=versions(), code=code_digest(), folder="/tmp/x", address="10.0.0.2",
    cores=4, memory_mb=100,
)  # fmt: skip


class World:
    """Members, with a clock that is moved by hand."""

    def __init__(self, folder: Path) -> None:
        self.join_key, self.now_s = JoinKey(folder / "join.key"), 100.0
        self.join_key.publish("10.0.0.1:7000")
        self.members = Members(self.join_key, 15.0, 20.0, lambda: self.now_s, own="here")
        self.names = [zmq.curve_keypair()[0].decode() for _ in range(3)]
        for name in self.names:
            assert self.members.handle(JOIN, b"id", Join(0, name)) == [(b"id", Admitted(0))]

    def hello(self, key: int = 0, **changes):
        """Send a hello with a host's own key; return the answers."""
        hello = msgspec.structs.replace(HELLO, **changes)
        return [answer for _, answer in self.members.handle(self.names[key], b"id", hello)]

    def join(self, key: int = 0, **changes):
        """Join; return the host with a living worker."""
        (*_, welcome) = self.hello(key, **changes)
        assert isinstance(welcome, Welcome)
        host = self.members.hosts[-1]
        host.add(remote(host, "actor-0"))
        return host


def remote(host: JoinedHost, worker: str, incarnation: int = 0) -> RemoteWorker:
    """Return a worker of a host, which binds a stream `samples` or `inference`."""
    speech = find_kind(worker.rpartition("-")[0] or worker).speech
    names = {name_at(stream, worker) for stream in ("samples", "inference")} | {epoch_at("samples", worker)}
    return RemoteWorker(host, worker, incarnation, speech, binds=frozenset(names))


def said(worker: str, incarnation: int = 0, text: str = "building") -> bytes:
    """Return a message of a worker, as its agent sends it."""
    return encoded(Stage(worker, incarnation, text, 42))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_join_key_admits_keys_of_hosts_which_alone_may_join(world: World):
    assert world.members.handle(JOIN, b"id", HELLO) == [] and not world.members.hosts
    assert world.members.handle(world.names[0], b"id", Join(0, world.names[1])) == []  # a key admits no other
    assert len(world.members.notices) == 2 and "with the wrong key for that" in world.members.notices[0]
    assert world.join_key.admits(b"x" * 40) == ""
    assert {world.join().name, world.join(1, session="s2", name="b", boot="b2").name} == {"a", "b"}
    with pytest.raises(ValueError, match="key 'no key'"):
        Join(0, "no key")


def test_keys_that_do_not_join_are_dropped_after_a_while(world: World):
    world.join()
    for number in range(MOST_WAITING):
        world.join_key.admit(str(number).encode())
    assert [bool(world.join_key.admits(name.encode())) for name in world.names] == [True, False, False]


def test_revoked_host_is_removed_with_the_join_key_and_none_of_its_name_joins(world: World):
    host, other = world.join(), world.join(1, session="s2", name="b", boot="b2")
    before = load_client_keys(world.join_key.path)
    world.members.revoke(set())  # as read at the start of the run
    world.members.revoke({"a"})
    ((_, answer),) = world.members.farewells
    assert isinstance(answer, Refused) and answer.epoch == host.epoch and world.members.hosts == [other]
    assert host.workers["actor-0", 0].exit.with_host and host.leaves and not other.leaves
    assert world.join_key.admits(before.public) == "" and world.join_key.admits(world.names[0].encode()) == ""
    after = load_client_keys(world.join_key.path)
    assert world.join_key.admits(after.public) == JOIN and after.server == before.server
    assert not has_moved(world.join_key.path, before)  # a host that is in stays
    assert world.join_key.admits(world.names[1].encode()) == world.names[1]
    (answer,) = world.hello(2, session="s3")
    assert isinstance(answer, Refused) and answer.text == "the key of a was revoked."
    world.members.revoke({"a"})
    assert world.members.hosts == [other] and load_client_keys(world.join_key.path) == after
    world.members.revoke({"a", "c"})  # which is not in the run, but may know the join key
    assert load_client_keys(world.join_key.path) != after


def test_names_that_were_revoked_before_the_run_began_leave_its_join_key(world: World):
    before = load_client_keys(world.join_key.path)
    world.members.revoke({"a"})
    assert load_client_keys(world.join_key.path) == before and isinstance(world.hello()[0], Refused)


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
    assert isinstance(answer, Refused) and sentence in answer.text and world.members.notices[-1].endswith(answer.text)
    assert not world.members.hosts
    world.join()


def test_ever_fewer_refusals_are_shown(world: World):
    for number in range(9):
        world.hello(number % 3, name=f"mine-{number}", cores=0)
    shown = [notice.partition(":")[0].removeprefix("a host could not join") for notice in world.members.notices]
    assert shown == ["", " (2 times so far)", " (4 times so far)", " (8 times so far)"]


def test_heartbeats_are_answered_with_the_clock_of_the_agent(world: World):
    host = world.join()
    beat = Beat(host.epoch, 7.25, [said("actor-0")], [Usage("actor-0", 0, 42, "running", 1.5, 10, 3)])
    assert world.members.handle(host.key, b"id", beat) == [(b"id", BeatReceived(host.epoch, 7.25))]
    life = host.workers["actor-0", 0]
    assert world.members.frames == [said("actor-0")] and life.pid == 42 and life.usage.cpu_s == 1.5


def test_keys_that_a_host_lacks_are_sent_again(world: World):
    host = world.join()
    host.sent, host.sent_s = [Keys(host.epoch, b"c", b"s")], world.now_s
    counts = []
    for world.now_s, lacks in ((103.0, True), (106.0, False), (106.5, True), (107.0, True), (112.0, True)):
        answers = world.members.handle(host.key, b"id", Beat(host.epoch, 7.25, [], lacks=lacks))
        assert [answer for _, answer in answers] == [BeatReceived(host.epoch, 7.25), *host.sent[: len(answers) - 1]]
        counts.append(len(answers) - 1)
    assert counts == [0, 0, 1, 0, 1]  # they may be on their way


def test_modules_are_sent_as_a_slow_network_carries_them(world: World):
    """All at once they delay heartbeats for longer than the lease, and the host joins again without end."""
    host, size = world.join(), MOST_CODE_BYTES // 2
    host.code = [CodePart(host.epoch, "0" * 64, bytes([number]) * size, number == 4) for number in range(5)]
    arrived = []
    for world.now_s, executed in ((101.0, 0), (105.0, 0), (106.0, 1), (109.0, 2), (112.0, 2), (115.0, 2), (116.0, 5)):
        beat = Beat(host.epoch, 7.25, [], executed=executed)
        answers = [answer for _, answer in world.members.handle(host.key, b"id", beat)][1:]
        arrived.append([answer.number for answer in answers if isinstance(answer, CodePart)])
    assert arrived == [[1, 2], [], [3], [4], [], [3, 4], [5]]  # the connection broke with 3 and 4


def test_orders_are_sent_again_in_order_until_the_host_confirms_them(world: World):
    host = world.join()
    orders = [WorkerCommand(host.epoch, "actor-0", 0, b"final"), Signal(host.epoch, "actor-0", 0, "kill")]
    for order in orders:
        world.members.number(host, order)
    again = []
    for world.now_s, executed in ((101.0, 0), (106.0, 0), (107.0, 0), (112.0, 1), (118.0, 2), (124.0, 2)):
        beat = Beat(host.epoch, 7.25, [], executed=executed)
        again.append([answer for _, answer in world.members.handle(host.key, b"id", beat)][1:])
    assert again == [[], orders, [], orders[1:], [], []]  # they may be on their way
    assert [order.number for order in orders] == [1, 2]


def test_exit_is_recorded_once(world: World):
    host = world.join()
    world.members.handle(host.key, b"id", Exited(host.epoch, "actor-0", 0, -9, "killed", "the end"))
    world.members.handle(host.key, b"id", Exited(host.epoch, "actor-0", 0, 0, "again", ""))
    life = host.workers["actor-0", 0]
    assert (life.exit.status, life.exit.text, life.tail) == (-9, "killed", "the end")
    assert host.num_living == 0


def test_only_replies_to_questions_are_kept(world: World):
    host = world.join()
    host.asked, host.newest_asked = {3}, 3
    for number in (3, 3, 2, 4):
        world.members.handle(host.key, b"id", TextReply(host.epoch, number, f"text {number}"))
    assert host.answers == {3: "text 3"} and world.members.drops[host.key].count == 1  # those before it are late


def test_only_the_newest_and_living_incarnations_are_kept(world: World):
    host = world.join()
    for incarnation in range(1, 50):
        host.add(remote(host, "actor-0", incarnation))
        host.add(remote(host, "actor-1", incarnation))
        if incarnation != 7:  # this one does not end
            world.members.handle(host.key, b"id", Exited(host.epoch, "actor-0", incarnation, -9, "killed", "the end"))
        world.members.handle(host.key, b"id", Exited(host.epoch, "actor-1", incarnation, -9, "killed", "the end"))
    assert [key[1] for key in host.workers if key[0] == "actor-0"] == [0, 7, 48, 49]
    assert [key[1] for key in host.workers if key[0] == "actor-1"] == [48, 49]
    assert [remote.incarnation for remote in host.living_workers] == [0, 7]


def test_start_request_of_a_worker_is_repeated(world: World):
    host = world.join()
    life = host.workers["actor-0", 0]
    life.begin, life.asked_s = Begin(host.epoch, "actor", "actor-0", 0, b"{}", {}), world.now_s
    assert world.members.unanswered_starts() == []
    world.now_s += AGAIN_S + 1.0
    assert world.members.unanswered_starts() == [(b"id", life.begin)] and world.members.unanswered_starts() == []
    world.members.handle(host.key, b"id", Beat(host.epoch, 1.0, [], [Usage("actor-0", 0, 42)]))
    world.now_s += AGAIN_S + 1.0
    assert world.members.unanswered_starts() == []


def test_silent_host_is_lost_and_its_later_messages_are_ignored(world: World):
    host = world.join()
    world.now_s += 15.0
    world.members.look()
    joined = world.members.notices.copy()
    for _ in range(2):
        world.now_s += 2.5
        world.members.look()
    assert world.members.hosts == [host]
    (silent,) = world.members.notices[len(joined) :]
    assert silent == "host a has sent no message for 15 s, the length of its lease: after 20 s it is lost"
    world.now_s += 0.1
    world.members.look()
    exited = host.workers["actor-0", 0].exit
    assert not world.members.hosts and exited.status is None
    assert exited.text == "lost with its host a: it sent no message for 20 s"
    late = [
        Beat(host.epoch, 1.0, [b"late"]),
        WorkerMessages(host.epoch, [b"late"]),
        Exited(host.epoch, "actor-0", 0, 0, "", ""),
        Pages(host.epoch, {"samples/ledger": bytes(PAGE_BYTES)}),
        KeptFile(host.epoch, "snapshots/state/tags/latest.json", 0, b"late", True),
    ]
    for message in late * 200:
        assert world.members.handle(host.key, b"id", message) == []
    members = world.members
    assert not (members.frames or members.pages or members.kept_files)
    assert members.notices[-1].endswith("it sent no message for 20 s")


def test_host_whose_connection_closed_is_lost_sooner_unless_it_returns(world: World):
    host = world.join()
    world.now_s += 6.0
    world.members.note_closed(b"id")  # for want of heartbeats: its link is down
    world.now_s += 8.5
    world.members.look()
    assert world.members.hosts == [host]
    world.members.handle(host.key, b"id", Beat(host.epoch, 1.0, []))
    world.now_s += 0.5
    world.members.note_closed(b"id")
    world.now_s += 8.0
    world.members.look()
    assert world.members.hosts == [host]
    world.members.handle(host.key, b"id", Beat(host.epoch, 2.0, []))  # it has returned
    world.now_s += 8.5
    world.members.look()
    assert world.members.hosts == [host]
    world.members.handle(host.key, b"id", Beat(host.epoch, 3.0, []))
    world.members.note_closed(b"another")
    world.members.note_closed(b"id")
    world.now_s += 8.1
    world.members.look()
    assert not world.members.hosts
    assert host.lost == "its connection was closed, and it did not return within 8 s"


def test_a_host_is_away_soon_after_its_connection_closed_and_when_it_is_long_silent(world: World):
    host = world.join()
    seen, beat, closed = [], (0.0, "beat"), (0.5, "closed")
    for passed_s, happens in ((7.9, ""), (0.2, ""), beat, closed, (0.9, ""), (0.2, ""), beat):
        world.now_s += passed_s
        if happens == "beat":
            world.members.handle(host.key, b"id", Beat(host.epoch, 1.0, []))
        elif happens == "closed":
            world.members.note_closed(b"id")
        seen.append(host.is_away(world.now_s))
    assert seen == [False, True, False, False, False, True, False]
    assert world.members.hosts == [host]  # its workers are not replaced yet


def test_returning_agent_has_a_new_epoch_and_no_workers(world: World):
    host = world.join()
    (answer,) = world.hello()  # the same process, after its lease had ended
    assert isinstance(answer, Welcome) and answer.epoch > host.epoch
    assert host.lost and "joined again without workers" in host.workers["actor-0", 0].exit.text
    assert [h.epoch for h in world.members.hosts] == [answer.epoch]


def test_repeated_hello_of_an_agent_that_waits_for_its_welcome_is_one_membership(world: World):
    """Agents repeat it every 0.5 s; a busy controller answers later."""
    answers = [answer for _ in range(3) for answer in world.hello()]
    assert len(answers) == 3 and {answer.epoch for answer in answers} == {1}
    assert len(world.members.notices) == 1 and len(world.members.hosts) == 1
    (host,) = world.members.hosts
    world.members.handle(host.key, b"id", Beat(host.epoch, 1.0, []))
    (answer,) = world.hello()  # its lease has ended since
    assert answer.epoch == 2


def test_a_new_agent_of_the_same_host_ends_the_old_lease_at_once(world: World):
    host = world.join()
    refused, welcome = world.hello(1, session="s2")
    assert isinstance(refused, Refused) and "taken the place" in refused.text and isinstance(welcome, Welcome)
    assert host.workers["actor-0", 0].exit is not None
    (answer,) = world.hello(0)  # the old one has lost its place and its key
    assert isinstance(answer, Refused) and "another agent has taken its place" in answer.text
    (answer,) = world.hello(2, session="s3", boot="b2")
    assert isinstance(answer, Refused) and "another host is called a" in answer.text


def test_a_host_that_leaves_is_lost_at_once(world: World):
    host = world.join()
    world.members.handle(host.key, b"id", Leaving(host.epoch, "its agent was told to end"))
    assert not world.members.hosts and "told to end" in host.workers["actor-0", 0].exit.text


def test_a_host_that_wants_to_leave_stays_until_its_workers_have_moved(world: World):
    host = world.join()
    beat = Beat(host.epoch, 1.0, [], leaves="its agent was told to end")
    assert world.members.handle(host.key, b"id", beat) == [(b"id", BeatReceived(host.epoch, 1.0))]
    assert world.members.hosts == [host] and world.members.staying == []
    assert world.members.notices[-1] == "host a leaves (its agent was told to end): 1 worker must move"
    world.members.handle(host.key, b"id", Exited(host.epoch, "actor-0", 0, 0, "left", ""))
    ((_, farewell),) = world.members.handle(host.key, b"id", beat)
    assert isinstance(farewell, Farewell) and "its agent was told to end" in farewell.text
    assert not world.members.hosts and host.workers["actor-0", 0].exit.status == 0


def test_a_host_speaks_for_no_other(world: World):
    host = world.join()
    other = world.join(1, session="s2", name="b")
    world.members.handle(other.key, b"id", Exited(host.epoch, "actor-0", 0, 0, "", ""))
    assert host.workers["actor-0", 0].exit is None
    assert msgspec.structs.replace(host.facts, name="b") == other.facts


def test_join_key_is_a_private_file_that_ends_with_the_run(tmp_path: Path):
    key = JoinKey(tmp_path / "new" / "join.key")
    key.publish("10.0.0.5:7000")
    assert key.path.stat().st_mode & 0o777 == 0o600
    address, keys = read_key(key.path, 0.0)
    assert address == "10.0.0.5:7000" and key.admits(keys.public) == JOIN and not has_moved(key.path, keys)
    key.close()
    assert not key.path.parent.exists() and has_moved(key.path, keys)
    with pytest.raises(ConfigError, match=r"there was no key file .*join.key within 0 s; `jsrl run --listen` prints"):
        read_key(key.path, 0.0)
    key.path.parent.mkdir()
    key.path.with_name(key.path.name + ENDED).touch()
    with pytest.raises(ConfigError, match="has ended; there is nothing to join"):
        read_key(key.path, 20.0)


def test_join_key_of_a_killed_run_is_replaced_and_that_of_a_living_run_is_not(tmp_path: Path):
    living, other = JoinKey(tmp_path / "join.key"), JoinKey(tmp_path / "join.key")
    (tmp_path / "join.key").write_text("of a killed run")
    living.publish("10.0.0.5:7000")
    _, keys = read_key(living.path, 0.0)
    with pytest.raises(ConfigError, match=r"belongs to another run, which goes on; give this one its own --join-key"):
        other.publish("10.0.0.6:7000")
    other.close()
    assert read_key(living.path, 0.0)[1] == keys
    living.close()
    other.publish("10.0.0.6:7000")
    assert has_moved(living.path, keys)
    other.close()


KEY = "ab" * 32


def test_connection_that_breaks_again_and_again_is_reported(world: World):
    """Each large message breaks it if packets are too large for the network. The host's beats still arrive."""
    host, reports = world.join(), list[str]()
    for world.now_s in (100.0, 130.0, 300.0, 330.0, 360.0, 390.0):
        world.members.handle(host.key, b"id", Beat(host.epoch, 1.0, []))
        world.members.notices.clear()
        world.members.note_closed(b"id")
        reports += [f"{world.now_s:g}: {notice}" for notice in world.members.notices]
    (report,) = reports
    assert report.startswith("360: the connection to host a broke 3 times within 120 s.") and "mtu" in report


def name(worker: str, incarnation: int = 0, key: str = KEY, stream: str = "inference") -> Registration:
    return Registration(f"{stream}.{worker}", f"tcp://{key}@10.0.0.2:7", incarnation, 42, "a")


def test_host_may_register_only_streams_of_its_living_workers(world: World):
    host = world.join()
    host.add(remote(host, "inference-0", 0))
    host.add(remote(host, "inference-1", 1))
    epoch = Registration("samples.inference-0.epoch", "3", 0, 42, "a")  # of a worker that reads samples
    fine = [name("inference-0"), name("inference-1", 1), epoch]
    wrong = [
        name("learner", stream="samples"),  # runs elsewhere
        name("inference-1"),  # of an earlier incarnation
        name("inference-0", key="cd" * 32),  # bound with another key
        dataclasses.replace(fine[0], address="shm:/dev/shm/x/y"),
        dataclasses.replace(epoch, address="tcp://10.0.0.9:7"),
        dataclasses.replace(epoch, name="samples.learner.epoch"),
        name("inference-0", stream="x" * 300),
    ]
    beat = Beat(host.epoch, 1.0, [], [], [*fine, *wrong])
    world.members.handle(host.key, b"id", beat)
    assert world.members.names() == [epoch]  # it has no keys yet
    host.server_key = KEY
    world.members.handle(host.key, b"id", beat)
    assert {entry.name: entry for entry in world.members.names()} == {entry.name: entry for entry in fine}
    world.members.handle(host.key, b"id", Exited(host.epoch, "inference-0", 0, -9, "killed", ""))
    assert world.members.names() == fine[1:2]
    host.add(remote(host, "inference-0", 1))
    world.members.handle(host.key, b"id", beat)  # names of its earlier incarnation are late
    assert world.members.names() == fine[1:2]
    world.members.lose(host, "gone")
    assert not world.members.names()


def test_host_relays_params_with_its_own_key_only(world: World):
    host = world.join()
    host.server_key = KEY
    own, foreign = f"tcp://{KEY}@10.0.0.2:8", f"tcp://{'cd' * 32}@10.0.0.2:9"
    beat = Beat(host.epoch, 1.0, [], relays={"params.learner": own, "params.other": foreign})
    world.members.handle(host.key, b"id", beat)
    assert host.relays == {"params.learner": own}
    for wrong in ("../x", "a/b", "a..b"):
        with pytest.raises(ValueError, match="stream"):
            RunNames(1, [], {}, {wrong: ["tcp://10.0.0.1:7"]})


def test_later_incarnation_of_a_stream_wins(world: World):
    for number in range(2):
        host = world.join(number, session=f"s{number}", name=f"h{number}", boot=f"b{number}")
        host.server_key = KEY
        host.add(remote(host, "inference-0", 1 - number))
        world.members.handle(host.key, b"id", Beat(host.epoch, 1.0, [], [], [name("inference-0", 1 - number)]))
    assert world.members.names() == [name("inference-0", 1)]


def test_files_are_accepted_only_for_folders_of_living_workers(world: World):
    host = world.join()
    life = host.workers["actor-0", 0]
    life.begin = Begin(host.epoch, "evaluator", "actor-0", 0, b"{}", {}, keeps=["snapshots/params"])
    for name in ("snapshots/params/tags/best.json", "snapshots/params-2/x", "snapshots/state/tags/latest.json"):
        world.members.handle(world.names[0], b"id", KeptFile(host.epoch, name, 0, b"1", True))
    assert [part.name for _, part in world.members.kept_files] == ["snapshots/params/tags/best.json"]
    world.members.handle(world.names[0], b"id", Exited(host.epoch, "actor-0", 0, 0, "", ""))
    world.members.handle(world.names[0], b"id", KeptFile(host.epoch, "snapshots/params/tags/best.json", 0, b"2", True))
    assert len(world.members.kept_files) == 1


def test_older_pages_of_a_broken_connection_do_not_replace_newer_ones(world: World):
    host = world.join()
    host.workers["actor-0", 0].hops = ("samples",)
    for number, page in ((1, b"a"), (3, b"c"), (2, b"b")):
        pages = Pages(host.epoch, {"samples/ledger": page * PAGE_BYTES}, number)
        world.members.handle(world.names[0], b"id", pages)
    assert [pages["samples/ledger"][:1] for _, pages in world.members.pages] == [b"a", b"c"]


def test_host_may_send_the_logs_of_its_own_workers_only(world: World):
    host = world.join()
    world.members.handle(host.key, b"id", Exited(host.epoch, "actor-0", 0, 1, "", ""))
    for name, at in (("actor-0", 0), ("actor-0", MOST_LOG_BYTES), ("actor-1", 0), ("controller", 0)):
        world.members.handle(host.key, b"id", KeptFile(host.epoch, f"logs/{name}.log", at, b"1", True))
    assert [(part.name, part.at) for _, part in world.members.kept_files] == [("logs/actor-0.log", 0)]
    assert name_here("logs/actor-0.log", "../a") == "logs/actor-0@.._a.log"
    assert name_here("snapshots/logs/x", "a") == "snapshots/logs/x"
