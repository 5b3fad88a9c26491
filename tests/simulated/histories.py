"""One history: a run on several hosts, the faults that a seed plans for it, and what must hold at its end."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import msgspec

from jsrl.cluster.messages import Hello
from jsrl.launch.hosts.facts import code_digest, versions
from tests.simulated.agents import Agent
from tests.simulated.checks import Checks
from tests.simulated.controller import Controller
from tests.simulated.network import Link
from tests.simulated.world import Host, Process, Violation, World

TROUBLE_S, QUIET_S = 30.0, 30.0  # in which faults happen; after which all workers must run
WORKERS = ("actor-0", "actor-1", "actor-2", "actor-3", "inference-0", "learner")
ACTED_S = 3.0  # a worker that runs has acted this long ago at most
MAX_FAULTS = 12


class Fault(NamedTuple):
    """What happens at `at_s`: to a host, or a worker, of these numbers, for `for_s`."""

    at_s: float
    name: str
    host: int
    worker: int
    for_s: float


@dataclass(frozen=True)
class Outcome:
    """How a history went: `why` it failed (empty: it did not), and its events."""

    seed: int
    faults: tuple[Fault, ...]
    why: str
    end: str
    history: list[tuple[float, str, tuple[object, ...]]]


class History:
    """A run with the workers above, on the controller's host and some that join."""

    def __init__(self, seed: int, only: Collection[int] | None = None) -> None:
        self.world = World(seed)
        world = self.world
        self.num_hosts = world.random.randint(1, 3)
        planned = plan(world, self.num_hosts)
        self.faults = tuple(fault for number, fault in enumerate(planned) if only is None or number in only)
        self.checks = Checks(world, WORKERS)
        self.here = Host(world, "here")
        self.controller = Controller(self.here, self.checks)
        self.hosts: list[Host] = []
        self.links: list[Link] = []
        self.agents: list[Agent | None] = []
        for _ in range(self.num_hosts):
            self.join()
        for fault in self.faults:
            world.after(fault.at_s, None, self.strike, fault)
        world.after(TROUBLE_S, None, self.calm)

    # -- hosts

    def join(self) -> None:
        """Have one more host join."""
        host = Host(self.world, f"h{len(self.hosts)}")
        self.hosts.append(host)
        self.links.append(Link(self.world))
        self.agents.append(None)
        self.begin_agent(len(self.hosts) - 1)

    def begin_agent(self, number: int) -> None:
        """Start the agent of a host, as `jsrl join` or an engine does."""
        if self.controller.end or not self.controller.alive:
            return
        host, world = self.hosts[number], self.world
        hello = msgspec.structs.replace(
            said_hello(), session=f"{world.random.getrandbits(64):x}", name=host.name, boot=host.boot,
            folder=f"/tmp/{host.name}", address=f"10.0.0.{number + 2}",
        )  # fmt: skip
        self.agents[number] = Agent(
            host, self.links[number], self.controller, self.controller.join_key, hello, self.checks
        )

    def keep_agents(self) -> None:
        """Start agents again that ended and may return, as an engine does."""
        for number, agent in enumerate(self.agents):
            is_revoked = self.hosts[number].name in self.controller.revoked
            if agent is not None and not agent.alive and agent.may_return and not is_revoked:
                self.agents[number] = None
                self.world.after(self.world.between(0.3, 3.0), None, self.begin_agent, number)

    # -- faults

    def strike(self, fault: Fault) -> None:
        self.world.note("faults", fault.name, f"host {fault.host}", f"for {fault.for_s:.1f} s")
        getattr(self, f"fault_{fault.name}")(fault)

    def calm(self) -> None:
        self.world.note("faults", "have ended")
        for link in self.links:
            link.slow_s, link.twice = 0.02, 0.0
            link.set(up=True, down=True)
        for host in [self.here, *self.hosts]:
            for process in host.living:
                process.thaw()
        for agent in self.agents:
            if agent is not None:
                agent.lies = False

    def later(self, fault: Fault, action: Callable[[], None]) -> None:
        """Undo a fault after its time, or when all faults end."""
        self.world.after(min(fault.for_s, TROUBLE_S - fault.at_s), None, action)

    def fault_break(self, fault: Fault) -> None:
        self.links[fault.host].break_all()

    def fault_partition(self, fault: Fault) -> None:
        self._block(fault, up=False, down=False)

    def fault_deaf(self, fault: Fault) -> None:
        self._block(fault, up=True, down=False)

    def fault_mute(self, fault: Fault) -> None:
        self._block(fault, up=False, down=True)

    def _block(self, fault: Fault, *, up: bool, down: bool) -> None:
        link = self.links[fault.host]
        link.set(up=up, down=down)
        self.later(fault, lambda: link.set(up=True, down=True))

    def fault_slow(self, fault: Fault) -> None:
        link = self.links[fault.host]
        link.slow_s = self.world.between(0.2, 3.0)
        self.later(fault, lambda: setattr(link, "slow_s", 0.02))

    def fault_duplicate(self, fault: Fault) -> None:
        link = self.links[fault.host]
        link.twice = self.world.between(0.05, 0.5)
        self.later(fault, lambda: setattr(link, "twice", 0.0))

    def fault_kill_worker(self, fault: Fault) -> None:
        for process in self._workers(fault):
            process.die(-9)

    def fault_crash_worker(self, fault: Fault) -> None:
        for process in self._workers(fault):
            if process.acts:
                process.crash("ValueError")

    def fault_freeze_worker(self, fault: Fault) -> None:
        for process in self._workers(fault):
            process.freeze()
            self.later(fault, process.thaw)

    def fault_kill_agent(self, fault: Fault) -> None:
        if (agent := self._agent(fault)) is not None:
            agent.die(-9)
            self.keep_agents()

    def fault_freeze_agent(self, fault: Fault) -> None:
        self._freeze(fault, [agent for agent in [self._agent(fault)] if agent is not None])

    def fault_freeze_host(self, fault: Fault) -> None:
        self._freeze(fault, self.hosts[fault.host].living)

    def fault_freeze_controller(self, fault: Fault) -> None:
        self._freeze(fault, [self.controller])

    def _freeze(self, fault: Fault, processes: list[Process]) -> None:
        for process in processes:
            process.freeze()
            self.later(fault, process.thaw)

    def fault_lose_host(self, fault: Fault) -> None:
        """Cut the power of a host; sometimes it comes back."""
        host = self.hosts[fault.host]
        host.lose()
        if fault.for_s < 10.0:
            self.later(fault, self.keep_agents)

    def fault_step_clock(self, fault: Fault) -> None:
        """Suspend a whole host: its clock goes on, and its processes do not."""
        self.hosts[fault.host].origin_s += fault.for_s

    def fault_terminate_agent(self, fault: Fault) -> None:
        if (agent := self._agent(fault)) is not None:
            agent.terminate()

    def fault_terminate_host(self, fault: Fault) -> None:
        """Send SIGTERM to all processes of a host, as Slurm does."""
        for process in self.hosts[fault.host].living:
            process.after(0.0, process.terminate if isinstance(process, Agent) else process.leave)  # type: ignore[attr-defined]

    def fault_terminate_workers_here(self, fault: Fault) -> None:
        for process in self.here.living:
            if process is not self.controller:
                process.after(0.0, process.leave)  # type: ignore[attr-defined]

    def fault_interrupt(self, fault: Fault) -> None:
        self.controller.after(0.0, self.controller.interrupt)

    def fault_join(self, fault: Fault) -> None:
        if len(self.hosts) < 5:
            self.join()

    def fault_join_again(self, fault: Fault) -> None:
        """Start a second agent on a host; the first one goes."""
        self.begin_agent(fault.host)

    def fault_revoke(self, fault: Fault) -> None:
        self.controller.revoked.add(self.hosts[fault.host].name)

    def fault_lie(self, fault: Fault) -> None:
        if (agent := self._agent(fault)) is not None:
            self.checks.liars.add(agent.host.name)
            agent.lies = True

    def _agent(self, fault: Fault) -> Agent | None:
        agent = self.agents[fault.host]
        return agent if agent is not None and agent.alive else None

    def _workers(self, fault: Fault):  # type: ignore[no-untyped-def]
        return [worker for worker in self.checks.living(WORKERS[fault.worker])]

    # -- the run

    def run(self) -> str:
        """Run the history; return why it failed."""
        try:
            self.world.run(TROUBLE_S + QUIET_S)
            self.controller_keeps()
        except Violation as violation:
            return str(violation)
        except Exception:
            return f"a machine raised an error: {traceback.format_exc()}"
        return ""

    def controller_keeps(self) -> None:
        if self.controller.end:
            return
        for task in self.controller.tasks:
            since_s = self.world.now - self.checks.acted_s.get(task.name, 0.0)
            if not (task.alive and task.ready) or since_s > ACTED_S:
                where = task.remote.host.name if task.remote is not None else "here"
                raise Violation(
                    f"{task.name} does not run {QUIET_S:g} s after the last fault: incarnation {task.incarnation}, on "
                    f"{where}, alive {task.alive}, ready {task.ready}, acted {since_s:.1f} s ago"
                )


