"""Keys of a run's encrypted streams: made by the run, kept in files that only their owner can read.

    RUN/keys/server.key    for the ends that bind: never leaves its host
    RUN/keys/client.key    for the ends that connect: all that another host needs
    RUN/keys/hosts/        one file for each joined host, which may connect as well: its name is the public key, its lines are
                           the workers on that host; the key speaks for these only

A joined host has such a folder too, with its own keys (see `make_host_keys`); addresses there contain its server key.

A server accepts only the client key and those of joined hosts, and a client connects to one server key only, so the key files
of another run are useless here. Keys are CURVE's (Curve25519, 32 bytes) as text of 40 letters (Z85).
"""

from __future__ import annotations

import json
import os
import re
import stat
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import zmq
from zmq.utils import z85

from jsrl.errors import ConfigError
from jsrl.plain_files import open_plain

SERVER_FILE, CLIENT_FILE, HOSTS = "server.key", "client.key", "hosts"
RUN_KEY = "client"  # name of the run's client key; those of hosts are named like their files
KeyPath: TypeAlias = str | os.PathLike[str] | None
_KEY = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")  # Z85
_MAX_FILE_BYTES = 4096


@dataclass(frozen=True)
class ServerKeys:
    """Keys of a binding end: its own pair, and the public key of the clients that it admits.

    `hosts` is the folder of admitted keys of hosts (see `make_host_keys`); None: there are none.
    """

    public: bytes
    secret: bytes = field(repr=False)
    client: bytes
    hosts: Path | None = None

    def __post_init__(self) -> None:
        _check_pair(self.public, self.secret)

    def admits(self, key: bytes) -> str:
        """Return a name for a key; empty: the key is not admitted."""
        if key == self.client:
            return RUN_KEY
        return key.hex() if self.hosts is not None and (self.hosts / key.hex()).exists() else ""

    def speaks_for(self, name: str, worker: str) -> bool:
        """Return whether the key with this name may send as a worker: the run's key, or that of the worker's host."""
        if name == RUN_KEY or self.hosts is None:
            return True
        try:
            return worker in (self.hosts / name).read_text().splitlines()
        except OSError:  # it was revoked just now
            return False


@dataclass(frozen=True)
class ClientKeys:
    """Keys of a connecting end: its own pair, and the public key of the servers it connects to."""

    public: bytes
    secret: bytes = field(repr=False)
    server: bytes

    def __post_init__(self) -> None:
        _check_pair(self.public, self.secret)


def check_encryption() -> None:
    if not zmq.has("curve"):
        raise ConfigError(
            f"this ZeroMQ ({zmq.zmq_version()}) was built without CURVE, so streams cannot be encrypted: install pyzmq from "
            "its wheel (pip install --force-reinstall --only-binary pyzmq pyzmq), or stay on loopback."
        )


def make_keys(folder: str | os.PathLike[str]) -> Path:
    """Return `folder` with a run's keys in it (mode 0700, files 0600); creates missing ones."""
    check_encryption()
    folder = Path(folder)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.chmod(folder, 0o700)
        if not (folder / SERVER_FILE).exists():  # written last: without it no server has used these keys
            server, client = zmq.curve_keypair(), zmq.curve_keypair()
            _write(folder / CLIENT_FILE, _content(public=client[0], secret=client[1], server=server[0]))
            _write(folder / SERVER_FILE, _content(public=server[0], secret=server[1], client=client[0]))
    except OSError as error:
        raise ConfigError(
            f"the keys of encrypted streams cannot be written to {folder} ({error.strerror or error}); make it writable or "
            "choose another place with --runs-dir."
        ) from error
    load_server_keys(folder)
    load_client_keys(folder)
    return folder


def make_server_keys() -> ServerKeys:
    """Return new keys of a binding end that decides itself whom it admits (see jsrl.transport.network.curve)."""
    (public, secret), (client, _) = zmq.curve_keypair(), zmq.curve_keypair()
    return ServerKeys(public, secret, client)


class HostKeys(NamedTuple):
    """A host's keys: the file that admits it, contents of its `client.key` and `server.key`, and the latter's public key."""

    file: Path
    client: bytes
    server: bytes
    public: bytes


def make_host_keys(folder: str | os.PathLike[str]) -> HostKeys:
    """Make keys for another host of the run whose keys are in `folder`.

    The host may connect once `admit_hosts` has admitted its key. Once its `file` is removed, its connections end within
    seconds, and it can make no new ones. Its own binding ends admit the run's keys and those of other hosts in its folder
    `hosts`.
    """
    run = load_client_keys(folder)
    (public, secret), (bound, bound_secret) = zmq.curve_keypair(), zmq.curve_keypair()
    path = Path(folder) / HOSTS / public.hex()
    client = _content(public=public, secret=secret, server=run.server)
    return HostKeys(path, client, _content(public=bound, secret=bound_secret, client=run.public), bound)


