"""One benchmark from beginning to end: all arms, alternating, with intermediate results shown."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.works import PEERS, WORKS, Work, differences, jsrl_options, jsrl_work
from benchmarks.throughput import alone, peers
from benchmarks.throughput.end_to_end import BenchmarkError, end_to_end, last_lines, starts
from benchmarks.throughput.progress import Progress
from benchmarks.throughput.tables import FORMAT
from jsrl.errors import ConfigError
from jsrl.experiment import Experiment
from jsrl.services.runs.provenance import environment_facts

PLACEMENTS = ("serial", "inline", "served", "apart")
ALONE_SHARE = 0.2  # of a window's seconds, for each part alone
ALONE_LIMIT_S = 600.0


def measure(given: argparse.Namespace, further: list[str]) -> dict[str, Any]:
    """Return the raw numbers of a benchmark; `further` are options of run.py for every arm of jsrl's.

    Raises:
      ConfigError: an unknown experiment, placement, peer or option. BenchmarkError: every run of jsrl's failed.
    """
    work = work_of(given)
    options = (jsrl_options(work) if work else []) + further
    placements = selected(given.placements, PLACEMENTS, "placement")
    experiments = {placement: experiment_of(given.name, placement, options) for placement in placements}
    raw = header(given, options, experiments)
    taking_part = {} if work is None else find_peers(given, raw)
    if given.peer_search and work is not None:
        search(given, work, taking_part, raw)
    arms = [(peer, arm) for peer in taking_part.values() for arm in add_arms(given, peer, raw)]
    driven = sum(min(arm["repetitions"], given.repetitions) for _, arm in arms)
    starting = min(given.starts, given.repetitions) * len(placements)
    with Progress((1 + len(placements)) * given.repetitions + driven + starting) as progress:
        for repetition in range(given.repetitions):
            with progress.step("environment, inference, update alone"):
                take_alone(raw, given, options)
            for placement, experiment in experiments.items():
                take_placement(
                    raw, given, options, placement, experiment, progress, with_start=repetition < given.starts
                )
            for peer, arm in arms:
                if repetition < arm["repetitions"]:
                    with progress.step(f"{peer.name} {arm['setting']}") as report:
                        report(drive_arm(peer, arm, work, given))
    if given.repetitions and not any(raw["end_to_end"].values()):
        raise BenchmarkError("every run of jsrl failed:\n" + "\n".join(raw["errors"]))
    if work is not None and raw["alone"]:
        raw["work"] = jsrl_work(experiments[placements[0]], raw["parameters"])
        raw["differences"] = differences(work, raw["work"])
    raw["duration_s"] = time.monotonic() - raw.pop("begin_s")
    return raw


def take_placement(
    raw: dict[str, Any],
    given: argparse.Namespace,
    options: list[str],
    placement: str,
    experiment: Experiment,
    progress: Progress,
    *,
    with_start: bool,
) -> None:
    """Run one placement once, and its starts if requested; a failure is stored beside the successes."""
    with progress.step(f"jsrl {placement}") as report:
        try:
            run = end_to_end(given.name, placement, given.seconds, given.warm_up_s, options)
        except BenchmarkError as error:
            raw["errors"].append(f"{placement}: {error}")
            report("failed")
        else:
            raw["end_to_end"][placement].append(run)
            report(f"{run['env_steps_per_s']:,.0f} env steps/s")
    if not with_start:
        return
    with progress.step(f"jsrl {placement}, cold and warm start") as report:
        try:
            found = starts(given.name, placement, options, experiment.rows_per_update)
        except BenchmarkError as error:
            raw["errors"].append(f"{placement}, start: {error}")
            report("failed")
        else:
            raw["starts"][placement].append(found)
            report(f"{found['start_cold_s']:.1f} s, {found['start_warm_s']:.1f} s")


def selected(text: str, known: Sequence[str], what: str) -> list[str]:
    """Return the entries of a comma-separated list.

    Raises:
      ConfigError: one of them is unknown.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if word not in known:
            raise ConfigError(f"there is no {what} {word!r}; there are: {', '.join(known)}.")
    return list(dict.fromkeys(words))


def with_repetitions(text: str, most: int) -> dict[str, int]:
    """Return peer -> repetitions of a list such as `sb3,rllib:1`; those without a number take part in all of them.

    Raises:
      ConfigError: an unknown peer, or an invalid number.
    """
    counts: dict[str, int] = {}
    for word in text.split(","):
        name, _, number = word.strip().partition(":")
        if number and not (number.isdigit() and int(number) > 0):
            raise ConfigError(
                f"--against has {word!r}; expected a number of repetitions of at least 1 after the colon, such as sb3:1."
            )
        counts |= dict.fromkeys(selected(name, PEERS, "peer"), int(number or most))
    return counts


