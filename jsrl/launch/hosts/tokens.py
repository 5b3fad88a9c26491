"""Join tokens: a key for each host, for one use by one agent; each can be revoked alone."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from jsrl.errors import ConfigError
from jsrl.runs.state import RUNNING, read_identity, write_identity
from jsrl.transport.meeting.keys import make_server_keys, write_client_keys
from jsrl.transport.memory.segment import lock_file, make_folder

LOOK_S = 0.5
CLAIM_S = 60.0  # limit between taking a token out of a folder and using it; the folder is checked ten times meanwhile
ADDRESS, CLAIMED = "address", ".claimed"  # file in a folder of tokens; suffix of a token that an agent has taken
ENDED = ".ended"  # suffix of the file beside a folder of tokens that says that no more will come


def claim(folder: Path, timeout_s: float) -> tuple[str, Path]:
    """Return (address, token file) from a folder of tokens, waiting for them; no other agent gets the file.

    Raises:
      ConfigError: there was none in time, none will come, or this host may not rename files there.
    """
    ended = folder.with_name(folder.name + ENDED)
    until = time.monotonic() + timeout_s
    while True:
        for path in sorted(folder.glob("*.token")):
            try:
                address = (folder / ADDRESS).read_text().strip()
                return address, path.rename(path.with_suffix(CLAIMED))
            except FileNotFoundError:  # another agent was faster, or the run has ended
                continue
            except OSError as error:
                raise ConfigError(
                    f"the token {path} cannot be taken ({error.strerror or error}): a host that takes one renames its file, "
                    "so this user must be able to write to that folder."
                ) from error
        if ended.exists():
            raise ConfigError(f"the run whose tokens were in {folder} has ended; there is nothing to join.")
        if time.monotonic() > until:
            raise ConfigError(
                f"no token was found in {folder} within {timeout_s:g} s; start a run there with `jsrl run --listen`, and "
                "see whether it still waits for hosts."
            )
        time.sleep(LOOK_S)


def has_moved(folder: Path, address: str) -> bool:
    """Return whether a folder has no more tokens of the run at this address: it ended, or began again elsewhere."""
    try:
        return (folder / ADDRESS).read_text().strip() != address
    except FileNotFoundError:
        return True
    except OSError:  # the file system does not answer now
        return False


@dataclass
class Token:
    """A key for joining.

    session: of the agent process that joined; empty: none yet. claimed_s: when its file was first seen taken.
    """

    name: str
    path: Path
    session: str = ""
    claimed_s: float | None = None

    @property
    def is_taken(self) -> bool:
        """Return whether an agent has taken its file and not used it yet."""
        return not self.session and self.path.with_suffix(CLAIMED).exists()


class Tokens:
    """The tokens of a run, as files that only their owner can read, in a separate folder.

    Attributes:
      server: the keys of the join port.
    """

    def __init__(self, folder: Path) -> None:
        self.server = make_server_keys()
        self._folder = folder
        self._made_folders = [folder, *(parent for parent in folder.parents if not parent.exists())]
        self._by_key: dict[bytes, Token] = {}
        self._made = 0
        self._lock: int | None = None  # descriptor that holds the lock of the folder
        self._renew_s = 0.0  # time of the next check for unused tokens

    def make(self) -> Path:
        """Write another token, and return its file. The first one replaces those that a killed run left in the folder.

        Raises:
          ConfigError: it cannot be written, or the folder has those of a run that goes on.
        """
        self._made += 1
        path = self._folder / f"host-{self._made}.token"
        try:
            self._folder.parent.mkdir(parents=True, exist_ok=True)
            make_folder(self._folder)
            if self._lock is None:
                self._claim()
                for pattern in (ADDRESS, "host-*.token", f"host-*{CLAIMED}"):
                    for left in self._folder.glob(pattern):
                        left.unlink(missing_ok=True)
            public = write_client_keys(path, self.server.public)
        except OSError as error:
            raise ConfigError(
                f"the token of a host cannot be written to {path} ({error.strerror or error})."
            ) from error
        self._by_key[public] = Token(f"{path.stem}-{secrets.token_hex(4)}", path)
        return path

    def _claim(self) -> None:
        """Hold the folder for this run."""
        self._lock = lock_file(self._folder / RUNNING)
        if self._lock is None:
            raise ConfigError(
                f"the tokens in {self._folder} belong to another run, which goes on (process {read_identity(self._folder)}); "
                "give this one its own --tokens-dir."
            )
        write_identity(self._folder / RUNNING)

    def publish(self, address: str) -> None:
        """Write the join address for hosts that see the folder (see `claim`)."""
        (self._folder / ADDRESS).write_text(f"{address}\n")

    def admits(self, key: bytes) -> str:
        """Return the name of the token with this key; empty: there is none, or it was revoked."""
        token = self._by_key.get(key)
        return token.name if token is not None else ""

    def use(self, name: str, session: str) -> str:
        """Use a token for an agent process; return why that is refused, as text, or nothing."""
        token = next((token for token in list(self._by_key.values()) if token.name == name), None)
        if token is None:
            return "this token was taken back; take another file."
        if token.session not in ("", session):
            return f"the token {token.path.name} was used by another agent already; each is for one. Take another file."
        token.session = session
        return ""

    def renew(self, now_s: float) -> list[Path]:
        """Replace tokens that were taken and not used for CLAIM_S: their agents ended early. Return the new files.

        Raises:
          ConfigError: one cannot be written; the next call tries again.
        """
        if now_s < self._renew_s:
            return []
        self._renew_s, made = now_s + CLAIM_S / 10, list[Path]()
        for token in [token for token in list(self._by_key.values()) if token.is_taken]:
            token.claimed_s = now_s if token.claimed_s is None else token.claimed_s
            if now_s - token.claimed_s > CLAIM_S:
                made.append(self.make())
                self.revoke(token.name)
        return made

    def discard(self, path: Path) -> None:
        """Revoke a token, by its file; does nothing if that is done already."""
        for token in [token for token in list(self._by_key.values()) if token.path == path]:
            self.revoke(token.name)

    def revoke(self, name: str) -> None:
        """Revoke a token: its key is not admitted any more."""
        for key in [key for key, token in list(self._by_key.items()) if token.name == name]:
            path = self._by_key.pop(key).path
            path.unlink(missing_ok=True)
            path.with_suffix(CLAIMED).unlink(missing_ok=True)

    def close(self) -> None:
        """Revoke all of them."""
        if self._lock is None:  # there are none, and those of another run stay
            return
        for token in list(self._by_key.values()):
            self.revoke(token.name)
        for name in (ADDRESS, RUNNING):
            (self._folder / name).unlink(missing_ok=True)
        os.close(self._lock)
        self._lock = None
        with contextlib.suppress(OSError):  # another file is in the folder
            for made in self._made_folders:
                made.rmdir()
