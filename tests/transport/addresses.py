"""Unused addresses of each transport."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

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
