"""What limits a run of several processes: a table of verdicts, when each applies, and the option that would help.

The kind of worker that waits least is the limit, unless all cores are busy: then the machine is. CPU time distinguishes
environments that compute from environments that wait.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from jsrl.services.metrics.display_state import percent
from jsrl.tools.report.evidence import MOST_LOAD, Evidence
from jsrl.tools.report.signs import known_advice
from jsrl.workers.actor.kind import KIND as ACTOR
from jsrl.workers.evaluator.kind import KIND as EVALUATOR
from jsrl.workers.inference.kind import KIND as INFERENCE
from jsrl.workers.kinds import Kind, own_kinds
from jsrl.workers.learner.kind import KIND as LEARNER
from jsrl.workers.relay.kind import KIND as RELAY
from jsrl.workers.replay.kind import KIND as REPLAY
from jsrl.workers.video_recorder.kind import KIND as VIDEO_RECORDER

WAITS = 0.25  # a worker that waits for less than this share of its time is busy
MORE = 0.05  # by this share the learner waits longer than actors, if they limit it

# -- the parts of sentences -------------------------------------------------------------------------------------------


def who(kind: Kind) -> str:
    """Return the workers of a kind for a sentence: by their title if a run has only one."""
    return f"the {kind.title}" if kind in (LEARNER, EVALUATOR, VIDEO_RECORDER, RELAY) else kind.plural


def cores_text(e: Evidence) -> str:
    cores = e.facts.cores
    if not e.cpu:
        return f"this machine has {cores} core{'s' if cores > 1 else ''}"
    others = f" (other programs take {e.others:.1f})" if e.others >= 0.15 * cores else ""
    others += f" (load {e.load:.0f})" if e.load >= MOST_LOAD * cores else ""
    if e.full:
        return {1: "the one core is busy", 2: "both cores are busy"}.get(cores, f"all {cores} cores are busy") + others
    return f"{e.cores_used:.1f} of {cores} cores are used{others}"


def actors_advice(e: Evidence) -> str:
    """Return an option with a number of actors that would help, or why none does."""
    free = e.facts.cores - e.cores_used - e.others
    room_for = e.facts.actors + max(1, int(free / max(e.cpu_per_actor, 0.1)))
    enough = math.ceil(e.facts.actors / max(1.0 - e.learner_waits, 0.05))  # more than the learner can use does not help
    fitting = [n for n in e.facts.more_actors if n <= min(room_for, enough)]
    if fitting:
        return f"raise --num-actors to {fitting[-1]}"
    if e.facts.more_actors:
        return f"raise --num-actors to {e.facts.more_actors[0]}"
    return "raise --num-envs, so that there are groups for more --num-actors"


def learner_waits_text(e: Evidence) -> str:
    return f"the learner waits {percent(e.learner_waits)} of its time for batches"


def groups_advice(e: Evidence) -> str:
    """Return an option that puts more groups of environments into each actor."""
    if e.facts.more_groups is not None:
        return f"--num-groups {e.facts.more_groups} gives each actor more groups, so that one steps while others wait"
    return "more --num-envs in more groups keep each actor busy while it waits"


CHEAPER_UPDATES = (
    "fewer --agent.num-epochs",
    "fewer --replay.updates-per-env-step",
    "a smaller --replay.batch-size",
    "a smaller network",
    "a larger batch of rows (--batch-envs, --num-envs)",
)


# -- verdicts: (name, condition, text); the first one that applies -----------------------------------------------------

Verdict = tuple[str, Callable[[Evidence], bool], Callable[[Evidence], str]]


def _learner_text(e: Evidence) -> str:
    busy = e.share(LEARNER, "update", "publish", "snapshot", "transport")
    actors = "" if e.facts.recorded else f" and actors wait {percent(_actor_waits(e))} of theirs"
    text = f"Updates limit this run: the learner trains {percent(e.share(LEARNER, 'update'))} of its time "
    text += f"({percent(busy)} with publishing){actors}; {cores_text(e)}"
    if e.facts.accelerators > 1:
        return text + ". More devices help (--learner.num-devices), then a larger batch."
    cheaper = known_advice(CHEAPER_UPDATES, e.facts.options)
    if e.facts.accelerators or e.room:
        return text + f". Cheaper updates help: {', '.join(cheaper)}."
    return text + f", so only cheaper updates help: {', '.join(cheaper)}, or an accelerator."


def _publishing_text(e: Evidence) -> str:
    share = e.share(LEARNER, "publish", "snapshot")
    return (
        f"Publishing limits this run: the learner spends {percent(share)} of its time handing out params and snapshots. "
        "Larger batches publish less often (--batch-envs, --rollout-length), and so does a longer --snapshots.period-s."
    )


def _machine_text(e: Evidence) -> str:
    takers = sorted(e.cpu.items(), key=lambda entry: -entry[1])[:3]
    parts = ", ".join(f"{who(kind)} {cores:.1f}" for kind, cores in takers)
    text = f"The machine limits this run: {cores_text(e)} ({parts}), so more processes will not help here. "
    first = takers[0][0]
    if first is EVALUATOR or e.cpu.get(EVALUATOR, 0.0) > 0.2 * e.facts.cores:
        return text + "Evaluate less often: a larger --evaluator.period-env-steps, or fewer --evaluator.episodes."
    if first is VIDEO_RECORDER:
        return text + "Film less often: a larger --video.period-env-steps, or a larger --video.niceness."
    if first is ACTOR and e.facts.actors > 2 * e.facts.cores:
        return text + "Fewer --num-actors, with more environments each, would share the cores better."
    return text + {
        ACTOR: "Cheaper environments or acting would help.",
        INFERENCE: "A smaller network would help, or larger inference batches (more slots per group).",
        LEARNER: f"Cheaper updates would help: {', '.join(known_advice(CHEAPER_UPDATES, e.facts.options))}.",
    }.get(first, "Fewer of them would help.")


def _crowded_text(e: Evidence) -> str:
    taken = f"they take {e.others:.1f} of {e.facts.cores} cores, this run {e.cores_used:.1f}"
    if e.others <= e.cores_used:  # by the load, or by what its own workers get
        load = f" (the load is {e.load:.0f})" if e.load else ""
        taken = f"this run gets {e.cores_used:.1f} of {e.facts.cores} cores, and its workers wait for a core{load}"
    text = f"Other programs limit this run: {taken}. On an idle machine it would be faster."
    waits = e.share(ACTOR, "wait_inference")
    if waits >= WAITS and not e.facts.accelerators:
        text += f" Within it actors wait {percent(waits)} of their time for actions; --placement inline acts in every actor."
    return text


def _environments_text(e: Evidence) -> str:
    spent = f"actors spend {percent(e.share(ACTOR, 'env'))} of their time stepping and {learner_waits_text(e)}"
    text = f"Environments limit this run: {spent}; {cores_text(e)}"
    if e.full and e.others > e.cores_used:
        return text + ". On an idle machine they would run faster."
    if e.full:
        return text + ", so more actors will not help here; a faster environment would (--env.backend, fewer wrappers)."
    if e.cpu and e.cpu_per_actor < 0.5 * e.share(ACTOR, "env"):
        return text + f", because the environments wait rather than compute: {actors_advice(e)}."
    serves = e.share(INFERENCE, "act", "transport")
    if serves >= 1 - WAITS / 2 and e.share(ACTOR, "wait_inference") >= WAITS:
        text += (
            f". Acting is the next limit, at {percent(serves)} of the servers' time: raise --num-inference-servers to "
        )
        return text + f"{e.facts.servers + 1}, then --num-actors."
    return text + f": {actors_advice(e)}."


def _acting_text(e: Evidence) -> str:
    text = (
        f"Acting limits this run: actors spend {percent(e.share(ACTOR, 'act'))} of their time choosing actions and "
        f"{learner_waits_text(e)}; {cores_text(e)}"
    )
    if e.room:
        return text + f": {actors_advice(e)}."
    return text + (
        ". Fewer, larger groups act in larger batches (--num-groups, --num-envs); --placement served acts once for all actors."
    )


def _inference_text(e: Evidence) -> str:
    servers = e.facts.servers
    text = (
        f"Inference limits this run: {'the server acts' if servers == 1 else 'servers act'} "
        f"{percent(e.share(INFERENCE, 'act', 'transport'))} of the time, actors wait "
        f"{percent(e.share(ACTOR, 'wait_inference'))} of theirs for actions and {learner_waits_text(e)}; {cores_text(e)}"
    )
    if e.room and e.facts.actors > servers:
        return text + f": try --num-inference-servers {servers + 1}, or --placement inline for a small network."
    if e.room:
        return (
            text + ": try --placement inline, which acts in every actor, or --inference.threads 2 for a large network."
        )
    return (
        text + ". A smaller network or larger groups (fewer --num-groups) make acting cheaper; so does an accelerator."
    )


def _alternating_text(e: Evidence) -> str:
    waits = e.share(ACTOR, "wait_inference", "wait_params", "wait_block")
    return (
        f"Taking turns limits this run: with --max-policy-lag 0 actors wait {percent(waits)} of their time while the learner "
        f"trains, and {learner_waits_text(e)} while they step; {cores_text(e)}. --max-policy-lag 1 lets both go on at once."
    )


def _latency_text(e: Evidence) -> str:
    return (
        f"Round trips limit this run: actors wait {percent(e.share(ACTOR, 'wait_inference'))} of their time for actions "
        f"while the server has nothing to do for {percent(e.share(INFERENCE, 'wait'))} of its own; {cores_text(e)}. "
        f"{groups_advice(e)[0].upper()}{groups_advice(e)[1:]}; {actors_advice(e)}."
    )


def _transport_text(e: Evidence) -> str:
    text = (
        f"Moving rows limits this run: actors spend {percent(e.share(ACTOR, 'transport'))} of their time writing rows and "
        f"requests; {cores_text(e)}. "
    )
    if e.facts.zeromq:
        return text + "--transport shared-memory is faster on one machine."
    if e.room:
        return text + f"{actors_advice(e)[0].upper()}{actors_advice(e)[1:]}."
    return text + "Larger groups (fewer --num-groups) move more rows at once."


def _link_text(e: Evidence) -> str:
    return (
        f"The network limits this run: actors on {', '.join(e.facts.hosts)} wait {percent(_actor_waits(e))} of their time, "
        f"{percent(e.share(ACTOR, 'wait_block'))} until rows have left, and {learner_waits_text(e)}; {cores_text(e)}. Send "
        "fewer bytes: smaller observations (uint8 instead of float32), --compress, or actors on the learner's host."
    )


def _blocks_text(e: Evidence) -> str:
    return (
        f"Room in the sample stream limits this run: actors wait {percent(e.share(ACTOR, 'wait_block'))} of their time for "
        f"blocks although {learner_waits_text(e)}. Raise --actor.blocks-per-group, or use larger batches."
    )


def _busiest(e: Evidence) -> tuple[Kind, float]:
    """Return the user's kind that waits least, and the share of its time in which it works."""
    works = {
        kind: sum(own.get(a.name, 0.0) for a in kind.shown.activities if a.phase not in ("wait", "other"))
        for kind, own in e.shares.items()
        if kind not in own_kinds() and kind.reads_samples
    }
    return max(works.items(), key=lambda entry: entry[1], default=(LEARNER, 0.0))


