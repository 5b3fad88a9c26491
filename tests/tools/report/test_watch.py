"""`jsrl watch`: its pages over HTTP, and when they are rendered."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from jsrl.experiment import Experiment
from jsrl.references.reference import to_json
from jsrl.services.recordings.video_shelf import Video
from jsrl.services.runs.runs import RunFolder
from jsrl.tools.report import watch as watch_module
from jsrl.tools.report.watch import Server
from tests.tools.report.served_pages import serving

LINE = {"updates": 1, "wall_s": 1.0, "actor/env_steps_per_s": 50.0, "evaluator/return_mean": 12.5, "learner/loss": 1.0}


@pytest.fixture(autouse=True)
def on_any_machine(monkeypatch: pytest.MonkeyPatch):
    """A page counts as slow only where a test says so, however busy this machine is."""
    monkeypatch.setattr(watch_module, "LONG_S", 1e9)


def write(folder: RunFolder, count: int) -> None:
    lines = [LINE | {"env_steps": 100 * (i + 1), "wall_s": float(i)} for i in range(count)]
    folder.metrics_path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"env_st')


@pytest.fixture
def runs_dir(tmp_path: Path) -> Path:
    """One valid run, one damaged, one that is only half created; beside their folder a secret file."""
    runs_dir = tmp_path / "runs"
    config = to_json(Experiment(agent=None, name="ppo", total_env_steps=1000))
    for name in ("whole", "damaged", "begun"):
        write(RunFolder.create(runs_dir, "ppo", name, config=config), 5)
    (runs_dir / "ppo" / "damaged" / "experiment.json").write_text("{")
    (runs_dir / "ppo" / "begun" / "environment.json").unlink()
    (runs_dir / "ppo" / "whole" / "keys").mkdir()
    (runs_dir / "ppo" / "whole" / "keys" / "secret").write_text("SECRET")
    RunFolder.create(tmp_path, "outside", "one", config={"fields": {}})
    (runs_dir / "ppo" / "whole" / "videos").mkdir()
    (runs_dir / "ppo" / "whole" / "videos" / "away.mp4").symlink_to(tmp_path / "outside" / "one" / "experiment.json")
    (runs_dir / "ppo" / "link").symlink_to(tmp_path / "outside" / "one")
    return runs_dir


@pytest.fixture
def server(runs_dir: Path) -> Iterator[Server]:
    with serving(runs_dir) as server:
        yield server


def http_get(server: Server, path: str, method: str = "GET", **headers: str) -> tuple[http.client.HTTPResponse, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=30)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer, answer.read().decode()
    finally:
        connection.close()


def test_list_has_every_run_and_its_problem(server: Server):
    answer, text = http_get(server, "/")
    assert answer.status == 200 and "<script" in text and answer.headers["Cache-Control"] == "no-store"
    rows = {name: row for name, row in re.findall(r'<a href="run/([^"]*)/">(.*?)</tr>', text)}
    assert list(rows) and set(rows) == {"ppo/whole", "ppo/damaged", "ppo/begun"}
    assert "500 / 1000 (50%)" in rows["ppo/whole"] and "12.5" in rows["ppo/whole"] and "killed" in rows["ppo/whole"]
    assert "cannot be read" in rows["ppo/damaged"]


def test_only_the_page_and_files_of_a_run_are_served(server: Server):
    assert "<h1>ppo/whole" in http_get(server, "/run/ppo/whole/")[1]
    assert http_get(server, "/run/ppo/whole")[0].headers["Location"] == "/run/ppo/whole/"
    answer, text = http_get(server, "/run/ppo/whole/metrics.jsonl")
    assert answer.status == 200 and text.startswith("{") and int(answer.headers["Content-Length"]) == len(text)
    for run in ("damaged", "begun"):
        answer, text = http_get(server, f"/run/ppo/{run}/")
        assert answer.status == 200 and "cannot be read" in text
    refused = [
        "/run/ppo/whole/keys/secret",
        "/run/ppo/whole/../../../outside/one/experiment.json",
        "/run/ppo/whole/%2e%2e/%2e%2e/%2e%2e/outside/one/experiment.json",
        "/run/../outside/one/",
        "/run/ppo/link/",
        "/run//etc/passwd",
        "/etc/passwd",
        "/run/ppo/whole/jobs",
        "/run/ppo/whole/videos/away.mp4",
    ]
    assert [http_get(server, path)[0].status for path in refused] == [404] * len(refused)
    assert [http_get(server, "/", method)[0].status for method in ("POST", "PUT", "DELETE")] == [501] * 3


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("videos/one.mp4", "video/mp4"),
        ("videos/page.mp4", "text/plain; charset=utf-8"),
        ("metrics.jsonl", "text/plain; charset=utf-8"),
        ("experiment.json", "application/json"),
        ("videos/page.html", None),
        ("videos/code.js", None),
    ],
)
def test_files_of_a_run_never_run_a_script(server: Server, runs_dir: Path, name: str, kind: str | None):
    """The folder may be a stranger's: its index of videos names a page, and a video is a link to it."""
    videos = runs_dir / "ppo" / "whole" / "videos"
    (videos / "page.html").write_text('<script src="code.js"></script>')
    (videos / "code.js").write_text("location = 'https://evil.example'")
    (videos / "page.mp4").symlink_to(videos / "page.html")
    (videos / "one.mp4").write_text("video")
    entries = [vars(Video(file, 1, 1, 1.0, 1, 10, 10.0, 1, 1)) for file in ("page.html", "code.js", "one.mp4")]
    (videos / "videos.json").write_text(json.dumps({"videos": entries}))
    assert "script-src 'self'" in http_get(server, "/run/ppo/whole/")[0].headers["Content-Security-Policy"]
    answer, _ = http_get(server, f"/run/ppo/whole/{name}")
    assert answer.status == (404 if kind is None else 200)
    if kind is not None:
        policy = answer.headers["Content-Security-Policy"]
        assert answer.headers["Content-Type"] == kind and "default-src 'none'" in policy and "script-src" not in policy


