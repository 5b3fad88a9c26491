"""Key files: permissions and refusals."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
import zmq

from jsrl.errors import ConfigError
from jsrl.transport.door import keys as keys_module
from jsrl.transport.door.keys import ClientKeys, ServerKeys, load_client_keys, load_server_keys, make_keys


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0o022, 0o000, 0o077], ids=["usual", "open", "strict"])
def umask(request: pytest.FixtureRequest):
    before = os.umask(request.param)
    yield
    os.umask(before)


def test_key_files_are_private_under_any_umask(tmp_path: Path, umask: None) -> None:
    folder = make_keys(tmp_path / "run" / "keys")
    assert mode(folder) == 0o700
    assert {path.name: mode(path) for path in folder.iterdir()} == {"server.key": 0o600, "client.key": 0o600}


def test_keys_match_within_a_run_and_differ_between_runs(tmp_path: Path) -> None:
    folder, other = make_keys(tmp_path / "a"), make_keys(tmp_path / "b")
    server, client = load_server_keys(folder), load_client_keys(folder)
    assert (server.client, client.server) == (client.public, server.public)
    assert len({server.secret, client.secret, load_server_keys(other).secret, load_client_keys(other).secret}) == 4
    assert load_client_keys(folder / "client.key") == client
    for value in (server.secret, client.secret):
        assert value.decode() not in repr(server) + repr(client) + str(server) + str(client)
    text = (folder / "client.key").read_text()  # the file that is copied to other hosts
    assert server.secret.decode() not in text


def test_existing_keys_are_kept(tmp_path: Path) -> None:
    before = load_client_keys(make_keys(tmp_path))
    assert load_client_keys(make_keys(tmp_path)) == before
    os.unlink(tmp_path / "server.key")  # as if the first start had been killed between the two files
    after = load_client_keys(make_keys(tmp_path))
    assert after != before and load_server_keys(tmp_path).client == after.public


@pytest.mark.parametrize("loose", [0o640, 0o604, 0o622, 0o666])
def test_a_secret_that_others_can_read_is_refused(tmp_path: Path, loose: int) -> None:
    folder = make_keys(tmp_path)
    os.chmod(folder / "client.key", loose)
    with pytest.raises(ConfigError, match=f"mode {loose:04o}.*chmod 600"):
        load_client_keys(folder)


def swapped(content: dict[str, str]) -> dict[str, str]:
    return content | {"public": content["server"]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: "{", "not a key file"),
        (lambda content: "[" * 4000, "not a key file"),
        (lambda content: json.dumps([1]), "not a key file"),
        (lambda content: json.dumps(content | {"secret": None}), "secret is not a key"),
        (lambda content: json.dumps(content | {"secret": content["secret"][:-1]}), "secret is not a key"),
        (lambda content: json.dumps(content | {"server": "\u00e9" * 40}), "server is not a key"),
        (lambda content: json.dumps(content | {"server": "#" * 40}), "server is not a key"),
        (lambda content: json.dumps({k: v for k, v in content.items() if k != "server"}), "not a key file"),
        (lambda content: json.dumps(swapped(content)), "does not belong"),
        (lambda content: json.dumps(content) + " " * 5000 + "x", "not a key file"),
    ],
)
def test_broken_files_are_refused_by_name_without_showing_content(tmp_path: Path, change, message: str) -> None:
    path = make_keys(tmp_path) / "client.key"
    content = json.loads(path.read_text())
    path.write_text(change(content))
    with pytest.raises(ConfigError, match=message) as caught:
        load_client_keys(path)
    assert str(path) in str(caught.value) and content["secret"] not in str(caught.value)


def test_missing_keys_name_their_source(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no keys at .*client.key.*RUN/keys"):
        load_client_keys(tmp_path)
    with pytest.raises(ConfigError, match=r"no keys at .*nowhere"):
        load_server_keys(tmp_path / "nowhere")


def test_key_file_of_the_other_side_is_refused(tmp_path: Path) -> None:
    folder = make_keys(tmp_path)
    with pytest.raises(ConfigError, match="not a key file with public, secret, client"):
        load_server_keys(folder / "client.key")
    with pytest.raises(ConfigError, match="not a key file with public, secret, server"):
        load_client_keys(folder / "server.key")


def test_unwritable_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        make_keys(tmp_path / "file" / "keys")


def test_zeromq_without_curve_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys_module.zmq, "has", lambda what: what != "curve")
    with pytest.raises(ConfigError, match=r"built without CURVE.*wheel"):
        make_keys(tmp_path / "keys")
    assert not (tmp_path / "keys").exists()


def test_key_values_are_validated() -> None:
    (public, secret), (other, _) = zmq.curve_keypair(), zmq.curve_keypair()
    for kind in (ServerKeys, ClientKeys):
        with pytest.raises(ValueError, match="does not belong"):
            kind(other, secret, public)
