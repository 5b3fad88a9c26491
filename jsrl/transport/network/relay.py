"""One host's copy of a params stream: fetched once from a parent, read here in shared memory, and relayed to other hosts.

Hosts form a tree under the publisher. At each leg the newest version wins, as in `jsrl.transport.network.latest`. A relay
whose parent is gone connects to the next address in its list: its grandparent, and finally the publisher.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence

from jsrl.errors import JsrlError
from jsrl.transport.door.keys import KeyPath
from jsrl.transport.network.latest import ZmqParamsSubscriber
from jsrl.transport.table import bind_params, connect_params

FAN_OUT = 3
CUT_S = 1.0  # time without a connection before the next ancestor is tried
BACK_S = 30.0  # time before the parent is tried again
_REST_S = 0.1
SILENCE_MS = 2_000  # silence after which a parent counts as gone


def ancestors(place: int, fan_out: int = FAN_OUT) -> list[int]:
    """Return the ancestors of a place in a tree, nearest first; places 0 to `fan_out` - 1 are below the publisher."""
    found = list[int]()
    while (place := place // fan_out - 1) >= 0:
        found.append(place)
    return found


class ParamsRelay:
    """Relays the params of one stream.

    Args:
      local: `shm:FOLDER/NAME` for readers on this host. endpoint: `tcp://IP:0` for relays on others. keys: folder of this
        host's keys.

    Attributes:
      address: for relays on other hosts. parent: the current source; empty: none yet.
      version: relayed last; -1: none. failure: why nothing is relayed any more; empty: no failure.
    """

    def __init__(self, local: str, endpoint: str, keys: KeyPath) -> None:
        self._keys = keys
        self._local, self._passed_on = bind_params(local), bind_params(endpoint, keys=keys)
        self.address, self.parent, self.version, self.failure = self._passed_on.address, "", -1, ""
        self._parents: tuple[str, ...] = ()
        self._at, self._turned_s, self._begin_again = 0, 0.0, False
        self._subscriber: ZmqParamsSubscriber | None = None
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="params-relay", daemon=True)
        self._thread.start()

    def follow(self, parents: Sequence[str]) -> None:
        """Fetch from the first reachable of these addresses: parent, grandparent and so on, finally the publisher."""
        with self._lock:
            if tuple(parents) != self._parents:
                self._parents, self._begin_again = tuple(parents), True

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._pass_on()
        except (JsrlError, OSError, ValueError) as error:  # such as too little shared memory
            self.failure = str(error)
        finally:
            self._hang_up()
            self._local.close()
            self._passed_on.close()

    def _pass_on(self) -> None:
        """Relay newer params, or wait briefly for them."""
        subscriber = self._turn()
        if subscriber is None:
            self._stop.wait(_REST_S)
            return
        newer = None
        with contextlib.suppress(JsrlError):  # refused, or garbage: the next ancestor is tried after CUT_S
            newer = subscriber.poll(0)
        if newer is None:
            subscriber.rest(_REST_S)
        elif newer[0] > self.version:  # another ancestor may be behind the last one
            version, values = newer
            self._local.publish(0, version, values)
            self._passed_on.publish(0, version, values)
            self.version = version

    def _turn(self) -> ZmqParamsSubscriber | None:
        """Return the subscriber to the current parent: the nearest reachable one; None: none is known."""
        with self._lock:
            parents, begin_again, self._begin_again = self._parents, self._begin_again, False
        now_s = time.monotonic()
        there, since_s = self._subscriber is not None and self._subscriber.there, now_s - self._turned_s
        if begin_again and parents:
            self._connect(parents[0], 0)
        elif parents and not there and since_s > CUT_S:
            at = (self._at + 1) % len(parents)
            self._connect(parents[at], at)
        elif self._at and since_s > BACK_S:
            self._connect(parents[0], 0)
        return self._subscriber

    def _connect(self, parent: str, at: int) -> None:
        self._at, self._turned_s = at, time.monotonic()
        if parent == self.parent and self._subscriber is not None and self._subscriber.there:
            return
        self._hang_up()
        self.parent, subscriber = parent, connect_params(parent, keys=self._keys, silence_ms=SILENCE_MS)
        assert isinstance(subscriber, ZmqParamsSubscriber)  # of another host
        self._subscriber = subscriber

    def _hang_up(self) -> None:
        if self._subscriber is not None:
            self._subscriber.close()
            self._subscriber = None
