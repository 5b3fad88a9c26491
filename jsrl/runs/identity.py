"""The process of a run: enough to find it again, and never to mistake another process for it."""

from __future__ import annotations

import functools
import os
import signal
import socket
import threading
from dataclasses import dataclass, field

from jsrl.linux import boot_id, catches, pid_namespace, start_ticks
from jsrl.runs.files import process_alive


@dataclass(frozen=True)
class ProcessIdentity:
    """Identity of a process, unique over all hosts, even after its id was reused.

    Attributes:
      host: its host's name. boot: id of the host's current boot. namespace: of its process ids (a container has its own).
      pid: process id. started: start time, in clock ticks after the boot. job: of Slurm; empty: none.
      in_main_thread: signals reach the run; in another thread, as in an idle notebook, they would end the process instead.
    """

    host: str
    boot: str
    namespace: str
    pid: int
    started: int
    job: str = ""
    in_main_thread: bool = field(default=True, compare=False)

    @classmethod
    def own(cls) -> ProcessIdentity:
        job, main = os.environ.get("SLURM_JOB_ID", ""), threading.current_thread() is threading.main_thread()
        return cls(socket.gethostname(), *_here(), os.getpid(), start_ticks(os.getpid()) or 0, job, main)

    @property
    def is_near(self) -> bool:
        """Return whether its process id is valid here: same boot of the same host, same namespace."""
        return (self.boot, self.namespace) == _here()

    @property
    def is_alive(self) -> bool:
        """Return whether the process is alive; False if it is not near."""
        return self.is_near and process_alive(self.pid) and start_ticks(self.pid) == self.started

    def interrupt(self) -> bool:
        """Ask it by SIGTERM to end regularly; return whether it was there and handles signals. No other one is signalled."""
        if not (self.is_near and self.in_main_thread):
            return False
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            # the process of the descriptor cannot change any more
            if start_ticks(self.pid) != self.started or not catches(self.pid, signal.SIGTERM):
                return False
            signal.pidfd_send_signal(descriptor, signal.SIGTERM)
            return True
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)

    def __str__(self) -> str:
        return f"{self.pid} on {self.host}"


@functools.cache
def _here() -> tuple[str, str]:
    """Return the id of this host's boot, and this process's id namespace; if they are not known, nothing is near."""
    return boot_id(), pid_namespace() or str(os.getpid())
