"""When workers are replaced, and how often."""

from __future__ import annotations

from jsrl.control.supervision import Budgets, Limits, Rules

LIMITS = Limits(window_s=10.0, backoff_s=0.5, max_backoff_s=3.0)


def budgets(**restarts: int) -> Budgets:
    return Budgets({worker: Rules(worker.partition("_")[0], limit) for worker, limit in restarts.items()}, LIMITS)


def test_backoff_doubles_to_its_maximum_and_ends_with_the_budget() -> None:
    taken = budgets(actor=5)
    assert [taken.take("actor", 100.0) for _ in range(6)] == [0.5, 1.0, 2.0, 3.0, 3.0, None]


def test_worker_lost_with_its_host_uses_no_restart() -> None:
    taken = budgets(actor_0=1, actor_1=0)
    assert [taken.take("actor_0", 100.0, is_free=True) for _ in range(3)] == [0.5] * 3
    assert [taken.take("actor_0", 100.0), taken.take("actor_0", 100.0)] == [0.5, None]
    assert taken.take("actor_0", 100.0, is_free=True) == 1.0
    assert taken.take("actor_1", 100.0, is_free=True) is None  # it may never be restarted
    assert taken.counts == {"actor": 5}


def test_restarts_before_the_window_do_not_count() -> None:
    taken = budgets(actor=2)
    assert [taken.take("actor", 100.0) for _ in range(3)] == [0.5, 1.0, None]
    assert taken.used_up("actor", 110.0).startswith("actor has used its 2 restarts within 10 s")
    assert taken.used("actor", 110.5) == 0 and taken.take("actor", 110.5) == 0.5


def test_each_worker_has_its_own_budget() -> None:
    taken = budgets(actor_0=1, actor_1=1, learner=0)
    assert [taken.take(worker, 0.0) for worker in ("actor_0", "actor_0", "actor_1", "learner")] == [
        0.5,
        None,
        0.5,
        None,
    ]
    assert taken.counts == {"actor": 2}
