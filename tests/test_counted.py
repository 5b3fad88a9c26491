"""Numbers with their noun."""

from __future__ import annotations

from jsrl.errors import counted


def test_one_has_the_singular():
    assert counted(1, "trajectory") == "1 trajectory"
    assert [counted(n, "trial") for n in (0, 1, 2)] == ["0 trials", "1 trial", "2 trials"]
    assert counted(1_024, "trajectory") == "1,024 trajectories"
