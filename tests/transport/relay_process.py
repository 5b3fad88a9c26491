"""A params publisher or relay in a separate process, controlled by lines of JSON; see test_params_tree.

It prints its address first; a relay then prints [version, time in seconds] of each arrival, by the machine's clock.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil

from jsrl.transport.network.relay import ParamsRelay
from jsrl.transport.table import bind_params


def say(*words: object) -> None:
    sys.stdout.write(f"{json.dumps(words)}\n")
    sys.stdout.flush()


def sent_bytes() -> int:
    """Return the bytes that this network namespace has sent on all links except loopback."""
    lines = [line.split(":") for line in Path("/proc/net/dev").read_text().splitlines()[2:]]
    return sum(int(counts.split()[8]) for name, counts in lines if name.strip() != "lo")


def publish(endpoint: str, keys: str) -> None:
    """Publish as the lines request: `[first version, count, bytes of each, seconds between]`; print the result."""
    publisher = bind_params(endpoint, keys=keys)
    say(publisher.address)
    for line in sys.stdin:
        first, count, size, pause_s = json.loads(line)
        times, residents, before, begin_s = list[float](), list[int](), sent_bytes(), time.monotonic()
        for number in range(count):
            times.append(time.monotonic())
            publisher.publish(0, first + number, [np.full(size // 4, number, np.float32)])
            residents.append(psutil.Process().memory_info().rss if number % 16 == 0 else residents[-1])
            time.sleep(max(0.0, begin_s + (number + 1) * pause_s - time.monotonic()))
        say(times, residents, sent_bytes() - before)


def relay(endpoint: str, keys: str, folder: str) -> None:
    """Relay from the parents named in the newest line."""
    own = ParamsRelay(f"shm:{folder}/params", endpoint, keys)
    say(own.address)

    def listen() -> None:
        for line in sys.stdin:
            own.follow(json.loads(line))

    threading.Thread(target=listen, daemon=True).start()
    version = -1
    while not own.failure:
        if own.version != version:
            version = own.version
            say(version, time.monotonic(), own.parent)
        time.sleep(0.001)


if __name__ == "__main__":
    {"publish": publish, "relay": relay}[sys.argv[1]](*sys.argv[2:])
