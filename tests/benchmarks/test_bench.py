"""The benchmark from its command line, end to end, on a small run; and its tables from known numbers."""

import dataclasses
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.throughput import tables
from benchmarks.throughput.alone import parts
from benchmarks.throughput.end_to_end import KINDS, Tail, summary
from jsrl.cli.experiments import experiments
from jsrl.workers.kinds import catalogue, find_kind

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "experiments" / "bench.py"
FAKE = Path(__file__).parent / "world" / "fake_peer.py"
TINY = ("--num-envs", "4", "--rollout-length", "8", "--agent.num-epochs", "1", "--agent.num-minibatches", "2")


def run(*words, timeout_s=880, **variables):
    return subprocess.run(
        [sys.executable, str(BENCH), *words],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env=os.environ | variables,
    )


def test_metrics_it_reads_exist():
    for kind in KINDS:
        assert {f"{kind}/{activity.name}_share" for activity in find_kind(kind).all_activities} <= set(
            catalogue().by_name
        )
    assert {"learner/policy_lag_p50", "learner/policy_lag_p95", "inference/batch_rows_mean", "ledger/dropped"} <= set(
        catalogue().by_name
    )


def test_a_summary_of_lines():
    lines = [
        {
            "learner/policy_lag_p50": 0.0,
            "learner/policy_lag_p95": 1.0,
            "actor/env_share": 0.5,
            "actor/wait_turn_share": 0.3,
        },
        {"learner/policy_lag_p50": 1.0, "learner/policy_lag_p95": 3.0, "actor/wait_block_share": 0.2},
        {"inference/batch_rows_mean": 12.0, "ledger/dropped": 2},
    ]
    found = summary(lines)
    assert (found["lag_p50"], found["lag_p95"], found["inference_batch_rows"], found["dropped"]) == (
        0.5,
        3.0,
        12.0,
        2.0,
    )
    assert found["actor_simulate_share"] == 0.5
    assert found["actor_wait_share"] == pytest.approx(0.5)
    assert found["actor_idle_share"] == pytest.approx(0.2)  # without the turn of the others
    assert "learner_idle_share" not in found


def test_lines_are_read_once_and_only_when_complete(tmp_path):
    path = tmp_path / "experiment" / "bench" / "metrics.jsonl"
    tail = Tail(tmp_path)
    assert tail.lines() == []
    path.parent.mkdir(parents=True)
    path.write_text('{"updates": 1}\n{"upd')
    assert tail.lines() == [{"updates": 1}]
    with path.open("a") as file:
        file.write('ates": 2}\n')
    assert tail.lines() == [{"updates": 2}]
    assert tail.lines() == []


def raw_numbers():
    """One repetition whose limit is 2 / (5 us + 2 us + 1 us) = 250,000 rows a second."""
    part = {"environment": 200_000, "inference": 500_000, "update": 1_000_000}
    jsrl = {"env_steps_per_s": 200_000, "env_steps_per_cpu_s": 100_000, "pss_mb": 300.0, "lag_p50": 0.0, "lag_p95": 1.0}
    peer = {"env_steps_per_s": 50_000, "env_steps_per_cpu_s": 40_000, "pss_mb": 600.0, "first_update_s": 6.0}
    arm = {"setting": {"threads": 1}, "runs": [peer], "errors": ["broke\nlong"], "differences": ["epochs 4 for 1"]}
    return {
        "format": tables.FORMAT,
        "name": "ppo_cartpole", "options": [], "seconds": 8.0, "warm_up_s": 2.0, "repetitions": 1, "cores": 2,
        "load": [0.1, 0.1, 0.1], "transport": "shared-memory", "group_size": {"serial": 16}, "frames_per_step": 4,
        "backend": "cpu", "parameters": 1,
        "facts": {
            "commit": "0123456789abcdef", "uncommitted_changes": False, "python": "3.11", "packages": {"jax": "1"},
            "hardware": {"processor": "CPU", "memory_gb": 8, "accelerators": []},
        },
        "traffic": {"sample_bytes_per_row": 40.0, "inference_bytes_per_row": 25.0, "params_bytes_per_row": 5.0},
        "alone": [{p: {"rows_per_s": r, "rows_per_cpu_s": r} for p, r in part.items()}],
        "end_to_end": {"serial": [jsrl]},
        "starts": {"serial": [{"start_cold_s": 5.0, "start_warm_s": 3.0}]},
        "peers": {
            "sb3": {"arms": [arm], "search": [peer | {"setting": {"threads": 3}}]},
            "rllib": {"missing": "not installed"},
        },
        "errors": ["apart: it ended"], "differences": [],
    }  # fmt: skip


def shown(raw, width):
    """Return the tables as in a terminal of this width, without colours."""
    text = io.StringIO()
    tables.show(raw, Console(width=width, file=text, force_terminal=True, color_system=None))
    return text.getvalue()


