"""One history: a run on several hosts, the faults that a seed plans for it, and what must hold at its end."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache

import msgspec

from jsrl.cluster.messages import Hello
from jsrl.cluster.this_host import code_digest, versions
from jsrl.control.ending import Level
from jsrl.control.supervision import Phase, Rules
from tests.simulated.agents import Agent
from tests.simulated.checks import Checks
from tests.simulated.controller import DEADLINES, Controller
from tests.simulated.network import Link
from tests.simulated.workers import Worker
from tests.simulated.world import Fault, Host, Process, Result, Violation, World, judged

TROUBLE_S, QUIET_S = 30.0, 30.0  # in which faults happen; after which all workers must run
LEVELS = [
    Level(frozenset({"actor-0", "actor-1", "actor-2"}), publishes=False),
    Level(frozenset({"inference-0"}), publishes=False),
    Level(frozenset({"learner", "learner-1"}), publishes=True),
    Level(frozenset({"evaluator"}), publishes=False),
]
ACTED_S = 3.0  # a worker that runs has acted this long ago at most
LEFT_S = 25.0  # after the end of a run, until which the lease of a host that was not told is over
MAX_FAULTS = 12


def rules_of(world: World) -> dict[str, Rules]:
    """Return the rules of a run's workers: mostly many restarts, sometimes few or none; sometimes two ranks."""
    restarts = world.random.choices((30, 3, 1, 0), (8, 1, 1, 1))[0]
    ranks = ("learner", "learner-1") if world.happens(0.3) else ("learner",)
    rules = {f"actor-{number}": Rules("actor", restarts, (f"actor-{number}",), groups=(number,)) for number in range(3)}
    rules["inference-0"] = Rules("inference", restarts, ("inference-0",))
    for rank in ranks:
        rules[rank] = Rules("learner", restarts, ranks, saves=True, keeps_files=True, must_finish=True, learns=True)
    return rules | {"evaluator": Rules("evaluator", restarts, ("evaluator",), loss_ends_run=False)}


class History:
    """A run with the workers above, on the controller's host and some that join."""

    def __init__(self, seed: int, only: Collection[int] | None = None) -> None:
        world = self.world = World(seed)
        self.rules = rules_of(world)
        levels = [Level(level.workers & self.rules.keys(), level.publishes) for level in LEVELS]
        num_hosts = world.random.randint(0, 3)
        planned = plan(world, num_hosts, len(self.rules))
        self.faults = tuple(fault for number, fault in enumerate(planned) if only is None or number in only)
        self.checks = Checks(world, self.rules, levels, DEADLINES)
        self.here = Host(world, "here")
        self.controller = Controller(self.here, self.checks, self.rules, levels)
        self.hosts: list[Host] = []
        self.links: list[Link] = []
        self.agents: list[Agent | None] = []
        for _ in range(num_hosts):
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
        self.agents[number] = Agent(host, self.links[number], self.controller.port, hello, self.checks)

    def keep_agents(self) -> None:
        """Start agents again that ended and may return, as an engine does."""
        for number, agent in enumerate(self.agents):
            is_revoked = self.hosts[number].name in self.controller.port.revoked
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
        self.controller.lacks_space, self.controller.echoes = False, 0.0
        for agent in self.agents:
            if agent is not None and agent.alive:
                agent.be_honest()

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
        link.slow_s = self.world.random.choice((0.3, 1.0, 3.0, 9.0))
        self.later(fault, lambda: setattr(link, "slow_s", 0.02))

    def fault_duplicate(self, fault: Fault) -> None:
        link = self.links[fault.host]
        link.twice = self.world.between(0.05, 0.5)
        self.later(fault, lambda: setattr(link, "twice", 0.0))

    def fault_kill_worker(self, fault: Fault) -> None:
        for worker in self._workers(fault):
            worker.die(-9)
            self._notice(worker)

    def _notice(self, dead: Worker) -> None:
        """Have others notice it: other ranks, and actors, whose server is not replaced in time."""
        is_server = dead.worker.startswith("inference")
        for name in self.rules:
            notices = is_server and name.startswith("actor") and self.world.happens(0.3)
            if notices or (name in self.rules[dead.worker].ranks and name != dead.worker):
                for other in self.checks.living(name):
                    other.lose_peer(dead)

    def fault_crash_worker(self, fault: Fault) -> None:
        for worker in self._workers(fault):
            if worker.acts:
                worker.crash("ValueError")

    def fault_leave_worker(self, fault: Fault) -> None:
        """Send SIGTERM to a worker, from elsewhere."""
        for worker in self._workers(fault):
            worker.after(0.0, worker.leave)

    def fault_babble(self, fault: Fault) -> None:
        for worker in self._workers(fault):
            worker.babbles = True

    def fault_hang(self, fault: Fault) -> None:
        """Kill a worker whose next incarnation never becomes ready."""
        self.checks.hanging.add(list(self.rules)[fault.worker])
        self.fault_kill_worker(fault)

    def fault_full_disk(self, fault: Fault) -> None:
        self.controller.lacks_space = True
        self.later(fault, lambda: setattr(self.controller, "lacks_space", False))

    def fault_echo(self, fault: Fault) -> None:
        self.controller.echoes = self.world.between(0.05, 0.5)

    def fault_finish(self, fault: Fault) -> None:
        """Have the learner make the last update of the run."""
        for rank in self.rules["learner"].ranks:
            for worker in self.checks.living(rank):
                worker.after(0.0, worker.finish_training)

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
        self.controller.port.revoked.add(self.hosts[fault.host].name)

    def fault_lie(self, fault: Fault) -> None:
        if (agent := self._agent(fault)) is not None:
            self.checks.liars.add(agent.host.name)
            agent.lies = True

    def _agent(self, fault: Fault) -> Agent | None:
        agent = self.agents[fault.host]
        return agent if agent is not None and agent.alive else None

    def _workers(self, fault: Fault) -> list[Worker]:
        return self.checks.living(list(self.rules)[fault.worker])

    # -- the run

    def run(self) -> str:
        """Run the history; return why it failed."""
        return judged(lambda: (self.world.run(TROUBLE_S + QUIET_S), self.judge())[1])

    def judge(self) -> None:
        """Check that all workers run, or that the run has ended and said why, and nothing of it is left."""
        controller = self.controller
        if controller.end:
            ended_s = controller.ended_s
            left = [worker.name for worker in self.checks.processes.values() if worker.alive]
            if left and self.world.now - ended_s > LEFT_S:
                raise Violation(f"the run ended {self.world.now - ended_s:.1f} s ago, and {left} still run")
            return
        if controller.reason:
            raise Violation(f"the run is ending ({controller.reason}), and does not end")
        lives = controller.supervision.lives
        for name, rule in self.rules.items():
            incarnations = [lives[rank].incarnation for rank in rule.ranks]
            if len(set(incarnations)) > 1:
                raise Violation(f"the ranks of {name} have different incarnations: {incarnations}")
        for name, handle in controller.handles.items():
            since_s, life = self.world.now - self.checks.acted_s.get(name, 0.0), lives[name]
            if handle.exit is not None or not life.is_reachable or since_s > ACTED_S:
                if life.phase is Phase.GONE and not self.rules[name].loss_ends_run:
                    continue
                raise Violation(
                    f"{name} does not run {QUIET_S:g} s after the last fault: incarnation {life.incarnation}, on "
                    f"{handle.host or 'here'}, {life.phase.value}, {life.stage}, ended: {handle.exit}, acted {since_s:.1f} s "
                    "ago"
                )
            names = {entry.name: entry.incarnation for entry in controller.port.members.names()}
            if name.startswith("inference") and handle.host and names.get(f"inference.{name}") != life.incarnation:
                raise Violation(f"the name of {name}, incarnation {life.incarnation}, is not known: {names}")


