"""The ports at which sockets of this host may listen: any, or those of the variable JSRL_PORTS."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Sequence

from jsrl.errors import ConfigError

VARIABLE = "JSRL_PORTS"
_RANGE = re.compile(r"(\d{1,5})-(\d{1,5})")


def allowed_ports() -> Sequence[int]:
    """Return the ports to try, in this order; (0,): the system chooses one.

    They begin at a random place of the range, so that processes that start together rarely try the same ones.
    """
    given = os.environ.get(VARIABLE, "")
    if not given:
        return (0,)
    found = _RANGE.fullmatch(given)
    first, last = map(int, found.groups()) if found else (0, 0)
    if not 1024 <= first <= last <= 65535:
        raise ConfigError(
            f"{VARIABLE} is {given!r}; expected a range of ports from 1024 to 65535, such as 40000-40100."
        )
    ports = range(first, last + 1)
    begin = random.randrange(len(ports))
    return [*ports[begin:], *ports[:begin]]


def none_free(host: str) -> ConfigError:
    return ConfigError(
        f"all ports of {VARIABLE}={os.environ.get(VARIABLE, '')} are in use at {host}; set a larger range, or stop what uses "
        "them (`ss -ltnp` lists it)."
    )
