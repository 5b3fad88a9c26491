"""Engines: agents that are started and restarted on this host; ssh, both real and replaced by a script."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from jsrl.cluster.engines import engine as engines
from jsrl.cluster.engines.engine import LIVED_S, STARTS, WINDOW_S, AgentStarter
from jsrl.cluster.engines.ssh import Ssh, resolved
from jsrl.cluster.launcher import JoinedHosts
from jsrl.cluster.this_host import own_facts
from jsrl.control.processes.launcher import Local
from jsrl.errors import ConfigError
from jsrl.transport.door.keys import load_client_keys
from tests.cluster.agents import await_that, lives, namespaces

PLAYED = (
    'printf "%s\\n" "$*" >> "$LOG"; for last; do :; done; [ "$FAIL" ] && echo "$FAIL" && exit 255; exec sh -c "$last"'
)
SSHD = Path("/usr/sbin/sshd")


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "BACKOFF_S", 0.05)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))


class Scripted:
    """An engine whose agents end on command."""

    hosts = ("a", "b")

    def __init__(self) -> None:
        self.begun: list[tuple[str, str]] = []
        self.why = dict.fromkeys(self.hosts, "")
        self.closed = False

    def begin(self, host: str, key: Path) -> None:
        self.begun.append((host, key.name))
        if self.why[host] == "nothing works":
            raise OSError(self.why[host])
        self.why[host] = self.why[host] if host == "b" else ""

    def ended(self, host: str) -> str:
        return self.why[host]

    def close(self) -> None:
        self.closed = True


def test_ended_agent_is_restarted_with_the_same_key_up_to_the_limit(monkeypatch):
    monkeypatch.setattr(engines, "LOOK_S", 0.01)
    engine, lost, told, lived_s = Scripted(), list[tuple[str, str]](), list[str](), {"a": 0.0, "b": LIVED_S - 1}
    keeper = AgentStarter(
        engine, Path("join.key"), lambda host, why: lost.append((host, why)) or lived_s[host], told.append
    )
    await_that(lambda: len(engine.begun) == 2)
    engine.why["a"] = "it was killed"
    await_that(lambda: len(engine.begun) == 3)
    assert engine.begun == [(host, "join.key") for host in "aba"] and lost == [("a", "it was killed")]
    engine.why["b"] = "no way"
    await_that(lambda: keeper.given_up)
    assert keeper.given_up == {"b": "no way"} and [host for host, _ in engine.begun].count("b") == STARTS
    assert "host b is given up after 4 starts of its agent" in told[-1]
    lived_s["a"] = LIVED_S
    for count in range(4, 5 + STARTS):  # more often than an agent may fail
        engine.why["a"] = "it was killed"
        await_that(lambda count=count: [host for host, _ in engine.begun].count("a") == count - 1)
        assert "started again in 0.05 s" in [line for line in told if "host a" in line][-1]
    keeper.release("a", "its agent was told to end")
    engine.why["a"] = "status 0"
    time.sleep(0.1)
    assert len(engine.begun) == count - 1 + STARTS  # it is not restarted
    keeper.close()
    assert engine.closed


def test_a_host_that_was_given_up_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may only have booted, and a run may last for days."""
    passed_s = [0.0]
    monkeypatch.setattr(engines, "LOOK_S", 0.01)
    monkeypatch.setattr(engines, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + passed_s[0]))
    engine, told = Scripted(), list[str]()
    keeper = AgentStarter(engine, Path("join.key"), lambda host, why: 0.0, told.append)
    try:
        engine.why["b"] = "no route"
        for starts in (STARTS, STARTS + 1):  # then one in each window
            await_that(lambda starts=starts: sum("is given up" in line for line in told) == starts - STARTS + 1)
            assert [host for host, _ in engine.begun].count("b") == starts and keeper.given_up == {"b": "no route"}
            passed_s[0] += WINDOW_S - 60.0
            time.sleep(0.1)
            assert [host for host, _ in engine.begun].count("b") == starts
            engine.why["b"] = "" if starts > STARTS else "no route"
            passed_s[0] += 61.0
        await_that(lambda: [host for host, _ in engine.begun].count("b") == STARTS + 2 and not keeper.given_up)
        keeper.release("b", "its key was revoked")
        assert "it is tried again in 10 minutes" in told[-1]
    finally:
        keeper.close()


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A fake ssh command that starts everything on this host and writes its arguments to the file `words`."""
    monkeypatch.setenv("LOG", str(tmp_path / "words"))
    return ["sh", "-c", PLAYED, "sh"]


@pytest.mark.parametrize("target", ["-oProxyCommand=x", "a b", "a;b", "me@-x", ""])
def test_host_names_that_look_like_ssh_options_are_refused(target: str) -> None:
    with pytest.raises(ConfigError, match="expected hosts as ssh takes them"):
        Ssh([target], sys.executable)


def test_ssh_configuration_gives_hosts_their_names() -> None:
    told = "user me\\nhostname 10.0.0.7\\nport 2222\\n"
    assert resolved("me@gpu-2", ["printf", told]) == "10.0.0.7"
    assert resolved("me@gpu-2", ["false"]) == resolved("me@gpu-2", ["no-such-program"]) == "gpu-2"


@pytest.mark.slow
def test_ssh_hosts_join_and_rejoin(tmp_path: Path, played: list[str]) -> None:
    told: list[str] = []
    launcher = JoinedHosts(
        Local(), own_facts("here", "127.0.0.1"), 0, 2, tmp_path / "join.key", told.append,
        engine=Ssh(["me@a", "b"], sys.executable, played),
    )  # fmt: skip
    try:
        hosts = launcher.members.hosts
        await_that(lambda: len(hosts) == 2)
        assert {host.name for host in hosts} == {"a", "b"}
        agents = agents_of()
        assert set(agents) == {"a", "b"}
        words = (tmp_path / "words").read_text()
        assert load_client_keys(launcher.join_key).secret.decode() not in words and "me@a" in words
        before_s = time.monotonic()
        agents["a"].send_signal(signal.SIGKILL)
        await_that(lambda: any("host a is gone" in line and "status 137" in line for line in told))
        assert time.monotonic() - before_s < 10.0  # not the 20 s of a silent host
        await_that(lambda: {host.name for host in hosts} == {"a", "b"})
    finally:
        launcher.close()
    assert not agents_of() and not launcher.join_key.exists()


def agents_of() -> dict[str, psutil.Process]:
    """Return name of host -> the living process of its agent, a descendant of this process."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if "join" in words and lives(process) and Path(words[0]).name.startswith("python"):
            found[words[words.index("--name") + 1]] = process
    return found


