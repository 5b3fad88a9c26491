"""The benchmark of hooks and sinks: its figure, and that a missing arm is detected."""

import socket
import urllib.parse

import pytest

from benchmarks.sinks import ARMS, FIGURE, NEITHER, Clock, check, extras, measured, silent_server


def test_cpu_time_per_row_is_between_first_and_last_line():
    clock = Clock()
    clock.points = [(1000.0, 5.0), (2000.0, 5.5), (5000.0, 5.2)]
    assert clock.figures() == {FIGURE: pytest.approx(50.0), "rows": 4000.0}
    with pytest.raises(RuntimeError, match="give more --seconds"):
        Clock().figures()


def test_missing_arm_is_an_error():
    check("hooks", "RuntimeError: planted")
    with pytest.raises(RuntimeError, match="wandb-silent had no effect"):
        check("wandb-silent", "all is well")


def test_arms_differ_only_in_their_hooks_and_sinks(tmp_path):
    assert extras(NEITHER, tmp_path) == {} and set(extras("hooks", tmp_path)) == {"hooks"}
    assert len(ARMS) == 5 and measured(3.0).max_minutes == 0.05 and measured(3.0).placement == "serial"


def test_the_server_accepts_and_stays_silent():
    with silent_server() as address:
        port = urllib.parse.urlsplit(address).port
        with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            client.settimeout(0.05)
            with pytest.raises(TimeoutError):
                client.recv(1)
