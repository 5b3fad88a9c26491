"""Agents in separate processes, as `jsrl join` starts them; where permitted, in network namespaces that act as hosts."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import zmq

import jsrl
from jsrl.cluster.facts import HostFacts
from jsrl.cluster.join_key import JoinKey
from jsrl.cluster.launcher import JoinedHosts
from jsrl.cluster.members import JOIN, JoinedHost, Received
from jsrl.cluster.messages import Hello, Join
from jsrl.cluster.port import HostPort
from jsrl.cluster.this_host import code_digest, versions
from jsrl.transport.door.keys import ClientKeys
from tests.patience import stretched

HIDDEN = ("/tmp", "/dev/shm")  # of agents in namespaces, each of which has its own
ALONE = 'T=$(cat "$1"); shift; hostname "$NAME"; mount -t tmpfs none /tmp; mount -t tmpfs none /dev/shm; umask 077; '
ALONE += 'printf %s "$T" > /tmp/join.key; unset T; cd /; exec "$@" /tmp/join.key'


class Agent:
    """`jsrl join` on a host.

    Args:
      key: the run's key file. name: of the host. log: file of its output.
      namespace: of its network; it then has its own /tmp, /dev/shm and host name. None: it runs on this host.
      patience_s: see `jsrl join`.
    """

    def __init__(self, key: Path, name: str, log: Path, namespace: str | None = None, patience_s: float = 20.0) -> None:
        self.log = log
        words = [sys.executable, "-m", "jsrl.cli.main", "join", "--patience-s", str(patience_s)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "NAME": name}
        environment["XDG_STATE_HOME"] = str(log.parent / "state of agents")
        if namespace is None:
            words += ["--name", name, str(key)]
        else:
            environment |= {"XDG_CACHE_HOME": "/tmp/cache", "TMPDIR": "/tmp"}
            alone = ["unshare", "--mount", "--uts", "sh", "-c", ALONE, "sh", str(key)]
            words = ["ip", "netns", "exec", namespace, *alone, *words]
        with log.open("wb") as output:
            self.popen = subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT, env=environment)
        self.process = psutil.Process(self.popen.pid)
        self._seen: dict[int, psutil.Process] = {}

    def workers(self) -> list[psutil.Process]:
        """Return its living child processes and their children; after its death also those found before."""
        with contextlib.suppress(psutil.Error):
            self._seen |= {child.pid: child for child in self.process.children(recursive=True)}
        return [child for child in self._seen.values() if lives(child)]

    def ends(self, timeout_s: float = 20.0) -> tuple[int, str]:
        """Return (exit status, output) once it has ended."""
        return self.popen.wait(stretched(timeout_s)), self.log.read_text()

    def close(self) -> None:
        """End it in any state."""
        with contextlib.suppress(ProcessLookupError):
            self.popen.send_signal(signal.SIGCONT)
        self.popen.kill()
        self.popen.wait(10)


def admitted(port: HostPort, join_key: JoinKey) -> ClientKeys:
    """Return the own keys of a host that has shown the join key."""
    public, secret = zmq.curve_keypair()
    port.tell(Received(JOIN, b"", Join(0, public.decode())))
    await_that(lambda: join_key.admits(public))
    return ClientKeys(public, secret, join_key.server.public)


def joined(launcher: JoinedHosts, facts: HostFacts) -> JoinedHost:
    """Return a host that has joined, without an agent: it is lost once it is silent for too long."""
    key = admitted(launcher._port, launcher._key).public.decode()
    hello = Hello(
        0, session=facts.name, name=facts.name, boot=facts.name, versions=versions(), code=code_digest(), folder="/far",
        address=facts.address, cores=facts.cores, memory_mb=facts.memory_mb, gpus=facts.gpus,
    )  # fmt: skip
    launcher._port.tell(Received(key, facts.name.encode(), hello))
    return launcher.members.hosts[-1]


def lives(process: psutil.Process) -> bool:
    """Return whether a process has not ended."""
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def await_that(reached: Callable[[], object], timeout_s: float = 30.0) -> None:
    """Wait until a condition is true."""
    begun_s = time.monotonic()
    while not reached():
        assert time.monotonic() - begun_s < stretched(timeout_s), reached
        time.sleep(0.02)


@contextlib.contextmanager
def hosts_without_files(count: int) -> Iterator[tuple[str, list[str]]]:
    """Yield namespaces of agents that do not see the folders HIDDEN; the test is skipped where that is impossible."""
    for needed in (sys.prefix, jsrl.__file__):
        if any(Path(needed).is_relative_to(folder) for folder in HIDDEN):
            pytest.skip(
                f"these hosts cannot see {needed}, which they need; use a checkout and an environment elsewhere"
            )
    with namespaces(count) as (address, names):
        if not names:
            pytest.skip("network namespaces are not allowed here (they need root)")
        yield address, names


@contextlib.contextmanager
def namespaces(count: int) -> Iterator[tuple[str, list[str]]]:
    """Yield (IP address of this host, network namespaces that reach it); ("", []) where namespaces are not permitted."""
    tag = f"{os.getpid() % 100_000}"
    net = f"10.{64 + os.getpid() % 128}.{os.getpid() // 128 % 256}"
    bridge, names = f"jb{tag}", [f"jsrl-{tag}-{i}" for i in range(count)]
    made: list[list[str]] = []
    try:
        for words in (["link", "del", bridge], *(["netns", "del", name] for name in names)):
            _ip(*words)  # left by a killed process with this process id
        allowed = os.geteuid() == 0 and _ip("link", "add", bridge, "type", "bridge")
        if not allowed:
            yield "", []
            return
        made.append(["link", "del", bridge])
        assert _ip("addr", "add", f"{net}.1/24", "dev", bridge) and _ip("link", "set", bridge, "up")
        for i, name in enumerate(names):
            assert _ip("netns", "add", name)
            made.append(["netns", "del", name])
            outer, inner = f"jo{tag}{i}", f"ji{tag}{i}"
            assert _ip("link", "add", outer, "type", "veth", "peer", "name", inner, "netns", name)
            made.append(["link", "del", outer])  # its namespace would remove it too, but a while later
            assert _ip("link", "set", outer, "master", bridge, "up")
            assert _ip("-n", name, "addr", "add", f"{net}.{i + 2}/24", "dev", inner)
            assert _ip("-n", name, "link", "set", inner, "up") and _ip("-n", name, "link", "set", "lo", "up")
        yield f"{net}.1", names
    finally:
        for words in reversed(made):
            _ip(*words)


def _ip(*words: str) -> bool:
    try:
        return subprocess.run(["ip", *words], capture_output=True, check=False, timeout=20).returncode == 0
    except OSError:
        return False