@cache
def said_hello() -> Hello:
    return Hello(
        0, session="", name="", boot="", versions=versions(), code=code_digest(), folder="", address="", cores=4,
        memory_mb=1_000,
    )  # fmt: skip


WEIGHTS = {
    "break": 4, "partition": 3, "deaf": 2, "mute": 2, "slow": 2, "duplicate": 2, "kill_worker": 5, "crash_worker": 3,
    "leave_worker": 1, "babble": 1, "hang": 1, "freeze_worker": 3, "kill_agent": 2, "freeze_agent": 2, "freeze_host": 2,
    "freeze_controller": 2, "lose_host": 1, "step_clock": 1, "terminate_agent": 1, "terminate_host": 1,
    "terminate_workers_here": 1, "full_disk": 1, "echo": 3, "interrupt": 1, "finish": 2, "join": 1, "join_again": 1,
    "revoke": 0.5, "lie": 1,
}  # fmt: skip
OF_HOSTS = (
    "break", "partition", "deaf", "mute", "slow", "duplicate", "kill_agent", "freeze_agent", "freeze_host", "lose_host",
    "step_clock", "terminate_agent", "terminate_host", "join_again", "revoke", "lie",
)  # fmt: skip


def plan(world: World, num_hosts: int, num_workers: int) -> list[Fault]:
    """Draw the faults of a history: few sorts of them in each, so that rare ones meet."""
    weights = {name: weight for name, weight in WEIGHTS.items() if num_hosts or name not in OF_HOSTS}
    sorts = world.random.choices(list(weights), list(weights.values()), k=world.random.randint(1, 4))
    faults = []
    for _ in range(world.random.randint(1, MAX_FAULTS)):
        at_s = world.between(0.0, TROUBLE_S)
        host, worker = world.random.randrange(max(1, num_hosts)), world.random.randrange(num_workers)
        faults.append(Fault(at_s, world.random.choice(sorts), host, worker, world.between(0.1, 25.0)))
    return sorted(faults)


def tell(seed: int, only: Collection[int] | None = None) -> Result:
    """Run a history."""
    history = History(seed, only)
    why = history.run()
    return Result(seed, history.faults, why, history.controller.end, history.world.history)
