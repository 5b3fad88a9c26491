"""The actor host: one process that loads numpy, the actor and the environment once, and forks actors that share them.

An actor in its own interpreter has about 25 MB of private memory, a forked one about a quarter of that; a fork takes
milliseconds. A fork copies memory but no threads, so this process never has threads: no ZeroMQ context, no environment
(only its modules), one math thread. The controller sends orders over a socket (standard input); the host reports how
its actors ended. It ends with the controller, and its actors end with it.
"""

from __future__ import annotations

import atexit
import gc
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from jsrl.linux import die_with_parent, show_name, show_word, thread_names

MAX_ORDER_BYTES = 1 << 16
PRELOADED = (  # what actors import, besides what the actor of a job needs
    "jsrl.transport.network.call",
    "jsrl.transport.network.reliable",
    "jsrl.transport.shared.inference",
    "jsrl.transport.shared.samples",
    "jsrl.workers.actor.build",
    "jsrl.workers.process",
)


@dataclass(frozen=True)
class Order:
    """Start one actor: its number in this host, job file, name, incarnation, and the file of its output."""

    number: int
    job: str
    name: str
    incarnation: int
    log: str


def host_actors(control_address: str, parent_pid: int, keys: str | None, nice: int) -> int:
    """Fork actors as the controller orders them, until it closes the connection; return the exit status.

    `nice` is added to the niceness of the actors, not to that of this process, which reports their ends.

    In each actor this call does not return: an actor ends without taking its modules apart, which would copy all the memory
    that it shares with this process.
    """
    die_with_parent(parent_pid)
    show_name("actor-host")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    for number in (signal.SIGINT, signal.SIGTERM):  # Slurm sends them to all processes; actors inherit that, see `work`
        signal.signal(number, signal.SIG_IGN)
    host = _Host(socket.socket(fileno=os.dup(0)), control_address, keys, nice)
    _redirect(os.devnull, os.O_RDONLY, 0)
    order = host.serve()
    if order is None:
        return 0
    from jsrl.workers.process import work

    status = work(Path(order.job), control_address, order.name, order.incarnation, host.pid, keys)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


class _Host:
    """The loop over orders and ended actors. `pid`: of the host, also in its actors."""

    def __init__(self, connection: socket.socket, control_address: str, keys: str | None, nice: int) -> None:
        self.pid, self._nice = os.getpid(), nice
        self._connection, self._control_address, self._keys = connection, control_address, keys
        self._actors: dict[int, int] = {}  # process id -> number of the order
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_receiver.setblocking(False)
        self._wake_sender.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # a handler, so that the wake-up descriptor is written
        signal.set_wakeup_fd(self._wake_sender.fileno(), warn_on_full_buffer=False)
        self._loaded = False
        self._unfit = ""

    def serve(self) -> Order | None:
        """Return None when the controller has closed the connection, or, in a forked actor, the order to carry out."""
        while True:
            ready, _, _ = select.select([self._connection, self._wake_receiver], [], [])
            if self._wake_receiver in ready:
                self._wake_receiver.recv(4096)
                self._report_ended()
            if self._connection in ready:
                message = self._connection.recv(MAX_ORDER_BYTES)
                if not message:
                    self._kill_all()
                    return None
                order = Order(**json.loads(message))
                if self._start(order):
                    return order

    def _start(self, order: Order) -> bool:
        """Start an actor; return True in the actor's own process."""
        if not self._loaded:
            self._load(order)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # else an actor would write it once more
        pid = self._spawn(order) if self._unfit else os.fork()
        if pid == 0:
            self._run_as_actor(order)
            return True
        self._actors[pid] = order.number
        self._send(number=order.number, pid=pid)
        return False

    def _load(self, order: Order) -> None:
        """Import what actors need, and check that it allows a fork."""
        self._loaded = True
        load_modules(Path(order.job))
        threads = len(thread_names())
        if threads > 1:
            self._unfit = f"the environment's modules started {threads - 1} threads as they were imported"
        elif "jax" in sys.modules:
            self._unfit = "the environment's modules import jax"
        if self._unfit:
            logging.getLogger("jsrl.workers").warning(
                "%s, so actors cannot be forked; each is started as an interpreter of its own, which costs about 20 MB "
                "and 0.2 s more. Start threads where environments are made, not where they are imported",
                self._unfit,
            )
        gc.collect()
        gc.freeze()  # a collection in an actor must not write to shared pages

    def _run_as_actor(self, order: Order) -> None:
        """Turn this forked process into an actor; it keeps only the host's modules."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for connection in (self._wake_receiver, self._wake_sender, self._connection):
            connection.close()
        show_word("actor-host", order.name)
        os.setsid()
        os.nice(self._nice)
        for target in (1, 2):
            _redirect(order.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, target)
        import numpy as np

        np.random.seed()

    def _spawn(self, order: Order) -> int:
        """Start an actor's own interpreter, where forking is not safe."""
        command = [sys.executable, "-m", "jsrl.workers", order.name, "--job", order.job, "--name", order.name]
        command += ["--incarnation", str(order.incarnation), "--control", self._control_address]
        command += ["--parent", str(self.pid), *(["--keys", self._keys] if self._keys is not None else [])]
        command += ["--nice", str(self._nice)]
        with open(order.log, "ab") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        process.returncode = 0  # _report_ended reaps it like all others, not subprocess
        return process.pid

    def _report_ended(self) -> None:
        """Report actors that ended, after ending the processes they started."""
        for pid, number in list(self._actors.items()):
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                continue
            kill_group(pid)  # while its id is still taken
            _, status = os.waitpid(pid, 0)
            del self._actors[pid]
            self._send(number=number, status=os.waitstatus_to_exitcode(status))

    def _kill_all(self) -> None:
        for pid in self._actors:
            kill_group(pid)
        for pid in self._actors:
            os.waitpid(pid, 0)

    def _send(self, **fields: int) -> None:
        try:
            self._connection.send(json.dumps(fields).encode())
        except OSError:
            self._kill_all()  # the controller is gone
            os._exit(1)


def load_modules(job_path: Path) -> None:
    """Import everything that the actor of a job needs, including its environment; create nothing.

    Import errors are logged and left to the actors, which report them as their own.
    """
    from jsrl.envs.make import import_modules
    from jsrl.fields import decoding
    from jsrl.references.reference import from_json
    from jsrl.workers.kinds import find_kind

    for name in PRELOADED:
        import_module(name)
    try:
        with decoding():
            job: Any = from_json(json.loads(job_path.read_text()))
        find_kind(job.kind)  # imports its kind
        import_modules(job.experiment.env)
    except Exception:  # any error of the user's module: each actor will raise it again and report it under its name
        logging.getLogger("jsrl.workers").warning("not loaded ahead of the actors:\n%s", traceback.format_exc())


def _redirect(path: str, flags: int, target: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
    os.dup2(descriptor, target)
    os.close(descriptor)


def kill_group(pid: int) -> None:
    """End a process and the processes it started, even before it leads its own process group."""
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
