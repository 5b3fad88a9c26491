"""A hostile host with a valid key: it says everything in every other worker's name, and more than it may."""

from __future__ import annotations

import contextlib
import copy
import threading
from pathlib import Path

import psutil
import pytest

from jsrl.agents.ppo import PPOConfig
from jsrl.cluster.launcher import JoinedHosts
from jsrl.cluster.members import Answer, Expel, KeepPages, KeepPart, Lost, Relay, RemoveHalfSent
from jsrl.cluster.messages import WorkerMessages
from jsrl.cluster.this_host import own_facts
from jsrl.control.processes.launcher import Local
from jsrl.control.run import run
from jsrl.experiment import EvaluatorConfig, Experiment, SupervisionConfig
from jsrl.networks.model import NetworkConfig
from jsrl.services.runs.control import ControlServer
from jsrl.services.runs.message_limits import DROPS_S, MAX_DROPS, MAX_MESSAGE_BYTES
from jsrl.transport.ledger.reconcile import leg_ledger
from tests.cluster.agents import await_that
from tests.cluster.hostile import HostileHost, attacks
from tests.cluster.test_members import World, place, said

OTHERS = ["learner", "evaluator", "actor-1"]


@pytest.fixture
def world() -> World:
    return World()


def state_of(world: World) -> object:
    """Return all that a host could change for others."""
    others = (Relay, KeepPages, KeepPart, RemoveHalfSent, Answer, Lost, Expel)
    hosts = [
        (host.name, host.lost, host.leaves, [(r.worker, r.pid, r.exit) for r in host.workers.values()])
        for host in world.members.hosts
    ]
    return copy.deepcopy(
        (hosts, world.members.names(), [action for action in world.done if isinstance(action, others)])
    )


def count_of(world: World, key: str) -> int:
    """Return how many messages with a key were dropped."""
    return world.members.drops[key].count if key in world.members.drops else 0


def test_a_host_can_say_nothing_for_others_and_nothing_above_its_budget(world: World) -> None:
    evil, _ = world.join(), world.join(1, "actor-1", session="s2", name="b", boot="b2")
    before, unnoticed = state_of(world), list[str]()
    for title, message in attacks(evil.membership, "actor-0", OTHERS, 20_000):
        world.now_s += DROPS_S  # so that it is not cut off
        dropped = count_of(world, evil.key)
        world.hear(evil, message)
        assert state_of(world) == before, title
        if count_of(world, evil.key) != dropped + 1:
            unnoticed.append(title)
    assert not unnoticed and len(world.notices) < 14  # ever fewer are shown
    world.hear(evil, WorkerMessages(evil.membership, [said("actor-0")]))
    assert world.relayed == [said("actor-0")]  # its own worker may still speak


def test_a_host_that_is_dropped_ten_times_in_a_minute_is_cut_off_with_a_sentence(world: World) -> None:
    evil, good = world.join(), world.join(1, session="s2", name="b", boot="b2")
    for number in range(3 * MAX_DROPS):
        assert not evil.lost
        world.now_s += 7.0 if number < 2 * MAX_DROPS else 6.0  # at first not often enough
        if number % 4 == 3:
            evil = world.join()  # joining again forgives nothing
        frame = said("learner") if number % 2 else b"\xff"
        told = world.hear(evil, WorkerMessages(evil.membership, [frame]))
        if evil.lost:
            break
    assert number > 2 * MAX_DROPS and world.members.hosts == [good]
    assert evil.lost.startswith("it was cut off: 10 of its messages were dropped within 60 s, the last because")
    assert evil.workers["actor-0", 0].exit.with_host and Expel(evil.key) in world.done
    assert [answer.text for answer in told] == [evil.lost]
    (answer,) = world.hello(2, session="s3")
    assert answer.text == "a was cut off, because of its messages."


