"""Many actors under several agents: a small form of benchmarks/scale/thousand_actors.py."""

from __future__ import annotations

import argparse

import pytest

from benchmarks.scale.thousand_actors import measure


@pytest.mark.nightly
def test_many_actors_under_two_agents_survive_many_kills() -> None:
    found = measure(argparse.Namespace(actors=60, agents=2, kills=12, seconds=5.0, patience_s=240.0))
    assert not found["problem"] and found["holds"]
    assert found["restarts"] >= 12 and found["updates"] > 0
    assert found["calm"]["messages_per_s"] <= 20.0  # of both agents, however many actors they have
    assert found["ledger"]["produced"] >= found["ledger"]["consumed"] > 60
