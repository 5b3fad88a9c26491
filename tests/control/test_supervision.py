"""When workers are replaced, how often, and who caused a death."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from jsrl.control.supervision import (
    LEFT,
    Budgets,
    Died,
    Fail,
    Kill,
    Look,
    NoteEnd,
    Phase,
    Send,
    Standstill,
    Start,
)
from jsrl.services.runs.control_bodies import REPLAYING, Bye, Heartbeat, Stage
from jsrl.services.runs.values import Exit
from tests.control.shell import BACKOFF, KILLED, Shell, rules


def deaths(actions: list[Any]) -> list[tuple[str, str, str]]:
    return [(action.worker, action.what, action.outcome) for action in actions if isinstance(action, Died)]


def starts(actions: list[Any]) -> list[tuple[str, int, int]]:
    return [(action.worker, action.incarnation, action.restarts) for action in actions if isinstance(action, Start)]


# -- budgets ----------------------------------------------------------------------------------------------------------


def test_backoff_doubles_to_its_maximum_and_ends_with_the_budget() -> None:
    taken = Budgets(rules("actor", restarts=5), BACKOFF)
    assert [taken.take("actor", 100.0) for _ in range(6)] == [0.5, 1.0, 2.0, 3.0, 3.0, None]


def test_worker_lost_with_its_host_uses_no_restart() -> None:
    taken = Budgets(rules("actor-0", restarts=1) | rules("actor-1", restarts=0), BACKOFF)
    assert [taken.take("actor-0", 100.0, is_free=True) for _ in range(3)] == [0.5] * 3
    assert [taken.take("actor-0", 100.0), taken.take("actor-0", 100.0)] == [0.5, None]
    assert taken.take("actor-0", 100.0, is_free=True) == 1.0
    assert taken.take("actor-1", 100.0, is_free=True) is None  # it may never be restarted
    assert taken.counts == {"actor": 5}


def test_restarts_before_the_window_do_not_count() -> None:
    taken = Budgets(rules("actor"), BACKOFF)
    assert taken.take("actor", 100.0) == 0.5 and taken.used_up("actor", 100.0) == ""
    assert [taken.take("actor", 100.0) for _ in range(2)] == [1.0, None]
    assert taken.used_up("actor", 700.0).startswith("actor has used its 2 restarts within 600 s")
    assert taken.used("actor", 700.5) == 0 and taken.take("actor", 700.5) == 0.5


def test_each_worker_has_its_own_budget() -> None:
    taken = Budgets(rules("actor-0", "actor-1", restarts=1) | rules("learner", restarts=0), BACKOFF)
    assert [taken.take(worker, 0.0) for worker in ("actor-0", "actor-0", "actor-1", "learner")] == [
        0.5,
        None,
        0.5,
        None,
    ]
    assert taken.counts == {"actor": 2}


# -- deaths -----------------------------------------------------------------------------------------------------------


def test_a_killed_worker_is_looked_at_and_replaced_until_its_budget_is_spent() -> None:
    shell = Shell(rules("actor-0", "learner"))
    shell.exits["actor-0"] = KILLED
    actions = shell.run(5.0)
    assert [type(action) for action in actions] == [Look, Kill, NoteEnd, Died, Start]
    assert deaths(actions) == [("actor-0", "ended unexpectedly: killed", "replaced")]
    assert starts(actions) == [("actor-0", 1, 1)]
    assert [at_s for at_s, action in shell.done if isinstance(action, Start)] == [pytest.approx(0.7, abs=0.15)]
    for _ in range(2):
        shell.exits["actor-0"] = KILLED
        actions = shell.run(shell.now + 5.0)
    assert deaths(actions) == [("actor-0", "ended unexpectedly: killed", "fails")] and shell.supervision.failed
    assert "has used its 2 restarts" in next(action.text for action in actions if isinstance(action, Died))
    shell.exits["learner"] = KILLED
    assert not shell.run(100.0)  # nothing is decided any more


def test_a_death_noticed_late_is_one_death() -> None:
    """While many deaths are handled, the last ones have been silent for longer than a worker may be."""
    shell = Shell(rules("actor-0"))
    shell.now, shell.exits["actor-0"] = 100.0, KILLED
    assert deaths(shell.run(101.0)) == [("actor-0", "ended unexpectedly: killed", "replaced")]


def test_a_silent_worker_is_killed_and_a_goodbye_without_a_reason_is_a_death() -> None:
    shell = Shell(rules("actor-0", "actor-1"))
    shell.silent.add("actor-0")
    assert deaths(shell.run(29.0)) == []
    what = "sent no message for 30 s (stopped, or stuck in a call that holds the GIL)"
    assert deaths(shell.run(31.0)) == [("actor-0", what, "replaced")]
    shell.leave("actor-1")
    assert deaths(shell.run(32.0)) == [("actor-1", LEFT, "replaced")]


def test_the_time_of_a_replay_does_not_count_as_a_start() -> None:
    """A resumed deterministic run plays all earlier steps again, which takes as long as they did."""
    shell = Shell(rules("actor-0"))
    shell.tell(Stage("actor-0", 0, "connecting to streams", 7))
    shell.run(170.0)
    shell.tell(Stage("actor-0", 0, f"{REPLAYING} trajectory 7 of 9 of group 0", 7))
    assert deaths(shell.run(340.0)) == []
    what = f"was not ready within 180 s (deadlines.ready_s); it is still '{REPLAYING} trajectory 7 of 9 of group 0'"
    assert deaths(shell.run(351.0)) == [("actor-0", what, "replaced")]


def test_messages_of_a_fenced_incarnation_change_nothing() -> None:
    shell = Shell(rules("actor-0"))
    shell.exits["actor-0"] = KILLED
    shell.run(1.0)
    before = dataclasses.replace(shell.supervision.lives["actor-0"])
    for message in (
        Stage("actor-0", 0, "ready", 7),
        Heartbeat("actor-0", 0, 1),
        Bye("actor-0", 0),
        Stage("x", 0, "", 1),
    ):
        shell.tell(message)
    assert shell.supervision.lives["actor-0"] == before


def test_a_dispensable_worker_is_lost_when_its_restarts_are_exhausted() -> None:
    shell = Shell(rules("evaluator", restarts=0, loss_ends_run=False))
    shell.exits["evaluator"] = KILLED
    assert deaths(shell.run(1.0)) == [("evaluator", "ended unexpectedly: killed", "lost")]
    assert shell.supervision.lives["evaluator"].phase is Phase.GONE and not shell.run(50.0)


def test_the_kind_decides_whether_an_error_is_worth_a_restart() -> None:
    asked = list[Any]()

    def may_restart(status: int | None, error: str | None) -> bool:
        asked.append((status, error))
        return False

    shell = Shell(rules("actor-0", may_restart=may_restart))
    shell.crash("actor-0", "EnvironmentFault")
    assert [outcome for *_, outcome in deaths(shell.run(1.0))] == ["fails"] and asked == [(70, "EnvironmentFault")]


def test_a_host_that_is_lost_costs_no_restart() -> None:
    shell = Shell(rules("actor-0", restarts=1))
    for number in range(3):
        shell.exits["actor-0"] = Exit(None, "lost with its host", with_host=True)
        actions = shell.run(shell.now + 2.0)
        assert starts(actions) == [("actor-0", number + 1, number + 1)]
        assert next(action.text for action in actions if isinstance(action, Died)).startswith("started again, in")


def test_a_worker_is_silent_only_while_its_host_is_heard() -> None:
    """Whether a host that is cut off is lost is decided elsewhere; one that returns gives its workers time to speak."""
    shell = Shell(rules("actor-0"), hosts={"actor-0": "far"})
    shell.unheard.add("actor-0")
    assert deaths(shell.run(60.0)) == []
    shell.unheard.clear()
    shell.silent.add("actor-0")  # it hangs all the same
    assert deaths(shell.run(89.0)) == []
    what = "sent no message for 30 s (stopped, or stuck in a call that holds the GIL)"
    assert deaths(shell.run(91.0)) == [("actor-0", what, "replaced")]
    assert shell.supervision.budgets.used("actor-0", shell.now) == 1


# -- causes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restarts", [0, 2])
def test_a_broken_stream_is_a_symptom_of_the_death_of_its_peer(restarts: int) -> None:
    asked = list[Any]()

    def may_restart(status: int | None, error: str | None) -> bool:
        asked.append((status, error))
        return True

    shell = Shell(rules("actor-0", "inference-0", restarts=restarts, may_restart=may_restart))
    shell.crash("actor-0")
    shell.run(0.15)
    shell.exits["inference-0"] = KILLED  # noticed while the last messages of the actor were awaited
    found = deaths(shell.run(3.0))
    assert found[0] == ("inference-0", "ended unexpectedly: killed", "replaced" if restarts else "fails")
    assert [worker for worker, *_ in found[1:]] == (["actor-0"] if restarts else [])
    assert asked == [(-9, None), (70, "StreamClosed")][: len(found)]  # the symptom keeps its error


def test_two_symptoms_without_a_cause_do_not_wait_for_each_other() -> None:
    shell = Shell(rules("actor-0", "actor-1"))
    shell.crash("actor-0")
    shell.crash("actor-1")
    assert len(deaths(shell.run(1.0))) == 2


RANKS = ("learner", "rank-1")


@pytest.mark.parametrize("how", ["killed", "silent"])
def test_ranks_are_replaced_together_because_of_the_one_that_ended_or_hangs(how: str) -> None:
    shell = Shell(rules(*RANKS, ranks=RANKS))
    shell.run(6.0)
    if how == "silent":
        shell.silent.add("rank-1")
    else:
        shell.exits["rank-1"] = KILLED
    shell.run(12.0 if how == "silent" else 6.05)
    shell.crash("learner", "RuntimeError")
    actions = shell.run(15.0)
    what = "sent no message for 6 s" if how == "silent" else "ended unexpectedly: killed"
    [(worker, found, outcome)] = deaths(actions)
    assert (worker, outcome) == ("rank-1", "replaced") and found.startswith(what)
    assert {action.worker for action in actions if isinstance(action, Kill)} == set(RANKS)  # also the one that hangs
    assert starts(actions) == [("learner", 1, 1), ("rank-1", 1, 1)]
    assert shell.supervision.budgets.counts == {"learner": 1}


@pytest.mark.parametrize("fails", ["learner", ""])
@pytest.mark.parametrize("returns", [False, True])
def test_a_rank_whose_host_is_cut_off_costs_no_restart(fails: str, returns: bool) -> None:
    """Updates fail after `deadlines.rank_s`, before the host counts as lost after 20 s, or although it has returned."""
    shell = Shell(rules(*RANKS, ranks=RANKS), hosts={"rank-1": "far"})
    shell.run(5.0)
    shell.unheard.add("rank-1")
    shell.stuck.add("rank-1")  # nothing reaches it
    shell.run(14.0)
    if returns:
        shell.unheard.clear()
        shell.stuck.clear()
    shell.run(15.0)
    if fails:
        shell.crash(fails, "RuntimeError")
    shell.run(25.0)
    if not returns:
        shell.exits["rank-1"] = Exit(None, "lost with its host", with_host=True)
    shell.run(30.0)
    restarts = 1 if fails or not returns else 0
    assert [shell.incarnation(rank) for rank in RANKS] == [restarts] * 2
    assert shell.supervision.budgets.used("learner", shell.now) == 0


def test_all_ranks_start_once_more_if_one_could_not_be_started() -> None:
    shell = Shell(rules(*RANKS, ranks=RANKS))
    shell.exits["learner"], shell.unstartable["rank-1"] = KILLED, "the disk is full"
    actions = shell.run(5.0)
    assert starts(actions) == [("learner", 1, 1), ("learner", 2, 2), ("rank-1", 2, 1)]
    assert any(
        text.startswith("rank-1 could not be restarted: the disk is full; restart 2 of 2") for text in shell.shown
    )
    shell.exits["learner"] = KILLED
    assert [outcome for *_, outcome in deaths(shell.run(9.0))] == ["fails"]


def test_a_worker_that_cannot_be_started_any_more_fails_the_run() -> None:
    shell = Shell(rules("actor-0", restarts=1))
    shell.exits["actor-0"], shell.unstartable["actor-0"] = KILLED, "the disk is full"
    assert shell.run(3.0)[-1] == Fail("actor-0 could not be restarted: the disk is full")


# -- files, moves, absent groups --------------------------------------------------------------------------------------


def test_all_ranks_start_once_the_files_of_the_learner_have_come() -> None:
    keeps = rules("learner", ranks=RANKS, saves=True, keeps_files=True) | rules("rank-1", ranks=RANKS)
    shell = Shell(keeps, hosts={"learner": "far", "rank-1": "far"})
    shell.stuck |= {"learner"}  # its agent tells its end after its files
    shell.exits["rank-1"] = KILLED
    assert not starts(shell.run(50.0))
    shell.exits["learner"] = KILLED
    assert starts(shell.run(50.2)) == [("learner", 1, 1), ("rank-1", 1, 1)]


@pytest.mark.parametrize(("host", "waits_s"), [("far", 60.0), ("", 0.0)])
def test_a_worker_that_may_still_act_on_another_host_is_not_replaced_yet(host: str, waits_s: float) -> None:
    """It is cut off from the controller, which ordered its end; here a kill leaves only what hangs in the kernel."""
    shell = Shell(rules("actor-0"), hosts={"actor-0": host})
    shell.silent.add("actor-0")
    shell.stuck.add("actor-0")
    shell.run(100.0)
    [due_s] = [at_s for at_s, action in shell.done if isinstance(action, Start)]
    assert due_s - 30.5 == pytest.approx(waits_s, abs=0.3)
    shell = Shell(rules("actor-0"), hosts={"actor-0": host})
    shell.silent.add("actor-0")
    shell.stuck.add("actor-0")
    shell.run(40.0)
    shell.exits["actor-0"] = Exit(None, "lost with its host", with_host=True)
    shell.run(41.0)
    assert shell.incarnation("actor-0") == 1


def test_a_moving_worker_is_asked_to_leave_and_costs_no_restart() -> None:
    shell = Shell(rules("actor-0", restarts=0))
    for _ in range(3):
        shell.move("actor-0")  # the launcher says it every turn
    assert [action.command for action in shell.run(1.0) if isinstance(action, Send)] == []
    assert [action.command for _, action in shell.done if isinstance(action, Send)] == ["stop"]
    shell.leave("actor-0")
    assert starts(shell.run(2.0)) == [("actor-0", 1, 0)] and shell.supervision.budgets.counts == {}
    assert shell.shown[-1] == "actor-0 moves, because its host leaves"
    shell.move("actor-0")  # it is just starting
    assert starts(shell.run(3.0)) == [("actor-0", 2, 0)]
    shell.tell(Stage("actor-0", 2, "ready", 7))
    shell.move("actor-0")
    actions = shell.run(20.0)
    assert starts(actions) == [("actor-0", 3, 0)] and any(isinstance(action, NoteEnd) for action in actions)
    assert shell.shown[-1] == "actor-0 moves, because its host leaves (it did not leave in order)"


def test_all_ranks_leave_if_one_moves() -> None:
    shell = Shell(rules(*RANKS, ranks=RANKS))
    for _ in range(3):
        shell.move("rank-1")
    assert [action.worker for _, action in shell.done if isinstance(action, Send)] == list(RANKS)
    shell.leave("rank-1")
    shell.run(1.0)
    shell.leave("learner")
    shell.run(2.0)
    assert [shell.incarnation(rank) for rank in RANKS] == [1, 1] and shell.supervision.budgets.counts == {}
    assert {"rank-1 moves, because its host leaves", "learner moves, because rank-1 moves"} <= set(shell.shown)


def test_learners_are_told_once_which_groups_nobody_steps_now() -> None:
    """A worker is absent from its death, or the loss of its host's connection, until its replacement is ready."""
    kinds = rules("learner", learns=True) | rules("actor-0", groups=(0, 1)) | rules("actor-1", groups=(2,))
    shell = Shell(kinds)

    def told(until_s: float) -> list[tuple[str, int, Any]]:
        sent = [action for action in shell.run(until_s) if isinstance(action, Send)]
        return [(action.worker, action.incarnation, action.facts["groups"]) for action in sent]

    shell.tell(Stage("actor-1", 0, "compiling act", 7))  # of its first start, for which all wait
    assert told(1.0) == []
    shell.exits["actor-0"] = KILLED
    assert told(2.0) == [("learner", 0, [0, 1])]
    shell.exits["learner"] = KILLED
    assert told(3.0) == []
    shell.tell(Stage("learner", 1, "ready", 7))
    assert told(4.0) == [("learner", 1, [0, 1])]  # a new learner knows nothing
    shell.tell(Stage("actor-0", 1, "ready", 7))
    assert told(5.0) == [("learner", 1, [])]
    shell = Shell(kinds, tells_absent=False)  # batches keep their order
    shell.exits["actor-0"] = KILLED
    assert told(2.0) == []


def test_a_standstill_is_reported_once_and_again_only_if_it_is_longer() -> None:
    still = Standstill(10.0, 100.0)
    times = [
        (100.0, True),
        (109.0, False),
        (110.5, False),
        (118.0, False),
        (120.5, False),
        (121.0, True),
        (141.5, False),
    ]
    assert [still.tick(now, moved=moved) for now, moved in times] == [None, None, 10.5, None, 20.5, None, None]
