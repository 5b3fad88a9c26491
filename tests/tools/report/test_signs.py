"""A run that learned nothing says so, with the first sign of the troubleshooting table that fits."""

from __future__ import annotations

import math

import numpy as np
import pytest

from jsrl.tools.report.signs import known_advice, learning_text

OPTIONS = {"agent.entropy-coef", "agent.normalize-values", "agent.num-epochs", "agent.schedule", "env.reward-scale"}


def curves(scores, half=0.0, **learner):
    """Columns of a run: an evaluation on every second line; learner metrics change linearly from start to end."""
    nan = np.full(len(scores), np.nan)
    columns = {
        "env_steps": np.arange(2.0 * len(scores)),
        "evaluator/return_mean": np.stack([scores, nan], 1).ravel(),
        "evaluator/return_ci95": np.stack([np.full(len(scores), half), nan], 1).ravel(),
        "actor/return_mean": np.stack([scores, scores], 1).ravel(),
    }
    lines = 2 * len(scores)
    return columns | {f"learner/{name}": np.linspace(*ends, lines) for name, ends in learner.items()}


FLAT = np.full(20, -200.0)
PENDULUM = np.array([-1272.0, -1178.0, -1346.0, -1252.0, -1371.0, -1175.0])


@pytest.mark.parametrize(
    ("columns", "parts"),
    [
        (curves(FLAT, entropy=(math.log(3), math.log(3))), ("entropy stays at its maximum", "easier starts")),
        (curves(FLAT, entropy=(1.0, 0.001)), ("entropy fell to 0 early", "--agent.entropy-coef")),
        (  # the entropy of a Gaussian is no logarithm of a number of actions
            curves(PENDULUM, 130.0, entropy=(1.42, 1.41), approx_kl=(1e-3, 1e-3), loss_value=(1795.0, 2141.0)),
            ("first (-1,272; the last is -1,175)", "loss_value is in the thousands", "--agent.normalize-values true"),
        ),
        (curves(FLAT, approx_kl=(0.1, 0.1)), ("approx_kl is above 0.05",)),
        (curves(FLAT), ("the return never rises",)),
    ],
)
def test_a_run_that_learned_nothing_names_the_first_sign(columns, parts):
    text = learning_text(columns, OPTIONS)
    assert "learned nothing yet" in text
    assert all(part in text for part in parts), text


def test_a_run_that_learned_says_nothing():
    rising = np.linspace(20.0, 500.0, 12)
    assert learning_text(curves(rising, 30.0), OPTIONS) == ""
    assert learning_text(curves(FLAT[:4]), OPTIONS) == "", "four evaluations are too few"
    assert learning_text(curves(FLAT, np.nan), OPTIONS) == "", "without intervals nothing is known"
    assert learning_text({}, OPTIONS) == ""


def test_a_run_that_learned_before_its_first_evaluation_says_nothing():
    late = curves(np.linspace(18.45, 18.65, 12), 0.3)
    training = np.minimum(np.linspace(3.2, 30.0, 24), 18.6)
    level = {"actor/return_mean": np.full(24, 18.5)}
    assert "learned nothing yet" in learning_text(late | level, OPTIONS)
    assert learning_text(late | {"actor/return_mean": training}, OPTIONS) == ""
    greedy_stays = late | {"actor/return_mean": training + 30.0}
    assert "learned nothing yet" in learning_text(greedy_stays, OPTIONS), "the greedy policy does not share the rise"


def test_a_run_that_gets_worse_names_the_sign_of_the_loss():
    text = learning_text(curves(np.linspace(-62.0, -77.0, 12), 2.0, entropy=(1.0, 0.001)), OPTIONS)
    assert "it gets worse" in text and "the sign of the loss" in text


def test_a_large_value_loss_of_small_returns_diverges():
    text = learning_text(curves(np.full(20, 9.0), loss_value=(10.0, 5000.0)), OPTIONS)
    assert "diverges" in text and "reward-scale" not in text


def test_returns_of_players_that_learn_against_each_other_say_nothing():
    columns = curves(np.zeros(20))
    assert learning_text(columns, OPTIONS, contested=True) == ""
    wins = {f"evaluator/{name}": np.zeros(40) for name in ("win_rate", "win_rate_low", "win_rate_high")}
    assert "learned nothing yet" in learning_text(columns | wins, OPTIONS, contested=True), (
        "named opponents stay the same"
    )


def test_a_run_that_lost_what_it_learned_says_so():
    text = learning_text(curves(np.array([-500.0, -300.0, -87.5, -90.0, -400.0, -479.0]), 15.0), OPTIONS)
    assert "rose from -500 to -87.5 and fell to -479" in text and "`best` is kept" in text
    assert learning_text(curves(np.array([0.0, 50.0, 100.0, 95.0, 80.0, 75.0]), 4.0), OPTIONS) == ""


def test_advice_names_only_options_that_the_run_has():
    given = ("a lower learning rate", "fewer --agent.num-epochs", "--replay.batch-size", "--agent.target-kl 0.02")
    assert known_advice(given, OPTIONS) == list(given[:2])
    assert known_advice(given, {"replay.batch-size"}) == ["a lower learning rate", "--replay.batch-size"]
