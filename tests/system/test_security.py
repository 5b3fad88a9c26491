"""A whole run, seen from outside: nothing is unpickled or evaluated, and its files and sockets are private."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from jsrl.errors import AccessDenied, ConfigError
from jsrl.services.runs.names import FileNames
from jsrl.transport.base import ProducerId
from jsrl.transport.door.keys import make_keys
from jsrl.transport.table import (
    bind_inference,
    bind_params,
    bind_samples,
    connect_inference,
    connect_params,
    connect_samples,
)
from jsrl.types import ArraySpec
from tests.contracts.inference_contract import SPEC
from tests.loopback import own_loopback
from tests.marks import nightly
from tests.system.launched import FOREVER, WORLD, Launched
from tests.system.test_supervision import await_training, counting, end

SPYING = WORLD / "spying"
slow = pytest.mark.slow


@pytest.fixture(name="spied")
def spied_fixture(tmp_path: Path, monkeypatch) -> Path:
    """Record calls in every interpreter started from now on; return the folder of the records."""
    folder = tmp_path / "spied"
    folder.mkdir()
    monkeypatch.setenv("JSSPY_FOLDER", str(folder))
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(SPYING), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    )
    return folder


def recorded_calls(folder: Path) -> tuple[str, list[str]]:
    """Return (command lines of all processes, calls)."""
    lines = [line for path in folder.iterdir() for line in path.read_text().splitlines()]
    return "\n".join(x for x in lines if x.startswith("PROCESS")), [x for x in lines if x.startswith("CALL")]


def test_spy_detects_forbidden_calls(spied: Path, tmp_path: Path) -> None:
    package = tmp_path / "jsrl" / "reader.py"
    package.parent.mkdir()
    package.write_text(
        "import io, pickle, collections\n"
        "pickle.loads(pickle.dumps(collections.OrderedDict()))\n"
        "pickle.Unpickler(io.BytesIO(pickle.dumps(1))).load()\n"
        "eval('1 + 1')\n"
    )
    subprocess.run([sys.executable, str(package)], check=True)
    calls = recorded_calls(spied)[1]
    assert {call.split()[1] for call in calls} == {"pickle.loads", "pickle.find_class", "Unpickler", "eval"}


@slow
@pytest.mark.parametrize("transport", [nightly("shared-memory"), "zeromq"])
def test_run_and_resume_use_no_pickle_and_no_eval(launch, spied: Path, transport: str) -> None:
    evaluated = ("--evaluator.enabled", "true", "--snapshots.period-s", "0.3")
    run = launch("--placement", "served", "--transport", transport, *evaluated, "--total-env-steps", "960")
    run.expect(0, 90.0)
    more = ("--total-env-steps", "1120", "--placement", "serial")  # in one process, which reads all that was written
    again = launch("--resume", str(run.folder), *more, experiment="", runs_dir=run.runs_dir)
    again.expect(0, 90.0)
    processes, calls = recorded_calls(spied)
    kinds = [
        "learner",
        "inference-0",
        "actor-0",
        "evaluator",
        "drive.py",
        *(["parameter-server"] * (transport == "zeromq")),
    ]
    for kind in kinds:
        assert processes.count(kind) >= 1 + (kind == "drive.py"), f"{kind} was not recorded:\n{processes}"
    assert calls == []


def loose(path: Path) -> bool:
    """Return whether other users can reach a file (of names, whose folder is private: the folder)."""
    mode = path.lstat().st_mode
    if path.parent.name == "names" and stat.S_ISREG(mode):
        return loose(path.parent)
    return bool(stat.S_IMODE(mode) & 0o077) and not path.is_symlink()


@slow
@pytest.mark.parametrize("transport", [nightly("shared-memory"), "zeromq"])
def test_run_files_are_private_and_no_port_is_open(launch, transport: str) -> None:
    run = launch(*FOREVER, "--transport", transport, "--placement", "served")
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
    assert listening == [], "streams within a host are files and Unix sockets in a private folder"
    run.popen.terminate()
    run.expect(130, 20.0)


TRANSPORTS = {
    "samples": lambda address: bind_samples(address, {"x": ArraySpec((2, 2), "float32")}),
    "inference": lambda address: bind_inference(address, SPEC),
    "params": bind_params,
}


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("host", ["0.0.0.0", "*", "[::]", socket.gethostname(), "10.1.2.3", "127.0.0.1"])
def test_tcp_without_keys_is_refused(transport: str, host: str) -> None:
    with pytest.raises(ConfigError, match="other users and hosts"):
        TRANSPORTS[transport](f"tcp://{host}:0").close()


# -- streams that other hosts can reach


def reachable() -> str:
    """Return an address of this machine that other hosts could reach, else all of its addresses."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing
        return str(probe.getsockname()[0])
    return "0.0.0.0"


