"""The Slurm script of a run, with a fake Python that only records its arguments."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jsrl.cli import run as command
from jsrl.cli.command_line import without
from jsrl.cli.slurm import OWN
from jsrl.cluster.agent import ToldToEnd
from jsrl.cluster.agent_process import AgentProcess
from jsrl.cluster.engines.slurm import SlurmRun, slurm_script
from jsrl.cluster.engines.ssh import Srun, other_nodes, own_address
from jsrl.cluster.messages import REPLACED
from jsrl.errors import ConfigError
from jsrl.experiment.options import SlurmOptions
from jsrl.services.runs.files import write_json
from tests.cluster.agents import await_that

PYTHON = """#!/bin/bash
[ "$4" = run ] && [ -n "$WAITS" ] && trap 'echo TERM >> "$LOG"; stopped=1' TERM
echo "$*" >> "$LOG"
[ -z "$SLURM_SHARDS_ON_NODE" ] || echo "memory $XLA_PYTHON_CLIENT_MEM_FRACTION" >> "$LOG"
if [ "$4" = run ] && [ -n "$WAITS" ]; then
  until [ -n "$stopped" ]; do sleep 0.05 & wait $!; done
  sleep "${LAST_S:-0.3}"; [ -z "$LAST_S" ] || echo ended >> "$LOG"
  exit 130
fi
[ "$4" = join ] && [ "$(wc -l < "$LOG")" = "${JOINS:-2}" ] && touch "$KEY.ended"
exit "${STATUS:-0}"
"""
STARTED: list[subprocess.Popen[bytes]] = []


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[SlurmRun]:
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    options = SlurmOptions(
        partition="gpu",
        actor_partition="cheap",
        gres="gpu:4",
        actor_cpus=8,
        actor_gres="gpu:1",
        time="1:00:00",
        container="/images/jsrl",
        extra=("exclusive", "mem=0"),
    )
    words = ("--env.id", "it's a game", "--num-actors", "8")
    yield SlurmRun("ppo", words, tmp_path / "my runs" / "ppo" / "x", 3, str(python), options)
    for script in STARTED:
        with suppress(ProcessLookupError):
            os.killpg(script.pid, signal.SIGKILL)
        script.wait()
    STARTED.clear()


def play(run: SlurmRun, **variables: str) -> subprocess.Popen[bytes]:
    """Start the script as Slurm would."""
    path = run.folder.parents[2] / "script.sh"
    text = slurm_script(run).replace("sleep 5", "sleep 0.05")
    for name, seconds in (("QUICK_S", 60), ("LONG_S", 180), ("WAIT_S", 1800)):
        text = text.replace(f"-lt {seconds} ", f"-lt ${{{name}:-{seconds}}} ")
    path.write_text(text)
    if variables.get("SLURM_ARRAY_TASK_ID"):  # the controller's job has made it
        run.key.parent.mkdir(parents=True, exist_ok=True)
    known = {"LOG": str(log_of(run)), "KEY": str(run.key), "SLURM_JOB_ID": "7", "JSRL_ADDRESS": "10.0.0.5"}
    env = os.environ | {"SLURM_ARRAY_TASK_ID": ""} | known | variables
    with errors_of(run).open("wb") as errors:
        STARTED.append(subprocess.Popen(["bash", "-u", str(path)], start_new_session=True, env=env, stderr=errors))
    return STARTED[-1]


def log_of(run: SlurmRun) -> Path:
    return run.folder.parents[2] / "log"


def errors_of(run: SlurmRun) -> Path:
    return run.folder.parents[2] / "errors"


def asked(run: SlurmRun) -> list[str]:
    """Return the arguments of its Python."""
    return log_of(run).read_text().splitlines() if log_of(run).exists() else []


def test_script_explains_how_to_submit_it(slurm: SlurmRun):
    lines = slurm_script(slurm).splitlines()
    assert "#   sbatch --job-name=jsrl:ppo:x --partition=gpu --gres=gpu:4 jsrl-ppo-x.sh" in lines
    actors = "--array=1-3 --partition=cheap --gres=gpu:1 --cpus-per-task=8"
    assert f"#   sbatch --job-name=jsrl:ppo:x:actors {actors} jsrl-ppo-x.sh" in lines
    assert {"#SBATCH --requeue", "#SBATCH --time=1:00:00", "#SBATCH --exclusive", "#SBATCH --mem=0"} <= set(lines)
    assert "#SBATCH --container=/images/jsrl" in lines
    assert not [line for line in lines if "@" in line.replace("B:USR1@", "").replace("{begin[@]}", "")]


def test_runs_of_two_experiments_with_one_name_share_nothing(slurm: SlurmRun):
    """Else the hosts of one would join the other, and leave when that ends."""
    other = dataclasses.replace(slurm, experiment="sac", folder=slurm.folder.parents[1] / "sac" / "x")
    for name in ("key", "ended", "job_name", "file"):
        assert getattr(slurm, name) != getattr(other, name)


def test_script_starts_a_new_run_or_resumes_a_snapshot(slurm: SlurmRun):
    assert play(slurm).wait(60) == 0
    runs = slurm.folder.parents[1]
    assert asked(slurm) == [
        f"-P -m jsrl.cli.main run ppo --run-name x --overwrite --env.id it's a game --num-actors 8 --runs-dir {runs} "
        f"--display plain --listen 10.0.0.5 --num-hosts 3 --join-key {slurm.key} --join-s 86400"
    ]
    assert slurm.ended.exists()
    tags = slurm.folder / "snapshots" / "state" / "tags"
    tags.mkdir(parents=True)
    (tags / "latest.json").touch()
    assert play(slurm, STATUS="1").wait(60) == 1
    assert asked(slurm)[-1].startswith(f"-P -m jsrl.cli.main run --resume {slurm.folder} --env.id it's a game")


@pytest.mark.parametrize(("who", "status"), [("everybody", 0), ("the shell", 130)])
def test_job_signal_stops_the_run_once_and_leaves_it_resumable(slurm: SlurmRun, who: str, status: int):
    script = play(slurm, WAITS="1")
    await_that(lambda: asked(slurm))
    if who == "everybody":  # a requeue, a preemption, scancel
        os.killpg(script.pid, signal.SIGTERM)
    else:  # before the time limit
        script.send_signal(signal.SIGUSR1)
    assert script.wait(60) == status and not slurm.ended.exists()
    assert asked(slurm)[1:] == ["TERM"]


SRUN = '#!/bin/sh\n[ "$1$SLURM_GPUS_PER_NODE" = --overlap ] && until [ -e "$HERE/preempted" ]; do sleep 0.05; done\n'
SCONTROL = """#!/bin/sh
[ "$1" = -o ] && [ -e "$HERE/preempted" ] && echo "JobState=RUNNING PreemptTime=2026-11-27T15:23:00"
[ "$1" = requeue ] && echo "$*" >> "$LOG"
[ "$1" = show ] && printf 'NodeName=%s\\n   Gres=gpu:a100:2(S:0-1),shard:a100:8(S:0-1)\\n   State=MIXED\\n' "$3"
exit 0
"""


def fake(folder: Path, monkeypatch: pytest.MonkeyPatch, **scripts: str) -> None:
    """Put scripts in the place of commands, by name; they find the folder in $HERE."""
    (folder / "bin").mkdir()
    for name, does in scripts.items():
        (folder / "bin" / name).write_text(does)
        (folder / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("HERE", str(folder))


@pytest.fixture
def preempted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fake Slurm; return the file whose existence means that the job is being preempted."""
    fake(tmp_path, monkeypatch, srun=SRUN, scontrol=SCONTROL)
    return tmp_path / "preempted"


