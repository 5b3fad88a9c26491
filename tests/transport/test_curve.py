"""Encrypted streams: the run's keys are accepted; no key, another run's, or half of the right ones are not."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import zmq

from jsrl.errors import AccessDenied, ConfigError, StreamClosed, StreamError, StreamTimeout
from jsrl.services.runs.control import ControlClient, ControlServer
from jsrl.services.runs.control_bodies import Event
from jsrl.transport.base import ProducerId
from jsrl.transport.door.hello import hello_frames, hello_of_producer
from jsrl.transport.door.keys import admit_hosts, load_client_keys, make_host_keys, make_keys, named_by_key
from jsrl.transport.network import curve, link
from jsrl.transport.table import (
    bind_inference,
    bind_params,
    bind_samples,
    connect_inference,
    connect_params,
    connect_samples,
)
from tests.contracts.inference_contract import SPEC, Serving, check_answer, make_request
from tests.contracts.params_contract import check_values, make_values, poll_until
from tests.contracts.sample_contract import SCHEMA, drain
from tests.contracts.sample_producer import fill
from tests.marks import marked

slow = pytest.mark.slow
TIMEOUT_S = 20.0
LOOPBACK = "tcp://127.0.0.1:0"


@pytest.fixture(scope="module", name="world")
def world_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keys of a run, and all keys that an unauthorised client may have."""
    folder = tmp_path_factory.mktemp("world")
    ours, theirs = (json.loads((make_keys(folder / name) / "client.key").read_text()) for name in ("run", "other"))
    strangers = {
        "wrong-client": theirs | {"server": ours["server"]},  # the server key, which is public
        "wrong-server": ours | {"server": theirs["server"]},
    }
    for name, content in strangers.items():
        path = folder / name
        path.write_text(json.dumps(content))
        path.chmod(0o600)
    return folder


STRANGERS = {
    "no-key": (None, "is encrypted and this end has no keys"),
    "wrong-client": ("wrong-client", "refused this end's key"),
    "wrong-server": ("wrong-server", "server key is not the one"),
    "another-run": ("other", "server key is not the one"),
}


QUICKLY = (
    "no-key",
    "wrong-client",
)  # detected at once; a server that cannot even read the first message sends no reason


def stranger_keys(world: Path, stranger: str) -> Path | None:
    name = STRANGERS[stranger][0]
    return None if name is None else world / name


# -- each transport: bind, connect and use as the run would, connect and use with any keys


class Samples:
    """A sample stream whose consumer takes everything."""

    def __init__(self, address: str, keys: Path | None) -> None:
        self.end = bind_samples(address, SCHEMA, keys=keys)
        self.address = self.end.address

    def use(self, name: str, keys: Path | None, timeout_s: float = TIMEOUT_S) -> None:
        producer = connect_samples(self.address, SCHEMA, ProducerId(name, 0), 1, timeout_s, keys=keys)
        block = producer.reserve(timeout_s)
        fill(block.trajectory, 5)
        block.commit(0)
        drain(self.end, 1)
        producer.close()

    def accepted(self) -> int:
        return self.end.ledger.received

    def close(self) -> None:
        self.end.close()


class Inference:
    """An inference stream with a server that answers."""

    def __init__(self, address: str, keys: Path | None) -> None:
        self.end = Serving(bind_inference(address, SPEC, keys=keys))
        self.address = self.end.address

    def use(self, name: str, keys: Path | None, timeout_s: float = TIMEOUT_S) -> None:
        client = connect_inference(self.address, SPEC, ProducerId(name, 0), {0: 3}, timeout_s, keys=keys)
        request = make_request(3, 1, wants_core=True)
        client.send(0, request)
        check_answer(request, client.receive(timeout_s)[1])
        client.close()

    def accepted(self) -> int:
        return sum(self.end.batches)

    def close(self) -> None:
        self.end._stop.set()
        self.end.thread.join(10)


