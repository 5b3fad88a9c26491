"""`jsrl run NAME --seeds`: which runs start when, with short scripts as runs; one test uses real runs."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from jsrl.cli import main, seeds
from jsrl.services.runs.groups import Group, find_group, read_group
from jsrl.services.runs.process import ProcessIdentity
from jsrl.services.runs.runs import RunFolder, load_runs
from jsrl.services.runs.state import ask_to_stop
from jsrl.services.snapshots.store import SnapshotStore

# Records its arguments and leaves the files of a run; FATE decides how a seed ends.
CHILD = """
import json, os, pathlib, signal, sys, time

words = sys.argv[2:]
value = lambda name: words[words.index(name) + 1]
folder = pathlib.Path(value("--resume")) if "--resume" in words else pathlib.Path("runs/ppo", value("--run-name"))
fates = json.loads(os.environ["FATES"])
fate = fates.get(folder.name[-1], "ends")
with open("log", "a") as log:
    log.write(" ".join(words) + "\\n")
if fate == "is refused":
    sys.exit("ConfigError: refused" if print("ConfigError: refused", file=sys.stderr) else 2)
folder.mkdir(parents=True, exist_ok=True)
(folder / "experiment.json").write_text('{"fields": {"seed": %s}}' % folder.name[-1])
(folder / "environment.json").write_text("{}")
if fate == "waits for the others":
    while len(list(folder.parent.glob("*/experiment.json"))) < int(fates["others"]):
        time.sleep(0.01)
ended, status = "total_env_steps", 0
if fate == "fails":
    (folder / "snapshots/state/tags").mkdir(parents=True)
    (folder / "snapshots/state/tags/latest.json").write_text("{}")
    ended, status = "failed", 1
    print("WorkerDied: actor-0 died")
if fate == "goes on until told":
    told = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(1))
    (folder / "waits").touch()
    while not told:
        time.sleep(0.01)
    ended, status = "interrupted", 130