def test_unreachable_ssh_host_is_refused_in_one_sentence(tmp_path: Path, played, monkeypatch) -> None:
    monkeypatch.setenv("FAIL", "b: Permission denied (publickey).")
    launcher = JoinedHosts(
        Local(), own_facts("here", "127.0.0.1"), 0, 1, tmp_path / "join.key", lambda line: None,
        engine=Ssh(["b"], sys.executable, played),
    )  # fmt: skip
    try:
        with pytest.raises(
            ConfigError, match=r"host b cannot join: sh b ended with status 255: b: Permission denied \(pub"
        ):
            launcher.place(None, (), lambda: False)  # type: ignore[arg-type]
    finally:
        launcher.close()


@pytest.mark.slow
@pytest.mark.skipif(not SSHD.exists(), reason="there is no sshd here (apt-get install openssh-server)")
def test_a_host_behind_a_real_sshd(tmp_path: Path) -> None:
    with namespaces(1) as (address, names):
        if not names:
            pytest.skip("network namespaces are not allowed here (they need root)")
        other = f"{address.rpartition('.')[0]}.2"
        server, command = served_by_sshd(tmp_path, names[0])
        launcher = JoinedHosts(
            Local(), own_facts("here", address), 0, 1, tmp_path / "join.key", lambda line: None,
            engine=Ssh([other], f"{sys.executable}", command),
        )  # fmt: skip
        try:
            await_that(lambda: launcher.members.hosts)
            (host,) = launcher.members.hosts
            assert (host.name, host.facts.address) == (other, other)
        finally:
            launcher.close()
            server.kill()
            server.wait(10)
        assert not agents_of()


def served_by_sshd(folder: Path, namespace: str) -> tuple[subprocess.Popen[bytes], list[str]]:
    """Start sshd in a namespace with this user's new key only; return it, and the ssh command that reaches it."""
    for name in ("user", "host"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True, timeout=20
        )
    (folder / "sshd.conf").write_text(
        f"Port 22\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\nStrictModes no\nUsePAM no\n"
        f"PasswordAuthentication no\nPidFile none\nSetEnv PYTHONPATH={os.environ['PYTHONPATH']}\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    server = subprocess.Popen(["ip", "netns", "exec", namespace, str(SSHD), "-D", "-f", str(folder / "sshd.conf")])
    return server, [
        "ssh", "-F", "none", "-i", str(folder / "user"), "-o", "StrictHostKeyChecking=no",
        "-o", f"UserKnownHostsFile={folder}/known",
    ]  # fmt: skip
