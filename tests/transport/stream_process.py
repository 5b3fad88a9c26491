"""Child processes of these tests: `python -m tests.transport.stream_process ROLE ADDRESS [NUMBER]`."""

from __future__ import annotations

import sys
import time

import numpy as np

from jsrl.transport.base import ProducerId
from jsrl.transport.table import bind_inference, bind_params, connect_inference, connect_params
from tests.contracts.inference_contract import SPEC, answer_to, check_answer, make_request

ASKED, STRESS_VERSIONS, STRESS_SHAPE = 200, 2000, (64, 1024)


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201


def ask(address: str, number: int) -> None:
    """Send requests and check replies, then wait (to be killed) if the number says so."""
    client = connect_inference(address, SPEC, ProducerId("actor-0", number), {0: 5, 1: 3}, 20)
    for step in range(ASKED):
        asked = {0: make_request(5, step), 1: make_request(3, step + 1, wants_core=step % 3 == 0)}
        for group, request in asked.items():
            client.send(group, request)
        for _ in range(2):
            group, reply = client.receive(20)
            check_answer(asked[group], reply)
    say("checked")
    sys.stdin.readline()
    client.close()
    say("left")


def serve(address: str, number: int) -> None:
    server = bind_inference(address, SPEC)
    say(server.address)
    while True:
        for one in server.collect(64, 0.1):
            server.reply(one, answer_to(one.request))


def publish(address: str, number: int) -> None:
    """Publish versions of arrays filled with the version number, then wait for the order to leave."""
    publisher = bind_params(address)
    say(publisher.address)
    sys.stdin.readline()
    for version in range(1, STRESS_VERSIONS + 1):
        publisher.publish(0, version, [np.full(STRESS_SHAPE, version, np.float32), np.full((3,), version, np.int64)])
    say("published")
    sys.stdin.readline()
    publisher.close()


def read(address: str, number: int) -> None:
    """Read until the last version, checking that none is torn and none goes back."""
    subscriber = connect_params(address)
    say("reading")
    last, seen, deadline = 0, 0, time.monotonic() + 60
    while last < STRESS_VERSIONS:
        assert time.monotonic() < deadline, f"only version {last} arrived"
        subscriber.wait(0, last + 1, 30)
        found = subscriber.poll()
        if found is None:
            continue
        version, values = found
        assert version > last
        assert all((value == version).all() for value in values), f"version {version} is torn"
        last, seen = version, seen + 1
    subscriber.close()
    say(f"saw {seen}")


if __name__ == "__main__":
    role, where, *rest = sys.argv[1:]
    {"ask": ask, "serve": serve, "publish": publish, "read": read}[role](where, int(rest[0]) if rest else 0)