def test_preempted_run_ends_when_grace_time_begins_and_is_requeued(slurm: SlurmRun, preempted: Path):
    """Slurm itself would signal the script at the end of GraceTime, and would not requeue a job that has ended."""
    script = play(slurm, WAITS="1", SLURM_GPUS_PER_NODE="1")  # which would make the step ask for a GPU
    await_that(lambda: asked(slurm))
    preempted.touch()
    assert script.wait(60) == 130 and not slurm.ended.exists()
    assert asked(slurm)[1:] == ["TERM", "requeue 7"]


def test_shards_of_a_gpu_are_a_part_of_its_memory(slurm: SlurmRun, preempted: Path):
    assert play(slurm, SLURM_SHARDS_ON_NODE="3", SLURMD_NODENAME="n1").wait(60) == 0
    assert asked(slurm)[1] == "memory 0.675"  # three quarters of 0.9
    play(slurm, SLURM_SHARDS_ON_NODE="3", SLURMD_NODENAME="n1", XLA_PYTHON_CLIENT_MEM_FRACTION="0.1").wait(60)
    assert asked(slurm)[-1] == "memory 0.1"


def test_preempted_actor_host_is_requeued_by_itself(slurm: SlurmRun, preempted: Path):
    """The id of the job of an array's last host means the whole array."""
    script = play(slurm, SLURM_ARRAY_TASK_ID="2", SLURM_ARRAY_JOB_ID="7", WAITS="1", JOINS="9")
    await_that(lambda: asked(slurm))
    preempted.touch()
    assert script.wait(60) == 0
    assert asked(slurm)[-1] == "requeue 7_2"


def test_signal_during_the_last_snapshot_does_not_end_the_script(slurm: SlurmRun):
    script = play(slurm, WAITS="1", LAST_S="1")
    await_that(lambda: asked(slurm))
    script.send_signal(signal.SIGUSR1)
    await_that(lambda: "TERM" in asked(slurm))
    script.send_signal(signal.SIGTERM)
    assert script.wait(60) == 0
    assert asked(slurm)[1:] == ["TERM", "ended"]