def _users_text(e: Evidence) -> str:
    kind, works = _busiest(e)
    text = (
        f"Workers of kind {kind.title} limit this run: they work {percent(works)} of their time and {learner_waits_text(e)}; "
        f"{cores_text(e)}"
    )
    if e.room:
        return text + ". Put more of them into the graph: graph.scale(NAME, COUNT)."
    return text + ", so more of them will not help here; cheaper work in each would."


def _joining_text(e: Evidence) -> str:
    return (
        f"Joining rows into batches limits this run: its thread works "
        f"{percent(e.share(LEARNER, 'prefetch_transport'))} of its time and {learner_waits_text(e)}. Smaller observations "
        "help (uint8 instead of float32), or fewer and longer trajectories (--rollout-length)."
    )


def _recording_text(e: Evidence) -> str:
    return (
        f"Reading the recording limits this run: {learner_waits_text(e)}; {cores_text(e)}. Smaller observations or a faster "
        "disk would help."
    )


def _replay_text(e: Evidence) -> str:
    inserts, draws = e.share(REPLAY, "insert"), e.share(REPLAY, "draw", "draw_draw")
    help_text = "raise --replay.threads" if draws > inserts else "raise --replay.num-replays"
    return (
        f"Replay limits this run: it writes rows for {percent(inserts)} of its time, draws batches for {percent(draws)}, and "
        f"{learner_waits_text(e)}; {cores_text(e)}"
        + (f": {help_text}." if e.room else ". Smaller observations or batches (--replay.batch-size) would help.")
    )


