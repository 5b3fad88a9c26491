"""`jsrl COMMAND`: the list of commands, wrong commands, and configs of the working directory."""

from __future__ import annotations

import importlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import tomllib
import types
from pathlib import Path

import pytest

from jsrl import __main__ as entry
from jsrl import extras
from jsrl.cli import doctor, experiments, main
from jsrl.envs.make import _REGISTERED_BY
from jsrl.envs.rendering import DRAWN_WITH
from jsrl.extras import install_command
from jsrl.transport.shared.locks import ALIVE, living_folder, make_folder, remove_unless_living

ROOT = Path(__file__).parents[2]
OWN = '''"""My own task"""

from jsrl.experiment.configs import ppo


def config():
    return ppo.config()
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with its own experiment; modules imported from it are forgotten afterwards."""
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "mine.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(
        sys.modules, "configs", sys.modules["jsrl.experiment.configs"]
    )  # of another folder, imported before
    yield tmp_path
    for name in ("configs.mine", "configs.wrong"):
        sys.modules.pop(name, None)


def test_without_arguments_lists_all_commands(capsys):
    assert main.main([]) == 0
    text = capsys.readouterr().out
    for command in main.COMMANDS:
        assert f"  {command}" in text
        assert command == "dev" or callable(main.load(command).main)
    assert len(main.COMMANDS) <= 16


TAKE_A_RUN = ("status", "stop", "logs", "report", "evaluate", "export", "record", "dev replay-update")
TAKE_AN_EXPERIMENT = ("run", "tune", "search", "dev chaos")


@pytest.mark.parametrize("command", [*TAKE_A_RUN, *TAKE_AN_EXPERIMENT])
def test_no_command_sends_control_characters_of_a_users_text_to_the_terminal(command, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    further = {"export": ["policy.zip"], "record": ["--to", "episodes"]}.get(command, [])
    assert main.main([*command.split(), "red\x1b[31m", *further]) == 2
    text = capsys.readouterr().err
    assert "red\\x1b[31m" in text and "\x1b" not in text


def test_nor_does_a_wrong_option(capsys):
    with pytest.raises(SystemExit):
        main.main(["status", "--red\x1b[31m", "run"])
    assert "\x1b" not in capsys.readouterr().err


def test_commands_for_experts_are_below_dev(folder, capsys):
    assert main.main(["dev"]) == main.main(["dev", "--help"]) == 0
    text = capsys.readouterr().out
    for command in main.DEV:
        assert f"  {command} " in text
        assert callable(main.load(command).main)
        assert main.main([command]) == 2 and f"it is jsrl dev {command}" in capsys.readouterr().err
    assert main.main(["dev", "tidy"]) == 2 and "there are: chaos, replay-update" in capsys.readouterr().err
    assert main.main(["dev", "chaos", "mine", "--storm-s", "0"]) == 2
    assert "--storm-s is 0; it must be above 0" in capsys.readouterr().err


def test_closed_pipe_ends_a_command_without_traceback():
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run([sys.executable, "-m", "jsrl", "list"], check=False, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, b"")


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_a_command_works_with_a_closed_stream(closed, monkeypatch):
    monkeypatch.setattr(sys, closed, None)
    assert main.main(["list"]) == 0
    getattr(sys, closed).close()


def test_results_are_shown_in_any_encoding(monkeypatch):
    """As with PYTHONIOENCODING=ascii."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(main.sys, "stdout", stream)
    monkeypatch.setattr(
        main, "load", lambda command: types.SimpleNamespace(main=lambda _: stream.write("return 9.4 ± 0.1"))
    )
    main.main(["evaluate"])
    assert stream.buffer.getvalue() == b"return 9.4 ? 0.1"


def test_a_deleted_working_directory_is_named(tmp_path, monkeypatch, capsys):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main.main(["list"]) == 2
    assert capsys.readouterr().err == "ConfigError: the working directory was deleted; go to another one.\n"


def test_interrupted_import_of_the_command_line_ends_without_traceback(monkeypatch, capsys):
    class Loading(types.ModuleType):
        def __getattr__(self, name):
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "jsrl.cli.main", Loading("jsrl.cli.main"))
    assert entry.main() == 130
    assert capsys.readouterr().err == "\ninterrupted\n"


def test_interrupt_that_a_destructor_drops_is_sent_again(monkeypatch, capsys):
    class Command:
        def __del__(self):
            raise KeyboardInterrupt

        @staticmethod
        def main(args):
            Command()  # its destructor gets Ctrl-C, and Python drops the exception
            time.sleep(60)

    before = sys.unraisablehook
    monkeypatch.setattr(main, "load", lambda command: Command)
    assert main.main(["list"]) == 130
    assert capsys.readouterr().err == "\ninterrupted\n"
    assert sys.unraisablehook is before


@pytest.mark.parametrize(
    ("word", "hint"),
    [("ppo_cartpole", "jsrl run ppo_cartpole"), ("evalute", "did you mean evaluate?"), ("xyz", "there are: run")],
)
def test_wrong_command_prints_one_sentence_and_exits_2(word, hint, capsys):
    assert main.main([word]) == 2
    said = capsys.readouterr().err
    assert hint in said and said.count("\n") == 1


def test_configs_of_the_working_directory_are_found_beside_ours(folder, capsys):
    (folder / "configs" / "parts").mkdir()
    (folder / "configs" / "parts" / "__init__.py").touch()  # not an experiment
    assert main.main(["list"]) == 0
    assert "mine My own task" in " ".join(capsys.readouterr().out.split())
    assert "ppo_cartpole" in experiments.files()
    assert experiments.load("mine").name == "ppo"


def test_scripts_of_a_checkout_import_configs_of_the_working_directory(folder, monkeypatch):
    """The folder of run.py, which Python puts on the path, has `configs` as well."""
    monkeypatch.setattr(sys, "path", [str(ROOT / "experiments"), *sys.path])
    monkeypatch.delitem(sys.modules, "configs")
    experiments.use_working_directory()
    assert importlib.import_module("configs.mine").__doc__ == "My own task"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("x = 1\n", "wrong.py has no function config(); an experiment's file has one that returns an Experiment."),
        ("def config(): return 3\n", "config() of {file} returned int; it must return an Experiment."),
        ("x = 1\ndef config(:\n", "{file}, line 2: SyntaxError: invalid syntax."),
        ("\nimport no_such\n", "{file}, line 2: ModuleNotFoundError: No module named 'no_such'."),
        ("import beside_wrong\n", "{folder}/beside_wrong.py, line 2: NameError: name 'y' is not defined."),
        ("def config():\n    return {}['a']\n", "{file}, line 2: KeyError: 'a'."),
        (
            "import jsrl\n\ndef config():\n    return jsrl.Experiment(jsrl.PPOConfig(), seed=-1)\n",
            "{file}, line 4: Experiment.seed is -1; ",
        ),
    ],
)
def test_invalid_config_file_is_reported_in_one_sentence(folder, text, sentence, monkeypatch, capsys):
    file = folder / "configs" / "wrong.py"
    file.write_text(text)
    (folder / "beside_wrong.py").write_text("x = 1\nx = y\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main.main(["run", "wrong"]) == 2
    told = capsys.readouterr().err
    assert sentence.format(file=file, folder=folder) in told and told.count("\n") == 1
    assert main.main(["list"]) == 0 and "wrong" in capsys.readouterr().out


# -- doctor -----------------------------------------------------------------------------------------------------------


def test_doctor_names_missing_packages_and_the_install_command(monkeypatch, capsys):
    monkeypatch.setitem(doctor.EXTRAS, "nothing", (("no_such_module",), "things of nothing"))
    monkeypatch.setattr(doctor.os, "access", lambda path, mode: path != doctor.Path("/dev/shm"))
    assert main.main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert "no things of nothing (no_such_module not installed)" in text and install_command("nothing") in text
    assert "BAD  /dev/shm cannot be written\n       -> give every run --transport zeromq" in text


def test_doctor_detects_another_installed_jsrl(monkeypatch, tmp_path):
    folder = tmp_path / "jsrl-0.3.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: jsrl\nVersion: 0.3\n")
    (folder / "RECORD").write_text("jsrl/__init__.py,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    bad = [finding for finding in doctor.versions() if finding.state == "bad"]
    assert len(bad) == 1 and "jsrl 0.3" in bad[0].text and "pip uninstall jsrl" in bad[0].cure


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"dir_info": {"editable": True}, "url": "file:///a%20b/c"}, "-e '/a b/c[video]'"),
        ({"archive_info": {}, "url": "file:///x.whl"}, "'jsrl-jax[video] @ file:///x.whl'"),
        (
            {"vcs_info": {"vcs": "git", "commit_id": "1a2b"}, "url": "https://x.org/jsrl.git"},
            "'jsrl-jax[video] @ git+https://x.org/jsrl.git@1a2b'",
        ),
        (None, f"-e '{ROOT}[video]'"),  # a checkout on the path; its egg-info lacks these facts
    ],
)
def test_extras_are_installed_from_the_source_of_jsrl(facts, words, monkeypatch):
    class Distribution:
        def read_text(self, name):
            return None if facts is None else json.dumps(facts)

    monkeypatch.setattr(extras.importlib.metadata, "distributions", lambda name: [Distribution()])
    monkeypatch.setattr(extras.sys, "executable", "/a b/python")
    assert install_command("video") == f"'/a b/python' -m pip install {words}"


# -- new --------------------------------------------------------------------------------------------------------------


def test_new_project_refuses_a_folder_in_use(tmp_path, capsys):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "y").touch()
    assert main.main(["new", str(tmp_path / "x")]) == 2
    assert "not an empty folder" in capsys.readouterr().err
    assert main.main(["new", str(tmp_path / "x" / "absent" / "..")]) == 2  # x itself
    assert "not an empty folder" in capsys.readouterr().err
    assert main.main(["new", str(tmp_path / "My-Project")]) == 2
    assert "lower-case letters" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize(("path", "folder"), [("k/x", "k/x"), ("k/x/", "k/x"), (".", ".")])
def test_new_project_of_a_path_goes_there_and_has_the_name_of_its_last_folder(
    path, folder, tmp_path, monkeypatch, capsys
):
    here = tmp_path / "x"
    here.mkdir()
    monkeypatch.chdir(here)
    assert main.main(["new", path]) == 0
    assert capsys.readouterr().out.rstrip().endswith(" run x")
    assert (here / folder / "configs" / "x.py").is_file()
    assert "from configs.x import config" in (here / folder / "test_project.py").read_text()


@pytest.mark.slow
def test_new_project_runs_and_passes_its_tests(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main.main(["new", "walker"]) == 0
    run = [sys.executable, "-m", "jsrl", "run", "walker", "--total-env-steps", "2048", "--display", "plain"]
    for command in (run, [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]):
        ended = subprocess.run(command, cwd=tmp_path / "walker", capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "3 passed" in ended.stdout


def test_doctor_names_the_memory_that_the_next_run_removes(tmp_path, monkeypatch):
    """Whose process is alive shows the lock of its file `alive`; a number in its name may belong to another process."""
    monkeypatch.setattr(doctor, "SHM", tmp_path)
    owner = make_folder(tmp_path / f"jsrl-{os.getuid()}")
    killed, half = make_folder(owner / "999999999-a"), make_folder(owner / f"{os.getpid()}-b")
    (killed / ALIVE).touch()
    (owner / "1-file").touch()
    with living_folder(owner / "999999998-c") as living:  # of a process that is not seen here, as in another container
        (found,) = (finding for finding in doctor.shared_memory() if "killed" in finding.text)
        for folder in (killed, half, living):
            remove_unless_living(folder)
        assert [folder.exists() for folder in (killed, half, living)] == [False, False, True]
    assert set(found.cure.removeprefix("rm -r ").split()) == {str(killed), str(half)}


def test_thread_of_the_environment_does_not_keep_the_command_from_ending(monkeypatch, capsys):
    statuses, release = [], threading.Event()
    monkeypatch.setattr(entry, "LEAVE_S", 0.0)
    monkeypatch.setattr(entry.os, "_exit", statuses.append)
    thread = threading.Thread(target=release.wait, name="simulator")
    thread.start()
    try:
        entry._leave(3)
    finally:
        release.set()
        thread.join()
    assert statuses == [3]
    assert "simulator" in capsys.readouterr().err


def test_printed_commands_name_existing_commands_and_extras() -> None:
    """In messages and docstrings of jsrl: `jsrl COMMAND ...`; in the install commands of messages and pages: extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras_there = project["optional-dependencies"]
    assert project["name"] == extras.DISTRIBUTION
    assert extras.EXTRAS.keys() <= extras_there.keys()
    sources = {path: path.read_text() for path in (ROOT / "jsrl").rglob("*.py")}
    commands = {name: re.findall(r"`jsrl (?:dev )?([a-z-]+)", text) for name, text in sources.items()}
    assert sum(map(len, commands.values())) > 50
    assert not {name: wrong for name, found in commands.items() if (wrong := set(found) - {*main.COMMANDS, *main.DEV})}
    asked = re.compile(r"""(?:install_command\(|require_extra\(|import_extra\([^,]+, )["']([^"']+)""")
    wanted = {extra for text in sources.values() for extra in asked.findall(text)}
    wanted |= {extra for _, extra in DRAWN_WITH.values()} | {extra for *_, extra in _REGISTERED_BY}
    assert len(wanted) > 10 and wanted <= extras.EXTRAS.keys()
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    named = {
        e for page in pages for found in re.findall(r"'\.\[([^]]+)\]'", page.read_text()) for e in found.split(",")
    }
    assert len(named) > 8 and named <= extras_there.keys()
