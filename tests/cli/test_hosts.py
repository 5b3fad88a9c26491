"""Options of `jsrl run` for other hosts: the launcher that they make, and its lines for the user."""

from __future__ import annotations

import io
import shlex
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from jsrl.cli.experiments import load
from jsrl.cli.hosts import other_hosts, parse_listen
from jsrl.cli.join import join
from jsrl.cluster.members import Notify
from jsrl.errors import ConfigError
from jsrl.experiment.options import RunOptions


class Pipe(io.StringIO):
    """A stream whose reader may go, such as the `tee` behind a pipe."""

    is_read = True

    def write(self, text: str) -> int:
        if not self.is_read:
            raise BrokenPipeError
        return super().write(text)


def test_the_port_for_hosts_outlives_the_reader_of_its_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else every host would lose the run at the next line, and the run would not know it."""
    monkeypatch.setattr(sys, "stderr", pipe := Pipe())
    options = RunOptions(runs_dir=str(tmp_path / "my runs"), listen="127.0.0.1")
    with other_hosts(options, load("ppo_cartpole")) as launcher:
        assert "waiting for 1 host to join at 127.0.0.1:" in pipe.getvalue()
        key = Path(shlex.split(pipe.getvalue().splitlines()[-1])[-1])
        assert key.is_file() and key.is_relative_to(tmp_path / "my runs")
        pipe.is_read = False
        for line in ("a host\x1b[2J joined", "a host is gone"):
            said, notify = threading.Event(), partial(launcher._port._do, Notify(line))
            launcher._port._run_in_thread(notify)
            launcher._port._run_in_thread(said.set)
            assert said.wait(10.0)


def test_wrong_ports_are_refused_before_hosts_join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each worker on that host would fail, until the run does."""
    monkeypatch.setenv("JSRL_PORTS", "80-90")
    options = RunOptions(runs_dir=str(tmp_path), listen="127.0.0.1")
    with pytest.raises(ConfigError, match="JSRL_PORTS is '80-90'"), other_hosts(options, load("ppo_cartpole")):
        pass
    with pytest.raises(ConfigError, match="JSRL_PORTS is '80-90'"):
        join(tmp_path / "join.key", "a", 0.0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.5", ("10.0.0.5", 0)),
        ("fd00::5", ("fd00::5", 0)),
        ("[fd00::5]", ("fd00::5", 0)),
        ("[fd00::5]:7", ("fd00::5", 7)),
    ],
)
def test_listen_takes_addresses_with_and_without_a_port(text: str, expected: tuple[str, int]) -> None:
    assert parse_listen(text) == expected
