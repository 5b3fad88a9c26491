"""`jsrl run` on other hosts: the launcher that its options make, its lines for the user, and what a run needs of hosts."""

from __future__ import annotations

import io
import os
import shlex
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from jsrl.cli import command_line, run
from jsrl.cli.command_line import check_needs
from jsrl.cli.experiments import load
from jsrl.cli.hosts import other_hosts, parse_listen
from jsrl.cli.join import join
from jsrl.cluster.members import Notify
from jsrl.errors import ConfigError
from jsrl.experiment.options import RunOptions
from jsrl.fields import options_of


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


OPTIONS = options_of(load("ppo_cartpole")) | options_of(RunOptions())
NEEDS = {name: each.needs for name, each in OPTIONS.items() if each.needs and each.offered}
ONE_OF_EACH = ("ray.cpus", "slurm.gres", "wandb.project", "video.fps", "supervision.window-s", "env.atari.stack")
PARTS = {name.rpartition(".")[0] for name in ONE_OF_EACH}  # their options need the same
NEEDS = {name: needs for name, needs in NEEDS.items() if name.rpartition(".")[0] not in PARTS or name in ONE_OF_EACH}
VALUES = {"print": "--print", "compress": "--compress", "snapshots.exact": "--snapshots.exact false --placement inline"}
VALUES |= {"keep-here": "--keep-here inference", "env.atari.stack": "--env.atari.stack 2"}
VALUES |= {"inference.device": "--inference.device gpu:7 --placement inline", "inference.shared": "--inference.shared"}
VALUES["inference.shared"] += " --placement inline"
VALUES |= {name: f"--{name} 7 --placement inline" for name in NEEDS.keys() - VALUES.keys() if "inference" in name}
WITH = {
    "--listen": "--listen 127.0.0.1",
    "--hosts": "--hosts a,b",
    "--hosts-file": "--hosts-file hosts.json --plan",
    "--launcher slurm without --seeds": "--launcher slurm",
    "--encrypt": "--encrypt --transport zeromq",
    "--bind": "--bind 10.0.0.5 --transport zeromq",
    "--seeds": "--seeds 0-3",
    "--restart": "--restart 1",
    "--supervision.restarts": "--supervision.restarts.actor 1",
    "--learner.num-ranks": "--learner.num-ranks 2",
    "--env.id ALE/": "--env.id ALE/Pong-v5",
    "--placement fused": "--placement fused --env.id gymnax:CartPole-v1",
}


@pytest.mark.parametrize("name", NEEDS)
def test_an_option_without_those_that_it_needs_is_refused(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = VALUES.get(name, f"--{name} 7").split()
    assert run.main(["ppo_cartpole", *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"ConfigError: {words[0]} is given, but it needs ") and said.count("\n") == 1
    assert all(need in said for need in NEEDS[name]) and not os.listdir(tmp_path)


@pytest.mark.parametrize(("name", "need"), [(name, need) for name, needs in NEEDS.items() for need in needs])
def test_an_option_with_one_that_it_needs_is_accepted(name, need):
    words = f"{VALUES.get(name, f'--{name} 7')} {WITH.get(need, need)}".split()
    check_needs(command_line.parse(words, load("ppo_cartpole")))


@pytest.mark.parametrize("words", [["--run-name", "b"], ["--overwrite"]])
def test_options_of_a_new_run_are_refused_with_resume(words):
    asked = command_line.parse(["--resume", "a", *words], load("ppo_cartpole"))
    with pytest.raises(ConfigError, match=f"{words[0]} is for a new run, but --resume continues a"):
        check_needs(asked)
