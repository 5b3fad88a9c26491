"""Checks of `update` on two devices, tried on one as two shares of a batch; the table is in jsrl.agents.check."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from jsrl.agents.checking import Checked, expect, paths
from jsrl.agents.finite import check_layout
from jsrl.agents.random_rows import dead
from jsrl.types import Trajectory, Tree, map_trajectory, map_tree

ROUNDING = 1e-6  # relative; rewards are changed by this to see how far rounding errors go
TIMES = 100.0  # differences of so many times that are no rounding errors


def devices_agree(checked: Checked) -> None:
    """Two devices that see other columns hold one and the same state and metrics."""
    first, second = checked.varied(), checked.varied()
    (ours, theirs), _ = checked.learn_apart(first, second)
    check_layout("update on 2 devices", checked.trained, ours[0])
    found = _unlike(ours, theirs, _rounding(checked.learn, first))
    expect(found is None, f"update on 2 devices: what device 0 and device 1 hold: {found}")


def devices_sum(checked: Checked) -> None:
    """A second device whose rows are all masked changes nothing: sums and counts are those of all devices."""
    rows = checked.varied()
    masked = dead(rows, np.ones_like(rows.is_first))
    found = _two_and_one(checked, rows, masked)
    if found is not None:  # a right agent may draw otherwise on several devices
        ours, alone = checked.learn_apart(rows, masked)[0][0], checked.learn_apart(rows)[0][0]
        found = _unlike(ours, alone, _rounding(checked.learn, rows))
    what = "update on 2 devices, the second without a row to learn from, and on one"
    expect(found is None, f"{what}: {found}")


def devices_equal_one(checked: Checked) -> str | None:
    """Two devices learn from unlike columns what one learns from all of them, if it is so with equal columns."""
    rows, second = checked.varied(), checked.varied()
    if _two_and_one(checked, rows, rows) is not None:
        return "update draws otherwise on two devices"
    other = second._replace(reward=second.reward + 1.0, sampling=map_tree(lambda x: x / 2, second.sampling))
    found = _two_and_one(checked, rows, other)
    expect(found is None, f"update on 2 devices with unlike columns, and on one with all of them: {found}")
    return None


def devices_draw_apart(checked: Checked) -> str | None:
    """Equal columns on two devices get other noise, if equal columns on one device do."""
    rows = checked.open_rows()
    if not checked.priorities:
        return "update returns no priorities"
    for column in range(checked.num_envs):  # where values are saturated, noise changes nothing
        columns = np.full(checked.num_envs, column)
        equal = map_trajectory(lambda leaf, c=columns: leaf[:, c], lambda leaf, c=columns: leaf[c], rows)
        ours, theirs = checked.learn_apart(equal, equal)[1]
        if np.ptp(ours) > 1e-4 * np.abs(ours).max():
            apart = not np.allclose(ours, theirs, rtol=1e-4)
            expect(apart, "update on 2 devices: both draw the same noise for their columns")
            return None
    return "update draws no noise for each column"


def _two_and_one(checked: Checked, *shares: Trajectory) -> str | None:
    """Return how two devices with these shares differ from one that has the columns of both."""
    joint = map_trajectory(
        lambda *leaves: np.concatenate(leaves, axis=1), lambda *leaves: np.concatenate(leaves), *shares
    )
    rounding = _rounding(checked.learn_joint, joint)
    return _unlike(checked.learn_apart(*shares)[0][0], checked.learn_joint(joint), rounding)


def _rounding(learn: Callable[[Trajectory], Tree], rows: Trajectory) -> list[float]:
    """Return for each leaf of state and metrics how far rounding errors of the rewards take it in this update."""
    noise = 1.0 + ROUNDING * np.random.default_rng(0).choice([-1.0, 1.0], rows.reward.shape)
    jittered = rows._replace(reward=(rows.reward * noise).astype(np.float32))
    pairs = zip(paths(learn(rows)), paths(learn(jittered)), strict=True)
    return [float(np.abs(x - y).max(initial=0.0)) if x.dtype.kind == "f" else 0.0 for (_, x), (_, y) in pairs]


def _unlike(ours: Tree, theirs: Tree, rounding: list[float]) -> str | None:
    """Return how state and metrics differ by more than rounding errors."""
    worst, text = 1.0, None
    for (path, x), (_, y), error in zip(paths(ours), paths(theirs), rounding, strict=True):
        if x.dtype.kind != "f":
            continue
        size = float(np.abs(x).max(initial=0.0))
        off, allowed = float(np.abs(x - y).max(initial=0.0)), TIMES * error + 1e-4 * size + 1e-7
        if not off <= worst * allowed:
            worst, text = off / allowed, f"leaf {path} differs by {off:.3g}, of values up to {size:.3g}"
    return text
