"""The join key of a run: one file with which hosts join it, and the keys of the hosts that have joined.

The file has the address of the run and a key (mode 0600). A host that shows this key has its own key admitted, which it makes
itself; from then on it uses that one. So each host can be sent away alone, and the others keep their connections.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import zmq

from jsrl.cluster.members import JOIN
from jsrl.errors import ConfigError
from jsrl.transport.door.keys import ClientKeys, load_address, load_client_keys, make_server_keys, write_client_keys
from jsrl.transport.shared.locks import lock_file

LOOK_S = 0.5
ENDED, HELD = ".ended", ".running"  # suffixes of files beside the key: no more will come; a run holds it


def read_key(path: Path, timeout_s: float) -> tuple[str, ClientKeys]:
    """Return (address, keys) of a run from its key file, waiting for it."""
    until = time.monotonic() + timeout_s
    while not path.exists():
        if path.with_name(path.name + ENDED).exists():
            raise ConfigError(f"the run of the key {path} has ended; there is nothing to join.")
        if time.monotonic() > until:
            raise ConfigError(
                f"there was no key file {path} within {timeout_s:g} s; `jsrl run --listen` prints where it writes one. Copy "
                "it here, or give its path in a folder that both hosts see."
            )
        time.sleep(LOOK_S)
    return load_address(path), load_client_keys(path)


def has_moved(path: Path, keys: ClientKeys) -> bool:
    """Return whether a key file is no longer that of the run with these keys: it ended, or began again."""
    try:
        return not path.exists() or load_client_keys(path).server != keys.server
    except (OSError, ConfigError):  # the file system does not answer now
        return False


class JoinKey:
    """The join key of a run and the admitted keys of hosts, for the run's join port.

    Args:
      path: of the key file.

    Attributes:
      server: the keys of the join port.
    """

    def __init__(self, path: Path) -> None:
        self.server = make_server_keys()
        self.path = path
        self._public = b""
        self._hosts: set[bytes] = set()  # admitted keys
        self._address = ""
        self._lock: int | None = None  # descriptor that holds the lock of the file
        self._held = path.with_name(path.name + HELD)
        self._new_folders = [parent for parent in path.parents if not parent.exists()]

    def publish(self, address: str) -> None:
        """Write the key file of a run at this address; the first time, it replaces that of a killed run."""
        self._address = address
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = self._lock or lock_file(self._held)
            if self._lock is None:
                raise ConfigError(
                    f"the join key {self.path} belongs to another run, which goes on; give this one its own --join-key."
                )
            self._public = write_client_keys(self.path, self.server.public, address)
        except OSError as error:
            raise ConfigError(f"the join key cannot be written to {self.path} ({error.strerror or error}).") from error

    def replace(self) -> None:
        """Write another key, with which hosts join from now on; those that have joined keep their own."""
        self._public = b""
        self.publish(self._address)

    def admits(self, key: bytes) -> str:
        """Return the name of a key; empty: it is not admitted."""
        if key == self._public:
            return JOIN
        return key.decode() if key in self._hosts else ""

    def admit(self, key: str) -> None:
        """Admit the own key of a host."""
        self._hosts.add(key.encode())

    def expel(self, key: str) -> None:
        self._hosts.discard(key.encode())

    def close(self) -> None:
        """Remove the key file; nobody is admitted any more."""
        self._public = b""
        self._hosts.clear()
        if self._lock is not None:  # else the file is another run's
            self.path.unlink(missing_ok=True)
            self._held.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None
            with contextlib.suppress(OSError):  # other files are in the folder
                for folder in self._new_folders:
                    folder.rmdir()


def own_keys(join: ClientKeys) -> ClientKeys:
    """Return new keys of a host, for the run of a join key."""
    public, secret = zmq.curve_keypair()
    return ClientKeys(public, secret, join.server)
