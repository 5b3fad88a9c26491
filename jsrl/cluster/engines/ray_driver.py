"""The engine for hosts from Ray: `jsrl run NAME --launcher ray`.

A separate process, the driver, uses Ray, so that neither Ray's signal handlers nor its end reach the controller. The
driver reserves a STRICT_SPREAD placement group with a bundle for each host, and keeps an actor in each that starts `jsrl join`
there as a plain process. Ray restarts nothing: when an agent or its node ends, the engine's thread starts it again, in the
same bundle, which Ray moves to another node. When the driver ends, Ray ends the actors and returns the bundles.

Engine and driver exchange lines of JSON over the driver's standard input and output; the driver ends when its input ends.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsrl.cluster.engines.ray import (
    LOCAL,
    RayRequest,
    bundle_of,
    cpus_of,
    hosts_text,
    lacks_token,
    node_of,
    refusal,
    shortage,
    unusable,
)
from jsrl.errors import ConfigError, MissingExtra
from jsrl.extras import install_command

CONNECT_S, PLACE_MORE_S = 5.0, 60.0  # to reach the head; to start or reach Ray, in addition to the time for placing
GONE_S, LEAVE_S = 5.0, 5.0  # for agents; for the driver
STORE_BYTES = 75 << 20  # Ray's minimum of /dev/shm for its objects; there are none here
SHORT_S, LOOK_S = 3.0, 0.1
STAYS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # a SIGTERM to all processes of a job is for the controller
TRIES = 5  # to start an actor for an agent
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}  # of a local Ray, unless set


class Ray:
    """Starts agents on nodes of a Ray cluster; see jsrl.cluster.engines.engine.Engine.

    Args:
      request: options for Ray. notify: shows a line to the user.

    Raises:
      MissingExtra: Ray is not installed.
    """

    def __init__(self, request: RayRequest, notify: Callable[[str], None]) -> None:
        if importlib.util.find_spec("ray") is None:
            raise MissingExtra(f"--launcher ray needs the package ray, not installed here: {install_command('ray')}")
        self._request, self._notify = request, notify
        self.hosts = request.hosts
        self._driver: subprocess.Popen[str] | None = None
        self._ended: dict[str, str] = {}
        self._begun: set[str] = set()  # hosts whose agents the driver has started
        self._changed = threading.Condition()
        self._address = self._refused = ""

    def acquire(self) -> str:
        """Wait for the nodes; return this host's IP address for them."""
        self._start()
        with self._changed:
            self._changed.wait_for(lambda: self._address or self._refused, self._request.place_s + PLACE_MORE_S)
        if not self._address:
            self.close()
            raise ConfigError(self._refused or "Ray did not answer in time; see `ray status`.")
        return self._address

    def _start(self) -> None:
        log = tempfile.TemporaryFile(prefix="jsrl-ray-")  # noqa: SIM115
        self._refused = ""
        self._driver = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,  # Ctrl-C is for the controller
        )
        threading.Thread(target=self._listen, args=(self._driver, log), name="ray-driver", daemon=True).start()
        self._write(self._request.entry)

    def _write(self, facts: Mapping[str, Any]) -> None:
        assert self._driver is not None and self._driver.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, as `_listen` records
            self._driver.stdin.write(json.dumps(facts) + "\n")
            self._driver.stdin.flush()

    def _listen(self, driver: subprocess.Popen[str], log: Any) -> None:
        """Receive the driver's messages until it ends."""
        assert driver.stdout is not None
        for line in driver.stdout:
            message = json.loads(line)
            if "notify" in message:
                self._notify(message["notify"])
            with self._changed:
                self._address = message.get("placed", self._address)
                self._refused = message.get("refused", self._refused)
                if "ended" in message:
                    self._ended[message["ended"]] = message["why"]
                self._changed.notify_all()
        status = driver.wait()
        log.seek(0)
        lines = log.read().decode(errors="replace").strip().splitlines()
        log.close()
        with self._changed:
            last = f": {lines[-1][:300]}" if lines else ""
            self._refused = self._refused or f"the process that uses Ray ended with status {status}{last}"
            self._ended |= {host: self._refused for host in self._begun if host not in self._ended}
            self._begun.clear()
            self._changed.notify_all()

    def begin(self, host: str, key: Path) -> None:
        """Start the agent of a host; Ray carries the join key, which is in no command line, variable or file."""
        if self._driver is None or self._driver.poll() is not None:
            self._start()
        with self._changed:
            self._ended.pop(host, None)
            self._begun.add(host)
        self._write({"host": host, "key": key.read_text()})

    def ended(self, host: str) -> str:
        return self._ended.get(host, "")

    def close(self) -> None:
        """Wait briefly for the agents, and let the driver return the nodes."""
        if self._driver is None:
            return
        with self._changed:
            self._changed.wait_for(lambda: self._begun <= set(self._ended), GONE_S)
        assert self._driver.stdin is not None
        with contextlib.suppress(OSError):
            self._driver.stdin.close()
        try:
            self._driver.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            self._driver.kill()
            self._driver.wait(LEAVE_S)


