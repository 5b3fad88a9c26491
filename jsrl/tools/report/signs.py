"""What a run's curves say about its learning: whether any evaluation beats the first, and the first sign of the cause.

The signs are those of docs/troubleshooting.md, "It does not learn", in its order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import numpy as np

from jsrl.services.runs.curves import scores_of

FEWEST = 5  # evaluations
LOGS = [np.log(n) for n in range(2, 17)]  # entropies of uniform choices


@dataclass(frozen=True)
class Curves:
    """A policy's metrics: name -> values by line."""

    columns: Mapping[str, np.ndarray]

    def known(self, name: str) -> np.ndarray:
        values = self.columns.get(name, np.zeros(0))
        return values[np.isfinite(values)]

    def ends(self, name: str) -> tuple[float, float]:
        """Return the means of a metric over its first and its last tenth; NaN: it has no values."""
        values = self.known(name)
        tenth = max(1, len(values) // 10)
        return (float(values[:tenth].mean()), float(values[-tenth:].mean())) if values.size else (np.nan, np.nan)

    def last(self, name: str) -> float:
        return self.ends(name)[1]

    def rise(self, name: str) -> float:
        """Return by how much a metric's last tenth is above its first; 0 where its later values vary as much."""
        values = self.known(name)
        start, end = self.ends(name)
        clear = len(values) >= 2 * FEWEST and abs(end - start) > 3 * values[len(values) // 2 :].std()
        return end - start if clear else 0.0

    def grows(self, name: str, factor: float) -> bool:
        start, end = self.ends(name)
        return abs(end) > factor * abs(start) > 0


def _becomes_certain(c: Curves) -> bool:
    start, end = c.ends("learner/entropy")
    return start > 0.1 and end < 0.05 * start


def _stays_uniform(c: Curves) -> bool:
    start, end = c.ends("learner/entropy")
    return any(abs(start - most) < 0.02 * most and end > 0.97 * most for most in LOGS)


def _only_sampled_rises(c: Curves) -> bool:
    start, end = c.ends("actor/return_mean")
    values = c.known("actor/return_mean")
    return bool(values.size >= FEWEST and end - start > 0.5 * abs(start) and end >= np.quantile(values, 0.8))


def _gets_worse(c: Curves) -> bool:
    return c.rise("actor/return_mean") < 0 and not c.known("evaluator/win_rate").size


def _value_loss_diverges(c: Curves) -> bool:
    """Return whether an error is larger than that of a constant 0 would be."""
    returns, loss = c.known("actor/return_mean"), c.last("learner/loss_value")
    return bool(returns.size and loss >= 1000 and loss > np.square(returns).max())


# (condition, sign, cause, what to try)
SIGNS: tuple[tuple[Callable[[Curves], bool], str, str, tuple[str, ...]], ...] = (
    (
        _gets_worse,
        "actor/return_mean falls",
        "it gets worse",
        ("the sign of the loss and of the advantages, if the algorithm is your own", "a lower learning rate"),
    ),
    (
        _becomes_certain,
        "learner/entropy fell to 0 early",
        "the policy became deterministic too early",
        ("a lower learning rate", "a higher --agent.entropy-coef", "a smaller --env.reward-scale"),
    ),
    (
        _stays_uniform,
        "learner/entropy stays at its maximum",
        "no learning signal reaches the policy",
        ("easier starts or longer episodes if no episode reaches a reward", "else a higher learning rate"),
    ),
    (
        lambda c: c.last("learner/approx_kl") > 0.05 or c.last("learner/clip_fraction") > 0.3,
        "learner/approx_kl is above 0.05 or learner/clip_fraction above 0.3",
        "steps are too large",
        ("a lower learning rate", "fewer --agent.num-epochs", "--agent.target-kl 0.02"),
    ),
    (
        lambda c: c.last("learner/approx_kl") < 0.0001,
        "learner/approx_kl is below 0.0001",
        "steps are too small",
        ("a higher learning rate", "more --agent.num-epochs", "more --agent.num-minibatches"),
    ),
    (
        lambda c: c.last("learner/explained_variance") <= 0 and np.ptp(c.known("actor/return_mean")) > 0,
        "learner/explained_variance stays at or below 0",
        "the value function predicts nothing",
        ("truncated instead of terminated at time limits", "a smaller --agent.gamma", "--agent.normalize-values true"),
    ),
    (
        _value_loss_diverges,
        "learner/loss_value is in the thousands, but no return is large",
        "the value loss diverges",
        ("a lower learning rate", "the targets and the sign of the value loss, if the algorithm is your own"),
    ),
    (
        lambda c: c.last("learner/loss_value") >= 1000,
        "learner/loss_value is in the thousands",
        "returns are large",
        ("--env.reward-scale", "--agent.normalize-values true"),
    ),
    (
        lambda c: c.grows("learner/grad_norm", 10.0),
        "learner/grad_norm grows",
        "observations or rewards have very different scales",
        ("--agent.normalize-observations true", "a lower learning rate"),
    ),
    (
        lambda c: abs(c.last("learner/value_mean")) > 2 * np.abs(c.known("actor/return_mean")).max(initial=1.0),
        "learner/value_mean is larger than any return",
        "Q is overestimated",
        ("a lower learning rate", "fewer updates per env step", "smaller rewards"),
    ),
    (
        _only_sampled_rises,
        "actor/return_mean rises, evaluator/return_mean does not",
        "the evaluator plays greedily, the actors sample",
        ("--evaluator.sampled-episodes 20 shows both",),
    ),
    (
        lambda c: c.last("learner/policy_lag_max") > 2 and bool(c.known("learner/clip_fraction").size),
        "learner/policy_lag_max is above 2",
        "rows are too old for PPO",
        ("--max-policy-lag 0 or 1", "--agent.returns vtrace"),
    ),
    (
        lambda c: True,
        "the return never rises",
        "episodes end before actions matter, every action is right, or the algorithm does not learn",
        ("watch an episode with jsrl evaluate RUN@latest --show", "longer training", "another algorithm"),
    ),
)


def known_advice(advice: Collection[str], options: Collection[str]) -> list[str]:
    """Return the pieces of advice without those that name an option of an agent or a replay that the run does not have."""
    named = re.compile(r"--((?:agent|replay)\.[\w.-]+)")
    return [one for one in advice if all(option in options for option in named.findall(one))]


def learning_text(columns: Mapping[str, np.ndarray], options: Collection[str], *, contested: bool = False) -> str:
    """Return a text about a run that learned nothing, or lost it again; empty: neither is seen.

    Args:
      columns: of one policy. options: of the experiment. contested: other learning players share its games.
    """
    c = Curves(columns)
    found = scores_of(c.columns)
    if contested and not found.against:  # what one player gains another loses, so returns stay level while all improve
        return ""
    scores, low, high = found.interval
    if len(scores) < FEWEST or not np.isfinite(low + high).all():
        return ""
    best = int(low.argmax())
    if low[best] <= high[0]:
        start, end = c.ends("actor/return_mean")
        learned_before = c.rise("actor/return_mean") > 0 and scores[-1] > (start + end) / 2
        if learned_before and not found.against:  # the first evaluation came after the updates that taught it
            return ""
        sign, cause, tries = next((sign, cause, tries) for applies, sign, cause, tries in SIGNS if applies(c))
        return (
            f"No evaluation is clearly above the first ({scores[0]:,.4g}; the last is {scores[-1]:,.4g}), so the run has "
            f"learned nothing yet. First sign: {sign} ({cause}). Try: {', '.join(known_advice(tries, options))}. "
            "docs/troubleshooting.md has all signs."
        )
    if high[-1] < low[best] and high[-1] - low[0] < 0.5 * (low[best] - high[0]):
        advice = ", ".join(known_advice(("--agent.schedule linear", "a lower learning rate"), options))
        return (
            f"The run learned and lost it again: the score rose from {scores[0]:,.4g} to {scores[best]:,.4g} and fell to "
            f"{scores[-1]:,.4g}. Late updates are too large. The snapshot `best` is kept. Try: {advice}."
        )
    return ""