line = {"env_steps": 100, "updates": 2, "wall_s": 1.0, "evaluator/return_mean": float(folder.name[-1])}
(folder / "metrics.jsonl").write_text(json.dumps(line) + "\\n")
(folder / "result.json").write_text(json.dumps({"ended": ended, "env_steps": 100, "updates": 2}))
sys.exit(status)
"""
WORDS = ("ppo", "--num-envs", "8", "--run-name", "x")


@pytest.fixture
def set_outcomes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set how the runs of seeds end."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "child.py").write_text(CHILD)
    child = [sys.executable, "-S", str(tmp_path / "child.py"), "0"]
    monkeypatch.setattr(seeds, "child_command", lambda run: [*child, *run])
    monkeypatch.setattr(seeds, "POLL_S", 0.01)
    monkeypatch.setattr(seeds, "STOP_LOOK_S", 0.05)
    monkeypatch.setattr("jsrl.workers.learner.build_updater.trace_update", lambda *_: None)  # most of a plan's time

    def say(**known: str) -> None:
        monkeypatch.setenv("FATES", json.dumps({name.removeprefix("seed"): fate for name, fate in known.items()}))

    say()
    return say


def started() -> list[str]:
    """Return the calls of all runs so far."""
    path = Path("log")
    return path.read_text().splitlines() if path.exists() else []


def test_each_seed_is_a_run_in_one_table(set_outcomes, capsys):
    assert main.main(["run", *WORDS, "--seeds", "1,3,5"]) == 0
    said = capsys.readouterr()
    runs_dir = Path("runs").absolute()
    assert started() == [
        f"ppo --seed {n} --run-name x-seed{n} --num-envs 8 --runs-dir {runs_dir} --display auto" for n in (1, 3, 5)
    ]
    row = re.search(r"^ppo +3 +100 +(\S+) \[(\S+), (\S+)\]", said.out, re.MULTILINE)
    assert row is not None and row.groups() == ("3", "-1.97", "7.97")
    assert "seed 3 starts: ppo/x-seed3" in said.err and "seed 5 ended: total_env_steps, 100 env steps" in said.err
    page = runs_dir / "ppo" / "x" / "comparison.html"
    assert f"report: {page}" in said.out
    page.unlink()
    assert main.main(["report", "x"]) == 0  # the name of the group stands for its runs
    assert "ppo         3" in capsys.readouterr().out and page.exists()
    assert main.main(["report", "ppo/x-seed3", "--to", "page.html"]) == 2 and not Path("page.html").exists()
    assert "the report of one run is always" in capsys.readouterr().err
    assert main.main(["status", "ppo/x"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("ppo/x: 3 seeds, 3 ended as intended\n") and "ppo/x-seed5  total_env_steps" in text
    assert main.main(["status", "x", "--json"]) == 0
    assert [run["run"] for run in json.loads(capsys.readouterr().out)["runs"]] == [f"ppo/x-seed{n}" for n in (1, 3, 5)]
    assert main.main(["run", *WORDS, "--seeds", "1,3,5"]) == 2
    assert "ppo/x exists. Continue a group with --resume ppo/x" in capsys.readouterr().err
    assert main.main(["stop", "x"]) == 2 and "ppo/x has already ended: finished." in capsys.readouterr().err
    assert len(load_runs(str(page.parent))) == 3


def test_runs_the_given_number_of_seeds_at_once(set_outcomes, capsys):
    set_outcomes(seed0="waits for the others", seed1="waits for the others", others="2", seed2="fails")
    assert main.main(["run", *WORDS, "--seeds", "0-2", "--jobs", "2", "--display", "quiet"]) == 1
    assert [line.split()[-1] for line in started()] == ["log-only"] * 3
    said = capsys.readouterr()
    assert said.err == "" and "2 of 3 seeds" in said.out and "seed 2 failed; to continue: jsrl run --resume" in said.out
    assert main.main(["logs", "x"]) == 0
    assert "seed 2 failed: WorkerDied: actor-0 died" in capsys.readouterr().out
    assert main.main(["logs", "x", "seed2"]) == 0 and "WorkerDied" in capsys.readouterr().out


def test_seeds_in_one_program_share_a_process(set_outcomes, monkeypatch, capsys):
    calls: list[int] = []

    def together(*runs: list[str]) -> list[str]:
        calls.append(len(runs))
        child = [sys.executable, "-S", "child.py", "0"]
        return ["sh", "-c", " & ".join(shlex.join([*child, *run]) for run in runs) + "; wait"]

    monkeypatch.setattr(seeds, "child_command", together)
    options = ("--env.id", "examples.jax_cartpole:CartPole", "--env.backend", "jax")
    assert main.main(["run", *WORDS, *options, "--seeds", "0-4", "--plan"]) == 0
    assert "CartPole, placement fused-serial, " in capsys.readouterr().out
    set_outcomes(seed1="fails")
    assert main.main(["run", *WORDS, *options, "--seeds", "0-4", "--display", "quiet"]) == 1
    assert calls == [5] and all("--placement fused-serial" in line for line in started())
    assert "4 of 5 seeds" in capsys.readouterr().out
    set_outcomes()
    assert main.main(["run", "--resume", "x", "--display", "quiet"]) == 0
    assert calls == [5, 1] and started()[-1].startswith("--resume")
    assert main.main(["run", *WORDS, *options, "--seeds", "0-4", "--overwrite", "--jobs", "2"]) == 0
    assert calls[2:] == [2, 2, 1]
    assert main.main(["run", *WORDS, *options, "--seeds", "0-1", "--overwrite", "--jobs", "1"]) == 0
    assert calls[5:] == [1, 1] and "fused-serial" not in started()[-1]


def trained_run() -> Path:
    """Return the folder of a run of ppo with the snapshot best."""
    folder = RunFolder.create("runs", "ppo", "y")
    SnapshotStore(folder.snapshots / "params").save(10, {"params": np.zeros(1)}, tags=("best",), wait=True)
    return folder.path


def test_group_continues_with_missing_seeds(set_outcomes, capsys):
    set_outcomes(seed1="fails", seed2="fails")
    source = f"--init-from {trained_run()}@best"  # the newest run of ppo when the group began, not an earlier seed
    assert main.main(["run", *WORDS, "--seeds", "0-2", "--init-from", "ppo@best"]) == 1
    begun = started()
    assert all(source in line for line in begun)
    (Path("runs/ppo/x-seed2/snapshots/state/tags/latest.json")).unlink()  # it died before its first snapshot
    set_outcomes()
    assert main.main(["run", "--resume", "x", "--jobs", "1"]) == 0
    first, second = started()[len(begun) :]
    assert first.startswith(f"--resume {Path('runs/ppo/x-seed1').absolute()} --num-envs 8") and "init-from" not in first
    assert second.startswith(f"ppo --seed 2 --run-name x-seed2 --overwrite {source} --num-envs 8")
    assert main.main(["run", "--resume", "x"]) == 0 and len(started()) == len(begun) + 2  # nothing is left to run
    assert main.main(["run", "--resume", "x", "--num-envs", "4"]) == 2
    assert "--num-envs cannot change when a group of runs is continued" in capsys.readouterr().err


def test_stop_ends_running_seeds_and_starts_no_other(set_outcomes, capsys):
    set_outcomes(seed0="goes on until told", seed1="goes on until told")
    statuses: list[int] = []
    group = Path("runs/ppo/x").absolute()

    def ask() -> None:
        while not all((group.with_name(f"x-seed{n}") / "waits").exists() for n in (0, 1)):
            time.sleep(0.01)
        statuses.append(main.main(["status", "x"]))
        ask_to_stop(group, ProcessIdentity.own())

    thread = threading.Thread(target=ask)
    thread.start()
    status = main.main(["run", *WORDS, "--seeds", "0-4", "--jobs", "2"])
    thread.join(20)
    assert status == 130 and statuses == [0]
    said = capsys.readouterr().out
    assert re.search(rf"0 ended as intended; process {os.getpid()} on .* runs the others", said)
    assert f"interrupted; to continue: jsrl run --resume {group}" in said
    assert len(started()) == 2 and json.loads((group / "result.json").read_text())["ended"] == "interrupted"


def test_refused_command_leaves_no_files(set_outcomes, tmp_path: Path):
    set_outcomes(seed0="is refused")
    assert main.main(["run", *WORDS, "--seeds", "0-4"]) == 2
    assert len(started()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["child.py", "log"]


def test_refusal_of_hidden_runs_is_shown(set_outcomes, capsys):
    set_outcomes(seed0="is refused")
    assert main.main(["run", *WORDS, "--seeds", "0", "--jobs", "2", "--display", "quiet"]) == 2
    assert capsys.readouterr().err == "seed 0 failed: ConfigError: refused\n"


def test_folder_of_other_files_is_not_overwritten(set_outcomes, capsys):
    notes = Path("runs/ppo/x/notes.txt")
    notes.parent.mkdir(parents=True)
    notes.touch()
    assert main.main(["run", *WORDS, "--seeds", "0-1", "--overwrite"]) == 2 and notes.exists()
    assert "is neither a run nor a group of runs" in capsys.readouterr().err


def test_overwriting_a_group_deletes_its_runs(set_outcomes):
    assert main.main(["run", *WORDS, "--seeds", "0-1"]) == 0
    assert main.main(["run", *WORDS, "--seeds", "1-2", "--overwrite"]) == 0
    assert len(started()) == 4
    group = find_group("x")
    assert group is not None and group.seeds == (1, 2) and read_group(Path("runs/ppo/x-seed1")) is None


# -- Slurm ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def cluster(set_outcomes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fake command sbatch that records its arguments."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    (bin_folder / "sbatch").write_text(
        '#!/bin/sh\necho "$*" >> log\n[ -z "$REFUSE" ] || { echo no >&2; exit 1; }\necho 17\n'
    )
    (bin_folder / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_folder}:{os.environ['PATH']}")
    return tmp_path


SLURM = (*WORDS, "--launcher", "slurm", "--slurm.gres", "gpu:1")


def test_slurm_array_of_seeds_resubmits_only_missing_ones(cluster: Path, capsys):
    assert main.main(["run", *SLURM, "--seeds", "0-2", "--jobs", "2"]) == 0
    said = capsys.readouterr().out
    assert "Submitted array job 17 of 3 runs; output: jsrl-ppo-x-17_SEED.out here" in said
    assert started() == ["--parsable --job-name=jsrl-ppo-x --array=0,1,2%2 --gres=gpu:1 jsrl-ppo-x.sh"]
    group = find_group("x")
    assert group == Group(Path("runs/ppo/x").absolute(), "ppo", ("--num-envs", "8"), (0, 1, 2), (), ("17",))
    for seed in (0, 2):
        group.folder(seed).mkdir()
        (group.folder(seed) / "result.json").write_text('{"ended": "max_minutes"}')
    assert main.main(["run", *SLURM, "--seeds", "0-3"]) == 0
    assert started()[-1] == "--parsable --job-name=jsrl-ppo-x --array=1,3 --gres=gpu:1 jsrl-ppo-x.sh"
    assert main.main(["run", *SLURM, "--seeds", "0,2"]) == 0 and len(started()) == 2
    assert "all these seeds of ppo/x have ended" in capsys.readouterr().out
    assert main.main(["run", *SLURM, "--seeds", "0-3", "--num-actors", "2"]) == 2
    assert "the group ppo/x has other options: ppo --num-envs 8." in capsys.readouterr().err


def test_slurm_seeds_that_wait_or_run_are_not_submitted_again(cluster: Path, capsys):
    """Else two jobs would run one seed in one folder."""
    (cluster / "bin" / "squeue").write_text('#!/bin/sh\n[ "$*" != "-h -r -j 17 -o %K" ] || printf "0\\n1\\n"\n')
    (cluster / "bin" / "squeue").chmod(0o755)
    for seeds_ in ("0-2", "0-4", "0-1"):
        assert main.main(["run", *SLURM, "--seeds", seeds_]) == 0
    assert [line.split()[2] for line in started()] == ["--array=0,1,2", "--array=2,3,4"]
    assert "all these seeds of ppo/x wait, run or have ended" in capsys.readouterr().out
    assert main.main(["run", *SLURM, "--seeds", "0-2", "--overwrite"]) == 2
    assert "2 jobs of the group wait or run; end them first: jsrl stop ppo/x" in capsys.readouterr().err


def test_slurm_refusal_leaves_no_files(cluster: Path, monkeypatch, capsys):
    monkeypatch.setenv("REFUSE", "1")
    assert main.main(["run", *SLURM, "--seeds", "0-2"]) == 2
    assert "was refused: no" in capsys.readouterr().err
    assert sorted(path.name for path in cluster.iterdir()) == ["bin", "child.py", "log"]


def test_array_script_starts_resumes_and_skips_finished_seeds(cluster: Path, capsys):
    source = trained_run()
    assert main.main(["run", *SLURM, "--seeds", "0-2", "--init-from", "y@best", "--print"]) == 0
    script = capsys.readouterr().out
    python = cluster / "python"
    python.write_text(
        f'#!/bin/bash\n[ "$2" != -c ] || exec {sys.executable} "$@"\necho "$*" >> log\n'
    )  # -c: has it ended?
    python.chmod(0o755)
    Path("script.sh").write_text(script.replace(sys.executable, str(python)))

    def play() -> list[str]:
        before = len(started())
        ended = subprocess.run(["bash", "-u", "script.sh"], env=os.environ | {"SLURM_ARRAY_TASK_ID": "2"}, check=False)
        assert ended.returncode == 0
        return [line.removeprefix("-P -m jsrl.cli.main ") for line in started()[before:]]

    runs, group = Path("runs").absolute(), Path("runs/ppo/x").absolute()
    assert play() == [
        f"run ppo --seed 2 --run-name x-seed2 --init-from {source}@best --overwrite --num-envs 8 --runs-dir {runs} "
        "--display plain",
        f"report {group}",
    ]
    tags = runs / "ppo" / "x-seed2" / "snapshots" / "state" / "tags"
    tags.mkdir(parents=True)
    (tags / "latest.json").touch()
    assert play()[0] == f"run --resume {runs}/ppo/x-seed2 --num-envs 8 --runs-dir {runs} --display plain"
    (runs / "ppo" / "x-seed2" / "result.json").write_text(json.dumps({"ended": "stop_at_return"}, indent=2))
    assert play() == []