def admit_hosts(folder: Path, keys: Mapping[str, Sequence[str]]) -> None:
    """Admit exactly these keys of hosts: file names in `hosts` of the run's own keys -> workers it speaks for."""
    folder = folder / HOSTS
    folder.mkdir(mode=0o700, exist_ok=True)
    for path in [path for path in folder.iterdir() if path.name not in keys]:
        path.unlink(missing_ok=True)
    for name, workers in keys.items():
        content = "\n".join(workers).encode()
        if not (folder / name).exists() or (folder / name).read_bytes() != content:
            _write(folder / name, content, durable=False)


def named_by_key(address: str, keys: KeyPath) -> str:
    """Return a TCP address with the listener's public key in it, if that is not the run's server key."""
    if keys is None or not address.startswith("tcp://"):
        return address
    public = load_server_keys(keys).public
    own = public == load_client_keys(keys).server
    return address if own else f"tcp://{hex_of(public)}@{address.removeprefix('tcp://')}"


def hex_of(key: bytes) -> str:
    """Return a key (40 letters) as in addresses: 64 hexadecimal digits."""
    return z85.decode(key).hex()


def keys_for(server: bytes, keys: KeyPath | ClientKeys) -> KeyPath | ClientKeys:
    """Return the keys for connecting to the listener with public key `server` (32 bytes)."""
    if keys is None:
        return keys
    own = keys if isinstance(keys, ClientKeys) else load_client_keys(keys)
    return replace(own, server=z85.encode(server))


def write_client_keys(path: Path, server: bytes, address: str) -> bytes:
    """Write new keys for connecting to `server` at an address (mode 0600), and return the public one."""
    public, secret = zmq.curve_keypair()
    _write(path, _content(public=public, secret=secret, server=server, address=address.encode()))
    return public


def load_address(path: Path) -> str:
    """Return the address in a file that `write_client_keys` wrote."""
    return str(_load(path, ("address",))["address"])


def load_server_keys(keys: str | os.PathLike[str]) -> ServerKeys:
    """Return the keys of a binding end, from a run's folder of keys or from the file itself."""
    path = _file(keys, SERVER_FILE)
    fields: dict[str, Any] = {**_read(path, ("public", "secret", "client")), "hosts": path.parent / HOSTS}
    return _make(ServerKeys, path, fields)


def load_client_keys(keys: str | os.PathLike[str]) -> ClientKeys:
    """Return the keys of a connecting end, from a run's folder of keys or from the file itself."""
    path = _file(keys, CLIENT_FILE)
    return _make(ClientKeys, path, _read(path, ("public", "secret", "server")))


def _file(keys: str | os.PathLike[str], name: str) -> Path:
    path = Path(keys)
    return path / name if path.is_dir() else path


def _make(kind: Any, path: Path, fields: Mapping[str, Any]) -> Any:
    try:
        return kind(**fields)
    except ValueError as error:
        raise ConfigError(f"{path} is broken: {error}. {_ADVICE}") from None


def _check_pair(public: bytes, secret: bytes) -> None:
    if zmq.curve_public(secret) != public:
        raise ValueError("its public key does not belong to its secret one")


_ADVICE = (
    "Copy it again from the run that listens: from RUN/keys, or, for `jsrl join`, its join key. If RUN/keys itself "
    "is damaged, delete it; the next start makes new keys."
)


def _read(path: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    fields = _load(path, names)
    for name, value in fields.items():
        if not isinstance(value, str) or not is_key(value):
            raise ConfigError(f"{path} is broken: {name} is not a key of 40 letters. {_ADVICE}")
    return {name: value.encode() for name, value in fields.items()}


def _load(path: Path, names: tuple[str, ...]) -> dict[str, Any]:
    """Return fields of a key file, not checked."""
    try:
        with open_plain(path) as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            content = file.read(_MAX_FILE_BYTES + 1)
    except ValueError as error:
        raise ConfigError(f"no keys: {error}. {_ADVICE}") from None
    except OSError as error:
        raise ConfigError(f"no keys at {path} ({error.strerror or error}). {_ADVICE}") from error
    if mode & 0o077:
        raise ConfigError(f"{path} has mode {mode:04o}, so others may read this secret: chmod 600 {path}")
    try:
        if len(content) > _MAX_FILE_BYTES:
            raise ValueError(len(content))
        found = json.loads(content)
        return {name: found[name] for name in names}
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ConfigError(f"{path} is not a key file with {', '.join(names)}. {_ADVICE}") from None


def is_key(text: str) -> bool:
    """Return whether a text is 32 bytes as Z85: each 5 letters are a number below 2^32."""
    if _KEY.fullmatch(text) is None:
        return False
    try:
        z85.decode(text)
    except struct.error:
        return False
    return True


def _write(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Replace a file by one with this content that only its owner can read."""
    draft = path.with_name(f".{path.name}.draft")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o600)
        file.write(content)
        file.flush()
        if durable:
            os.fsync(descriptor)
    os.replace(draft, path)


def _content(**keys: bytes) -> bytes:
    return json.dumps({name: key.decode() for name, key in keys.items()}, indent=1).encode() + b"\n"