# -- the driver's process


class AgentOfBundle:
    """The actor of a host. It is copied to a node, so it uses nothing of jsrl."""

    def serve(self, facts: list[str], key: str, python: str, variables: dict[str, str]) -> str:
        """Start `jsrl join` with some words; it ends with this process. Return how it ended, once it has."""
        file = os.memfd_create("jsrl-key")
        os.fchmod(file, 0o600)
        os.write(file, key.encode())
        command = [python or sys.executable, "-P", "-m", "jsrl.cli.main", "join", f"/proc/self/fd/{file}", *facts]
        command += ["--parent", str(os.getpid())]
        node = socket.gethostname()
        with tempfile.TemporaryFile() as output:
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=[file],
                    env={**os.environ, **variables},
                    start_new_session=True,
                )
            except OSError as error:
                return f"{command[0]} cannot be started on {node}: {error}"
            finally:
                os.close(file)
            status = process.wait()
            output.seek(0)
            lines = output.read().decode(errors="replace").strip().splitlines()
        return f"jsrl join on {node} ended with status {status}" + (f": {lines[-1][:300]}" if lines else "")


class Refused(Exception):
    """Ray cannot be used as requested; the message is for the user."""


@dataclass(frozen=True)
class HostActor:
    """An actor of a host. there: answers once it is on its node. again: restarts it, if allowed."""

    host: str
    actor: Any
    there: Any
    again: Callable[[], None] | None


