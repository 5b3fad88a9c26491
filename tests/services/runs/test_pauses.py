"""A pause of the whole process counts in no deadline; a thread that only lacked the interpreter was not paused."""

from __future__ import annotations

import pytest

from jsrl.services.runs.process import PAUSE_S, Pauses


@pytest.mark.parametrize(
    ("gap_s", "cpu_s", "wait_s", "since_s"),
    [
        (40.0, 0.0, 0.0, 1.0),  # stopped for 40 s, then 1 s
        (40.0, 20.0, 0.0, 51.0),  # another thread computed
        (PAUSE_S - 0.5, 0.0, 0.0, 11.0 + PAUSE_S - 0.5),  # too short
        (8.0, 0.0, 8.0, 19.0),  # its own wait
    ],
)
def test_deadlines_begin_after_the_last_pause(gap_s, cpu_s, wait_s, since_s):
    now, cpu = [100.0], [5.0]
    pauses = Pauses(lambda: now[0], lambda: cpu[0])
    began_s = now[0] - 10.0
    now[0], cpu[0] = now[0] + gap_s, cpu[0] + cpu_s
    pauses.look(wait_s)
    now[0] += 1.0
    pauses.look()
    assert pauses.since(began_s) == pytest.approx(since_s)
    assert pauses.since(now[0]) == 0.0
    assert pauses.now() - began_s == pytest.approx(min(since_s, 1.0) + 10.0 if since_s == 1.0 else since_s)