class Params:
    """A params transport with a published version."""

    def __init__(self, address: str, keys: Path | None) -> None:
        self.end = bind_params(address, keys=keys)
        self.address = self.end.address
        self.end.publish(0, 7, make_values(3))
        self.given = 0

    def use(self, name: str, keys: Path | None, timeout_s: float = TIMEOUT_S) -> None:
        subscriber = connect_params(self.address, keys=keys)
        try:
            subscriber.wait(0, 0, timeout_s)
            check_values(poll_until(subscriber, 7), 3)
            self.given += 1
        finally:
            subscriber.close()

    def accepted(self) -> int:
        return self.given

    def close(self) -> None:
        self.end.close()


TRANSPORTS = {"samples": Samples, "inference": Inference, "params": Params}


@contextlib.contextmanager
def opened(transport: str, keys: Path | None, address: str = LOOPBACK) -> Iterator[Any]:
    end = TRANSPORTS[transport](address, keys)
    try:
        yield end
    finally:
        end.close()


def own_address() -> str | None:
    """Return an address of this machine other than loopback, if it has one."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing
        return probe.getsockname()[0]
    return None


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_run_keys_work_on_every_transport(world: Path, transport: str) -> None:
    with opened(transport, world / "run") as end:
        end.use("actor-0", world / "run")
        end.use("actor-1", world / "run" / "client.key")  # as copied to another host
        assert end.accepted() == 2


@slow
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("address", ["tcp://0.0.0.0:0", "tcp://[::1]:0", "ipc", "own"])
def test_every_kind_of_address(world: Path, tmp_path: Path, transport: str, address: str) -> None:
    own = own_address()
    if address == "own" and own is None:
        pytest.skip("this machine has loopback only")
    if address == "tcp://[::1]:0" and not os.path.exists("/proc/net/if_inet6"):
        pytest.skip("this machine has no IPv6")
    place = {"ipc": f"ipc://{tmp_path}/s", "own": f"tcp://{own}:0"}.get(address, address)
    with opened(transport, world / "run", place) as end:
        end.use("actor-0", world / "run")
        with pytest.raises(AccessDenied, match="no keys"):
            end.use("stranger", None)
        assert end.accepted() == 1


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("stranger", marked(STRANGERS, slow=STRANGERS.keys() - QUICKLY))
def test_unauthenticated_clients_are_refused_with_the_reason(world: Path, transport: str, stranger: str) -> None:
    with opened(transport, world / "run") as end:
        end.use("actor-0", world / "run")
        started = time.monotonic()
        with pytest.raises(AccessDenied, match=STRANGERS[stranger][1]) as caught:
            end.use("stranger", stranger_keys(world, stranger))
        assert time.monotonic() - started < 10.0  # before the deadline
        assert end.address in str(caught.value)
        assert end.accepted() == 1
        end.use("actor-1", world / "run")
        assert end.accepted() == 2


@pytest.mark.parametrize("stranger", QUICKLY)
@pytest.mark.parametrize("transport", ["samples", "inference"])
def test_refusal_before_the_hello_is_sent_is_an_error_too(
    world: Path, transport: str, stranger: str, monkeypatch
) -> None:
    """The connection of a refused socket is gone for good, so a send would block."""

    def connect_slowly(peer: zmq.Socket, *given: Any) -> curve.ConnectionWatch:
        watch, begun_s = curve.connect(peer, *given), time.monotonic()
        while peer.poll(0, zmq.POLLOUT) and time.monotonic() - begun_s < 10.0:
            time.sleep(0.01)
        return watch

    monkeypatch.setattr(link, "connect", connect_slowly)
    with opened(transport, world / "run") as end, pytest.raises(AccessDenied):
        end.use("stranger", stranger_keys(world, stranger))


def test_request_over_a_connection_that_is_gone_for_good_is_an_error(world: Path) -> None:
    with opened("inference", world / "run") as end:
        client = connect_inference(end.address, SPEC, ProducerId("actor-0", 0), {0: 3}, TIMEOUT_S, keys=world / "run")
        client._link.socket.disconnect(client.address)  # type: ignore[attr-defined]  # as after a refusal
        with pytest.raises(StreamClosed, match="it was not accepted again"):
            client.send(0, make_request(3, 1))
        client.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_short_deadline_names_the_reason(world: Path, transport: str) -> None:
    with opened(transport, world / "run") as end, pytest.raises(StreamError) as caught:
        end.use("stranger", world / "wrong-server", 0.6)
    if transport != "params":  # whose peers may connect at any time, so its time-outs name what they waited for
        assert isinstance(caught.value, StreamTimeout | AccessDenied)
        assert "server key is not the one" in str(caught.value)


def test_client_without_keys_gets_the_reason_for_closed_connections(monkeypatch) -> None:
    """The other end may close a connection before this one has read that it is encrypted."""
    monkeypatch.setattr(curve, "_PATIENCE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def close_all() -> None:
            with contextlib.suppress(OSError):
                while True:
                    listener.accept()[0].close()

        closing = threading.Thread(target=close_all)
        closing.start()
        with pytest.raises(AccessDenied, match="this end has no keys: give keys=PATH"):
            connect_samples(f"tcp://127.0.0.1:{listener.getsockname()[1]}", SCHEMA, ProducerId("actor-0", 0), 1, 20.0)
        listener.shutdown(socket.SHUT_RDWR)
    closing.join()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_keys_are_refused_on_unencrypted_transports(world: Path, tmp_path: Path, transport: str) -> None:
    with opened(transport, None, f"ipc://{tmp_path}/s") as end:
        with pytest.raises(AccessDenied, match="not encrypted"):
            end.use("stranger", world / "run")
        end.use("actor-0", None)
        assert end.accepted() == 1


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("host", ["0.0.0.0", "*", "[::]", "10.1.2.3", "[fd00::2]", "127.0.0.1", "[::1]", "localhost"])
def test_tcp_needs_keys(transport: str, host: str) -> None:
    with pytest.raises(ConfigError, match=r"reached by other users and hosts.*no keys.*--bind ADDRESS"):
        TRANSPORTS[transport](f"tcp://{host}:0", None)


def test_an_unanswered_connect_is_tried_again(monkeypatch) -> None:
    """A host that was cut off returns seconds after its network: the kernel would try again after up to a minute."""
    monkeypatch.setattr(curve, "_CONNECT_MS", 200)
    with socket.socket() as full, socket.socket() as waiting:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting.connect(full.getsockname())  # nobody accepts it, so the kernel answers no other connection
        end = link.ConnectingLink(f"tcp://127.0.0.1:{full.getsockname()[1]}", None, None)
        ports: set[int] = set()

        def was_repeated() -> bool:
            mine = psutil.Process().net_connections("tcp")
            ports.update(
                c.laddr.port for c in mine if c.status == psutil.CONN_SYN_SENT and c.raddr == full.getsockname()
            )
            return len(ports) > 1

        until_s = time.monotonic() + 60.0  # the kernel gives up after 127 s, and ZeroMQ would try again then
        with contextlib.closing(end):
            while not was_repeated():
                assert time.monotonic() < until_s
                time.sleep(0.02)


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
def test_control_connection_needs_keys(host: str) -> None:
    with pytest.raises(ConfigError, match="reached by other users and hosts"):
        ControlServer(f"tcp://{host}:0")


def control_messages(server: ControlServer, seconds: float) -> list[Any]:
    deadline, heard = time.monotonic() + seconds, []
    while time.monotonic() < deadline and not any(isinstance(m, Event) for m in heard):
        heard += server.poll(0.05)
    return heard


@slow
def test_control_connection_with_keys(world: Path) -> None:
    server = ControlServer(LOOPBACK, keys=world / "run")
    ends: list[ControlClient] = []
    try:
        for stranger in STRANGERS:
            ends.append(ControlClient(server.address, stranger, 0, keys=stranger_keys(world, stranger)))
            ends[-1].send(Event, name="warning", text="let me in")
        for end, (_, reason) in zip(ends, STRANGERS.values(), strict=True):
            assert end.stop.wait(TIMEOUT_S) and reason in str(end.refused)
        assert control_messages(server, 0.1) == []
        ends.append(ControlClient(server.address, "actor-0", 0, keys=world / "run"))
        ends[-1].send(Event, name="note", text="here")
        heard = control_messages(server, TIMEOUT_S)
        assert {m.worker for m in heard} == {"actor-0"} and [m.text for m in heard if isinstance(m, Event)] == ["here"]
        server.send_command("actor-0", 0, "stop")
        assert ends[-1].stop.wait(TIMEOUT_S)
    finally:
        for end in ends:
            end.close()
        server.close()
    assert server.refused == 0


@slow
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_host_key_works_until_revoked(world: Path, tmp_path: Path, transport: str) -> None:
    sender, own = host_with_keys(world / "run", tmp_path / "own")
    with opened(transport, world / "run") as end:
        end.use("actor-0", own)
        sender.unlink()
        with pytest.raises(AccessDenied, match="refused this end's key"):
            end.use("actor-1", own)
        end.use("actor-2", world / "run")


CONNECT: dict[str, Callable[..., Any]] = {
    "samples": lambda address, name, keys: connect_samples(
        address, SCHEMA, ProducerId(name, 0), 1, TIMEOUT_S, keys=keys
    ),
    "inference": lambda address, name, keys: connect_inference(
        address, SPEC, ProducerId(name, 0), {0: 3}, TIMEOUT_S, keys=keys
    ),
    "params": lambda address, name, keys: connect_params(address, keys=keys),
}


def connections_to(address: str) -> set[int]:
    """Return the client's port of each connection to a listener of this process."""
    found = psutil.Process().net_connections("tcp")
    there = [one for one in found if one.status == "ESTABLISHED" and one.laddr.port == int(address.rpartition(":")[2])]
    return {one.raddr.port for one in there}