def work_of(given: argparse.Namespace) -> Work | None:
    """Return the work for the peers; None without --against.

    Raises:
      ConfigError: this experiment is not compared, or its rows do not divide by this number of environments.
    """
    if not given.against:
        return None
    if given.name not in WORKS:
        raise ConfigError(f"{given.name} cannot be compared with other libraries; choose from: {', '.join(WORKS)}.")
    work = WORKS[given.name]
    num_envs = given.num_envs or work.num_envs
    if num_envs < 1 or work.rows_per_update % num_envs:
        raise ConfigError(f"--num-envs is {num_envs}; it must divide the {work.rows_per_update} rows of an update.")
    return dataclasses.replace(work, num_envs=num_envs, rollout=work.rows_per_update // num_envs)


def experiment_of(name: str, placement: str, options: Sequence[str]) -> Experiment:
    """Return the experiment that run.py makes of these arguments.

    Raises:
      ConfigError: no such experiment or option, or it has several policies.
    """
    from jsrl.cli.command_line import parse
    from jsrl.cli.experiments import experiments

    if name not in experiments():
        raise ConfigError(f"there is no experiment {name!r}; there are: {', '.join(experiments())}.")
    experiment = parse([*options, "--placement", placement], experiments()[name]()).experiment
    if experiment.policies:
        raise ConfigError(
            f"{name} has the policies {', '.join(experiment.policies)}; this benchmark measures experiments with one policy."
        )
    return experiment


def header(given: argparse.Namespace, options: list[str], experiments: dict[str, Experiment]) -> dict[str, Any]:
    """Return the facts known before any run."""
    one = next(iter(experiments.values()))
    facts = {name: fact for name, fact in environment_facts().items() if name != "working_directory"}
    return {
        "format": FORMAT,
        "name": given.name,
        "options": options,
        "seconds": given.seconds,
        "warm_up_s": given.warm_up_s,
        "repetitions": given.repetitions,
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg(),
        "facts": facts,
        "transport": one.transport,
        "group_size": {placement: e.group_size for placement, e in experiments.items()},
        "frames_per_step": one.env.atari.frame_skip if one.env.id.startswith("ALE/") else 1,
        "alone": [],
        "end_to_end": {placement: [] for placement in experiments},
        "starts": {placement: [] for placement in experiments},
        "peers": {},
        "errors": [],
        "begin_s": time.monotonic(),
    }


def take_alone(raw: dict[str, Any], given: argparse.Namespace, options: list[str]) -> None:
    """Measure the parts in a separate process restricted to one core.

    Raises:
      BenchmarkError: it failed.
    """
    words = [sys.executable, str(Path(alone.__file__)), given.name, "--seconds", str(given.seconds * ALONE_SHARE)]
    ran = subprocess.run([*words, "--", *options], capture_output=True, text=True, timeout=ALONE_LIMIT_S, check=False)
    if ran.returncode:
        raise BenchmarkError(f"the parts alone ended with status {ran.returncode}:\n{last_lines(ran.stderr)}")
    found = json.loads(ran.stdout.splitlines()[-1])
    raw["alone"].append(found.pop("alone"))
    raw |= found


def find_peers(given: argparse.Namespace, raw: dict[str, Any]) -> dict[str, peers.Peer]:
    """Return the installed peers; the reasons for missing ones go into the raw numbers.

    Raises:
      ConfigError: an unknown peer.
    """
    folder, found = peers.peers_folder(given.peers_dir), {}
    for name in with_repetitions(given.against, given.repetitions):
        peer = peers.find(name, folder)
        raw["peers"][name] = {"missing": peer} if isinstance(peer, str) else {}
        if not isinstance(peer, str):
            found[name] = peer
    return found


def search(given: argparse.Namespace, work: Work, taking_part: dict[str, peers.Peer], raw: dict[str, Any]) -> None:
    """Try every setting of every peer once, and keep the best ones for this run and the next."""
    settings = {name: peers.variants(peer) for name, peer in taking_part.items()}
    with Progress(sum(map(len, settings.values()))) as progress:
        for name, peer in taking_part.items():
            tried = []
            for setting in settings[name]:
                with progress.step(f"{name} {setting}") as report:
                    tried.append(peers.attempt(peer, work, setting, given.seconds, given.warm_up_s))
                    report("failed" if "error" in tried[-1] else f"{tried[-1]['env_steps_per_s']:,.0f} env steps/s")
            raw["peers"][name]["search"] = tried
            best = peers.choose(tried)
            if best:
                peers.keep_settings(name, given.name, best, Path(given.json).name if given.json else "not kept")


def add_arms(given: argparse.Namespace, peer: peers.Peer, raw: dict[str, Any]) -> list[dict[str, Any]]:
    """Return an arm for each setting of a peer to run; the raw numbers hold the same arms."""
    repetitions = with_repetitions(given.against, given.repetitions)[peer.name]
    arms = [
        {"setting": setting, "repetitions": repetitions, "runs": [], "errors": [], "differences": []}
        for setting in peers.kept_settings(peer.name, given.name)
    ]
    raw["peers"][peer.name]["arms"] = arms
    return arms


def drive_arm(peer: peers.Peer, arm: dict[str, Any], work: Work | None, given: argparse.Namespace) -> str:
    """Run a peer once more; a failure is stored beside the successes. Return the text to show."""
    assert work is not None
    try:
        result = peers.drive(peer, work, arm["setting"], given.seconds, given.warm_up_s)
    except BenchmarkError as error:
        arm["errors"].append(str(error))
        return "failed"
    arm["runs"].append(result)
    arm["differences"] = differences(work, result["work"])
    return f"{result['env_steps_per_s']:,.0f} env steps/s"
