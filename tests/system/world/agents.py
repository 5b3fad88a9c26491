"""A launcher of many hosts: each worker runs under an agent at its own IP address; they share only the run folder."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

from jsrl.control.processes.launcher import write_job
from jsrl.graph.graph import Graph
from jsrl.graph.launcher import Hosts, Need, Start
from jsrl.references.reference import to_json
from jsrl.services.runs.values import Exit, ResourceUsage
from jsrl.workers.jobs import Job

AGENT = Path(__file__).parent / "agent.py"


class AgentLink:
    """An agent, started on an IP address, and requests to it."""

    def __init__(self, host: str) -> None:
        self.host, key = host, secrets.token_bytes(32)
        self._popen = subprocess.Popen(
            [sys.executable, str(AGENT), host], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._popen.stdin is not None and self._popen.stdout is not None
        self._popen.stdin.write(f"{key.hex()}\n")
        self._popen.stdin.flush()
        self._connection = Client((host, int(self._popen.stdout.readline())), authkey=key)
        self._one_at_a_time = threading.Lock()

    def ask(self, *words: Any) -> Any:
        """Return the agent's answer."""
        with self._one_at_a_time:
            self._connection.send_bytes(json.dumps(words).encode())
            return json.loads(self._connection.recv_bytes())

    def close(self) -> None:
        """Disconnect from the agent, which ends with all its workers."""
        self._connection.close()
        self._popen.communicate(timeout=30)


class AgentHandle:
    """A worker under an agent; see jsrl.graph.launcher.Handle."""

    def __init__(self, agent: AgentLink, number: int) -> None:
        self._agent, self._number = agent, number
        self._exit: Exit | None = None

    def _ask(self, what: str, *words: Any) -> Any:
        return self._agent.ask("ask", self._number, what, *words)

    @property
    def where(self) -> str:
        return f"{self._ask('where')} of {self.host}"

    @property
    def host(self) -> str:
        return self._agent.host

    @property
    def log(self) -> str:
        return self._ask("log")

    @property
    def alive(self) -> bool:
        return self.exit is None

    @property
    def exit(self) -> Exit | None:
        if self._exit is None and (ended := self._ask("exit")) is not None:
            self._exit = Exit(**ended)
        return self._exit

    def wait(self, timeout_s: float) -> bool:
        return self._ask("wait", timeout_s)

    def kill(self) -> None:
        self._ask("kill")

    def pause(self) -> None:
        self._ask("pause")

    def resume(self) -> None:
        self._ask("resume")

    def tail(self, lines: int) -> str:
        return self._ask("tail", lines)

    def usage(self) -> ResourceUsage | None:
        used = self._ask("usage")
        return None if used is None else ResourceUsage(**used)

    def stacks(self, timeout_s: float) -> str:
        return self._ask("stacks", timeout_s)


class Agents:
    """Starts each worker under its own agent, at 127.0.0.2 and after; see jsrl.graph.launcher.Launcher.

    Attributes:
      handles: worker -> the handles of all its incarnations.
    """

    def __init__(self) -> None:
        self.handles: dict[str, list[AgentHandle]] = {}
        self._agents: dict[str, AgentLink] = {}
        self._hosts = Hosts()

    def place(self, graph: Graph, needs: Sequence[Need], stop_asked: Callable[[], bool]) -> Hosts:
        names = [worker.name for worker in graph.workers]
        self._hosts = Hosts("127.0.0.1", {name: f"127.0.0.{2 + i}" for i, name in enumerate(names)})
        return self._hosts

    def start(self, job: Job, start: Start) -> AgentHandle:
        host = self._hosts.of[job.name]
        if host not in self._agents:
            self._agents[host] = AgentLink(host)
        write_job(json.dumps(to_json(job)), job.name, start.folder)
        spawn = [dict(start.spawn.variables), os.fspath(start.spawn.working_directory)]
        told = {"folder": str(start.folder.absolute()), "control": start.control, "spawn": spawn, "keys": start.keys}
        told["variables"] = dict(start.variables)
        number = self._agents[host].ask("start", job.kind, job.name, job.incarnation, told)
        handle = AgentHandle(self._agents[host], number)
        self.handles.setdefault(job.name, []).append(handle)
        return handle

    def moves(self) -> dict[str, str]:
        return {}

    def busy_s(self) -> None:
        return None

    def close(self) -> None:
        for agent in self._agents.values():
            agent.close()
        self._agents = {}
