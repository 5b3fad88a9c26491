"""The engines for hosts reached by ssh, with existing keys (`jsrl run NAME --hosts a,b,c`), and for nodes of a Slurm job."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from jsrl.cluster.this_host import address_towards
from jsrl.errors import ConfigError

OPTIONS = (
    "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3",
)  # fmt: skip
GONE_S, ASK_S = 5.0, 10.0
_HOST = re.compile(r"([A-Za-z0-9._-]+@)?[A-Za-z0-9_][A-Za-z0-9_.:-]*")


def resolved(target: str, command: Sequence[str] = ("ssh",)) -> str:
    """Return the host name or IP address that ssh uses for a target: its configuration may give hosts other names."""
    try:
        words = [*command, "-G", target]
        output = subprocess.run(words, capture_output=True, text=True, timeout=ASK_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):  # there is no ssh, or one that cannot tell
        output = ""
    names = [line.partition(" ")[2] for line in output.splitlines() if line.startswith("hostname ")]
    return names[0] if names else target.rpartition("@")[2]


class Ssh:
    """Starts agents by ssh; see jsrl.cluster.engines.engine.Engine.

    The join key goes through ssh's standard input into a file that only its owner can read; it is in no command line.

    Args:
      targets: as for ssh, such as `gpu-2` or `me@10.0.0.7`. python: interpreter there that has jsrl.
      command: the ssh program, with its options.
    """

    def __init__(self, targets: Sequence[str], python: str, command: Sequence[str] = ("ssh",)) -> None:
        for target in targets:
            if not _HOST.fullmatch(target):
                raise ConfigError(f"--hosts has {target!r}, expected hosts as ssh takes them: gpu-2 or me@10.0.0.7.")
        self._targets = {target.rpartition("@")[2]: target for target in targets}
        self.hosts = tuple(self._targets)
        if len(self.hosts) < len(targets) or not targets:
            raise ConfigError(f"--hosts is {','.join(targets)!r}, expected one or several hosts, each once.")
        self._python, self.command = python, tuple(command)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._logs: tempfile.TemporaryDirectory[str] | None = None

    def begin(self, host: str, key: Path) -> None:
        words = [self._python, "-P", "-m", "jsrl.cli.main", "join", "--name", host]
        script = f'umask 077; f=$(mktemp) && cat > "$f" && {shlex.join(words)} "$f"; s=$?; rm -f "$f"; exit $s'
        if self._logs is None:
            self._logs = tempfile.TemporaryDirectory(prefix="jsrl-ssh-")
        log = Path(self._logs.name, f"{host}.log")
        with key.open("rb") as content, log.open("wb") as output:
            self._processes[host] = subprocess.Popen(
                self.words(host, script),
                stdin=content,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the controller
            )

    def words(self, host: str, script: str) -> list[str]:
        """Return the command that runs a shell script on a host."""
        return [*self.command, *OPTIONS, self._targets[host], script]

    def ended(self, host: str) -> str:
        process = self._processes.get(host)
        if process is None or process.poll() is None or self._logs is None:
            return ""
        lines = Path(self._logs.name, f"{host}.log").read_text(errors="replace").strip().splitlines()
        last = f": {lines[-1][:300]}" if lines else ""
        return f"{self.command[0]} {self._targets[host]} ended with status {process.returncode}{last}"

    def close(self) -> None:
        """Wait briefly for the agents, and end the remaining ssh processes."""
        until = time.monotonic() + GONE_S
        for process in self._processes.values():
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(GONE_S)
        if self._logs is not None:
            self._logs.cleanup()


SLURM_ASK_S = 20.0
SLURMD_PORT = 6818


class Srun(Ssh):
    """Starts agents with srun, each on its node, beside other steps of the job; see Ssh.

    Args:
      nodes: of the job, without this one. python: interpreter there that has jsrl.
    """

    def __init__(self, nodes: Sequence[str], python: str) -> None:
        super().__init__(nodes, python, ("srun",))

    def words(self, host: str, script: str) -> list[str]:
        step = ["--overlap", "--nodes=1", "--ntasks=1", "--cpu-bind=none", f"--nodelist={host}"]
        return [*self.command, *step, "sh", "-c", script]


def other_nodes() -> tuple[str, ...]:
    """Return the nodes of the Slurm job of this process, without the node where it runs; none if it is in no job."""
    nodes = os.environ.get("SLURM_JOB_NODELIST")
    if not nodes:
        return ()
    try:
        ended = subprocess.run(
            ["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, timeout=SLURM_ASK_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    own = os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]
    return tuple(node for node in ended.stdout.split() if node != own)


def own_address(nodes: Sequence[str]) -> str:
    """Return the IP address at which the other nodes of the job reach this one; JSRL_ADDRESS sets another."""
    if given := os.environ.get("JSRL_ADDRESS"):
        return given
    try:
        return address_towards(nodes[0], SLURMD_PORT)
    except OSError as error:
        raise ConfigError(
            f"node {nodes[0]} of this Slurm job cannot be resolved here ({error.strerror or error}); set JSRL_ADDRESS to the "
            "IP address of this node that the others reach."
        ) from error
