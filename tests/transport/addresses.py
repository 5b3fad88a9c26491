"""Unused addresses of each transport, and messages on the wire."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from jsrl.transport.wire.message import unpack
from tests.loopback import own_loopback

_numbers = itertools.count()


def new_addresses(scheme: str, folder: Path) -> Callable[[], str]:
    """Return a function that returns another unused address of the scheme at each call."""

    def new_address() -> str:
        name = f"s{next(_numbers)}"
        return {
            "local": f"local:{name}",
            "shm": f"shm:{folder}/run/{name}",
            "tcp": f"tcp://{own_loopback()}:0",  # some bind the same port again
            "ipc": f"ipc://{folder}/{name}",
        }[scheme]

    return new_address


def tag_of(frames: Sequence[Any]) -> str:
    """Return which message these frames are."""
    return unpack(frames, msgspec.msgpack.Decoder(), 1 << 24)[0][0]
