"""Makes the ends of a sample stream; the address selects the transport."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jsrl.transport.base import Ledger, ProducerId, SampleConsumer, SampleProducer
from jsrl.transport.meeting.admission import ANYBODY, JoinRules
from jsrl.transport.meeting.handshake import Check
from jsrl.transport.meeting.keys import KeyPath
from jsrl.transport.transports import transport_of
from jsrl.transport.wire.packing import PLAIN, Packing
from jsrl.types import Tree


def bind_samples(
    address: str,
    schema: Tree,
    *,
    blocks_per_producer: int | None = None,
    keys: KeyPath = None,
    ledger: Ledger | None = None,
    join_rules: JoinRules = ANYBODY,
    hop: Path | None = None,
    packing: Packing = PLAIN,
) -> SampleConsumer:
    """Return the reading end of a sample stream; its `address` is for producers.

    Args:
      address: `local:NAME`, `shm:/FOLDER/NAME`, `ipc:///PATH` or `tcp://HOST:PORT` (port 0: any free one).
      schema: tree of ArraySpec leaves, as jsrl.types.make_trajectory_spec returns it.
      blocks_per_producer: trajectories of one producer that may be open, in flight or lent at once; None: two
        per group.
      keys: folder or file of the keys (jsrl.transport.meeting.keys) for encryption and access; tcp needs
        them, even on loopback. The other transports do not leave the host and need none.
      ledger: to count in, such as that of the learner's earlier incarnations; None: a new one.
      join_rules: which workers may join, and with how many groups.
      hop: folder of the pages in which both ends count (jsrl.transport.ledger.hop_page); None: count in memory only.
      packing: what to leave out of messages; only tcp uses it.

    Raises:
      ConfigError: the address is unknown, in use, or too little memory is left.
    """
    options: dict[str, Any] = {
        "blocks_per_producer": blocks_per_producer,
        "ledger": ledger,
        "join_rules": join_rules,
        "hop": hop,
        "packing": packing,
    }
    return transport_of(address).bind_samples(address, schema, keys=keys, **options)


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
      producer: name and incarnation of the writer; each incarnation is admitted once.
      num_groups: how many groups of environments it writes for (`commit` takes 0 to num_groups - 1).
      keys: folder or file of the consumer's keys, if its stream is encrypted.
      hop: folder of the pages, as at the consumer. If this host does not have it, the consumer counts from messages.
      check: called periodically during the wait; raises if a restarted consumer may have another address.

    Raises:
      StreamTimeout: no consumer answered. SpecMismatch: the schemas differ. StreamClosed: this incarnation is refused, or
        `check` raised it.
      AccessDenied: the keys are missing, or another run's.
    """
    transport = transport_of(address)
    return transport.connect_samples(address, schema, producer, num_groups, timeout_s, keys=keys, hop=hop, check=check)