def test_host_in_a_slurm_job_may_get_sigterm_twice(monkeypatch: pytest.MonkeyPatch):
    agent: Any = SimpleNamespace(_signals=[])
    for job in ("", "7"):
        if job:
            monkeypatch.setenv("SLURM_JOB_ID", job)
        else:
            monkeypatch.delenv("SLURM_JOB_ID", raising=False)
        for number in (signal.SIGTERM, signal.SIGHUP):
            AgentProcess._on_signal(agent, number, None)
    terms, hups = [ToldToEnd(False, False), ToldToEnd(False, True)], [ToldToEnd(True, False)] * 2
    assert agent._signals == [terms[0], hups[0], terms[1], hups[1]]


def test_run_ended_by_jsrl_stop_is_not_waited_for(slurm: SlurmRun):
    slurm.folder.mkdir(parents=True)
    script = play(slurm, WAITS="1")
    await_that(lambda: asked(slurm))
    (slurm.folder / "stop.json").touch()
    script.send_signal(signal.SIGUSR1)
    assert script.wait(60) == 130 and slurm.ended.exists()


def test_an_actor_host_joins_until_the_run_has_ended(slurm: SlurmRun):
    assert play(slurm, SLURM_ARRAY_TASK_ID="2").wait(60) == 0
    first, second = asked(slurm)
    assert first == second and first.startswith(f"-P -m jsrl.cli.main join {slurm.key} --name ")
    assert first.endswith("-7")  # a lost controller is looked for elsewhere after two minutes, the default


def test_an_actor_host_that_its_requeued_job_replaced_does_not_join_again(slurm: SlurmRun):
    """Else the two would replace each other for ever."""
    assert play(slurm, SLURM_ARRAY_TASK_ID="2", STATUS=str(REPLACED)).wait(60) == 0
    assert len(asked(slurm)) == 1


def test_an_actor_host_that_cannot_join_gives_up(slurm: SlurmRun):
    script = play(slurm, SLURM_ARRAY_TASK_ID="2", SLURM_ARRAY_JOB_ID="5", STATUS="1", JOINS="9")
    assert script.wait(60) == 1 and len(asked(slurm)) == 5
    assert (
        errors_of(slurm).read_text().endswith("in a row, for the reason above. Repair it; then: scontrol requeue 5_2\n")
    )


@pytest.mark.parametrize(
    ("queue", "variables", "tries", "why"),
    [
        ("echo 7", {}, 9, ""),  # the run waits, and this host for it
        ("exit 1", {}, 9, ""),  # Slurm does not answer
        ("echo 7", {"WAIT_S": "0"}, 1, "because it was not there for 1800 s"),
        ('[ "$4" = jsrl:ppo:x ]', {}, 1, "because its job neither waits nor runs"),
    ],
)
def test_an_actor_host_without_a_run_leaves_after_a_while(
    queue: str, variables: dict[str, str], tries: int, why: str, slurm: SlurmRun, tmp_path: Path, monkeypatch
):
    """Its allocation costs money."""
    fake(tmp_path, monkeypatch, squeue=f"#!/bin/sh\n{queue}\n")
    script = play(slurm, QUICK_S="0", SLURM_ARRAY_TASK_ID="2", STATUS="1", JOINS="9", **variables)
    assert script.wait(60) == 0 and len(asked(slurm)) == tries
    assert why in errors_of(slurm).read_text() and bool(errors_of(slurm).read_text()) == bool(why)


def test_a_run_is_named_by_letters_and_digits(slurm: SlurmRun):
    with pytest.raises(ConfigError, match="'a b' cannot name a run"):
        dataclasses.replace(slurm, folder=Path("/runs/ppo/a b"))


def test_options_set_by_the_script_are_left_out():
    own = ["--launcher", "slurm", "--print", "--slurm.extra", "a=1", "b", "--run-name=x", "--no-display"]
    assert without(["--num-envs", "8", *own, "--agent.gamma", "0.9"], OWN) == (
        "--num-envs",
        "8",
        "--agent.gamma",
        "0.9",
    )


def test_a_seed_has_ended_as_the_whole_run_says(tmp_path: Path, capsys, monkeypatch):
    """Not because one of its policies has, nor without its last snapshot."""
    monkeypatch.chdir(tmp_path)
    command.main(["ppo_cartpole", "--launcher", "slurm", "--seeds", "0-1", "--run-name", "x", "--print"])
    (ask,) = (line for line in capsys.readouterr().out.splitlines() if "is_finished" in line)
    ended = {"ended": "max_minutes", "unsaved": "", "others": {}}
    for result, status in (
        (ended, 0),
        (ended | {"unsaved": "no space left"}, 7),
        (ended | {"ended": "interrupted", "others": {"b": {"ended": "max_minutes"}}}, 7),
    ):
        write_json(tmp_path / "result.json", result)
        assert subprocess.run(["bash", "-c", f"folder={tmp_path}; {ask}; exit 7"], check=False).returncode == status


