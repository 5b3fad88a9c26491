"""Environments that fail in real processes: cases not in test_wrong_inputs, and the effect of `--env.on-fault`."""

from __future__ import annotations

import re

import pytest

from tests.marks import nightly
from tests.system.launched import FOREVER, Launched, assert_balanced

pytestmark = pytest.mark.slow
PLACE = r"\(slot \d, episode {}, step \d, first reset with seed \d+\)"


def watchdog_reports(run: Launched) -> list[str]:
    return [path.read_text() for path in sorted((run.folder / "watchdog").glob("*.txt"))]


@pytest.mark.nightly
def test_memory_error_is_an_environment_fault(launch) -> None:
    run = launch(*FOREVER, "--env.id", "worlds:Allocates")
    text = run.expect(1, 30.0)
    assert (
        re.search(f"environment 'worlds:Allocates' {PLACE.format(19)}", text) and "Unable to allocate 2.00 GiB" in text
    )
    (report,) = watchdog_reports(run)
    assert "Unable to allocate" in report and "== learner" in report and "the process has ended" in report


@pytest.mark.nightly  # in step: test_watchdog
def test_hang_in_reset_is_reported_with_its_location(launch) -> None:
    text = launch(*FOREVER, "--env.id", "worlds:HangsInReset", "--actor.step-deadline-s", "1.5").expect(1, 30.0)
    assert re.search(f"worlds:HangsInReset', group 0 {PLACE.format(20)}, did not return within 1.5 s", text)


def test_a_crash_in_c_code_leaves_the_python_stack(launch) -> None:
    run = launch(*FOREVER, "--env.id", "worlds:Segfaults")
    text = run.expect(1, 30.0)
    assert "WorkerDied: actor-0 ended unexpectedly: killed by signal 11 (SIGSEGV)" in text
    assert "environment 'worlds:Segfaults' may have ended the process" in text
    assert "in misbehave" in text  # from the actor's log
    assert "ctypes" in watchdog_reports(run)[0]


@pytest.mark.nightly
def test_large_allocation_is_not_a_fault(launch) -> None:
    launch("--env.id", "worlds:AllocatesAndGoesOn").expect(0, 30.0)


# -- policies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["RaisesInReset", nightly("ReturnsNan")])
def test_restart_env_continues_with_the_same_actor(launch, name: str) -> None:
    arguments = ("--env.on-fault", "restart-env", "--env.fault-limit", "1000", "--total-env-steps", "3200")
    run = launch("--env.id", f"worlds:{name}", *arguments)
    text = run.expect(0, 40.0)
    assert re.search(rf"group \d: environment 'worlds:{name}' {PLACE.format('[0-9]+')}", text)
    assert "is rebuilt, with seed" in text and "restart 1" not in text
    last = [line["actor/env_faults"] for line in run.lines() if "actor/env_faults" in line][-1]
    assert last > 50  # each of 4 environments fails every 20 steps of 800
    assert not (run.folder / "watchdog").exists()
    assert "Traceback" in (run.folder / "logs" / "actor-0.log").read_text()
    assert_balanced(run.result())


@pytest.mark.nightly
def test_restart_env_ends_when_its_limit_is_reached(launch) -> None:
    arguments = ("--env.on-fault", "restart-env", "--env.fault-limit", "3")
    text = launch(*FOREVER, "--env.id", "worlds:RaisesInStep", *arguments).expect(1, 30.0)
    assert "after 3 repairs within 600 s" in text and "WorkerDied: actor-0: EnvironmentFault" in text


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["HangsOnce", nightly("SegfaultsOnce")])
def test_restart_actor_replaces_the_actor_without_using_restarts(launch, name: str) -> None:
    arguments = ("--env.on-fault", "restart-actor", "--env.fault-limit", "2", "--actor.step-deadline-s", "2")
    run = launch("--env.id", f"worlds:{name}", *arguments)
    text = run.expect(0, 60.0)
    assert "restart 1 of 2" in text and "restart 2 of 2" not in text and "watchdog report:" in text


@pytest.mark.parametrize("name", ["RaisesOnce", nightly("ExitsOnce")])
def test_stop_policy_ends_the_run(launch, name: str) -> None:
    text = launch(*FOREVER, "--env.id", f"worlds:{name}", "--restart", "3", "--env.on-fault", "stop").expect(1, 30.0)
    assert "WorkerDied: actor-0" in text and "restart 1" not in text


@pytest.mark.nightly
def test_stop_policy_applies_to_environments_only(launch) -> None:
    run = launch("--env.on-fault", "stop", "--restart", "3", experiment="counting")
    run.await_updates(5)
    run.workers()["actor-0"].kill()
    run.until(lambda: "restart 1 of 3" in run.text, "a restart")
    run.popen.terminate()
    run.expect(130, 20.0)