def keys_of(run: Launched) -> dict[str, dict[str, str]]:
    return {path.name: json.loads(path.read_text()) for path in (run.folder / "keys").iterdir()}


def assert_keys_are_nowhere_else(run: Launched) -> None:
    secrets = {content["secret"].encode() for content in keys_of(run).values()}
    assert len(secrets) == 2
    files = [path for path in run.folder.rglob("*") if path.is_file() and path.parent.name != "keys"]
    assert {"experiment.json", "environment.json", "metrics.jsonl"} <= {path.name for path in files}
    assert [path for path in [*files, run._output] for secret in secrets if secret in path.read_bytes()] == []


def knock(addresses: dict[str, str], keys: Path | None) -> None:
    """Try every stream of a run, as an actor, an inference client and a reader of params would."""
    who, spec = ProducerId("actor-0", 999), {"x": ArraySpec((2, 2), "float32")}
    with pytest.raises(AccessDenied):
        connect_samples(addresses["samples.learner"], spec, who, 1, 20.0, keys=keys)
    with pytest.raises(AccessDenied):
        connect_inference(addresses["inference.inference-0"], SPEC, who, {0: 2}, 20.0, keys=keys)
    subscriber = connect_params(addresses["relayed.parameter-server"], keys=keys)
    with pytest.raises(AccessDenied):
        subscriber.wait(0, 0, 20.0)
    subscriber.close()


@slow
def test_reachable_run_accepts_only_its_keys(launch, tmp_path: Path) -> None:
    bind = reachable()
    encrypted = (
        "--transport",
        "zeromq",
        "--placement",
        "served",
        "--bind",
        bind,
        "--num-actors",
        "4",
        "--num-groups",
        "4",
    )
    run = launch(*FOREVER, *encrypted, "--snapshots.period-s", "0.3")
    run.await_updates()
    keys = run.folder / "keys"
    assert stat.S_IMODE(keys.stat().st_mode) == 0o700
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in keys.iterdir()} == {
        "server.key": 0o600,
        "client.key": 0o600,
    }
    (memory,) = run.memory_folders()
    found = {name: entry.address for name, entry in FileNames(memory / "names").names().items()}
    addresses = {name: found[name] for name in ("samples.learner", "inference.inference-0", "relayed.parameter-server")}
    assert all(address.startswith(f"tcp://{bind}:") for address in addresses.values())

    lives = {name: process.pid for name, process in run.workers().items()}
    for stranger in (None, make_keys(tmp_path / "another-run")):
        knock(addresses, stranger)
    invited = connect_params(addresses["relayed.parameter-server"], keys=keys / "client.key")
    invited.wait(0, 1, 20.0)
    assert invited.poll() is not None
    invited.close()
    updates = run.lines()[-1]["updates"]
    run.await_updates(updates + 5)
    assert {name: process.pid for name, process in run.workers().items()} == lives  # no worker was affected
    run.popen.terminate()
    text = run.expect(130, 20.0)
    assert f"streams listen on {bind} and are encrypted" in text and str(keys / "client.key") in text
    assert run.result()["ledger"]["produced"] > 0
    assert_keys_are_nowhere_else(run)

    before = keys_of(run)
    steps = str(run.result()["env_steps"] + 800)
    again = launch("--resume", str(run.folder), "--total-env-steps", steps, experiment="", runs_dir=run.runs_dir)
    again.expect(0, 90.0)
    assert keys_of(run) == before, "what was copied to other hosts is still valid"


@pytest.mark.nightly
def test_workers_are_replaced_at_their_encrypted_addresses(launch) -> None:
    """With fixed ports, connected peers find the replacement of a dead worker at the old address."""
    port = 20_000
    run = counting(launch, "--transport", "zeromq", "--encrypt", "--bind", f"{own_loopback()}:{port}")
    for worker in ("inference-0", "learner"):
        process = run.workers()[worker]
        since_s = time.monotonic()
        process.kill()
        await_training(run, since_s, worker, process.pid)
    listening = {c.laddr.port for p in run.workers().values() for c in p.net_connections("inet") if not c.raddr}
    assert listening == {port, port + 1, port + 2}, "samples, params, inference"
    end(run)


@pytest.mark.nightly
def test_a_run_with_replay_workers_encrypts_all_of_its_streams(launch) -> None:
    words = (
        "--transport",
        "zeromq",
        "--encrypt",
        "--placement",
        "inline",
        "--total-env-steps",
        "4000",
        "--max-minutes",
        "1",
    )
    run = launch(*words, experiment="replayed")
    text = run.expect(0, 90.0)
    assert "streams listen on 127.0.0.1 and are encrypted" in text
    assert run.result()["updates"] > 0
    assert_keys_are_nowhere_else(run)


@slow
def test_run_without_encryption_support_is_refused_before_it_starts(launch) -> None:
    run = launch(*FOREVER, "--bind", "0.0.0.0")
    assert "add --transport zeromq" in run.expect_status(2, 30.0)