class Driver:
    """The driver's process: one placement group, and an actor for each started host.

    Args:
      request: options for Ray. lines: lines of the engine; None: it has ended. write_line: sends to the engine.
    """

    def __init__(
        self, request: RayRequest, lines: queue.SimpleQueue[str | None], write_line: Callable[[Mapping[str, Any]], None]
    ) -> None:
        import ray

        self._ray: Any = ray
        self._request, self._lines, self._write = request, lines, write_line
        self._serving: dict[Any, HostActor] = {}  # by the result of `serve`
        self._cpus = 0
        self._group: Any = None

    def run(self) -> None:
        """Serve until the engine ends."""
        started = self._connect()
        for number in STAYS:  # Ray has set its own handlers
            signal.signal(number, signal.SIG_IGN)
        self._place(started)
        self._write({"placed": self._ray.util.get_node_ip_address()})
        while True:
            with contextlib.suppress(queue.Empty):
                line = self._lines.get(timeout=LOOK_S)
                if line is None:
                    return
                self._begin(**json.loads(line))
            self._look()

    def _connect(self) -> bool:
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "namespace": "jsrl"}
        address = self._request.address
        try:
            if address != LOCAL and self._reached(address, quiet):
                self._write({"notify": f"using the Ray at {self._ray.get_runtime_context().gcs_address}"})
                return False
            for name, value in QUIET.items():
                os.environ.setdefault(name, value)
            self._ray.init(LOCAL, include_dashboard=False, object_store_memory=STORE_BYTES, **quiet)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise Refused(unusable(address, error)) from error
        why = "as --ray.address says" if address == LOCAL else "no Ray is running here"
        self._write({"notify": f"started a local Ray of one node, which ends with the run ({why})"})
        return True

    def _reached(self, address: str, options: Mapping[str, Any]) -> bool:
        """Connect to a running Ray; return whether there is one. An address must have one."""
        check_answers(address)
        try:
            self._ray.init(address or "auto", **options)
        except ConnectionError as error:
            if address or lacks_token(error):
                raise
            return False
        return True

    def _nodes(self) -> list[Any]:
        return [node_of(entry) for entry in self._ray.nodes() if entry["Alive"]]

    def _place(self, is_local: bool) -> None:
        """Reserve the nodes; reserve all CPUs of nodes that an autoscaler has added meanwhile.

        It would not replace a lost node if a bundle fits beside another on a remaining node: it forgets that they may not
        share a node.
        """
        begun_s, self._cpus = time.monotonic(), cpus_of(self._request, self._nodes())
        self._reserve(is_local, begun_s)
        if (cpus := cpus_of(self._request, self._nodes())) > self._cpus:
            self._ray.util.remove_placement_group(self._group)
            self._cpus = cpus
            self._reserve(is_local, begun_s)

    def _reserve(self, is_local: bool, begun_s: float) -> None:
        """Reserve nodes with `_cpus` each; report early what is missing, because a cluster may grow meanwhile."""
        request = self._request
        limit_s = SHORT_S if is_local and shortage(request, self._cpus, self._nodes()) else request.place_s
        bundles = [bundle_of(request, self._cpus)] * request.num_hosts
        name = f"jsrl-{socket.gethostname()}-{os.getpid()}-{self._cpus}"  # unique in a cluster
        self._group = self._ray.util.placement_group(bundles, strategy="STRICT_SPREAD", name=name)
        announced = False
        while not self._group.wait(1):
            waited_s = time.monotonic() - begun_s
            short = shortage(request, self._cpus, self._nodes())
            if waited_s > limit_s:
                raise Refused(refusal(request, self._cpus, self._nodes(), self._ray.available_resources(), limit_s))
            if self._has_ended():
                raise Refused("the run ended before Ray had placed its hosts")
            if waited_s > SHORT_S and not announced:
                announced = True
                asked = hosts_text(request, self._cpus)
                why = short or "its nodes are in use"
                self._write({"notify": f"waiting {limit_s:g} s (--ray.place-s) for Ray to place {asked}: {why}"})

    def _has_ended(self) -> bool:
        """Return whether the engine has ended; its requests stay queued."""
        lines = [self._lines.get() for _ in range(self._lines.qsize())]
        for line in lines:
            self._lines.put(line)
        return None in lines

    def _begin(self, host: str, key: str, tries: int = 1) -> None:
        """Start the actor of a host in its bundle, and the agent."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        request = self._request
        bundle = bundle_of(request, self._cpus)
        actor = self._ray.remote(AgentOfBundle).options(
            num_cpus=bundle["CPU"],
            num_gpus=bundle.get("GPU", 0),
            memory=bundle.get("memory"),
            max_restarts=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, request.hosts.index(host)),
        )
        facts = ["--name", host, "--cores", str(self._cpus)]
        facts += ["--memory-mb", str(request.memory_mb)] if request.memory_mb else []
        variables = {} if request.gpus else {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
        made = actor.remote()
        there = made.__ray_ready__.remote()
        again = functools.partial(self._begin, host, key, tries + 1) if tries < TRIES else None
        self._serving[made.serve.remote(facts, key, request.python, variables)] = HostActor(host, made, there, again)

    def _look(self) -> None:
        """Report ended agents to the engine; start those again that did not reach their node.

        Ray learns of a node's death seconds later, and gives it new actors until then.
        """
        if not self._serving:
            return
        for done in self._ray.wait(list(self._serving), timeout=0)[0]:
            serving = self._serving.pop(done)
            try:
                why = self._ray.get(done)
            except self._ray.exceptions.RayError as error:
                if serving.again is not None and not self._has_begun(serving):
                    serving.again()
                    continue
                broke = isinstance(error, self._ray.exceptions.ActorUnavailableError)
                why = "the connection to its node broke" if broke else f"Ray lost it: {last_line(error)}"
            self._write({"ended": serving.host, "why": why})

    def _has_begun(self, serving: HostActor) -> bool:
        try:
            self._ray.get(serving.there, timeout=0)
        except self._ray.exceptions.RayError:  # also a timeout
            return False
        return True


def last_line(error: Exception) -> str:
    """Return the most informative line of a Ray error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    announced = [line for line in lines if "died" in line.lower()]
    return (announced or lines or [type(error).__name__])[-1][:300]


def check_answers(address: str) -> None:
    """Refuse an address without a listener; Ray itself would wait long."""
    if not address:
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except OSError as error:
        raise Refused(
            f"no answer from {address} ({error.strerror or error}); Ray's address (--ray.address or RAY_ADDRESS) is "
            "HOST:PORT of the head node, as `ray start --head` prints it."
        ) from error


def main() -> None:
    """Run the driver of the engine at the other end of standard input and output."""
    for number in STAYS:
        signal.signal(number, signal.SIG_IGN)
    output = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # output of libraries goes to the log
    request = RayRequest(**json.loads(sys.stdin.readline()))
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def write_line(facts: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):
            output.write(json.dumps(facts) + "\n")

    def listen() -> None:
        for line in sys.stdin:
            lines.put(line)
        lines.put(None)
        time.sleep(LEAVE_S)
        os._exit(1)  # Ray hangs, or the engine is gone

    threading.Thread(target=listen, daemon=True).start()
    try:
        Driver(request, lines, write_line).run()
    except Refused as error:
        write_line({"refused": str(error)})


if __name__ == "__main__":
    main()
