"""Long updates of serial runs are shown while they run."""

from __future__ import annotations

import threading
from types import SimpleNamespace

from jsrl.launch.serial import SerialReporter
from jsrl.launch.serial_calls import UpdateDisplay


def test_running_update_of_a_serial_run_is_shown() -> None:
    """The main thread, which is inside the update, cannot."""
    shown, calls = threading.Event(), list[tuple[str, str, float]]()
    session = SimpleNamespace(call=lambda *call: calls.append(call), show=shown.set)
    with UpdateDisplay(session, period_s=0.001) as display:  # type: ignore[arg-type]
        reporter = SerialReporter("learner", session, display)  # type: ignore[arg-type]
        reporter.entering("an update")
        assert shown.wait(60.0)
        reporter.left()
        number = len(calls)
        other = SerialReporter("actor-0", session)  # type: ignore[arg-type]
        other.entering("a step", 60.0)
        other.left()
    assert {call[:2] for call in calls[:-1]} == {("learner", "an update")} and all(call[2] >= 0 for call in calls)
    assert calls[-1] == ("learner", "", 0.0) and len(calls) == number
    assert "update-display" not in [thread.name for thread in threading.enumerate()]
