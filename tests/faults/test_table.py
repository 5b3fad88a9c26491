"""The table of faults is up to date: every old text exists once, and every named test exists."""

from collections import Counter

from tests.faults.plant import ROOT, places
from tests.faults.table import FAULTS


def test_every_fault_can_be_planted_in_one_place():
    wrong = {fault.name: [path.name for path in found] for fault in FAULTS if len(found := places(fault, ROOT)) != 1}
    assert not wrong, f"the text of these faults does not occur exactly once; update tests/faults/table.py: {wrong}"


def test_every_fault_has_its_own_name_and_tests_that_exist():
    assert max(Counter(fault.name for fault in FAULTS).values()) == 1
    missing = {test for fault in FAULTS for test in fault.tests if not (ROOT / test.partition("::")[0]).is_file()}
    assert not missing
    assert all(fault.old != fault.new for fault in FAULTS)
