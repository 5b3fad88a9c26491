"""Every verdict from synthetic measurements: which one, and that it names numbers and an option."""

from __future__ import annotations

import dataclasses
import math

import pytest

from jsrl.services.metrics.phases import SECOND_THREADS
from jsrl.tools.report.limits import VERDICTS, RunSetup, find_bottleneck
from jsrl.workers.kinds import Kind, Shown, own_kinds
from jsrl.workers.transform import TrajectoryTransform

EIGHT = RunSetup(cores=8, actors=2, more_actors=(4, 8), more_groups=8)
TWO = dataclasses.replace(EIGHT, cores=2)
RECORDED = dataclasses.replace(EIGHT, recorded=True)
SYNCHRONOUS = dataclasses.replace(EIGHT, synchronous=True)


def measured(cpu: dict[str, float] | None = None, others: float = 0.0, **kinds: dict[str, float]) -> dict[str, float]:
    """Return metrics of shares by kind, where the rest of each worker's time is `other`."""
    metrics = {"system/others_cpu_share": others}
    for kind, shares in kinds.items():
        rest = 1.0 - sum(share for name, share in shares.items() if not name.startswith(SECOND_THREADS))
        metrics |= {f"{kind}/{name}_share": share for name, share in (shares | {"other": rest}).items()}
    return metrics | {f"system/{kind}_cpu_share": cores for kind, cores in (cpu or {}).items()}


STEPPING = {"env": 0.71, "wait_inference": 0.2, "transport": 0.05}
STARVED = {"wait_batch": 0.55, "update": 0.4, "publish": 0.02}
IDLE_SERVER = {"act": 0.2, "wait": 0.7}
ASKING = {"env": 0.2, "wait_inference": 0.7, "transport": 0.05}