@cache
def said_hello() -> Hello:
    return Hello(
        0, session="", name="", boot="", versions=versions(), code=code_digest(), folder="", address="", cores=4,
        memory_mb=1_000,
    )  # fmt: skip


WEIGHTS = {
    "break": 4, "partition": 3, "deaf": 2, "mute": 2, "slow": 2, "duplicate": 2, "kill_worker": 4, "crash_worker": 2,
    "freeze_worker": 2, "kill_agent": 2, "freeze_agent": 2, "freeze_host": 2, "freeze_controller": 1, "lose_host": 1,
    "step_clock": 0, "terminate_agent": 1, "terminate_host": 1, "terminate_workers_here": 1, "interrupt": 0.3, "join": 1,
    "join_again": 1, "revoke": 0.5, "lie": 1,
}  # fmt: skip


def plan(world: World, num_hosts: int) -> list[Fault]:
    """Draw the faults of a history: few sorts of them in each, so that rare ones meet."""
    sorts = world.random.choices(list(WEIGHTS), list(WEIGHTS.values()), k=world.random.randint(1, 4))
    faults = []
    for _ in range(world.random.randint(1, MAX_FAULTS)):
        at_s = world.between(0.0, TROUBLE_S)
        host, worker = world.random.randrange(num_hosts), world.random.randrange(len(WORKERS))
        faults.append(Fault(at_s, world.random.choice(sorts), host, worker, world.between(0.1, 25.0)))
    return sorted(faults)


def tell(seed: int, only: Collection[int] | None = None) -> Outcome:
    """Run a history."""
    history = History(seed, only)
    why = history.run()
    return Outcome(seed, history.faults, why, history.controller.end, history.world.history)
