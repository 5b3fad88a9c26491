"""graph.json: a resume continues with it, so that a damaged one is refused and named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jsrl.agents.ppo import PPOConfig
from jsrl.envs.config import EnvConfig
from jsrl.errors import ConfigError
from jsrl.experiment import Experiment
from jsrl.graph.graph import Graph
from jsrl.graph.graph_file import FILE, OWN, experiment_of, resolve, saved_experiment, stored_graph, write_graph
from jsrl.graph.placements import make_graph
from jsrl.references.reference import to_json
from jsrl.services.runs.runs import RunFolder

EXPERIMENT = Experiment(PPOConfig(), EnvConfig("CartPole-v1"), placement="inline", num_actors=2)


@pytest.fixture(name="folder")
def folder_fixture(tmp_path: Path) -> RunFolder:
    folder = RunFolder.create(tmp_path, "ppo", "one", config=to_json(EXPERIMENT))
    write_graph(folder, make_graph(EXPERIMENT))
    return folder


def changed(edit: Callable[[dict[str, Any]], Any]) -> bytes:
    tree = make_graph(EXPERIMENT).to_json()
    edit(tree)
    return json.dumps(tree).encode()


DEEP = b'{"a":' * 900 + b"1" + b"}" * 900
DAMAGED = {
    "empty": (b"", "Expecting value"),
    "half": (changed(lambda tree: None)[:200], "Expecting|Unterminated"),
    "a list": (b"[]", "Expected `object`, got `array`"),
    "null": (b"null", "Expected `object`, got `null`"),
    "binary": (bytes(range(128, 256)), "decode"),
    "deep": (b"[" * 100_000, "nested too deeply"),
    "deep settings": (changed(lambda tree: tree["workers"][0].update(settings=json.loads(DEEP))), "learner.settings"),
    "no workers": (b'{"streams": []}', "the graph lacks workers"),
    "a wrong type": (
        changed(lambda tree: tree["streams"][0].update(blocks="two")),
        r"Expected `int`, got `str` - at `\$.streams\[0\].blocks`",
    ),
    "a wrong link": (changed(lambda tree: tree["workers"][0].update(links=[3])), r"at `\$.workers\[0\].links\[0\]`"),
    "a missing field": (changed(lambda tree: tree["workers"][1].pop("restart")), r"workers\[1\] lacks restart"),
    "an unknown field": (
        changed(lambda tree: tree["workers"][0]["links"][0].update(gruops=[1])),
        r"workers\[0\].links\[0\] has no field 'gruops'; nearest: groups",
    ),
    "a damaged setting": (
        changed(lambda tree: tree["workers"][0].update(settings={"noise": {"$tuple": 5}})),
        r"learner.settings.noise: '\$tuple' is damaged",
    ),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_graph_is_refused_with_its_file_and_field(folder: RunFolder, damage: str) -> None:
    content, words = DAMAGED[damage]
    path = folder.path / FILE
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=words) as refused:
        stored_graph(folder)
    assert str(path) in str(refused.value) and f"--graph {OWN}" in str(refused.value)
    assert path.read_bytes() == content
    with pytest.raises(ConfigError, match=words):
        experiment_of(folder)


def test_a_missing_graph_is_refused(folder: RunFolder) -> None:
    (folder.path / FILE).unlink()
    with pytest.raises(ConfigError, match=f"{FILE} cannot be read: .*No such file.*--graph {OWN} continues"):
        stored_graph(folder)


def test_every_field_of_the_file_counts(folder: RunFolder) -> None:
    assert stored_graph(folder) is None
    own = make_graph(EXPERIMENT)
    for edited in (
        own.with_stream("samples", blocks=own.stream("samples").blocks + 1),
        own.replace("actor-1", restart=4),
    ):
        write_graph(folder, edited)
        assert stored_graph(folder) == edited


def test_own_is_the_graph_of_the_experiment() -> None:
    assert resolve(EXPERIMENT, OWN) == (make_graph(EXPERIMENT), False)
    assert isinstance(resolve(EXPERIMENT, OWN)[0], Graph)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[1]", "Expected `object`, got `array`"),
        (b"{}", "has no Experiment"),
        (json.dumps({"$type": "jsrl.experiment.experiment:Experiment"}).encode(), "is damaged .KeyError: 'fields'"),
        (json.dumps({"$type": 7, "fields": {}}).encode(), "cannot be used"),
        (
            json.dumps({"$type": "jsrl.experiment.experiment:Experiment", "fields": {"seed": {"$tuple": 1}}}).encode(),
            "seed",
        ),
        (b'{"a":' * 900 + b"1" + b"}" * 900, "nested deeper than"),
    ],
)
def test_a_damaged_experiment_is_refused_with_its_file(folder: RunFolder, content: bytes, words: str) -> None:
    folder.config_path.write_bytes(content)
    with pytest.raises(ConfigError, match=words) as refused:
        saved_experiment(folder)
    assert str(folder.config_path) in str(refused.value)