@slow
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_connections_end_when_the_key_of_their_host_is_revoked(world: Path, tmp_path: Path, transport: str) -> None:
    sender, own = host_with_keys(world / "run", tmp_path / "own")
    with opened(transport, world / "run") as end, contextlib.ExitStack() as ends:
        ports = []
        for name, keys in (("actor-0", world / "run"), ("actor-1", own)):
            client = ends.enter_context(contextlib.closing(CONNECT[transport](end.address, name, keys)))
            if transport == "params":
                client.wait(0, 0, TIMEOUT_S)
            (port,) = connections_to(end.address) - set(ports)
            ports.append(port)
        sender.unlink()
        deadline = time.monotonic() + TIMEOUT_S
        while ports[1] in connections_to(end.address):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert ports[0] in connections_to(end.address)


def host_with_keys(run: Path, folder: Path) -> tuple[Path, Path]:
    """Create the keys of a host of a run, on which actor-0, actor-1 and actor-3 are; return (its file, folder of its keys)."""
    keys = make_host_keys(run)
    admit_hosts(run, {keys.file.name: ["actor-0", "actor-1", "actor-3"]})
    folder.mkdir(mode=0o700)
    for name, content in (("client.key", keys.client), ("server.key", keys.server)):
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o600)
    return keys.file, folder


