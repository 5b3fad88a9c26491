"""The format of scores."""

from __future__ import annotations

from jsrl.metrics.scores import score_text


def test_small_returns_keep_their_digits() -> None:
    def text(mean: float, half: float) -> str:
        return score_text({"return_mean": mean, "return_ci95": half})

    assert text(0.9654, 0.0012) == "return 0.965 ± 0.001 (95% CI)"
    assert text(-4.126, 0.5) == "return -4.13 ± 0.50 (95% CI)"
    assert text(476.34, 12.01) == "return 476.3 ± 12.0 (95% CI)"