# verdict -> (metrics, facts, required parts of the sentence)
CASES: list[tuple[str, dict[str, float], RunSetup, tuple[str, ...]]] = [
    ("unknown", {}, EIGHT, ("too few measurements",)),
    ("unknown", measured(learner=STARVED), EIGHT, ("too few measurements",)),
    ("recording", measured(learner=STARVED), RECORDED, ("Reading the recording limits", "waits 55%")),
    ("updates", measured(learner={"update": 0.9}), RECORDED, ("Updates", "(90% with publishing); this machine has 8")),
    (
        "environments",
        measured(
            {"actor": 2.0, "learner": 0.4, "inference": 0.3}, actor=STEPPING, learner=STARVED, inference=IDLE_SERVER
        ),
        EIGHT,
        ("Environments", "71%", "waits 55%", "2.7 of 8 cores are used. Raise --num-actors to 4."),
    ),
    (
        "environments",
        measured(
            {"actor": 2.0, "learner": 0.4, "inference": 0.7},
            actor={"env": 0.67, "wait_inference": 0.3},
            learner=STARVED,
            inference={"act": 0.86, "transport": 0.1},
        ),
        EIGHT,
        ("Environments", "67%", "96% of the servers' time: raise --num-inference-servers to 2, then --num-actors."),
    ),
    (
        "environments",
        measured(
            {"actor": 1.4, "learner": 0.4, "inference": 0.1}, actor=STEPPING, learner=STARVED, inference=IDLE_SERVER
        ),
        TWO,
        ("71%", "both cores are busy. More actors will not help here"),
    ),
    (
        "environments",
        measured({"actor": 0.3, "learner": 0.2, "inference": 0.1}, others=1.4, actor=STEPPING, learner=STARVED),
        TWO,
        ("both cores are busy (other programs take 1.4)", "idle machine"),
    ),
    (
        "environments",
        measured({"actor": 0.1, "learner": 0.05}, actor=STEPPING | {"env": 0.75}, learner={"wait_batch": 0.95}),
        dataclasses.replace(TWO, more_actors=(4, 8, 16)),
        ("wait rather than compute", "raise --num-actors to 16"),
    ),
    (  # the actors compute while they step, and wait for the rest of the time
        "environments",
        measured(
            {"actor": 0.8, "learner": 0.1},
            actor={"env": 0.6, "wait_params": 0.2, "act": 0.1},
            learner={"wait_batch": 0.6},
        ),
        EIGHT,
        ("60%", "0.9 of 8 cores are used. Raise --num-actors to 4."),
    ),
    (
        "environments",
        measured({"actor": 2.0}, actor=STEPPING, learner=STARVED),
        dataclasses.replace(EIGHT, more_actors=()),
        ("Raise --num-envs",),
    ),
    (
        "acting",
        measured({"actor": 2.0, "learner": 0.4}, actor={"act": 0.6, "env": 0.3}, learner=STARVED),
        EIGHT,
        ("Acting", "60%", "2.4 of 8 cores", "--num-actors to 4"),
    ),
    (
        "acting",
        measured({"actor": 1.6, "learner": 0.3}, actor={"act": 0.6, "env": 0.3}, learner=STARVED),
        TWO,
        ("both cores are busy", "--placement served"),
    ),
    (
        "inference",
        measured(
            {"actor": 0.5, "learner": 0.4, "inference": 0.9}, actor=ASKING, learner=STARVED, inference={"act": 0.9}
        ),
        EIGHT,
        ("Inference", "servers act 90%", "wait 70%", "--num-inference-servers 2"),
    ),
    (
        "inference",
        measured(
            {"actor": 0.3, "learner": 0.3, "inference": 0.9}, actor=ASKING, learner=STARVED, inference={"act": 0.9}
        ),
        dataclasses.replace(EIGHT, actors=1),
        ("--placement inline", "--inference.threads 2"),
    ),
    (
        "latency",
        measured(
            {"actor": 0.5, "learner": 0.4, "inference": 0.3}, actor=ASKING, learner=STARVED, inference=IDLE_SERVER
        ),
        EIGHT,
        ("Round trips", "70%", "--num-groups 8"),
    ),
    (
        "machine",
        measured(
            {"actor": 0.6, "learner": 0.4, "inference": 0.9}, actor=ASKING, learner=STARVED, inference=IDLE_SERVER
        ),
        TWO,
        ("both cores are busy", "inference servers 0.9, actors 0.6, the learner 0.4", "More processes will not help"),
    ),
    (
        "machine",
        measured(
            {"actor": 0.6, "evaluator": 0.9, "inference": 0.4}, actor=ASKING, learner=STARVED, inference=IDLE_SERVER
        ),
        TWO,
        ("the evaluator 0.9", "--evaluator.period-env-steps"),
    ),
    (
        "crowded",
        measured({"actor": 0.1, "inference": 0.1}, others=1.7, actor=ASKING, learner=STARVED, inference=IDLE_SERVER),
        TWO,
        ("Other programs", "gets 0.2 of 2 cores", "(other programs take 1.7)"),
    ),
    (
        "alternating",
        measured(
            {"actor": 0.5, "learner": 0.5, "inference": 0.2},
            actor={"env": 0.5, "wait_inference": 0.45},
            learner=STARVED,
            inference={"act": 0.2, "wait_params": 0.4, "wait": 0.4},
        ),
        SYNCHRONOUS,
        ("turns", "wait 45%", "waits 55%", "--max-policy-lag 1"),
    ),
    (
        "updates",
        measured(
            {"learner": 1.0, "actor": 0.3},
            actor={"wait_block": 0.7, "env": 0.2},
            learner={"update": 0.9, "wait_batch": 0.02},
        ),
        EIGHT,
        ("Updates", "90%", "wait 70%", "--batch-envs"),
    ),
    (
        "updates",
        measured({"learner": 1.8, "actor": 0.1}, actor={"wait_block": 0.7}, learner={"update": 0.97}),
        TWO,
        ("both cores are busy", "an accelerator"),
    ),
    (
        "updates",
        measured({"learner": 1.0}, actor={"wait_block": 0.7}, learner={"update": 0.97}),
        dataclasses.replace(EIGHT, accelerators=4),
        ("--learner.num-devices",),
    ),
    (
        "publishing",
        measured({"learner": 1.0}, actor=ASKING, learner={"update": 0.4, "publish": 0.3, "snapshot": 0.2}),
        EIGHT,
        ("Publishing", "50%", "--rollout-length"),
    ),
    (
        "joining",
        measured({"learner": 1.0}, actor={"wait_block": 0.8}, learner=STARVED | {"prefetch_transport": 0.9}),
        EIGHT,
        ("Joining", "90%", "uint8"),
    ),
    (
        "room",
        measured({"actor": 0.2}, actor={"wait_block": 0.8}, learner=STARVED),
        EIGHT,
        ("80%", "--actor.blocks-per-group"),
    ),
    (
        "replay",
        measured({"actor": 1.0}, actor=STEPPING, learner=STARVED, replay={"insert": 0.2, "draw_draw": 0.9}),
        EIGHT,
        ("draws batches for 90%", "Raise --replay.threads"),
    ),
    (
        "replay",
        measured({"actor": 1.0}, actor=STEPPING, learner=STARVED, replay={"insert": 0.8, "draw_draw": 0.3}),
        EIGHT,
        ("writes rows for 80%", "--replay.num-replays"),
    ),
    (
        "replay",
        measured({"actor": 1.0, "replay": 1.0}, actor=STEPPING, learner=STARVED, replay={"insert": 0.8}),
        TWO,
        ("both cores are busy", "--replay.batch-size"),
    ),
    (
        "transport",
        measured({"actor": 2.0}, actor={"transport": 0.8}, learner=STARVED),
        dataclasses.replace(EIGHT, zeromq=True),
        ("Moving rows", "80%", "--transport shared-memory"),
    ),
    ("transport", measured({"actor": 2.0}, actor={"transport": 0.8}, learner=STARVED), EIGHT, ("--num-actors to 4",)),
    (
        "balanced",
        measured({"actor": 2.0}, actor={"env": 0.1}, learner=STARVED),
        EIGHT,
        ("Nothing stands out", "10%"),
    ),
    (
        "serial",
        measured(
            actor={"env": 0.2, "act": 0.5, "wait_turn": 0.3},
            learner={"update": 0.2, "wait_turn": 0.8},
            evaluator={"env": 0.05, "act": 0.04, "wait_turn": 0.9},
        ),
        dataclasses.replace(TWO, processes=False),
        ("acting 50%, stepping environments 20%, updates 20%, evaluating 10%.",),
    ),
    (
        "serial",
        measured(
            actor={"transport": 0.1, "wait_turn": 0.9},
            inference={"transport": 0.2, "act": 0.5, "wait_turn": 0.3},
            learner={"update": 0.2, "wait_turn": 0.8},
        ),
        dataclasses.replace(TWO, processes=False),
        ("acting 50%, moving rows 30%, updates 20%.",),
    ),
    (
        "serial",
        measured(actor={"env": 0.6, "act": 0.2, "wait_turn": 0.1}, learner={"update": 0.1, "wait_turn": 0.9}),
        dataclasses.replace(TWO, processes=False),
        ("stepping environments 60%, acting 20%, updates 10%, other 10%.",),
    ),
    (  # the actors wait less than the learner: they are the limit
        "environments",
        measured(
            {"actor": 1.23, "learner": 0.67},
            actor={"env": 0.85, "act": 0.05, "wait_params": 0.06},
            learner={"wait_batch": 0.14, "update": 0.8},
        ),
        EIGHT,
        ("Environments", "85%", "waits 14%", "Raise --num-actors"),
    ),
    (
        "updates",
        measured(
            {"actor": 1.0, "learner": 0.9},
            actor={"env": 0.6, "wait_params": 0.3},
            learner={"wait_batch": 0.14, "update": 0.8},
        ),
        dataclasses.replace(TWO, options=frozenset({"replay.batch-size", "replay.updates-per-env-step"})),
        ("fewer --replay.updates-per-env-step, a smaller --replay.batch-size, a smaller network",),
    ),
    (  # actors wait 29% for actions on full cores: neither their environments nor the server are the limit
        "machine",
        measured(
            {"actor": 1.2, "inference": 0.3, "learner": 0.1},
            actor={"env": 0.4, "wait_inference": 0.29, "transport": 0.1},
            inference={"act": 0.5, "wait": 0.2},
            learner={"wait_batch": 0.9},
        )
        | {"system/load": 200.0},
        dataclasses.replace(TWO, actors=256),
        ("both cores are busy (load 200)", "actors 1.2", "fewer --num-actors"),
    ),
    (  # a server that gets 0.08 cores of a loaded machine
        "crowded",
        measured(
            {"actor": 0.05, "inference": 0.08, "learner": 0.02},
            actor=ASKING,
            learner=STARVED | {"update": 0.05},
            inference={"act": 0.9},
        )
        | {"system/load": 60.0},
        TWO,
        ("Other programs", "gets 0.1 of 2 cores", "(load 60)"),
    ),
    (  # the same where the load is not known
        "crowded",
        measured(
            {"actor": 0.05, "inference": 0.08, "learner": 0.02},
            actor=ASKING,
            learner=STARVED | {"update": 0.05},
            inference={"act": 0.9},
        ),
        TWO,
        ("Other programs", "its workers wait for a core"),
    ),
    (
        "machine",
        measured({"parameter_server": 5.4, "actor": 2.0}, actor={"env": 0.3, "wait_block": 0.6}, learner=STARVED),
        EIGHT,
        ("the parameter server 5.4, actors 2.0", "larger batches would", "--batch-envs"),
    ),
    (
        "link",
        measured({"actor": 0.4, "learner": 0.2}, actor={"env": 0.3, "wait_block": 0.6}, learner=STARVED),
        dataclasses.replace(EIGHT, zeromq=True, hosts=("b", "c")),
        ("The network", "actors on b, c wait 60%", "waits 55%", "--compress"),
    ),
]


