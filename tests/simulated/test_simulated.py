"""Histories of runs on several hosts under simulated time; see `python -m tests.simulated --help`."""

import pytest

from tests.simulated.__main__ import report
from tests.simulated.histories import tell

QUICK, DAILY = 20, 300


def check(seeds: range) -> None:
    failed = next((outcome for outcome in map(tell, seeds) if outcome.why), None)
    if failed is not None:
        pytest.fail(report(failed), pytrace=False)


def test_nothing_goes_wrong_in_some_histories():
    check(range(QUICK))


@pytest.mark.slow
def test_nothing_goes_wrong_in_many_histories():
    check(range(QUICK, QUICK + DAILY))


def test_a_seed_repeats_its_history():
    first, second = tell(3), tell(3)
    assert first.history == second.history and first.history