def test_the_table_of_known_numbers():
    assert tables.limits(raw_numbers()) == pytest.approx((250_000, 125_000))
    text = shown(raw_numbers(), 80)
    speed, flow = (line.split() for line in text.splitlines() if line.strip().startswith("serial"))
    assert speed == ["serial", "200,000", "200,000", "-", "200,000", "80%", "100,000", "80%"]
    assert flow == ["serial", "0/1", "16.0", "-/-/-", "45", "2", "300", "5.0,", "3.0"]
    rows = " ".join(line for line in text.splitlines() if line.strip().startswith("sb3"))
    for cell in ("4.00x", "2.50x", "0.50x", "threads 1"):
        assert cell in rows
    assert "not installed" in text
    assert "FAILED apart: it ended" in text
    assert "threads 3" in text
    assert "4 game frames" in " ".join(text.split())


@pytest.mark.slow
def test_parts_of_an_experiment_with_several_seats():
    works, facts = parts(dataclasses.replace(experiments()["mappo"](), num_envs=16, rollout_length=4))
    assert {name: work() for name, work in works.items()} == {"environment": 16, "inference": 16, "update": 64}
    assert facts["parameters"] > 0


@pytest.mark.nightly
@pytest.mark.timeout(900)  # on a loaded machine; a minute otherwise
def test_a_tiny_experiment_end_to_end(tmp_path):
    words = ("ppo", "--placements", "serial,served", "--seconds", "2", "--warm-up-s", "0.2", "--repetitions", "1")
    ran = run(*words, "--json", str(tmp_path / "raw.json"), "--", *TINY)
    assert ran.returncode == 0, ran.stderr
    raw = json.loads((tmp_path / "raw.json").read_text())
    for placement in ("serial", "served"):
        (found,) = raw["end_to_end"][placement]
        assert found["window_env_steps"] > 0
        assert found["window_env_steps"] % 32 == 0
        assert 0 < found["env_steps_per_s"] < tables.limits(raw)[0] * 2
        assert found["pss_mb"] > 50
        assert found["lag_p95"] >= 0
        (start,) = raw["starts"][placement]
        assert 0 < start["start_warm_s"] < 100
        assert 0 < start["start_cold_s"] < 200
    assert raw["end_to_end"]["serial"][0]["processes"] == 1
    assert raw["end_to_end"]["served"][0]["processes"] == 4  # controller, actor, server, learner
    assert "inference_idle_share" in raw["end_to_end"]["served"][0]
    assert "limit, " in ran.stdout
    shown = run("--show", str(tmp_path / "raw.json"), timeout_s=60)
    assert shown.stdout == ran.stdout


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_peer_beside_ours(tmp_path):
    """A copy of the benchmark in which the sb3 driver is the fake one."""
    for folder in ("benchmarks", "experiments"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("results", "__pycache__"))
    (tmp_path / "tests" / "benchmarks" / "world").mkdir(parents=True)
    shutil.copy(FAKE, tmp_path / "tests" / "benchmarks" / "world")
    link = f"import runpy\nrunpy.run_path({str(tmp_path / 'tests/benchmarks/world/fake_peer.py')!r})\n"
    (tmp_path / "benchmarks" / "peers" / "run_sb3.py").write_text(link)
    home = tmp_path / "peers" / "sb3"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "python").symlink_to(sys.executable)
    (home / "installed.json").write_text("{}")
    words = ["ppo_cartpole", "--against", "sb3,rllib", "--peers-dir", str(tmp_path / "peers"), "--peer-search"]
    words += ["--placements", "serial", "--seconds", "2", "--warm-up-s", "0.1", "--repetitions", "1", "--starts", "0"]
    ran = subprocess.run(
        [sys.executable, str(tmp_path / "experiments" / "bench.py"), *words, "--json", str(tmp_path / "raw.json")],
        capture_output=True,
        text=True,
        timeout=880,
        check=False,
        cwd=ROOT,
    )
    assert ran.returncode == 0, ran.stderr
    raw = json.loads((tmp_path / "raw.json").read_text())
    assert raw["differences"] == []  # ours runs the same work as the comparison
    (arm,) = raw["peers"]["sb3"]["arms"]
    assert arm["setting"] == {"threads": 1}
    assert arm["runs"][0]["env_steps_per_s"] > 0
    assert arm["differences"] == ["gradient_steps None for 4", "parameters None for 9155"]
    assert "install.py rllib" in raw["peers"]["rllib"]["missing"]
    assert len(raw["peers"]["sb3"]["search"]) == 2
    kept = json.loads((tmp_path / "benchmarks" / "peers" / "settings.json").read_text())
    assert kept["ppo_cartpole"]["sb3"] == {"best": [{"threads": 1}], "raw": "raw.json"}
