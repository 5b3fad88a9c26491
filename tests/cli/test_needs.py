"""Options that need others: each is refused alone, and accepted with each option that it needs."""

import os

import pytest

from jsrl.cli import command_line, run
from jsrl.cli.command_line import check_needs
from jsrl.cli.experiments import load
from jsrl.errors import ConfigError
from jsrl.experiment.options import RunOptions, options_of

OPTIONS = options_of(load("ppo_cartpole")) | options_of(RunOptions())
NEEDS = {name: each.needs for name, each in OPTIONS.items() if each.needs}
NEEDS = {name: needs for name, needs in NEEDS.items() if name.partition(".")[0] not in ("ray", "slurm")} | {
    name: NEEDS[name] for name in ("ray.cpus", "slurm.gres")
}
VALUES = {"print": "--print", "compress": "--compress"}
VALUES |= {"inference.device": "--inference.device gpu:7 --placement inline"}
VALUES |= {"keep-here": "--keep-here inference"}
WITH = {
    "--listen": "--listen 127.0.0.1",
    "--hosts": "--hosts a,b",
    "--hosts-file": "--hosts-file hosts.json --plan",
    "--launcher slurm without --seeds": "--launcher slurm",
    "--encrypt": "--encrypt --transport zeromq",
    "--bind": "--bind 10.0.0.5 --transport zeromq",
    "--seeds": "--seeds 0-3",
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
