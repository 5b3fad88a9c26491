"""The user's modules sent to other hosts: which are sent, under which name, and what is not unpacked."""

from __future__ import annotations

import hashlib
import io
import site
import zipfile
from pathlib import Path

import pytest

from jsrl.cluster import archive as archives
from jsrl.cluster.archive import archive, modules_named, unpack
from jsrl.errors import ConfigError


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on sys.path with a package and two single modules."""
    folder = tmp_path / "project"
    (folder / "my_game" / "levels").mkdir(parents=True)
    (folder / "my_game" / "__pycache__").mkdir()
    for name in (
        "my_game/__init__.py",
        "my_game/levels/one.txt",
        "my_game/__pycache__/x.pyc",
        "my_env.py",
        "beside.py",
    ):
        (folder / name).write_text(f"# {name}")
    monkeypatch.syspath_prepend(str(folder))
    return folder


def names(content: bytes) -> set[str]:
    return set(zipfile.ZipFile(io.BytesIO(content)).namelist())


def test_modules_of_a_job():
    job = {"env": "my_game.levels:make", "x": [{"$function": "jsrl.agents.ppo:ppo"}], "text": "see: this", "n": 3}
    assert modules_named(job) == {"my_game", "jsrl"}


@pytest.mark.slow
def test_packages_are_sent_whole_and_files_with_their_folder(project: Path):
    assert names(archive({"my_game", "jsrl", "json"})[1]) == {"my_game/__init__.py", "my_game/levels/one.txt"}
    assert names(archive({"my_env"})[1]) == {"my_env.py", "beside.py"}
    assert archive({"jsrl", "numpy", "nowhere", "CartPole"}) == ("", b"")


def test_packages_of_a_virtual_environment_in_the_project_are_not_sent(project: Path, monkeypatch: pytest.MonkeyPatch):
    installed = project / ".venv" / "lib" / "site-packages"
    (installed / "pettingzoo_like").mkdir(parents=True)
    (installed / "pettingzoo_like" / "__init__.py").touch()
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(installed)])
    monkeypatch.syspath_prepend(str(installed))
    assert archive({"pettingzoo_like"}) == ("", b"")


def test_digest_follows_the_content(project: Path):
    first = archive({"my_game"})
    (project / "my_game" / "__init__.py").touch()
    assert archive({"my_game"}) == first and first[0] == hashlib.sha256(first[1]).hexdigest()
    (project / "my_game" / "__init__.py").write_text("# edited")
    assert archive({"my_game"})[0] != first[0]


def test_too_large_archives_are_refused(project: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(archives, "MOST_FILES", 1)
    with pytest.raises(ConfigError, match=r"are 2 files of 0 MiB .* too much to send to other hosts"):
        archive({"my_env"})


def test_unpacking(project: Path, tmp_path: Path):
    digest, content = archive({"my_game"})
    unpack(digest, content, tmp_path / "code" / digest)
    assert (tmp_path / "code" / digest / "my_game" / "levels" / "one.txt").read_text() == "# my_game/levels/one.txt"
    with pytest.raises(ValueError, match=r"has another digest"):
        unpack(digest, content + b"x", tmp_path / "other")


def test_programs_of_a_package_stay_executable(project: Path, tmp_path: Path):
    (project / "my_game" / "levels" / "one.txt").chmod(0o755)
    unpack(*archive({"my_game"}), tmp_path / "code")
    modes = {
        name: (tmp_path / "code" / "my_game" / name).stat().st_mode & 0o100
        for name in ("levels/one.txt", "__init__.py")
    }
    assert modes == {"levels/one.txt": 0o100, "__init__.py": 0}


@pytest.mark.parametrize("name", ["../out.py", "/tmp/out.py", "a/../../out.py"])
def test_nothing_is_written_outside_of_the_folder(name: str, tmp_path: Path):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr(name, "x")
    content = buffer.getvalue()
    with pytest.raises(ValueError, match="does not belong in a folder of modules"):
        unpack(hashlib.sha256(content).hexdigest(), content, tmp_path / "code")
    assert not (tmp_path / "code").exists()