@pytest.mark.slow
def test_oversized_messages_of_a_host_end_its_membership_and_no_other(tmp_path: Path) -> None:
    told = list[str]()
    launcher = JoinedHosts(Local(), own_facts("here", "127.0.0.1"), 0, 2, tmp_path / "join.key", told.append)
    with contextlib.closing(launcher):
        evil, good = (HostileHost(launcher.join_key, name) for name in ("evil", "good"))
        with contextlib.closing(evil), contextlib.closing(good):
            before = psutil.Process().memory_info().rss
            for _ in range(MAX_DROPS):
                evil.say(bytes(MAX_MESSAGE_BYTES + 1))
                good.obey(0.2)
                assert not good.end
            evil.obey(20.0)
            assert "a message of 16777217 bytes" in evil.end and evil.end.startswith("it was cut off")
            good.obey(0.5)
            assert [host.name for host in launcher.members.hosts] == ["good"] and not good.end
            assert psutil.Process().memory_info().rss - before < 4 * MAX_MESSAGE_BYTES
    assert any("host evil is gone: it was cut off" in line for line in told)


def test_hosts_are_answered_while_the_controller_reads_no_messages_of_workers(tmp_path: Path) -> None:
    """It may be starting a thousand of them; else all leases would end."""
    launcher = JoinedHosts(Local(), own_facts("here", "127.0.0.1"), 0, 1, tmp_path / "join.key", lambda line: None)
    with contextlib.closing(launcher), contextlib.closing(HostileHost(launcher.join_key, "good")) as good:
        port, (host,) = launcher._port, launcher.members.hosts
        control = ControlServer(f"ipc://{tmp_path}/control")
        port.serve(control, tmp_path / "names", tmp_path, dict, lambda names: {})
        port.tell(place(host, "actor-0"))
        sent = [said("actor-0", text=f"stage {number}") for number in range(200)]
        for frame in sent:
            good.say(WorkerMessages(good.membership, [frame]))
        good.obey(20.0, lambda: good.replies > 3)
        assert good.replies > 3 and not good.end
        heard = list[object]()
        await_that(lambda: heard.extend(control.poll(0.1)) or len(heard) == len(sent))
        assert [message.stage for message in heard] == [f"stage {number}" for number in range(200)]  # type: ignore[attr-defined]
        control.close()


@pytest.mark.slow
def test_a_run_with_a_hostile_host_ends_right(tmp_path: Path) -> None:
    told = list[str]()
    experiment = Experiment(
        agent=PPOConfig(network=NetworkConfig(hidden=(8,)), num_epochs=1, num_minibatches=1),
        evaluator=EvaluatorConfig(episodes=2, final_episodes=2),
        num_envs=4,
        num_actors=2,
        placement="served",
        rollout_length=16,
        total_env_steps=64 * 40,
        restart=1,
        supervision=SupervisionConfig(backoff_s=0.1),
    )
    keep = ("inference", "evaluator", "learner")
    launcher = JoinedHosts(Local(), own_facts("here", "127.0.0.1"), 0, 1, tmp_path / "join.key", told.append, keep=keep)
    ends = list[str]()

    def attack() -> None:
        with contextlib.closing(HostileHost(launcher.join_key, "evil")) as evil:
            evil.obey(120.0, lambda: evil.begun)
            for _, message in attacks(evil.membership, evil.begun[0], [*OTHERS, "inference-0"], 10**6):
                evil.say(message)
            evil.obey(60.0)
            ends.append(evil.end)

    thread = threading.Thread(target=attack, daemon=True)
    thread.start()
    with contextlib.closing(launcher):
        result = run(experiment, runs_dir=tmp_path, name="attacked", launcher=launcher, display="log-only")
    thread.join(60.0)
    assert ends and ends[0].startswith("it was cut off: 10 of its messages were dropped within 60 s")
    assert (result.ended, result.env_steps, result.unsaved) == ("total_env_steps", 64 * 40, "")
    assert leg_ledger(result.ledger).balanced
    assert 0 < result.final["return_mean"] <= 500
    assert (result.folder / "snapshots" / "state" / "tags" / "final.json").exists()
    assert "9999.0" not in (result.folder / "metrics.jsonl").read_text()
