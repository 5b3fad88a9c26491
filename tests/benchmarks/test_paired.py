"""Comparison of two commits: the verdicts, on figures with known ratios."""

import argparse

import numpy as np
import pytest

from benchmarks import paired


@pytest.mark.parametrize(
    ("low", "high", "told"),
    [(0.98, 1.02, "passed"), (0.94, 0.96, "failed"), (0.95, 1.01, "not resolved"), (0.5, 2.0, "not resolved")],
)
def test_a_verdict_follows_from_the_interval(low, high, told):
    assert paired.verdict({"low": low, "high": high}) == told


class Played:
    """Updates that take a known time plus noise."""

    def __init__(self, seed, us):
        self.random, self.us = np.random.default_rng(seed), us

    def block(self, name, updates, extra=0.0):
        us = self.us * (1 + extra) * np.exp(0.02 * self.random.standard_normal())
        return {"us_per_row": us, "cpu_s": updates * 0.01}


@pytest.mark.parametrize(("extra", "told"), [(0.0, "passed"), (paired.PLANTED, "failed")])
def test_planted_slowdown_is_detected(extra, told, capsys):
    given = argparse.Namespace(pairs=30, block_cpu_s=0.1)
    assert paired.measure("ppo_cartpole", Played(0, 10.0), Played(1, 10.0), given, extra) == told
    assert told in capsys.readouterr().out