@slow
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_host_binds_with_its_own_key_named_in_addresses(world: Path, tmp_path: Path, transport: str) -> None:
    own, first = host_with_keys(world / "run", tmp_path / "first")
    admit_hosts(first, {own.name: ["actor-1"]})
    sender, second = host_with_keys(world / "run", tmp_path / "second")
    with opened(transport, first) as end:
        plain = end.address
        end.address = named_by_key(plain, first)
        assert end.address.startswith("tcp://") and end.address.partition("@")[2] == plain.removeprefix("tcp://")
        end.use("actor-0", world / "run")  # from the run's host
        end.use("actor-1", first)  # from its own
        with pytest.raises(AccessDenied, match="refused this end's key"):
            end.use("actor-2", second)
        admit_hosts(first, {own.name: ["actor-1"], sender.name: ["actor-3"]})
        end.use("actor-3", second)  # from another
        admit_hosts(first, {own.name: ["actor-1"]})
        with pytest.raises(AccessDenied, match="refused this end's key"):
            end.use("actor-4", second)
        end.address = named_by_key(plain, second)  # a wrong key: another host's
        with pytest.raises(AccessDenied, match="server key is not the one"):
            end.use("actor-5", world / "run")
    assert named_by_key(plain, world / "run") == plain and named_by_key("shm:/x/y", first) == "shm:/x/y"


