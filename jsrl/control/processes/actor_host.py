"""The controller's side of an actor host (jsrl.workers.actor_host): it sends orders and receives starts and ends."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from jsrl.graph.launcher import Start
from jsrl.services.runs.files import process_alive
from jsrl.workers.actor_host import MAX_ORDER_BYTES, kill_group

_POLL_S = 0.02
LOOK_S = 0.005


class ActorHost:
    """A running actor host.

    Attributes:
      popen: its process. log: output of it and its modules. mute: it did not report a death (the process was stopped).
    """

    def __init__(self, start: Start) -> None:
        logs = start.folder / "logs"
        logs.mkdir(exist_ok=True)
        self.log = logs / "actor-host.log"
        self.mute = False
        self._actors: list[HostedActor] = []
        self._listened_s = 0.0
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.setblocking(False)
        command = [sys.executable, "-m", "jsrl.workers", "actor-host", *control_args(start)]
        with self.log.open("ab") as output, theirs:
            self.popen = subprocess.Popen(
                [*command, "--parent", str(os.getpid())],
                stdin=theirs.fileno(),
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **start.spawn.variables, **start.variables},
                cwd=start.spawn.working_directory,
                start_new_session=True,
            )

    def start(self, job_path: Path, name: str, incarnation: int, log: Path) -> HostedActor:
        """Order an actor; returns its handle at once."""
        actor = HostedActor(self, len(self._actors))
        self._actors.append(actor)
        order = {"number": actor.number, "job": str(job_path.absolute()), "name": name, "incarnation": incarnation}
        message = json.dumps(order | {"log": str(log.absolute())}).encode()
        assert len(message) < MAX_ORDER_BYTES, message
        until = time.monotonic() + 10.0
        while self.popen.poll() is None:  # its death is each actor's death, and is reported there
            try:
                self._connection.send(message)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise
                _await(self._connection, select.POLLOUT, _POLL_S)
            except OSError:
                break
        return actor

    def is_over(self) -> bool:
        """Return whether the host has ended; its reports up to then are received. A living one is looked at every LOOK_S."""
        now_s = time.monotonic()
        # asked for each of hundreds of actors
        if self.popen.returncode is not None or now_s - self._listened_s >= LOOK_S:
            self._listened_s = now_s
            self.popen.poll()
            self.listen()
        return self.popen.returncode is not None

    def ends(self, timeout_s: float) -> bool:
        """Return whether the host has ended, or does within `timeout_s`."""
        try:
            self.popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def listen(self, timeout_s: float = 0.0) -> None:
        if timeout_s:
            _await(self._connection, select.POLLIN, timeout_s)
        while True:
            try:
                message = self._connection.recv(MAX_ORDER_BYTES)
            except OSError:  # no more messages now, or the host or this end is closed
                return
            if not message:
                return
            fields = json.loads(message)
            actor = self._actors[fields["number"]]
            actor.pid = fields.get("pid", actor.pid)
            actor.status = fields.get("status")

    def close(self, timeout_s: float = 2.0) -> None:
        self._connection.close()
        try:
            self.popen.wait(0.0 if self.mute else timeout_s)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # inside the kernel: it ends when it returns
                self.popen.wait(timeout_s)


def control_args(start: Start) -> list[str]:
    """Return the command-line words that give a worker its controller and its niceness."""
    keys = ["--keys", start.keys] if start.keys is not None else []
    return ["--control", start.control, *keys, *(["--nice", str(start.nice)] if start.nice else [])]


def _await(connection: socket.socket, event: int, timeout_s: float) -> None:
    """Wait until a socket can be read or written; also for descriptors above the limit of `select` (1,023)."""
    poller = select.poll()
    poller.register(connection, event)
    poller.poll(1000.0 * timeout_s)


class HostedActor:
    """An actor that a host forked, with the interface of subprocess.Popen.

    Attributes:
      number: of the order. pid: None until the host has reported it. status: its exit status, once the host has reported it.
    """

    def __init__(self, host: ActorHost, number: int) -> None:
        self.host, self.number = host, number
        self.pid: int | None = None
        self.status: int | None = None

    @property
    def died_with_host(self) -> bool:
        """Return whether this actor ended because its host died."""
        return self.host.is_over() and self.status is None

    def poll(self) -> int | None:
        return -signal.SIGKILL if self.died_with_host else self.status

    def wait(self, timeout: float) -> int:
        until = time.monotonic() + timeout
        while (status := self.poll()) is None:
            left_s = until - time.monotonic()
            if self.pid is not None and not process_alive(self.pid):
                limit_s = 0.0 if self.host.mute else 0.5  # the host's death may be visible a moment after the actor's
                self.host.listen(limit_s)
                if self.status is None and not self.host.ends(limit_s):
                    self.host.mute, self.status = True, -signal.SIGKILL
            elif left_s <= 0:
                raise subprocess.TimeoutExpired(f"actor {self.pid} of {self.host.log.stem}", timeout)
            else:
                self.host.listen(min(left_s, _POLL_S))
        return status

    def kill(self) -> None:
        """End the actor and the processes it started; if it is not forked yet, the host and all its actors."""
        self.host.listen()
        if self.poll() is None and self.pid is None:
            self.host.popen.kill()
            self.host.popen.wait(5.0)
        elif self.status is None and self.pid is not None:
            kill_group(self.pid)