def _balanced_text(e: Evidence) -> str:
    return (
        f"Nothing stands out: the learner works {percent(1 - e.learner_waits)} of its time, actors step environments "
        f"{percent(e.share(ACTOR, 'env'))} and wait {percent(_actor_waits(e))} of theirs; {cores_text(e)}."
    )


def _actor_waits(e: Evidence) -> float:
    return e.share(ACTOR, "wait_inference", "wait_params", "wait_block")


def _mostly(e: Evidence, *activities: str) -> bool:
    own = e.shares.get(ACTOR, {})
    rest = [share for activity, share in own.items() if activity not in activities]
    return bool(own) and e.share(ACTOR, *activities) >= max(rest, default=0.0)


def _starved(e: Evidence) -> bool:
    """Return whether others limit the learner: it waits long, or longer than actors do."""
    acting = ACTOR in e.shares and not e.facts.recorded
    return e.learner_waits >= WAITS or (acting and e.learner_waits > _actor_waits(e) + MORE)


def _shares_cores(e: Evidence) -> bool:
    return e.full and _actor_waits(e) >= WAITS


def _alternating(e: Evidence) -> bool:
    lost = min(_actor_waits(e), e.learner_waits)
    waits_for_params = e.share(INFERENCE, "wait_params") + e.share(ACTOR, "wait_params")
    return e.facts.synchronous and not e.full and lost >= WAITS and waits_for_params >= 0.15