@slow
@pytest.mark.parametrize("transport", ["samples", "inference"])
def test_key_of_a_host_takes_no_name_of_a_worker_elsewhere(world: Path, tmp_path: Path, transport: str) -> None:
    """Else it could lock that worker out, with a higher incarnation."""
    _, own = host_with_keys(world / "run", tmp_path / "own")
    with opened(transport, world / "run") as end:
        connect: Any = {"samples": connect_samples, "inference": connect_inference}[transport]
        more = {
            "samples": (SCHEMA, ProducerId("actor-2", 10**6), 1),
            "inference": (SPEC, ProducerId("actor-2", 10**6), {0: 3}),
        }
        with pytest.raises(StreamClosed, match="actor-2 cannot join with the key of this host"):
            connect(end.address, *more[transport], TIMEOUT_S, keys=own)
        end.use("actor-2", world / "run")  # incarnation 0, which is not locked out
        end.use("actor-1", own)


# -- at the level of sockets


def test_client_with_only_the_server_key_delivers_nothing(world: Path, caplog) -> None:
    """CURVE alone would accept this client; raw sockets, so that none of our checks on the client side apply."""
    consumer: Any = bind_samples(LOOPBACK, SCHEMA, keys=world / "run")
    context = zmq.Context()
    public, secret = zmq.curve_keypair()
    strangers = []
    for _ in range(9):
        stranger = context.socket(zmq.DEALER)
        stranger.curve_publickey, stranger.curve_secretkey = public, secret
        stranger.curve_serverkey = load_client_keys(world / "run").server
        stranger.connect(consumer.address)
        stranger.send_multipart(hello_frames(hello_of_producer(ProducerId("stranger", 0), 1, consumer.leaves)))
        strangers.append(stranger)
    deadline = time.monotonic() + TIMEOUT_S
    while consumer._link.refused < 9:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert [stranger.poll(20) for stranger in strangers] == [0] * 9
    assert consumer._peers == {} and consumer.ledger.received == 0
    context.destroy(linger=0)
    consumer.close()
    told = [record.getMessage() for record in caplog.records if "refused a connection from 127.0.0.1" in record.message]
    assert len(told) == 4, "the 1st, 2nd, 4th and 8th"


def test_traffic_is_encrypted(world: Path, tmp_path: Path) -> None:
    """A relay between the ends sees neither the content nor the sender."""
    with opened("samples", world / "run") as end:
        seen, address = bytearray(), end.address
        relay = Relay(address, seen)
        end.address = relay.address
        end.use("actor-of-mine", world / "run")
        relay.close()
    plain = bytearray()
    with opened("samples", None, f"ipc://{tmp_path}/s") as end:
        relay = Relay(end.address, plain)
        end.address = relay.address
        end.use("actor-of-mine", None)
        relay.close()
    for text in (b"actor-of-mine", b"observation", b"checksum"):
        assert text in plain, "the relay can see plain content"
        assert text not in seen
    assert len(seen) > 1000


