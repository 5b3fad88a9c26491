"""Histories of runs, of a director and of a learner's ranks under simulated time; see `python -m tests.simulated --help`."""

from pathlib import Path

import pytest

from tests.faults.plant import copy_sources
from tests.simulated.__main__ import TELL, report
from tests.simulated.planted import FAULTS, MAX_HISTORIES, ROOT, find

QUICK = {"runs": 12, "games": 6, "ranks": 6}
DAILY = {"runs": 300, "games": 100, "ranks": 100}


def check(of: str, seeds: range) -> None:
    failed = next((result for result in (TELL[of](seed) for seed in seeds) if result.why), None)
    if failed is not None:
        pytest.fail(report(of, failed), pytrace=False)


@pytest.mark.parametrize("of", TELL)
def test_nothing_goes_wrong_in_some_histories(of):
    check(of, range(QUICK[of]))


@pytest.mark.slow
@pytest.mark.parametrize("of", TELL)
def test_nothing_goes_wrong_in_many_histories(of):
    check(of, range(QUICK[of], QUICK[of] + DAILY[of]))


def test_a_seed_repeats_its_history():
    first, second = TELL["runs"](3), TELL["runs"](3)
    assert first.history == second.history and first.history


def test_every_fault_can_be_planted_in_one_place():
    wrong = [fault.name for fault in FAULTS if (ROOT / "jsrl" / fault.file).read_text().count(fault.old) != 1]
    assert not wrong, (
        f"the text of these faults does not occur exactly once; update tests/simulated/planted.py: {wrong}"
    )


@pytest.fixture(scope="module")
def copied(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("copied")
    copy_sources(folder)
    return folder


@pytest.mark.nightly
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_planted_faults_are_found(copied, fault):
    assert find(fault, copied, MAX_HISTORIES) is not None
