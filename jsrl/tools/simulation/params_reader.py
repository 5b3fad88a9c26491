"""Receives versions of the params over TCP with keys, for jsrl.tools.simulation.timing.

`python -m jsrl.tools.simulation.params_reader ADDRESS KEYS VERSIONS` writes a line for each version, and last the CPU
seconds of one.
"""

from __future__ import annotations

import sys
import time

from jsrl.transport.table import connect_params

_WAIT_S = 60.0


def receive(address: str, keys: str, versions: int) -> None:
    """Receive versions from 0 to `versions`; the first one is not timed."""
    subscriber, begin_s = connect_params(address, keys=keys), 0.0
    for number in range(versions + 1):
        subscriber.wait(0, number, _WAIT_S)
        subscriber.poll(0)
        begin_s = begin_s or time.process_time()
        tell(str(number))
    tell(str((time.process_time() - begin_s) / versions))
    subscriber.close()


def tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    receive(sys.argv[1], sys.argv[2], int(sys.argv[3]))
