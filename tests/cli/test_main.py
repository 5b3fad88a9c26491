"""`jsrl COMMAND`: what it lists, what it does with a wrong word, and configs of the working directory."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys

import pytest

from jsrl.cli import experiments, main
from jsrl.errors import ConfigError

OWN = '''"""My own task"""

from jsrl.configs import ppo


def config():
    return ppo.config()
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with an experiment of its own; what is imported from it is forgotten."""
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "mine.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name == "configs" or name.startswith("configs.")]:
        del sys.modules[name]


def test_alone_it_lists_its_commands_and_each_is_there(capsys):
    assert main.main([]) == 0
    text = capsys.readouterr().out
    for command in main.COMMANDS:
        assert f"  {command}" in text
        assert callable(importlib.import_module(f"jsrl.cli.{command}").main)


@pytest.mark.parametrize(
    ("word", "hint"),
    [("ppo_cartpole", "jsrl run ppo_cartpole"), ("evalute", "did you mean evaluate?"), ("xyz", "there are: run")],
)
def test_a_wrong_command_is_one_sentence_and_status_2(word, hint, capsys):
    assert main.main([word]) == 2
    said = capsys.readouterr().err
    assert hint in said and said.count("\n") == 1


def test_configs_of_the_working_directory_are_found_beside_ours(folder, capsys):
    assert main.main(["list"]) == 0
    assert "mine               My own task" in capsys.readouterr().out
    assert "ppo_cartpole" in experiments.files()
    assert experiments.load("mine").name == "ppo"


@pytest.mark.parametrize(
    ("text", "sentence"), [("x = 1\n", "has no function config()"), ("def config(): return 3\n", "returned int")]
)
def test_a_config_that_is_none_is_one_sentence(folder, text, sentence):
    (folder / "configs" / "wrong.py").write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        experiments.load("wrong")


@pytest.mark.slow
def test_the_command_runs_a_config_of_the_working_directory_in_processes(folder):
    words = "mine --placement inline --total-env-steps 64 --rollout-length 8 --num-envs 4 --agent.num-minibatches 1 "
    words += "--evaluator.enabled false --display plain --runs-dir out"
    command = [sys.executable, "-m", "jsrl", "run", *words.split()]
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert len(list((folder / "out").glob("ppo/*/report.html"))) == 1
