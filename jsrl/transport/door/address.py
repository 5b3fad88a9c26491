"""Addresses of streams: `local:NAME`, `shm:FOLDER/NAME`, `ipc://PATH`, `tcp://HOST:PORT`.

`tcp://KEY@HOST:PORT` contains the public key (hexadecimal) of the listening end, if it is not the run's own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsrl.errors import ConfigError, StreamError
from jsrl.transport.base import Origin, ProducerId

MAX_INCARNATION = 1 << 31
MAX_SEQUENCE = 1 << 62
MAX_IPC_PATH_BYTES = 107  # limit of the kernel
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_TCP = re.compile(r"tcp://(?:([0-9a-f]{64})@)?(.*:.*)")
_EXAMPLES = "local:NAME, shm:/dev/shm/RUN/NAME, ipc:///PATH or tcp://HOST:PORT"


@dataclass(frozen=True)
class Address:
    """A parsed address.

    Attributes:
      place: the stream's NAME (local) or FOLDER/NAME (shm). endpoint: for ZeroMQ.
      server: public key of the listening end, 32 bytes; empty: the run's.
    """

    place: str = ""
    endpoint: str = ""
    server: bytes = b""


def parse_address(address: str) -> Address:
    if address.startswith("local:"):
        return Address(check_name(address.removeprefix("local:"), "stream"))
    if address.startswith("shm:"):
        path = Path(address.removeprefix("shm:"))
        if not path.is_absolute() or len(path.parts) < 3:
            raise ConfigError(f"address {address!r}: expected shm:/FOLDER/NAME such as shm:/dev/shm/jsrl-RUN/samples.")
        check_name(path.name, "stream")
        return Address(str(path))
    if address.startswith("ipc://"):
        check_ipc_path(address.removeprefix("ipc://"))
        return Address(endpoint=address)
    if (found := _TCP.fullmatch(address)) is not None:
        return Address(endpoint=f"tcp://{found[2]}", server=bytes.fromhex(found[1] or ""))
    raise ConfigError(f"unknown address {address!r}: expected {_EXAMPLES}.")


def check_name(name: str, what: str) -> str:
    """Return `name` if it can be part of a file name."""
    if not isinstance(name, str) or _NAME.fullmatch(name) is None or ".." in name:
        raise ConfigError(
            f"{what} name {str(name)[:80]!r}: expected 1 to 64 letters, digits, '_', '-' or '.', such as actor-3."
        )
    return name


def check_producer(producer: ProducerId) -> ProducerId:
    check_name(producer.name, "producer")
    if not isinstance(producer.incarnation, int) or not 0 <= producer.incarnation <= MAX_INCARNATION:
        raise ConfigError(
            f"{producer.name}: incarnation {producer.incarnation!r}, expected an integer from 0 to {MAX_INCARNATION}."
        )
    return producer


def check_origin(name: Any, incarnation: Any, sequence: Any) -> Origin:
    try:
        maker = check_producer(ProducerId(name, incarnation))
    except ConfigError as error:
        raise StreamError(f"the origin of a trajectory: {error}") from None
    if type(sequence) is not int or not 0 <= sequence < MAX_SEQUENCE:
        raise StreamError(f"the origin of a trajectory: sequence {sequence!r}, expected 0 to {MAX_SEQUENCE - 1}.")
    return Origin(maker, sequence)


def check_ipc_path(path: str) -> str:
    """Return the path of a Unix socket if it is short enough for the kernel."""
    if not 0 < len(path.encode()) <= MAX_IPC_PATH_BYTES:
        raise ConfigError(
            f"the socket path {path!r} has {len(path.encode())} bytes, at most {MAX_IPC_PATH_BYTES} are possible: "
            "choose a shorter folder (the sockets of a run lie under /dev/shm, or else under TMPDIR: export TMPDIR=/tmp)."
        )
    return path


def check_reach(endpoint: str, *, encrypted: bool) -> None:
    """Check that a tcp endpoint has keys: without them every user of this machine could connect, even on loopback."""
    if not encrypted and endpoint.startswith("tcp://"):
        raise ConfigError(
            f"{endpoint} can be reached by other users and hosts, and there are no keys to encrypt it with: bind ipc:///PATH "
            "in a folder of yours, or give keys=FOLDER, as jsrl.transport.door.keys.make_keys(FOLDER) makes them (a run "
            "with --transport zeromq --bind ADDRESS makes its own)."
        )