@pytest.mark.parametrize(("kind", "metrics", "facts", "parts"), CASES, ids=[f"{c[0]}-{i}" for i, c in enumerate(CASES)])
def test_verdicts(kind, metrics, facts, parts):
    found = find_bottleneck(metrics, facts)
    assert found.kind == kind, found.text
    missing = [part for part in parts if part not in found.text]
    assert not missing, f"{missing} not in: {found.text}"
    assert found.text.endswith(".") and ".." not in found.text and "  " not in found.text


def test_every_verdict_has_a_case():
    assert {kind for kind, *_ in CASES} | {"stage"} == {"unknown", "serial"} | {kind for kind, *_ in VERDICTS}


def test_non_numeric_values_are_left_out():
    metrics = measured({"actor": math.nan, "learner": 0.2}, actor=STEPPING, learner=STARVED)
    assert "0.2 of 8 cores" in find_bottleneck(metrics, EIGHT).text


def test_advice_is_bounded_by_the_learner_rate():
    metrics = measured({"actor": 2.0, "learner": 0.8}, actor=STEPPING, learner={"wait_batch": 0.3, "update": 0.7})
    facts = dataclasses.replace(EIGHT, cores=64, more_actors=(3, 4, 8, 16, 32))
    assert "Raise --num-actors to 3" in find_bottleneck(metrics, facts).text


def test_workers_of_a_user_kind_can_be_the_bottleneck():
    shares = {"change": 0.8, "wait_rows": 0.05, "wait_block": 0.05}
    metrics = measured({"actor": 2.0}, actor={"env": 0.3, "wait_block": 0.6}, learner=STARVED, augment=shares)
    kind = Kind("augment", "augmenters", "nowhere:build", TrajectoryTransform.ports)
    kind = kind._replace(shown=Shown(TrajectoryTransform.activities))
    found = find_bottleneck(metrics, EIGHT, (*own_kinds(), kind))
    assert found.kind == "stage"
    assert "your own limit this run: augmenters work 80% of their time" in found.text
    assert find_bottleneck(metrics | {"augment/change_share": 0.5}, EIGHT, (*own_kinds(), kind)).kind != "stage"
