"""A whole run, seen from outside: nothing is unpickled or evaluated, and nobody else may open what it makes."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from jsrl.errors import ConfigError
from jsrl.transport.inference import bind_inference
from jsrl.transport.params import bind_params
from jsrl.transport.samples import bind_samples
from jsrl.types import ArraySpec
from tests.contracts.inference_contract import SPEC
from tests.system.launched import FOREVER, WORLD

SPYING = WORLD / "spying"
slow = pytest.mark.slow


@pytest.fixture(name="spied")
def spied_fixture(tmp_path: Path, monkeypatch) -> Path:
    """Have every interpreter started from now on spied on; return where it is written down."""
    folder = tmp_path / "spied"
    folder.mkdir()
    monkeypatch.setenv("JSSPY_FOLDER", str(folder))
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(SPYING), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    )
    return folder


def seen(folder: Path) -> tuple[str, list[str]]:
    """Return (command lines of all processes, calls)."""
    lines = [line for path in folder.iterdir() for line in path.read_text().splitlines()]
    return "\n".join(x for x in lines if x.startswith("PROCESS")), [x for x in lines if x.startswith("CALL")]


def test_the_spy_sees_what_it_is_for(spied: Path, tmp_path: Path) -> None:
    package = tmp_path / "jsrl" / "reader.py"
    package.parent.mkdir()
    package.write_text(
        "import io, pickle, collections\n"
        "pickle.loads(pickle.dumps(collections.OrderedDict()))\n"
        "pickle.Unpickler(io.BytesIO(pickle.dumps(1))).load()\n"
        "eval('1 + 1')\n"
    )
    subprocess.run([sys.executable, str(package)], check=True)
    calls = seen(spied)[1]
    assert {call.split()[1] for call in calls} == {"pickle.loads", "pickle.find_class", "Unpickler", "eval"}


@slow
@pytest.mark.parametrize("road", ["shared-memory", "zeromq"])
def test_a_run_and_its_resume_unpickle_and_evaluate_nothing(launch, spied: Path, road: str) -> None:
    evaluated = ("--evaluator.enabled", "true", "--snapshots.period-s", "0.3")
    run = launch("--placement", "served", "--road", road, *evaluated, "--total-env-steps", "3200")
    run.expect(0, 90.0)
    again = launch("--resume", str(run.folder), "--total-env-steps", "4800", experiment="", runs_dir=run.runs_dir)
    again.expect(0, 90.0)
    processes, calls = seen(spied)
    kinds = ["learner", "inference-0", "actor-0", "evaluator", "drive.py", *(["parameter-server"] * (road == "zeromq"))]
    for kind in kinds:
        assert processes.count(kind) >= 2, f"{kind} was not spied on:\n{processes}"
    assert calls == []


def loose(path: Path) -> bool:
    """Return whether others than the owner may reach a file (of names, whose folder keeps them out: the folder)."""
    mode = path.lstat().st_mode
    if path.parent.name == "names" and stat.S_ISREG(mode):
        return loose(path.parent)
    return bool(stat.S_IMODE(mode) & 0o077) and not path.is_symlink()


@slow
@pytest.mark.parametrize("road", ["shared-memory", "zeromq"])
def test_what_a_run_makes_is_its_owners_alone_and_it_listens_on_loopback_only(launch, road: str) -> None:
    run = launch(*FOREVER, "--road", road, "--placement", "served")
    run.await_updates()
    memory = run.memory_folders()
    assert len(memory) == 1 and stat.S_IMODE(memory[0].stat().st_mode) == 0o700
    assert stat.S_IMODE(memory[0].parent.stat().st_mode) == 0o700
    assert [path for path in memory[0].rglob("*") if loose(path)] == []
    sockets = [path for path in run.folder.rglob("*") if stat.S_ISSOCK(path.lstat().st_mode)]
    assert [path for path in sockets if loose(path)] == []
    listening = [
        connection.laddr
        for process in [psutil.Process(run.popen.pid), *run.workers().values()]
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert [address for address in listening if address.ip not in ("127.0.0.1", "::1")] == []
    assert bool(listening) == (road == "zeromq")
    run.popen.terminate()
    run.expect(130, 20.0)


ROADS = {
    "samples": lambda address: bind_samples(address, {"x": ArraySpec((2, 2), "float32")}),
    "inference": lambda address: bind_inference(address, SPEC),
    "params": bind_params,
}


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("host", ["0.0.0.0", "*", "[::]", socket.gethostname(), "10.1.2.3"])
def test_streams_refuse_addresses_that_others_can_reach(road: str, host: str) -> None:
    with pytest.raises(ConfigError, match="reached from other hosts"):
        ROADS[road](f"tcp://{host}:0").close()
