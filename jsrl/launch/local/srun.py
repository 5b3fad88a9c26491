"""The engine for the nodes of a Slurm job: `jsrl run NAME --launcher slurm` inside it. Agents are steps of the job."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Sequence

from jsrl.errors import ConfigError
from jsrl.launch.local.facts import address_towards
from jsrl.launch.local.ssh import Ssh

ASK_S = 20.0
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
            ["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, timeout=ASK_S, check=True
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
