"""What must work without Linux: one process without /proc, /dev/shm and the functions that only Linux has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT_LINUX = """
import ctypes, os, pathlib, signal, socket, sys, traceback
import jax, psutil  # other people's code may know Linux

ctypes.CDLL = lambda *_: object()
for module, names in {
    os: "sched_getaffinity sched_setaffinity pidfd_open memfd_create eventfd O_PATH",
    socket: "SOCK_CLOEXEC SOCK_NONBLOCK",
    signal: "pidfd_send_signal SIGRTMIN",
}.items():
    for name in names.split():
        delattr(module, name)

def check(path):
    hidden = isinstance(path, (str, os.PathLike)) and os.fspath(path).startswith(("/proc", "/dev/shm", "/sys"))
    if hidden and not any("psutil" in frame.filename for frame in traceback.extract_stack()):
        raise FileNotFoundError(2, "No such file or directory", os.fspath(path))

def checked(function):
    def call(path, *arguments, **options):
        check(path)
        return function(path, *arguments, **options)
    return call

for name in ("stat", "lstat", "readlink"):  # no audit event
    setattr(os, name, checked(getattr(os, name)))
access = os.access
os.access = lambda path, *_, **__: not str(path).startswith(("/proc", "/dev/shm")) and access(path, *_, **__)
sys.addaudithook(lambda event, given: check(given[0]) if event in ("open", "os.listdir", "os.scandir") else None)
"""

SERIAL = """
import jsrl
from jsrl.cli.main import main

agent = jsrl.PPOConfig(num_minibatches=1)
evaluator = jsrl.EvaluatorConfig(episodes=2, final_episodes=2)
config = jsrl.Experiment(agent=agent, env=jsrl.EnvConfig("CartPole-v1"), total_env_steps=2048, evaluator=evaluator)
result = jsrl.run(config, placement="serial", name="one", display="quiet")
assert result.env_steps == 2048, result
policy = jsrl.load_policy(result.folder)
jsrl.make_env(jsrl.EnvConfig("CartPole-v1"), 2, 0).close()
assert jsrl.load_runs("*")
folder = str(result.folder)
for words in (f"report {folder}", f"status {folder}", f"evaluate {folder} --episodes 2", "list", "run ppo_cartpole --plan"):
    assert main(words.split()) == 0, words
"""


@pytest.mark.slow
def test_serial_runs_evaluation_and_reports_do_not_need_linux(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_LINUX + SERIAL]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert len(list(tmp_path.glob("runs/*/one/report.html"))) == 1


def test_only_one_module_names_what_only_linux_has() -> None:
    package = Path(__file__).parents[2] / "jsrl"
    words = ("/proc/", "prctl", '"/dev/shm', "/sys/fs")
    found = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if any(word in line for line in path.read_text().splitlines() for word in words)
    }
    assert found == {"linux.py", "cluster/engines/ray_driver.py"}  # the latter's words run on Ray's own nodes
