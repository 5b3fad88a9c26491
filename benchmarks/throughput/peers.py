"""Other libraries: their virtual environments, their drivers, the settings to try, and the output of a driver."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import process_tree
from benchmarks.peers.replay_works import ReplayWork
from benchmarks.peers.works import Work
from benchmarks.throughput.alone import near
from benchmarks.throughput.arithmetic import best, ratio
from benchmarks.throughput.end_to_end import BenchmarkError, last_lines

FOLDER = Path(__file__).resolve().parents[1] / "peers"
SETTINGS = FOLDER / "settings.json"
DRIVERS = {
    "sb3": "run_sb3.py",
    "sbx": "run_sbx.py",
    "rllib": "run_rllib.py",
    "sample-factory": "run_sample_factory.py",
    "pufferlib": "run_pufferlib.py",
}
LIMIT_S = 300.0
PASSED_ON = ("HOME", "PATH", "LANG", "LC_ALL", "TMPDIR", "USER", "CUDA_VISIBLE_DEVICES", "XDG_CACHE_HOME")


@dataclasses.dataclass(frozen=True)
class Peer:
    """A participating library.

    Attributes:
      python: interpreter of its virtual environment. driver: our script that runs it.
    """

    name: str
    python: Path
    driver: Path


def peers_folder(given: str | None) -> Path:
    """Return the folder of the peers' virtual environments."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(given).expanduser() if given else base / "jsrl" / "peers"


def find(name: str, folder: Path, driver: Path | None = None) -> Peer | str:
    """Return a peer with a driver (its usual one), or the reason why there is none."""
    home = folder / name
    if not (home / "installed.json").is_file():
        failed = home.parent / f"{name}.failed"
        if failed.is_file():
            return f"could not be installed: {failed.read_text().strip().splitlines()[0]}"
        return f"not installed in {folder}: python {near(str(FOLDER / 'install.py'))} {name}"
    return Peer(name, home / "bin" / "python", driver or FOLDER / DRIVERS[name])


def variables(setting: dict[str, Any]) -> dict[str, str]:
    """Return the environment of a driver: no variables of jsrl's, and the math threads of its setting."""
    kept = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    threads = str(setting.get("threads", 1))
    return kept | dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), threads)


def drive(
    peer: Peer,
    work: Work | ReplayWork,
    setting: dict[str, Any],
    seconds: float,
    warm_up_s: float,
    options: Sequence[str] = (),
) -> dict[str, Any]:
    """Run a peer once and return its driver's result; `options` of run.py are for jsrl's own driver.

    Raises:
      BenchmarkError: it failed, hung, or printed no result.
    """
    times = {"seconds": seconds, "warm_up_s": warm_up_s}
    asked = {**dataclasses.asdict(work), **times, "setting": setting, "options": list(options)}
    words = [str(peer.python), str(peer.driver), json.dumps(asked)]
    limit_s = LIMIT_S + 10 * (seconds + warm_up_s)
    process_tree.adopt_orphans()  # daemons that outlive their driver are found and ended
    before = process_tree.descendants()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as output:
        popen = subprocess.Popen(
            words, stdout=output, stderr=subprocess.STDOUT, env=variables(setting), cwd=folder, start_new_session=True
        )
        try:
            popen.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise BenchmarkError(f"{peer.name} did not end within {limit_s:g} s") from None
        finally:
            process_tree.end_tree(popen.pid)
            popen.wait()
            process_tree.end_all(process_tree.descendants() - before)
        output.seek(0)
        printed = output.read()
    result = parse(printed)
    if result is None:
        raise BenchmarkError(f"{peer.name} ended with status {popen.returncode}:\n{last_lines(printed)}")
    return result


def parse(printed: str) -> dict[str, Any] | None:
    """Return the last line of a driver's output that is a result with rates; None if there is none.

    Libraries may print other lines between and after.
    """
    for line in reversed(printed.splitlines()):
        if not line.startswith("{"):
            continue
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict) and {"peer", "env_steps", "seconds", "cpu_s"} <= set(found):
            found["env_steps_per_s"] = ratio(found["env_steps"], found["seconds"])
            found["env_steps_per_cpu_s"] = ratio(found["env_steps"], found["cpu_s"])
            return found
    return None


def variants(peer: Peer) -> list[dict[str, Any]]:
    """Return the settings to try on this machine, as listed by its driver (`--settings`)."""
    listed = subprocess.run(
        [str(peer.python), str(peer.driver), "--settings"], capture_output=True, text=True, timeout=60, check=False
    )
    if listed.returncode:
        raise BenchmarkError(f"{peer.name} lists no settings:\n{last_lines(listed.stderr)}")
    return json.loads(listed.stdout)


def attempt(peer: Peer, work: Work, setting: dict[str, Any], seconds: float, warm_up_s: float) -> dict[str, Any]:
    """Run a peer once with a setting; a failure becomes a result with its error."""
    try:
        return drive(peer, work, setting, seconds, warm_up_s)
    except BenchmarkError as error:
        return {"peer": peer.name, "setting": setting, "error": str(error)}


def choose(results: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the best setting by wall clock and, if different, the best per CPU-second."""
    known = {json.dumps(r["setting"], sort_keys=True): r for r in results if "error" not in r}
    chosen = [best({key: r[rate] for key, r in known.items()}) for rate in ("env_steps_per_s", "env_steps_per_cpu_s")]
    return [json.loads(key) for key in dict.fromkeys(chosen) if key is not None]


def kept_settings(name: str, work: str) -> list[dict[str, Any]]:
    """Return the settings of an earlier search; the library's defaults without one."""
    return json.loads(SETTINGS.read_text()).get(work, {}).get(name, {}).get("best", [{}])


def keep_settings(name: str, work: str, chosen: list[dict[str, Any]], raw: str) -> None:
    """Store the settings chosen by a search, and the file with its raw numbers."""
    kept = json.loads(SETTINGS.read_text())
    kept.setdefault(work, {})[name] = {"best": chosen, "raw": raw}
    SETTINGS.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