VERDICTS: tuple[Verdict, ...] = (
    ("publishing", lambda e: not _starved(e) and e.share(LEARNER, "publish", "snapshot") >= 0.3, _publishing_text),
    ("updates", lambda e: not _starved(e), _learner_text),
    ("stage", lambda e: _busiest(e)[1] >= 0.7, _users_text),
    (REPLAY.name, lambda e: max(e.share(REPLAY, "draw_draw"), e.share(REPLAY, "insert", "draw")) >= 0.7, _replay_text),
    ("joining", lambda e: e.share(LEARNER, "prefetch_transport") >= 0.7, _joining_text),
    ("recording", lambda e: e.facts.recorded, _recording_text),
    ("alternating", _alternating, _alternating_text),
    ("link", lambda e: bool(e.facts.hosts) and e.share(ACTOR, "wait_block") >= WAITS, _link_text),
    ("environments", lambda e: _mostly(e, "env") and not _shares_cores(e), _environments_text),
    ("acting", lambda e: _mostly(e, "act") and not _shares_cores(e), _acting_text),
    ("crowded", lambda e: e.full and max(e.others, e.facts.cores / 2) > e.cores_used, _crowded_text),
    ("machine", lambda e: e.full, _machine_text),
    (
        "inference",
        lambda e: _mostly(e, "wait_inference") and e.share(INFERENCE, "act", "transport") >= 0.6,
        _inference_text,
    ),
    ("latency", lambda e: _mostly(e, "wait_inference"), _latency_text),
    ("room", lambda e: _mostly(e, "wait_block"), _blocks_text),
    ("transport", lambda e: _mostly(e, "transport"), _transport_text),
    ("balanced", lambda e: True, _balanced_text),
)


def verdict(e: Evidence) -> tuple[str, str]:
    """Return (name, text) of the first verdict that applies; the last one always does."""
    return next((name, text(e)) for name, applies, text in VERDICTS if applies(e))
