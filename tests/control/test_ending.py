"""The order of the end: last tasks, shutdowns, files that travel, interrupts, and the rescue of snapshots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jsrl.control.ending import BeginTask, Ending, Interrupted, Level, Rescue, ShowLate, Task
from jsrl.control.supervision import Died, Kill, Send, Start
from jsrl.services.runs.control_bodies import FINAL, Bye, Crash, Event, Report, Stage
from jsrl.services.runs.values import Exit
from tests.control.shell import KILLED, Shell, rules

LEVELS = [
    Level(frozenset({"actor-0"}), publishes=False),
    Level(frozenset({"learner", "learner-1"}), publishes=True),
    Level(frozenset({"evaluator"}), publishes=False),
]
TASKS = {"evaluator": Task("final evaluation", {"which": "latest"}, 50.0, "evaluation_s", "; --evaluator.episodes 10")}


class Run(Shell):
    """A run that ends: its workers leave half a second after they were asked to, except for those that `stay`."""

    def __init__(
        self, hosts: dict[str, str] | None = None, ranks: tuple[str, ...] = ("learner",), **changes: Any
    ) -> None:
        actor, evaluator = rules("actor-0"), rules("evaluator", loss_ends_run=True, **changes)
        learner = rules(*ranks, ranks=ranks, saves=True, must_finish=True, keeps_files=True)
        super().__init__(actor | learner | evaluator, hosts)
        self.stay: set[str] = set()

    def run(self, until_s: float) -> list[Any]:
        found, seen = list[Any](), len(self.done)
        while self.now < until_s - 0.01:
            found += super().run(self.now + 0.05)
            for at_s, action in self.done[seen:]:
                is_stop = isinstance(action, Send) and action.command == "stop"
                if is_stop and action.worker not in self.stay | set(self.exits) and self.now - at_s > 0.4:
                    self.leave(action.worker)
            if self.machine.is_over or (self.supervision.failed and isinstance(self.machine, Ending)):
                break
        return found

    def steps(self, until_s: float) -> list[str]:
        """Return what was asked of the workers until a time."""
        words = {
            Send: lambda a: a.command,
            BeginTask: lambda a: "final",
            Kill: lambda a: "kill",
            Start: lambda a: "start",
        }
        return [
            f"{words[type(action)](action)} {action.worker}" for action in self.run(until_s) if type(action) in words
        ]


def test_a_run_ends_along_its_data_flow() -> None:
    run = Run()
    ending = run.end(LEVELS, TASKS)
    assert run.steps(2.0) == ["stop actor-0", "final evaluator", "stop learner"]
    run.tell(Event("evaluator", 0, FINAL))
    assert run.steps(4.0) == ["stop evaluator"]
    assert ending.is_over and not run.shown


def test_last_tasks_begin_after_the_last_updates_that_learners_make_as_they_stop() -> None:
    run = Run()
    run.end(LEVELS, TASKS, drains=True)
    assert run.steps(2.0) == ["stop actor-0", "stop learner", "final evaluator"]


def test_learners_that_drain_stay_until_workers_with_a_last_task_have_connected_to_their_params() -> None:
    run = Run()
    run.tell(Stage("evaluator", 0, "connecting to params", 7))
    run.end(LEVELS, TASKS, drains=True)
    assert run.steps(9.0) == ["stop actor-0"]
    run.tell(Stage("evaluator", 0, "ready", 7))
    assert run.steps(12.0) == ["stop learner", "final evaluator"]


def test_a_later_report_ends_a_task_whose_event_was_lost() -> None:
    run = Run()
    run.end(LEVELS, TASKS)
    run.run(2.0)
    run.tell(Report("evaluator", 0, {}, {FINAL: {}}))
    assert run.steps(4.0) == ["stop evaluator"]


def test_a_task_that_takes_too_long_is_given_up_with_advice() -> None:
    run = Run()
    ending = run.end(LEVELS, TASKS)
    run.run(100.0)
    assert ending.is_over and 51.0 < run.now < 55.0
    assert run.shown == [
        "evaluator: its final evaluation was not finished within 50 s (deadlines.evaluation_s); --evaluator.episodes 10"
    ]


def test_an_interrupt_cuts_the_last_task() -> None:
    run = Run()
    run.end(LEVELS, TASKS)
    run.run(5.0)
    run.tell(Interrupted())
    assert run.steps(7.0) == ["stop evaluator"]
    assert run.shown == ["evaluator: its final evaluation was not finished because it was interrupted"]


def test_an_interrupted_run_has_no_last_tasks_and_waits_for_no_start() -> None:
    run = Run()
    run.tell(Stage("evaluator", 0, "compiling act", 7))
    run.end(LEVELS, TASKS, interrupted=True)
    assert run.steps(9.0) == ["kill evaluator", "stop actor-0", "stop learner"]
    assert run.shown == ["evaluator was stopped during its start (compiling act), because the run ends"]


def test_ranks_of_which_one_is_not_ready_are_ended_together() -> None:
    """Only asked to leave, the ready one would fail with its peer, and the run with it."""
    run = Run(ranks=("learner", "learner-1"))
    run.tell(Stage("learner", 0, "building", 7))
    run.end(LEVELS, {})
    assert run.steps(9.0) == ["stop actor-0", "kill learner", "kill learner-1", "stop evaluator"]
    assert run.shown == [
        "learner was stopped during its start (building), because the run ends",
        "learner-1 was stopped during the start of learner (building), because the run ends",
    ]


@pytest.mark.parametrize(("restarts", "outcome"), [(1, "lost"), (0, "fails")])
def test_a_death_in_the_last_task_fails_only_runs_without_restarts(restarts: int, outcome: str) -> None:
    run = Run(restarts=restarts)
    run.end(LEVELS, TASKS)
    run.run(2.0)
    run.exits["evaluator"] = KILLED
    actions = run.run(9.0)
    assert [action.outcome for action in actions if isinstance(action, Died)] == [outcome]
    assert not any(isinstance(action, Start) for action in actions)


def test_a_worker_that_was_just_restarting_gets_its_last_task() -> None:
    run = Run()
    run.exits["evaluator"] = KILLED
    Shell.run(run, 0.3)
    run.end(LEVELS, TASKS)
    assert run.steps(5.0) == ["stop actor-0", "start evaluator"]
    run.tell(Stage("evaluator", 1, "ready", 8))
    assert run.steps(9.0) == ["final evaluator", "stop learner"]


def test_workers_whose_part_is_over_are_not_started_again() -> None:
    run = Run()
    run.exits["actor-0"] = run.exits["learner"] = KILLED
    Shell.run(run, 0.3)
    run.end(LEVELS, TASKS)
    assert run.steps(9.0) == ["final evaluator"]


def test_a_death_at_the_moment_of_the_end_is_left_to_the_end() -> None:
    run = Run()
    run.exits["actor-0"] = KILLED
    Shell.run(run, 0.1)
    run.end(LEVELS)
    actions = run.run(5.0)
    assert not any(isinstance(action, Died) for action in actions)
    assert [(a.what, a.hangs) for a in actions if isinstance(a, ShowLate)] == [("ended: killed", False)]


def test_a_late_worker_is_shown_and_a_late_learner_fails_the_run() -> None:
    run = Run()
    run.stay = {"actor-0", "learner"}
    run.end(LEVELS)
    actions = run.run(90.0)
    assert [(a.worker, a.what, a.hangs) for a in actions if isinstance(a, ShowLate)] == [
        ("actor-0", "did not leave in order within 10 s", True)
    ]
    assert [(a.worker, a.what, a.outcome) for a in actions if isinstance(a, Died)] == [
        ("learner", "did not leave in order within 60 s", "fails")
    ]
    assert run.shown == [
        "waiting for actor-0 to finish and leave, for at most 10 s",
        "waiting for learner to finish and leave, for at most 60 s",
    ]


def test_an_interrupted_run_waits_less_and_does_not_fail_without_its_last_snapshot() -> None:
    run = Run()
    run.stay = {"actor-0", "learner"}
    run.end(LEVELS, interrupted=True)
    actions = run.run(90.0)
    assert [(a.worker, a.hangs) for a in actions if isinstance(a, ShowLate)] == [("actor-0", False), ("learner", False)]
    assert not run.supervision.failed and 61.0 < run.now < 63.0


def test_an_interrupt_after_training_does_not_excuse_a_learner_without_its_last_snapshot() -> None:
    run = Run()
    run.stay = {"learner"}
    run.end(LEVELS, TASKS)
    run.tell(Interrupted())
    run.run(90.0)
    assert run.supervision.failed


# -- files of a learner on another host -------------------------------------------------------------------------------


def leaving(files: Callable[[float], tuple[bool, int | None]]) -> Run:
    """Return a run that ends, whose learner has left, and whose host still sends its files."""
    run = Run(hosts={"learner": "far"})
    run.stay, run.files = {"learner"}, lambda _: files(run.now)
    run.end(LEVELS[:2])
    run.run(2.0)
    run.tell(Bye("learner", 0))
    run.silent.add("learner")
    return run


def test_the_end_waits_for_files_of_a_learner_on_another_host_while_more_of_them_arrive() -> None:
    run = leaving(lambda now: (True, None))
    run.run(500.0)
    run.exits["learner"] = Exit(0, "exit status 0")
    run.run(600.0)
    assert run.machine.is_over and run.now < 501.0 and not run.supervision.failed
    assert not any(isinstance(action, Died) for _, action in run.done)


@pytest.mark.parametrize(
    ("version", "newest"),
    [(7, "The newest snapshot in the run folder is version 7"), (None, "No snapshot is in the run folder")],
)
def test_files_that_stop_to_arrive_fail_the_run_and_the_newest_snapshot_is_named(
    version: int | None, newest: str
) -> None:
    run = leaving(lambda now: (now < 100.0, version))
    [death] = [action for action in run.run(600.0) if isinstance(action, Died)]
    why = "no part of them came for 60 s (deadlines.snapshot_s)"
    assert death.what == f"left, but its last files did not all arrive from host far: {why}. {newest}"
    assert death.outcome == "fails" and 121.0 < run.now < 190.0


def test_files_lost_with_their_host_fail_the_run() -> None:
    run = leaving(lambda now: (False, None))
    run.exits["learner"] = Exit(None, "lost with its host far: its link is down", with_host=True)
    [death] = [action for action in run.run(600.0) if isinstance(action, Died)]
    assert "did not all arrive from host far: lost with its host far: its link is down" in death.what
    assert run.now < 5.0


# -- rescue -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("stays", "takes_s"), [(False, 0.6), (True, 4.0)])
def test_learners_save_after_a_death_that_fails_the_run(stays: bool, takes_s: float) -> None:
    run = Run(restarts=0)
    run.stay = {"learner"} if stays else set()
    run.exits["evaluator"] = KILLED
    Shell.run(run, 1.0)
    assert run.supervision.failed
    run.machine = Rescue(run.supervision)
    run.tell(Crash("actor-0", 0, "StreamClosed", "", ""))
    assert run.steps(9.0) == ["stop learner"]
    assert run.now - 1.0 == pytest.approx(takes_s, abs=0.2)
