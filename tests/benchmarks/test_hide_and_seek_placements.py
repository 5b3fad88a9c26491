"""Arms of benchmarks/hide_and_seek_placements.py, and its table."""

import pytest

from benchmarks.hide_and_seek_placements import AGENTS, arms, experiment_of, table


@pytest.mark.parametrize("name", arms())
def test_each_actor_has_its_ring_of_groups(name: str) -> None:
    arm, e = arms()[name], experiment_of(arms()[name])
    assert (e.placement, e.actors, e.ring) == (arm.placement, arm.actors, arm.ring)
    assert e.num_envs == e.actors * e.ring * e.group_size
    assert e.rows_per_update == e.num_envs * e.rollout_length


def test_the_table_shows_medians_of_decisions_and_cpu_time() -> None:
    blocks = [
        {
            "decisions_per_s": rate,
            "cpu_us_per_decision": {
                kind: 100.0 for kind in ("actor", "inference", "learner", "parameter_server", "control")
            },
            "policy_lag_mean": 1.0,
            "shares": {"actor/env": 0.5, "actor/wait_inference": 0.25, "actor/wait_block": 0.125},
        }
        for rate in (900.0, 1000.0, 5000.0)
    ]
    row = table({"small-inline": blocks}).splitlines()[-1]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:4] == ["small-inline", "1,000", f"{AGENTS * 1000:,}", "500"]
    assert cells[-2:] == ["50%, 0%, 38%", "1.0"]
