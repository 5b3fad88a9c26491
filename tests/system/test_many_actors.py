"""Many actors under two agents: a smaller form of benchmarks/scale/thousand_actors.py. They need 4 GB of memory."""

from __future__ import annotations

import argparse
import sys

import pytest

from benchmarks.scale.thousand_actors import measure


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_many_actors_under_two_agents_survive_many_kills() -> None:
    found = measure(argparse.Namespace(actors=256, agents=2, kills=50, seconds=15.0, patience_s=240.0))
    sys.stdout.write(f"{found}\n")
    assert not found["problem"] and found["holds"]
    assert found["restarts"] >= 50 and found["updates"] > 0
    assert found["calm"]["messages_per_s"] <= 20.0  # of both agents, however many actors they have
    assert found["calm"]["controller_cores"] <= 0.05
    assert found["ledger"]["produced"] >= found["ledger"]["consumed"] > 256
