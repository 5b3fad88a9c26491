"""Relays of params: a tree whose orphans reconnect to their grandparents; the newest version wins at each leg."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from jsrl.transport.door.keys import make_keys
from jsrl.transport.network.relay import ParamsRelay, ancestors
from jsrl.transport.table import bind_params, connect_params
from tests.cluster.agents import await_that

ENDPOINT = "tcp://127.0.0.1:0"


def test_relay_tree_with_fan_out_three() -> None:
    assert [ancestors(place) for place in range(4)] == [[], [], [], [0]]
    assert ancestors(12) == [3, 0] and ancestors(11) == [2]
    children = [sum(ancestors(place)[:1] == [parent] for place in range(13)) for parent in range(13)]
    assert children[:4] == [3, 3, 3, 1] and not any(children[4:])
    assert ancestors(5, 2) == [1]


class Tree:
    """A publisher, and relays under it."""

    def __init__(self, folder: Path, count: int) -> None:
        self.keys = make_keys(folder / "keys")
        self.publisher = bind_params(ENDPOINT, keys=self.keys)
        self.relays = [ParamsRelay(f"shm:{folder}/memory/{i}", ENDPOINT, self.keys) for i in range(count)]
        for i, relay in enumerate(self.relays):
            relay.follow([*(self.relays[j].address for j in ancestors(i)), self.publisher.address])

    def publish(self, version: int) -> None:
        self.publisher.publish(0, version, [np.full(3, version, np.float32)])

    def reach(self, version: int, *places: int) -> None:
        """Wait until relays have forwarded a version."""
        await_that(lambda: all(self.relays[place].version == version for place in places))

    def close(self) -> None:
        for relay in self.relays:
            relay.close()
        self.publisher.close()


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    with contextlib.closing(Tree(tmp_path, 7)) as made:
        yield made


def test_orphaned_relays_read_from_their_grandparents(tree: Tree, tmp_path: Path) -> None:
    reader = connect_params(f"shm:{tmp_path}/memory/3")
    tree.publish(1)
    tree.reach(1, *range(7))
    assert [relay.parent for relay in tree.relays[:3]] == [tree.publisher.address] * 3
    assert {relay.parent for relay in tree.relays[3:6]} == {tree.relays[0].address}
    assert tree.relays[6].parent == tree.relays[1].address
    newest = reader.poll()
    assert newest is not None and newest[0] == 1 and newest[1][0].tolist() == [1.0, 1.0, 1.0]
    tree.relays[0].close()
    tree.publish(2)
    tree.reach(2, *range(1, 7))
    assert {relay.parent for relay in tree.relays[3:6]} == {tree.publisher.address}
    tree.relays[3].follow([tree.relays[2].address, tree.publisher.address])  # the next message of the controller
    await_that(lambda: tree.relays[3].parent == tree.relays[2].address)
    tree.publish(3)
    tree.reach(3, *range(1, 7))
    reader.close()


def test_older_version_is_not_relayed_again(tree: Tree) -> None:
    tree.publish(5)
    tree.reach(5, 0, 3)
    other = bind_params(ENDPOINT, keys=tree.keys)
    try:
        other.publish(0, 4, [np.zeros(3, np.float32)])
        tree.relays[0].follow([other.address])
        await_that(lambda: tree.relays[0].parent == other.address)
        other.publish(0, 6, [np.ones(3, np.float32)])
        tree.reach(6, 0, 3)
    finally:
        other.close()


def test_storage_failure_is_reported(tmp_path: Path) -> None:
    tree = Tree(tmp_path, 1)
    with contextlib.closing(tree):
        tree.publish(1)
        tree.reach(1, 0)
        tree.publisher.close()
        tree.publisher = bind_params(ENDPOINT, keys=tree.keys)
        tree.publisher.publish(0, 9, [np.zeros(4, np.float32)])  # of another shape
        tree.relays[0].follow([tree.publisher.address])
        await_that(lambda: tree.relays[0].failure)