@pytest.mark.parametrize(
    ("asked", "part"),
    [
        ("bytes=0-3", (0, 4)),
        ("bytes=0-", (0, None)),
        ("bytes=5-", (5, None)),
        ("bytes=2-99999999", (2, None)),
        ("bytes=99999999-", None),
        ("bytes=5-2", None),
        ("bytes=0-1,4-5", None),
        (f"bytes={'9' * 5000}-", None),
    ],
)
def test_parts_of_files_are_served_so_that_browsers_can_seek_in_videos(server: Server, asked, part):
    _, whole = http_get(server, "/run/ppo/whole/metrics.jsonl")
    answer, text = http_get(server, "/run/ppo/whole/metrics.jsonl", Range=asked)
    assert answer.headers["Accept-Ranges"] == "bytes"
    if part is None:
        assert (answer.status, text) == (200, whole)
        return
    start, stop = part[0], part[1] or len(whole)
    assert (answer.status, text) == (206, whole[start:stop])
    assert answer.headers["Content-Range"] == f"bytes {start}-{stop - 1}/{len(whole)}"


@pytest.mark.parametrize(
    ("host", "status"), [("localhost:9000", 200), ("evil.example", 403), ("127.0.0.1.evil.example", 403), ("[::1", 403)]
)
def test_other_host_names_are_refused(server: Server, host: str, status: int):
    assert http_get(server, "/", Host=host)[0].status == status


def test_unchanged_pages_are_not_made_again(server: Server, runs_dir: Path, monkeypatch: pytest.MonkeyPatch):
    made, make = list[str](), watch_module.make_report
    monkeypatch.setattr(watch_module, "make_report", lambda folder: made.append(folder.name) or make(folder))
    tag = http_get(server, "/run/ppo/whole/")[0].headers["ETag"]
    answer, text = http_get(server, "/run/ppo/whole/", **{"If-None-Match": tag})
    assert (answer.status, text, made) == (304, "", ["ppo/whole"])
    write(RunFolder(runs_dir / "ppo" / "whole"), 7)
    answer, text = http_get(server, "/run/ppo/whole/", **{"If-None-Match": tag})
    assert answer.status == 200 and "700 env steps" in text and answer.headers["ETag"] != tag and len(made) == 2


def test_a_page_is_made_once_for_all_tabs(server: Server, monkeypatch: pytest.MonkeyPatch):
    made, make = list[str](), watch_module.make_report

    def slow(folder: RunFolder):
        made.append(folder.name)
        time.sleep(0.1)  # meanwhile the other tabs ask
        return make(folder)

    monkeypatch.setattr(watch_module, "make_report", slow)
    with ThreadPoolExecutor(4) as tabs:
        pages = list(tabs.map(lambda _: http_get(server, "/run/ppo/whole/"), range(4)))
    assert made == ["ppo/whole"] and len({(answer.headers["ETag"], text) for answer, text in pages}) == 1


def test_unchanged_lines_of_the_list_are_not_read_again(
    server: Server, runs_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    read, row_of = list[str](), watch_module.row_of
    monkeypatch.setattr(watch_module, "row_of", lambda run: read.append(run.name) or row_of(run))
    for _ in range(3):
        server.index()
    assert sorted(read) == ["begun", "damaged", "whole"]
    write(RunFolder(runs_dir / "ppo" / "whole"), 8)
    assert "800 / 1000 (80%)" in server.index() and read[3:] == ["whole"]


def test_a_page_that_takes_long_is_made_only_a_tenth_of_the_time(
    server: Server, runs_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    """A run of days has a long metrics.jsonl, which each page reads."""
    now_s, make = 100.0, watch_module.make_report

    def slow(folder: RunFolder):
        nonlocal now_s
        now_s += 15.0
        return make(folder)

    monkeypatch.setattr(watch_module, "LONG_S", 0.5)
    monkeypatch.setattr(watch_module, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(watch_module, "make_report", slow)
    tag = http_get(server, "/run/ppo/whole/")[0].headers["ETag"]
    write(RunFolder(runs_dir / "ppo" / "whole"), 7)
    for pause_s, status in ((2.0, 304), (134.0, 200)):
        now_s += pause_s
        assert http_get(server, "/run/ppo/whole/", **{"If-None-Match": tag})[0].status == status


def test_the_command_serves_until_ctrl_c(runs_dir: Path):
    words = [sys.executable, "-m", "jsrl", "watch", str(runs_dir), "--port", "0"]
    watch = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"})
    late = threading.Timer(60, watch.kill)
    late.start()
    try:
        port = int(re.search(r"http://127\.0\.0\.1:(\d+)/", watch.stdout.readline()).group(1))
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/")
        assert b"ppo/whole" in connection.getresponse().read()
        connection.close()
        watch.send_signal(signal.SIGINT)
        assert watch.wait(30) == 0
    finally:
        late.cancel()
        watch.kill()
        watch.communicate()


def test_invalid_watch_folders_are_refused(tmp_path: Path, capsys):
    from jsrl.cli.watch import main

    assert main([str(tmp_path / "none")]) == 2
    assert "there is no folder" in capsys.readouterr().err
    assert main([str(tmp_path), "--port", "70000"]) == 2
    assert "choose another with --port" in capsys.readouterr().err
