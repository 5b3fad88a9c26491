"""Invalid inputs: a typed error that names environment, slot and worker, and reaches the user's terminal."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jsrl.control import memory_folder
from jsrl.control.run import run
from jsrl.envs.config import EnvConfig
from jsrl.errors import AgentFault, ConfigError, EnvironmentFault, JsrlError
from jsrl.experiment import EvaluatorConfig, Experiment
from jsrl.transport.door.keys import make_keys
from jsrl.transport.table import bind_params, bind_samples
from jsrl.types import ArraySpec
from tests.marks import marked
from tests.system.launched import FOREVER, WORLD

slow = pytest.mark.slow


@pytest.fixture
def world() -> Iterator[None]:
    """Make the misbehaving environments and the tiny agent importable, here and in workers."""
    sys.path.insert(0, str(WORLD))
    yield
    sys.path.remove(str(WORLD))


def tiny(env_id: str, **options) -> Experiment:
    from tiny_agent import TinyConfig

    agent = TinyConfig(**options.pop("agent", {}))
    small = {"num_envs": 4, "num_groups": 2, "rollout_length": 8, "placement": "served", "num_actors": 1}
    fields = {"total_env_steps": 640} | small | options
    evaluator = EvaluatorConfig(enabled=False)
    return Experiment(name="tiny", agent=agent, env=EnvConfig(env_id), evaluator=evaluator, **fields)


# -- environments -----------------------------------------------------------------------------------------------------

MISBEHAVIOUR = {
    "RaisesInStep": ("raised ZeroDivisionError in step: step gave up on purpose", "slot 0, episode 19, step 0"),
    "RaisesInReset": ("raised ZeroDivisionError in reset: reset gave up on purpose", "slot 0"),
    "ReturnsNan": ("returned nan in 'observation'[0]; expected finite numbers", "slot 0, episode 19"),
    "ReturnsWrongShape": ("[3]", "slot 0, episode 19"),
    "ReturnsWrongDtype": ("<U4", "slot 0, episode 19"),
    "CallsSysExit": ("raised SystemExit in step: 3", "slot 0, episode 19"),
}


@pytest.mark.parametrize(
    "name",
    marked(MISBEHAVIOUR, slow={"RaisesInReset"}, nightly={"ReturnsNan", "ReturnsWrongShape", "ReturnsWrongDtype"}),
)
def test_environment_that_misbehaves_in_serial_mode(world, tmp_path: Path, name: str) -> None:
    with pytest.raises(EnvironmentFault) as caught:
        run(tiny(f"worlds:{name}"), runs_dir=tmp_path, display="quiet", placement="serial")
    for part in (f"worlds:{name}", *MISBEHAVIOUR[name]):
        assert part in str(caught.value)
    (result,) = tmp_path.glob("tiny/*/result.json")
    assert '"ended": "failed"' in result.read_text()
    assert f"EnvironmentFault: {caught.value}\n" in (result.parent / "logs" / "controller.log").read_text()


def test_vector_environment_of_the_users_own_that_raises(world, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault) as caught:
        run(tiny("worlds:RaisesAsVector"), runs_dir=tmp_path, display="quiet", placement="serial")
    for part in ("actor-0", "worlds:RaisesAsVector", "group 0", "ZeroDivisionError: step gave up on purpose"):
        assert part in str(caught.value)


IN_A_PROCESS = ("CallsSysExit",)  # the message has one transport; serial mode covers every message


@pytest.mark.nightly
@pytest.mark.parametrize("name", marked(MISBEHAVIOUR, nightly=MISBEHAVIOUR.keys() - IN_A_PROCESS))
def test_environment_that_misbehaves_in_a_process(launch, name: str) -> None:
    text = launch(*FOREVER, "--env.id", f"worlds:{name}").expect(1, 30.0)
    for part in ("WorkerDied: actor-0: EnvironmentFault", f"worlds:{name}", *MISBEHAVIOUR[name]):
        assert part in text
    assert re.search(r"\(slot \d, episode \d+, step \d, first reset with seed \d+\)", text)
    assert ("Traceback" in text) == (not name.startswith("Returns"))  # only that of the environment's own code


@slow
def test_environment_that_ends_the_process(launch) -> None:
    text = launch(*FOREVER, "--env.id", "worlds:CallsOsExit").expect(1, 30.0)
    assert "WorkerDied: actor-0 ended unexpectedly: exit status 3" in text
    assert "environment 'worlds:CallsOsExit' may have ended the process" in text and "check_env" in text


@pytest.mark.nightly
def test_environment_that_hangs_in_its_constructor_in_a_worker(launch) -> None:
    """One that hangs in a step: test_watchdog."""
    text = launch(*FOREVER, "--env.id", "worlds:HangsInActor", "--actor.step-deadline-s", "1.5").expect(1, 30.0)
    assert "WorkerDied: actor-0: EnvironmentFault" in text
    assert "worlds:HangsInActor" in text and "group 0" in text and "did not return within 1.5 s" in text
    assert "time.sleep(3600.0)" in text  # the stack shows where


@pytest.mark.slow
def test_environment_that_hangs_in_its_constructor(launch) -> None:
    run = launch("--env.id", "worlds:HangsInConstruction", "--actor.step-deadline-s", "1.5")
    text = run.expect(1, 15.0)
    assert "EnvironmentFault: environment 'worlds:HangsInConstruction' was not made and closed within 1.5 s" in text
    assert "time.sleep(3600.0)" in text


@slow
def test_environment_that_raises_in_its_constructor(launch) -> None:
    text = launch("--env.id", "worlds:RaisesInConstruction").expect(1, 15.0)
    assert "EnvironmentFault: environment 'worlds:RaisesInConstruction' raised ZeroDivisionError" in text
    assert "construction gave up on purpose" in text


@pytest.mark.nightly
def test_environment_that_prints_a_lot_goes_to_the_log(launch) -> None:
    run = launch("--env.id", "worlds:Prints")
    text = run.expect(0, 40.0)
    assert len(text) < 20_000
    logs = (run.folder / "logs").glob("actor-0.log*")  # a large one is cut off
    assert sum(log.stat().st_size for log in logs) > 10_000_000


# -- agents -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "error", "parts"),
    [
        ("factory", AgentFault, ("tiny_agent:tiny", "RuntimeError", "the factory gave up on purpose")),
        ("act raises", AgentFault, ("RuntimeError", "act gave up on purpose", "probe:action_matters")),
        ("update raises", AgentFault, ("agent's update, on", "raised TypeError at ", "dot_general requires")),
        ("act dtype", ConfigError, ("shape () and dtype float32", "shape () and dtype int32")),
        ("no agent", ConfigError, ("factory tiny_agent:tiny returned NoneType", "expected an Agent")),
        ("no state", ConfigError, ("init returned ActParams", "expected an AgentState")),
        ("no core", ConfigError, ("act returned ActOutput", "expected (ActOutput, core)")),
    ],
)
def test_agent_that_breaks_a_rule(world, tmp_path: Path, fault: str, error: type[JsrlError], parts) -> None:
    with pytest.raises(error) as caught:
        run(
            tiny("probe:action_matters", agent={"fault": fault}, placement="serial"), runs_dir=tmp_path, display="quiet"
        )
    for part in parts:
        assert part in str(caught.value)
    assert not list(Path(f"/dev/shm/jsrl-{os.getuid()}").glob(f"{os.getpid()}-*"))


@slow
def test_agent_that_raises_is_shown_with_its_traceback(launch) -> None:
    text = launch("--agent.fault", "factory").expect(1, 15.0)
    assert "Traceback" in text and 'raise RuntimeError("the factory gave up on purpose")' in text
    assert "AgentFault: the agent's factory tiny_agent:tiny raised RuntimeError" in text


# -- the machine ------------------------------------------------------------------------------------------------------


def test_shared_memory_too_small(world, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = memory_folder.shutil.disk_usage("/dev/shm")
    monkeypatch.setattr(memory_folder.shutil, "disk_usage", lambda _: usage._replace(free=3 << 20))
    with pytest.raises(
        ConfigError, match=r"needs \d+ MiB of shared memory, but .* has 3 MiB free. Use --transport zeromq"
    ):
        run(tiny("probe:action_matters", rollout_length=100_000), runs_dir=tmp_path, display="quiet")
    assert not list(Path(f"/dev/shm/jsrl-{os.getuid()}").glob(f"{os.getpid()}-*"))


def test_port_taken(tmp_path: Path) -> None:
    keys, spec = make_keys(tmp_path / "keys"), (ArraySpec((1,), "float32"),)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        for bind in (lambda: bind_params(address, keys=keys), lambda: bind_samples(address, spec, keys=keys)):
            with pytest.raises(ConfigError, match=address) as caught:
                bind()
            assert "in use" in str(caught.value)


def test_run_folder_that_cannot_be_written(world, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot be written .* --runs-dir"):
        run(tiny("probe:action_matters"), runs_dir=tmp_path / "file", display="quiet")


@pytest.mark.parametrize(
    ("options", "part"), [({"stop_at_return": 1.0}, "evaluator"), ({"max_minutes": 0.0}, "above 0")]
)
def test_invalid_limits(world, options: dict, part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        tiny("probe:action_matters", **options)


# -- names ------------------------------------------------------------------------------------------------------------

COMMANDS = {
    "experiment": (["tynie"], "did you mean tiny?"),
    "option": (["tiny", "--n-steps", "8"], "--rollout-length"),
    "environment": (["tiny", "--env.id", "CartPol-v1"], "CartPole-v1"),
    "placement": (["tiny", "--placement", "servd"], "did you mean served?"),
    "impossible": (
        ["tiny", "--num-actors", "3", "--num-groups", "2"],
        "2 groups cannot be divided evenly among 3 actors",
    ),
    "resume": (["--resume", "nowhere"], "there is no run nowhere"),
}


@slow
def test_unknown_names(tmp_path: Path) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(WORLD)!r})
import drive
for words in {[words for words, _ in COMMANDS.values()]!r}:
    print("EXIT", drive.main([*words, "--runs-dir", {str(tmp_path)!r}]))
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False)
    assert ended.stdout.count("EXIT 2") == len(COMMANDS) and ended.returncode == 0, ended.stdout + ended.stderr
    told = ended.stderr.split("ConfigError: ")
    assert told[0] == "" and len(told) == len(COMMANDS) + 1 and "Traceback" not in ended.stderr, ended.stderr
    for text, (words, part) in zip(told[1:], COMMANDS.values(), strict=True):
        assert part in text, (words, text)


def test_failing_serial_run_restores_signal_handlers(world, tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)]
    with pytest.raises(EnvironmentFault):
        run(tiny("worlds:RaisesInStep"), runs_dir=tmp_path, display="quiet", placement="serial")
    assert before == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)]
