"""Commands that show a run read plain data: nothing that a stranger's folder names is imported or called."""

from __future__ import annotations

import json
import sys
import urllib.request
from pathlib import Path

import pytest

from jsrl.cli.main import main
from jsrl.experiment import Experiment
from jsrl.graph.placements import make_graph
from jsrl.references.reference import to_json
from jsrl.services.runs.runs import RunFolder
from tests.tools.report.served_pages import serving

LINE = {
    "env_steps": 100.0,
    "updates": 1.0,
    "wall_s": 1.0,
    "evaluator/return_mean": 1.0,
    "learner/update_share": 0.5,
    "own/seen": 2.0,
}
CODE = "from pathlib import Path\n\nPath({marker!r}).touch()\n\n\ndef call(*args, **kwargs):\n    Path({marker!r}).touch()\n"
CALL, TYPE = {"$function": "planted:call"}, {"$type": "planted:Config", "fields": {}}
FIELDS = {
    "agent": TYPE,
    "env": {"$type": "jsrl.envs.config:EnvConfig", "fields": {"id": "planted:call", "wrappers": [CALL]}},
    "policies": {"a": {"$type": "jsrl.experiment.policies:PolicyConfig", "fields": {"agent": TYPE}}},
    "director": {"$partial": CALL, "args": [], "kwargs": {}},
    "learner": {"$enum": "planted:Config", "name": "x"},
    "evaluator": {"$type": "jsrl.experiment.settings:subprocess.Popen", "fields": {"args": ["touch", "marker"]}},
    "replay": {"$tuple": [CALL]},
    "name": "<script>planted</script>",
}


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs whose files name a module that writes a file; it lies in the working directory and in the run folders."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    marker, graph = tmp_path / "marker", make_graph(Experiment(agent=None)).to_json()
    graph["workers"].append(
        {"name": "own", "kind": "planted:call", "restart": None, "own_device": False, "settings": CALL, "links": []}
    )
    graph["streams"][0]["transport"] = "planted:call"
    (tmp_path / "planted.py").write_text(CODE.format(marker=str(marker)))
    for number, (name, change) in enumerate(
        {"plain": {}, **{name: {name: value} for name, value in FIELDS.items()}}.items()
    ):
        config = to_json(Experiment(agent=None, name="ppo", total_env_steps=1000))
        config["fields"] |= change
        folder = RunFolder.create("runs", "ppo", name, config=config)
        folder.metrics_path.write_text("".join(json.dumps(LINE | {"wall_s": float(i)}) + "\n" for i in range(5)))
        described = {} if number % 2 else {"planted:call": ["own", "owns", [], [], [], False]}
        (folder.path / "graph.json").write_text(json.dumps(graph | {"kinds": described}))
        folder.source.mkdir()
        (folder.source / "planted.py").write_text(CODE.format(marker=str(marker)))
        folder.logs.mkdir(exist_ok=True)
        (folder.logs / "controller.log").write_text("a line\n")
    root = RunFolder.create("runs", "ppo", "root", config=CALL)
    root.metrics_path.write_text(json.dumps(LINE) + "\n")
    return marker


def test_commands_that_show_runs_import_and_call_nothing_of_them(
    marker: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    every = [path.name for path in sorted(Path("runs/ppo").iterdir())]
    assert main(["status"]) == main(["status", "--json"]) == main(["list"]) == 0
    for name in every:
        assert main(["status", f"ppo/{name}"]) == 0
        assert main(["logs", f"ppo/{name}"]) == (2 if name == "root" else 0)
        assert main(["report", f"ppo/{name}"]) == 0, capsys.readouterr().err
        assert main(["report", "ppo/plain", f"ppo/{name}"]) == 0
    assert main(["report", "ppo/*"]) == 0
    with serving(Path("runs")) as server:
        for path in ["", *(f"run/ppo/{name}/" for name in every)]:
            with urllib.request.urlopen(f"{server.url}{path}", timeout=30) as answer:
                assert answer.status == 200
    assert not marker.exists() and "planted" not in sys.modules
    pages = {name: Path(f"runs/ppo/{name}/report.html").read_text() for name in every}
    assert [name for name in ("plain", "agent", "env") if "own: Seen" in pages[name]] == ["plain", "env"]  # described
    assert not any("<script>planted" in page for page in pages.values())
