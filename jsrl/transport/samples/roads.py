"""Sample streams by address: which road is taken is the address's business, not the worker's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jsrl.transport.base import Ledger, ProducerId, SampleConsumer, SampleProducer
from jsrl.transport.meeting.admission import ANYBODY, JoinRules
from jsrl.transport.meeting.handshake import Check
from jsrl.transport.meeting.keys import KeyPath
from jsrl.transport.roads import road_of
from jsrl.transport.samples.packing import PLAIN, Packing
from jsrl.types import Tree


def bind_samples(
    address: str,
    schema: Tree,
    *,
    blocks_per_producer: int | None = None,
    keys: KeyPath = None,
    ledger: Ledger | None = None,
    guests: JoinRules = ANYBODY,
    hop: Path | None = None,
    packing: Packing = PLAIN,
) -> SampleConsumer:
    """Return the reading end of a sample stream; its `address` is what producers connect to.

    Args:
      address: `local:NAME`, `shm:/FOLDER/NAME`, `ipc:///PATH` or `tcp://HOST:PORT` (port 0: any free one).
      schema: tree of ArraySpec leaves, as jsrl.types.make_trajectory_spec returns it.
      blocks_per_producer: how many trajectories of one producer may be written, on their way or lent at once; None: two
        per group.
      keys: folder or file of the keys (jsrl.transport.meeting.keys) that encrypt, and keep out who has none; tcp needs
        them, on loopback too. The other roads do not leave the host, and need none.
      ledger: to count in, such as that of the learner's lives before this one; None: a new one.
      guests: who may join, and with how many groups.
      hop: folder for the pages in which both ends count (jsrl.transport.ledger.hop_page); None: count in memory only.
      packing: what need not cross the network; tcp alone looks at it.

    Raises:
      ConfigError: the address is unknown, in use, or too little memory is left.
    """
    options: dict[str, Any] = {
        "blocks_per_producer": blocks_per_producer,
        "ledger": ledger,
        "guests": guests,
        "hop": hop,
        "packing": packing,
    }
    return road_of(address).bind_samples(address, schema, keys=keys, **options)


def connect_samples(
    address: str,
    schema: Tree,
    producer: ProducerId,
    num_groups: int,
    timeout_s: float,
    *,
    keys: KeyPath = None,
    hop: Path | None = None,
    check: Check = lambda: None,
) -> SampleProducer:
    """Return the writing end of a sample stream, waiting up to `timeout_s` for the consumer.

    Args:
      address: the consumer's `address`.
      schema: as at the consumer; both sides compare.
      producer: who writes, and in which life; a life is admitted once.
      num_groups: how many groups of environments it writes for (`commit` takes 0 to num_groups - 1).
      keys: folder or file of the keys that the consumer wants, where its stream is encrypted.
      hop: folder of the pages, as at the consumer. Where this host does not have it, the consumer goes by what it is told.
      check: called now and then while it waits at an address that the consumer's next life may not have.

    Raises:
      StreamTimeout: no consumer answered. SpecMismatch: the schemas differ. StreamClosed: this life is refused, or `check`
        raised it.
      AccessDenied: the keys are missing, or another run's.
    """
    road = road_of(address)
    return road.connect_samples(address, schema, producer, num_groups, timeout_s, keys=keys, hop=hop, check=check)