class Relay:
    """Forwards bytes between a producer and a consumer, and keeps a copy of them."""

    def __init__(self, target: str, seen: bytearray) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._seen, self._target = seen, target
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = self._connect()
                self._sockets += [near, far]
                for one, other in ((near, far), (far, near)):
                    self._threads.append(threading.Thread(target=self._pass, args=(one, other), daemon=True))
                    self._threads[-1].start()

    def _connect(self) -> socket.socket:
        if not self._target.startswith("ipc://"):
            return socket.create_connection(("127.0.0.1", int(self._target.rpartition(":")[2])))
        far = socket.socket(socket.AF_UNIX)
        far.connect(self._target.removeprefix("ipc://"))
        return far

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while received := source.recv(65536):
                self._seen += received
                target.sendall(received)

    def close(self) -> None:
        for one in [self._listener, *self._sockets]:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join(10)


def test_a_trajectory_of_the_largest_size_fits(world: Path) -> None:
    """The overhead of CURVE does not count against the limit of the stream."""
    from tests.contracts.sample_producer import make_schema

    schema = make_schema(image_bytes=300_000)
    consumer = bind_samples(LOOPBACK, schema, keys=world / "run")
    producer = connect_samples(consumer.address, schema, ProducerId("actor-0", 0), 1, TIMEOUT_S, keys=world / "run")
    for number in range(4):
        block = producer.reserve(TIMEOUT_S)
        fill(block.trajectory, number)
        block.commit(0)
        drain(consumer, 1)
    producer.close()
    consumer.close()


def test_close_leaves_no_files_or_threads(world: Path) -> None:
    def count() -> tuple[int, int]:
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    def once() -> None:
        for transport in TRANSPORTS:
            with opened(transport, world / "run") as end:
                end.use("actor-0", world / "run")

    once()
    before = count()
    for _ in range(3):
        once()
    deadline = time.monotonic() + 5.0
    while any(now > then for now, then in zip(count(), before, strict=True)):
        assert time.monotonic() < deadline, f"threads and descriptors: {before} before, {count()} now"
        time.sleep(0.05)  # ZeroMQ closes a moment later


def test_taken_port_is_reported_and_leaves_no_authenticator(world: Path) -> None:
    with opened("params", world / "run") as end:
        threads = set(threading.enumerate())
        for transport in TRANSPORTS.values():
            with pytest.raises(ConfigError, match="cannot bind"):
                transport(end.address, world / "run")
        assert set(threading.enumerate()) <= threads


def test_missing_key_is_reported_before_opening_sockets(world: Path, tmp_path: Path) -> None:
    for transport in TRANSPORTS.values():
        with pytest.raises(ConfigError, match="no keys at"):
            transport("tcp://0.0.0.0:0", tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="no keys at"):
        connect_params(LOOPBACK, keys=tmp_path)


def test_local_transports_accept_keys_without_needing_them(world: Path) -> None:
    for transport in TRANSPORTS:
        with opened(transport, world / "run", f"local:encrypted-{transport}") as end:
            end.use("actor-0", world / "run")


@slow
def test_renewed_keys_lock_out_old_ones(tmp_path: Path) -> None:
    folder = make_keys(tmp_path / "keys")
    old = Path(shutil.copy(folder / "client.key", tmp_path / "old"))
    old.chmod(0o600)
    shutil.rmtree(folder)
    with opened("samples", make_keys(folder)) as end:
        with pytest.raises(AccessDenied):
            end.use("stranger", old)
        end.use("actor-0", folder)


Strange = Callable[[str], None]


def speak_http(address: str) -> None:
    with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), 5.0) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" * 20)
        stranger.settimeout(0.2)
        with contextlib.suppress(OSError):
            while stranger.recv(4096):
                pass


def speak_noise(address: str) -> None:
    rng = np.random.default_rng(0)
    place = ("127.0.0.1", int(address.rpartition(":")[2]))
    for size in (1, 63, 64, 65, 200, 5000):
        with contextlib.suppress(OSError), socket.create_connection(place, 5.0) as stranger:
            stranger.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00CURVE" + rng.bytes(size))


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("speak", [speak_http, speak_noise])
def test_garbage_before_the_handshake(world: Path, transport: str, speak: Strange) -> None:
    with opened(transport, world / "run") as end:
        for _ in range(5):
            speak(end.address)
        end.use("actor-0", world / "run")
        assert end.accepted() == 1
