"""The dataflow graph: built from experiments, changed by users, invalid graphs refused, and the order of stopping."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from jsrl.agents.bc import BCConfig
from jsrl.agents.dqn import DQNConfig
from jsrl.agents.ppo import PPOConfig
from jsrl.errors import ConfigError
from jsrl.experiment import Experiment, ReplayConfig, VideoConfig
from jsrl.experiment.placements import PLACEMENTS, Placement
from jsrl.graph.check import check, check_groups
from jsrl.graph.drawing import Note, draw
from jsrl.graph.graph import Graph, Link, WorkerNode, node
from jsrl.graph.placements import make_graph
from jsrl.services.metrics.catalogue import Metric
from jsrl.transport.stream import Stream
from jsrl.workers import kinds
from jsrl.workers.kinds import OWN, Kind, Lifecycle, Port, Shown, find_kind, own_kinds, value_of

REPLAY = ReplayConfig(kind="host", num_replays=2, capacity=2_000, batch_size=16, min_size=200)
PASS = Kind(
    "pass",
    "passers",
    "nowhere:build",
    ports=(Port("rows", "samples", "reads"), Port("onwards", "samples", "writes")),
)
WATCH = Kind("watch", "watchers", "nowhere:build", ports=(Port("params", "params", "reads"),))
SPEAK = Kind("speak", "speakers", "nowhere:build", ports=(Port("params", "params", "writes"),))
READ = Kind("read", "readers", "nowhere:build", ports=(Port("rows", "samples", "reads"),))
READ_A_WHILE = READ._replace(name="read-a-while", lifecycle=Lifecycle(loss_ends_run=False))
WATCH_TOO, ACTOR = WATCH, WATCH._replace(name="actor")
HERE = __name__


ARCHITECTURES = {
    "inline": "architectures:all_inline",
    "served": "architectures:beside_learner",
    "apart": "architectures:own_devices",
}


def resolved(name: str):
    """Return a function of jsrl/experiment/graphs."""
    module, function = name.split(":")
    return getattr(importlib.import_module(f"jsrl.experiment.graphs.{module}"), function)


def graph_of(**values) -> Graph:
    agent = DQNConfig() if "replay" in values else BCConfig() if "recording" in values else PPOConfig()
    return make_graph(
        Experiment(agent, **({"num_envs": 16, "num_actors": 4, "num_groups": 8, "placement": "served"} | values))
    )


ALL = [
    {"placement": placement, "transport": transport} | more
    for placement in ("serial", "inline", "served", "apart")
    for transport in ("shared-memory", "zeromq")
    for more in (
        {},
        {"num_inference_servers": 2},
        {"replay": REPLAY if placement != "serial" else ReplayConfig(kind="host"), "max_policy_lag": None},
        {"video": VideoConfig(enabled=True)},
        {"recording": "somewhere"},
    )
]


@pytest.mark.parametrize("values", ALL, ids=str)
def test_graph_of_every_placement_is_valid_and_round_trips(values) -> None:
    graph = graph_of(**values)
    check(graph)
    assert Graph.from_json(json.loads(json.dumps(graph.to_json()))) == graph


@pytest.mark.parametrize("values", ALL, ids=str)
def test_readers_stop_after_their_writers(values) -> None:
    graph = graph_of(**values)
    place = {worker.name: number for number, level in enumerate(graph.stop_order) for worker in level}
    assert place.keys() == {worker.name for worker in graph.workers}
    for stream in graph.streams:
        for source, _ in graph.sources(stream.name):
            for sink, _ in graph.sinks(stream.name):
                if stream.type != "params" and not stream.feedback:
                    assert place[source.name] < place[sink.name], (stream.name, source.name, sink.name)
    for player in {"evaluator", "video-recorder"} & place.keys():
        assert place[player] > place["learner"]
    if "parameter-server" in place:
        assert place["learner"] < place["parameter-server"] < place.get("evaluator", 99)


@pytest.mark.parametrize("values", ALL, ids=str)
def test_clients_start_after_their_servers(values) -> None:
    graph = graph_of(**values)
    names = [worker.name for worker in graph.start_order]
    assert sorted(names) == sorted(worker.name for worker in graph.workers)
    for stream in graph.streams:
        binding = [worker.name for worker, port, _ in graph.ends(stream.name) if port.binds]
        others = [worker.name for worker, port, _ in graph.ends(stream.name) if not port.binds]
        for bound, other in ((a, b) for a in binding for b in others if not stream.feedback):
            assert names.index(bound) < names.index(other), (stream.name, bound, other)


def test_an_added_placement_is_one_entry(monkeypatch) -> None:
    monkeypatch.setitem(PLACEMENTS, "inline", Placement(trains=f"{HERE}:SPEAK", has_actors=False))
    e = Experiment(PPOConfig(), num_envs=16, num_actors=4, placement="inline")
    workers = {worker.kind: [link.port for link in worker.links] for worker in make_graph(e).workers}
    assert workers == {f"{HERE}:SPEAK": ["params"], "evaluator": ["params"]}
    assert e.actors == 1 and e.is_deterministic  # one program steps and learns


def test_placement_says_what_carries_a_stream() -> None:
    streams = Stream("samples", "samples"), Stream("ranks", "ranks"), Stream("params", "params", transport="mine:FILES")
    ways = ("serial", "shared-memory"), ("inline", "shared-memory"), ("served", "zeromq")
    found = [Experiment(placement=placement, transport=transport).where for placement, transport in ways]
    assert [[where.channel(stream) for stream in streams] for where in found] == [
        ["local", "local", "local"],
        ["shared-memory", "zeromq", "mine:FILES"],
        ["zeromq", "zeromq", "mine:FILES"],
    ]
    assert [where.shares_memory for where in found] == [False, True, False]


def test_actors_share_servers_and_replays() -> None:
    graph = graph_of(num_inference_servers=2, replay=REPLAY, max_policy_lag=None)
    answered = [graph.worker(f"inference-{i}").link("inference") for i in range(2)]
    assert [link.groups for link in answered if link] == [(0, 1, 4, 5), (2, 3, 6, 7)]
    kept = [graph.worker(f"replay-{i}").link("samples") for i in range(2)]
    assert [link.groups for link in kept if link] == [(0, 1, 4, 5), (2, 3, 6, 7)]


def test_scale_redistributes_the_groups() -> None:
    graph = graph_of().scale("actor", 2)
    links = [worker.link("samples") for worker in graph.family("actor")]
    assert [link.groups for link in links if link] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    check(graph)
    assert graph_of().scale("actor", 4) == graph_of()
    with pytest.raises(ConfigError, match=r"8 groups of samples cannot be divided evenly among 3 workers"):
        graph_of().scale("actor", 3)


@pytest.mark.parametrize("count", [1.5, "2", 0, None])
def test_family_is_scaled_to_a_whole_number_of_workers(count) -> None:
    with pytest.raises(
        ConfigError, match=rf"actor cannot be scaled to {count!r} workers; give a whole number from 1 on"
    ):
        graph_of().scale("actor", count)


def test_unknown_fields_are_refused_with_the_right_name() -> None:
    with pytest.raises(ConfigError, match=r"actor-0 has no field 'restarts'; nearest: restart"):
        graph_of().replace("actor-0", restarts=3)
    with pytest.raises(ConfigError, match=r"samples has no field 'colour'; it has: name, "):
        graph_of().with_stream("samples", colour=3)


@pytest.mark.parametrize("change", [{"restart": 5}, {"settings": {"a": 1}}, {"links": None}])
def test_family_of_different_workers_is_not_scaled(change) -> None:
    graph = graph_of()
    if "links" in change:
        graph = graph.connect("actor-1", inference=None, params="params")
    else:
        graph = graph.replace("actor-1", **change)
    with pytest.raises(ConfigError, match=r"actor cannot be scaled: actor-1 has other .* than actor-0; scale first"):
        graph.scale("actor", 2)


def test_insert_puts_workers_between_writers_and_readers() -> None:
    graph = graph_of().insert(f"{HERE}:PASS", count=2)
    check(graph)
    assert [worker.name for worker in graph.family("pass")] == ["pass-0", "pass-1"]
    first, learner = graph.worker("pass-0"), graph.worker("learner")
    assert first.link("rows") == Link("rows", "samples", (0, 1, 2, 3))
    assert learner.link("samples") == Link("samples", "samples-pass")
    order = [[worker.name for worker in level] for level in graph.stop_order]
    assert order[0] == ["actor-0", "actor-1", "actor-2", "actor-3"] and {"pass-0", "pass-1"} <= set(order[1])
    assert Graph.from_json(graph.to_json()) == graph
    with pytest.raises(ConfigError, match="needs one of each"):
        graph_of().insert(f"{HERE}:WATCH")


def test_watcher_stops_after_its_writers_and_removing_it_restores_the_graph() -> None:
    graph = graph_of()
    watched = graph.add(node("watcher", f"{HERE}:WATCH", params="params"))
    check(watched)
    last = [worker.name for worker in watched.stop_order[-1]]
    assert "watcher" in last
    assert watched.without("watcher") == graph
    assert {stream.name for stream in graph.without("inference").without("actor").streams} == {"samples", "params"}


def test_printed_graph_has_one_line_per_stream() -> None:
    assert str(graph_of(num_actors=2, num_groups=2)).splitlines() == [
        "samples    actor-0, actor-1 -> learner",
        "inference  actor-0, actor-1 <-> inference-0",
        "params     learner -> inference-0, evaluator",
    ]


def test_inline_and_served_actors_in_one_graph() -> None:
    mixed = graph_of(num_inference_servers=1).connect("actor-0", inference=None, params="params")
    check(mixed)
    loads_jax = mixed.kind("actor-0").loads_jax
    assert value_of(loads_jax, mixed.worker("actor-0")) and not value_of(loads_jax, mixed.worker("actor-1"))
    assert mixed.connect("actor-0", inference=("inference", (0, 1)), params=None).worker("actor-0").links[1:] == (
        Link("inference", "inference", (0, 1)),
    )


@pytest.mark.parametrize("transport", ["shared-memory", "zeromq"])
@pytest.mark.parametrize("placement", ["inline", "served", "apart"])
def test_each_architecture_can_be_built_from_any_other(placement: str, transport: str) -> None:
    edits = {place: resolved(name) for place, name in ARCHITECTURES.items()}
    graph = graph_of(placement=placement, transport=transport, num_inference_servers=2)
    assert graph.params == ("relayed" if transport == "zeromq" else "params")
    mixed = resolved("architectures:half_inline")(graph)
    check(mixed)
    assert [actor.has("inference") for actor in mixed.family("actor")] == [True, False, True, False]
    for place, edit in edits.items():
        changed = edit(graph)
        check(changed)
        expected = graph_of(placement=place, transport=transport, num_inference_servers=2 if place == "apart" else 1)
        assert {w.name: (w.own_device, {(link.port, link.stream) for link in w.links}) for w in changed.workers} == {
            w.name: (w.own_device, {(link.port, link.stream) for link in w.links}) for w in expected.workers
        }
        assert {stream.name for stream in changed.streams} == {stream.name for stream in expected.streams}


def broken(change: str) -> Graph:
    graph = graph_of()
    actor = graph.worker("actor-0")
    samples, inference = actor.link("samples"), actor.link("inference")
    assert samples is not None and inference is not None
    broadcast = graph.with_stream("samples", routing="broadcast")
    second = WorkerNode("actor-9", "actor", (Link("samples", "samples", (0,)), Link("inference", "inference", (0,))))
    return {
        "nobody reads": lambda: graph.without("learner").add(node("s", f"{HERE}:SPEAK", params="params")),
        "nobody answers": lambda: graph.without("inference"),
        "nobody steps": lambda: graph.without("actor-0"),
        "twice": lambda: graph.add(second),
        "same name": lambda: graph.add(actor),
        "no port": lambda: graph.replace("actor-0", links=(samples, Link("nose", "params"))),
        "no stream": lambda: graph.replace("actor-0", links=(Link("samples", "elsewhere"), inference)),
        "stream type": lambda: graph.replace("actor-0", links=(Link("samples", "params"), inference)),
        "schema": lambda: graph.with_stream("samples", schema="batches"),
        "required": lambda: graph.replace("actor-0", links=(inference,)),
        "neither": lambda: graph.replace("actor-0", links=(samples,)),
        "groups": lambda: graph.replace("actor-0", links=(Link("samples", "samples", (0, 99)), inference)),
        "two publishers": lambda: graph.add(node("s", f"{HERE}:SPEAK", params="params")),
        "own name": lambda: graph.add(node("x", f"{HERE}:ACTOR", params="params")),
        "two kinds": lambda: graph.add(node("a", f"{HERE}:WATCH", params="params")).add(
            node("b", f"{HERE}:WATCH_TOO", params="params")
        ),
        "two readers": lambda: graph.add(node("x", f"{HERE}:READ", rows="samples")),
        "part of all": lambda: broadcast.add(node("x", f"{HERE}:READ", rows=("samples", (0,)))),
        "may be lost": lambda: broadcast.add(node("x", f"{HERE}:READ_A_WHILE", rows="samples")),
        "broadcast batches": lambda: graph_of(replay=REPLAY, max_policy_lag=None).with_stream(
            "batches", routing="broadcast"
        ),
        "routing": lambda: graph.with_stream("samples", routing="by_group"),
        "blocks": lambda: graph.with_stream("samples", blocks=0),
        "restart": lambda: graph.replace("actor-0", restart=-1),
        "nested setting": lambda: graph.replace("learner", settings={"learner": {"reuse": 2}}),
        "settings": lambda: graph.replace("actor-0", settings={"env": "Acrobot-v1"}),
        "kind": lambda: graph.add(WorkerNode("x", "nonsense")),
        "circle": lambda: graph.add(
            node("a", f"{HERE}:PASS", rows="one", onwards="two"), Stream("one", "samples", groups=(0,))
        ).add(node("b", f"{HERE}:PASS", rows="two", onwards="one"), Stream("two", "samples", groups=(0,))),
    }[change]()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("nobody reads", "no worker reads the stream samples, which actor-0 .* would wait for"),
        ("nobody answers", "no stream 'inference'|no worker answers the stream inference"),
        ("nobody steps", "group 0 of the stream samples is written by no worker"),
        ("twice", "group 0 of the stream samples is written by actor-0 and actor-9"),
        ("same name", "2 workers are called 'actor-0'"),
        ("no port", "actor-0 has no port 'nose'; a worker of kind actor has: samples, inference, params"),
        ("no stream", "there is no stream 'elsewhere'; there are: samples"),
        ("stream type", "actor-0.samples is for samples, but params carries params"),
        ("schema", "takes trajectory, but samples carries batches"),
        ("required", "actor-0.samples writes samples, but is connected to no stream"),
        ("neither", "actor-0 must have either inference .* not neither"),
        ("groups", r"names groups \[99\], which samples does not carry"),
        (
            "two publishers",
            "params are published by learner and s; exactly one worker must|params params are published",
        ),
        ("own name", "is called 'actor', as one of jsrl's own is"),
        ("two kinds", "WATCH and .*WATCH_TOO have the same name"),
        ("two readers", "read by learner and x; each must be read by one worker .or let .* routing='broadcast'"),
        ("part of all", "samples is broadcast, so x must read all of its groups"),
        ("may be lost", "x reads samples, whose writers would wait forever .* must have loss_ends_run=True"),
        ("broadcast batches", "batches carries batches, which go to one reader"),
        ("routing", "routing of samples is 'by_group'; use by-group or broadcast"),
        ("blocks", "blocks of samples is 0; use 1 or more"),
        ("restart", "restart of actor-0 is -1; use 0 or more"),
        ("nested setting", r"learner has a dict as its setting 'learner'; give .* LearnerConfig\(reuse=2\)"),
        ("settings", "actor-0 has settings, but a worker of kind actor takes none"),
        ("kind", "there is no worker of kind 'nonsense'; there are: actor"),
        ("circle", "between a, b form a cycle"),
    ],
)
def test_invalid_graphs_are_refused_in_one_sentence(change: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check(broken(change))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ports": Port("rows", "samples", "reads")}, r"ports of the kind .*:WATCH must be a tuple of Port"),
        (
            {"shown": Shown(metrics=Metric("loss", "loss", "-", "falls"))},  # type: ignore[arg-type]
            r"must be a tuple of Metric; .* metrics=\(Metric\(...\),\)",
        ),
        ({"shown": ()}, r"shown of the kind .*:WATCH is \(\); give shown=Shown\(...\)"),
        ({"build": WATCH.check}, r"build of the kind .*:WATCH is None; give the location"),
    ],
)
def test_kind_with_an_invalid_field_is_refused(changes: dict, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[HERE], "WATCH", WATCH._replace(**changes))
    with pytest.raises(ConfigError, match=words):
        find_kind(f"{HERE}:WATCH")
    with pytest.raises(ConfigError, match="is given as the object 'watch'; give its location as `module:NAME`"):
        graph_of().insert(WATCH)  # type: ignore[arg-type]


def test_field_of_a_kind_is_a_value_or_a_function() -> None:
    assert [value_of(given, 2) for given in (3, None, "", lambda e: e + 1)] == [3, None, "", 3]


def test_kinds_of_many_workers_are_found_once() -> None:
    graph = graph_of(num_envs=64, num_actors=32, num_groups=32)
    assert graph.kinds is graph.kinds and graph.kinds.keys() == {worker.name for worker in graph.workers}


def test_the_table_has_every_kind_of_jsrl() -> None:
    folders = {path.parent.name for path in Path(kinds.__file__).parent.glob("*/kind.py")}
    assert {place.partition(".")[0] for place in OWN.values()} == folders
    assert [kind.name for kind in own_kinds()] == list(OWN)


def test_only_learners_train_a_policy() -> None:
    assert [kind.name for kind in own_kinds() if kind.trains] == ["fused", "learner"]
    assert SPEAK._replace(lifecycle=Lifecycle(must_finish=True)).trains and not (SPEAK.trains or READ.trains)


def test_graph_with_other_groups_than_the_experiment_is_refused() -> None:
    e = Experiment(PPOConfig(), num_envs=16, num_actors=4, num_groups=8, placement="served")
    check_groups(make_graph(e), e)
    with pytest.raises(ConfigError, match=r"no actor steps the groups \[4, 5, 6, 7\]"):
        check_groups(make_graph(Experiment(PPOConfig(), num_envs=16, num_actors=4, num_groups=4)), e)
    speaker = node("speak", f"{HERE}:SPEAK", params="params")  # it may step the environments itself
    check_groups(Graph().add(speaker, Stream("params", "params")), e)


def texts(picture: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")]


def test_picture_shows_every_family_stream_and_measurement() -> None:
    graph = graph_of(transport="zeromq", replay=REPLAY, max_policy_lag=None)
    measured = {"actor": Note(("works 88%", "waits 12%: actions"), 0.88, busiest=True)}
    picture = draw(graph, measured, {("samples", "replay"): "3.5/s"}, "a note")
    assert {
        "actor x 4",
        "replay x 2",
        "learner",
        "parameter-server",
        "waits 12%: actions",
        "samples 3.5/s",
        "a note",
    } <= {*texts(picture)}
    assert {"batches", "priorities", "inference", "params", "relayed"} <= {*texts(picture)}


def test_picture_separates_workers_that_use_other_streams() -> None:
    graph = graph_of(num_inference_servers=1).connect("actor-0", inference=None, params="params")
    graph = graph.insert(f"{HERE}:PASS", settings={"noise": 0.1})
    assert {"actor-0", "actor x 3", "pass"} <= {*texts(draw(graph))}


def test_picture_texts_do_not_overlap_or_leave_their_box() -> None:
    graph = graph_of(transport="zeromq", replay=REPLAY, max_policy_lag=None).add(
        node("watch", f"{HERE}:WATCH", params="relayed")
    )
    root = ElementTree.fromstring(draw(graph))
    _, top, width, height = (float(value) for value in root.attrib["viewBox"].split())
    areas = []
    for element in root.iter("{http://www.w3.org/2000/svg}text"):
        x, y, wide = float(element.attrib["x"]), float(element.attrib["y"]), 3.1 * len(element.text or "")
        if wide:
            areas.append((x - wide, y - 8, x + wide, y + 2, element.text))
    for number, (x1, y1, x2, y2, text) in enumerate(areas):
        assert x1 >= 0 and x2 <= width and y1 >= top and y2 <= top + height, text
        for a1, b1, a2, b2, other in areas[:number]:
            assert x1 >= a2 or a1 >= x2 or y1 >= b2 or b1 >= y2, (text, other)
