"""Many games among many frozen players while workers die: every seat is played by its player, and memory stays bounded."""

from __future__ import annotations

import dataclasses
import json
import logging
import threading
from pathlib import Path

import psutil
import pytest

from jsrl.control.run import run
from jsrl.experiment import InferenceConfig, PolicyConfig
from tests.control.test_director import DUEL, check_games, state_of
from tests.duel import MarkedConfig, Watched

MIB = 1 << 20


def kill_in_turn(names: list[str], stop: threading.Event, killed: list[str]) -> None:
    """Kill workers of this process's run, one after another, until told to stop."""
    while not stop.wait(6.0) and len(killed) < len(names):
        name = names[len(killed)]
        for process in psutil.Process().children(recursive=True):
            try:
                if process.name() == name[:15]:
                    process.kill()
                    killed.append(name)
                    break
            except psutil.Error:
                continue


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("core", [False, True])
def test_games_are_played_by_the_assigned_players_under_kills(core: bool, tmp_path: Path) -> None:
    """64 slots, 32 frozen players of 1 MiB of which 8 fit, 10^5 rows, workers killed: no row is of another player."""
    policy = PolicyConfig(MarkedConfig(core=core, padding=MIB // 4, most_lag=50))
    storm = dataclasses.replace(
        DUEL,
        policies={"main": policy},
        director=Watched(freeze_env_steps=1_000, pool_size=32, live=6, renew_games=40),
        num_envs=64,
        num_groups=8,
        num_actors=2,
        num_inference_servers=2,
        placement="served",
        max_policy_lag=8,
        rollout_length=16,
        total_env_steps=70_000,
        restart=1_000,
        inference=InferenceConfig(frozen_mb=8),
    )
    stop, killed = threading.Event(), list[str]()
    names = ["inference-0", "actor-0", "inference-1", "actor-1", "director"]
    killer = threading.Thread(target=kill_in_turn, args=(names, stop, killed))
    killer.start()
    try:
        result = run(storm, runs_dir=tmp_path, display="quiet")
    finally:
        stop.set()
        killer.join()
    assert len(killed) >= 3 and result.env_steps >= 70_000
    players = check_games(result, discarded=10**9)
    assert len(players) > 20, players
    rows = sum(length for _, _, _, length, _, why in state_of(result)["seen"] if not why)
    lines = [json.loads(line) for line in Path(result.folder, "metrics.jsonl").read_text().splitlines()]
    assert max(line.get("learner/loss", 0.0) for line in lines) == 0.0
    assert max(line.get("inference/frozen_mib", 0.0) for line in lines) <= 8.1
    assert max(line.get("inference/compilations_after_warmup", 0.0) for line in lines) == 0.0
    memory = max(line.get("inference/frozen_mib", 0.0) for line in lines)
    logging.getLogger(__name__).info(f"{2 * rows} rows, {len(killed)} kills, {len(players)} players, {memory:.1f} MiB")
    assert 2 * rows > 100_000  # of two seats; the others were in games that do not count