def test_the_command_prints_or_refuses(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["ppo_cartpole", "--launcher", "slurm", "--num-hosts", "2", "--run-name", "x"]
    assert command.main([*words, "--print"]) == 0
    assert subprocess.run(["bash", "-n"], input=capsys.readouterr().out.encode(), check=False).returncode == 0
    monkeypatch.setenv("PATH", str(tmp_path))
    assert command.main(words) == 2
    assert "there is no sbatch here" in capsys.readouterr().err
    assert command.main([*words, "--seeds", "0-3"]) == 2
    assert "--launcher slurm without --seeds; add that, or leave out --num-hosts" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_run_with_a_job_is_not_submitted_again(tmp_path: Path, capsys, monkeypatch):
    """A second job would delete the join key of the first, and its end would send the hosts away."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bin").mkdir()
    queue = '[ "$4" = jsrl:ppo_cartpole:x ] && printf "7|/elsewhere\n$QUEUED" || exit 1'
    for name, does in (("sbatch", 'echo "Submitted batch job 9"; echo "$*" >> log'), ("squeue", queue)):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    words = ["ppo_cartpole", "--launcher", "slurm", "--run-name", "x"]
    assert command.main(words) == 0 and len(Path("log").read_text().splitlines()) == 2
    monkeypatch.setenv("QUEUED", f"8|{tmp_path}\n")
    assert command.main(words) == 2 and len(Path("log").read_text().splitlines()) == 2
    assert "job 8 of this run waits or runs" in capsys.readouterr().err


def test_only_a_new_run_starts_with_other_params(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["ppo_cartpole", "--launcher", "slurm", "--run-name", "x", "--init-from", "y@best"]
    assert command.main([*words, "--agent.gamma", "0.9", "--print"]) == 0
    begin, run = [line for line in capsys.readouterr().out.splitlines() if "begin=(" in line or "begin[@]" in line]
    resuming, beginning = begin.split("else")
    assert "--resume" in resuming and "--init-from" not in resuming + run
    assert "ppo_cartpole --init-from y@best --run-name x" in beginning and "--agent.gamma 0.9" in run


NODES = "#!/bin/sh\n[ \"$3\" = 'n[1-3]' ] && printf 'n1\\nn2\\nn3\\n'"
STEP = '#!/bin/sh\necho "$*" > "$HERE/words"\ncat > "$HERE/sent"\n'


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Slurm job of three nodes, with fake commands; return the folder in which srun records its words and its input."""
    fake(tmp_path, monkeypatch, scontrol=NODES, srun=STEP)
    variables = {"SLURM_JOB_NODELIST": "n[1-3]", "SLURMD_NODENAME": "n2", "SLURM_JOB_ID": "7"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_agents_are_steps_of_the_job_on_its_other_nodes(job: Path, monkeypatch: pytest.MonkeyPatch):
    assert other_nodes() == ("n1", "n3")
    (job / "join.key").write_text("secret")
    engine = Srun(other_nodes(), "/venv/bin/python")
    engine.begin("n3", job / "join.key")
    await_that(lambda: engine.ended("n3"))
    engine.close()
    words = (job / "words").read_text()
    assert "--nodelist=n3 sh -c" in words and "join --name n3" in words
    assert (job / "sent").read_text() == "secret" and "secret" not in words
    monkeypatch.setenv("JSRL_ADDRESS", "10.0.0.9")
    assert own_address(["n1"]) == "10.0.0.9"
    monkeypatch.delenv("SLURM_JOB_NODELIST")
    assert other_nodes() == ()


def test_a_run_inside_a_job_uses_its_nodes_and_submits_nothing(job: Path, capsys, monkeypatch: pytest.MonkeyPatch):
    words = ["ppo_cartpole", "--launcher", "slurm"]
    for more, sentence in (
        (["--num-hosts", "2"], "--num-hosts has no effect inside a Slurm job, whose 2 other nodes the run uses"),
        (["--slurm.time", "1:00"], "--slurm.time has no effect inside a Slurm job"),
        (["--placement", "serial"], "a serial run starts no workers"),
        (["--hosts", "a"], "--hosts cannot be combined with --launcher slurm"),
    ):
        assert command.main([*words, *more]) == 2
        assert sentence in capsys.readouterr().err
    assert command.main([*words, "--print"]) == 0 and "#SBATCH" in capsys.readouterr().out
    assert not (job / "words").exists() and not (job / "runs").exists()
