"""The format of scores."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from jsrl.agents.ppo import PPOConfig
from jsrl.control.progress import Progress
from jsrl.control.status_writer import other_policy
from jsrl.experiment import Experiment
from jsrl.intervals import return_facts, score_text


def test_small_returns_keep_their_digits() -> None:
    def text(mean: float, half: float) -> str:
        return score_text({"return_mean": mean, "return_ci95": half})

    assert text(0.9654, 0.0012) == "return 0.965 ± 0.001 (95% CI)"
    assert text(-4.126, 0.5) == "return -4.13 ± 0.50 (95% CI)"
    assert text(476.34, 12.01) == "return 476.3 ± 12.0 (95% CI)"


def test_few_episodes_have_an_interval_of_student_and_one_has_none() -> None:
    from scipy import stats  # takes half a second, which every test process would pay at collection

    returns = [60.0, 64.0, 71.5]
    facts = return_facts(returns)
    assert facts["return_ci95"] == pytest.approx(stats.t.interval(0.95, 2, scale=stats.sem(returns))[1])
    assert score_text(return_facts([64.0]), "1 greedy episode") == "return 64.0 (1 greedy episode)"
    assert score_text(facts, "3 greedy episodes") == "return 65.2 ± 14.5 (95% CI, 3 greedy episodes)"


@pytest.mark.parametrize(
    ("scores", "shown"), [({"return_mean": 2.5}, "return 2.5"), ({"win_rate": 0.25}, "win rate 0.25")]
)
def test_the_display_names_the_score_of_another_policy(scores: dict[str, float], shown: str) -> None:
    progress = Progress(SimpleNamespace(name="seeker", experiment=Experiment(agent=PPOConfig(), total_env_steps=100)))
    assert str(other_policy(progress)) == "seeker: steps 0 updates 0"
    progress.evaluated({"env_steps": 100, **scores})
    assert str(other_policy(progress)) == f"seeker: steps 0 updates 0 {shown}"
