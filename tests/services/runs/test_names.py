import dataclasses
import json
import subprocess
import sys
import threading
import time

import pytest

from jsrl.errors import StreamClosed, StreamTimeout
from jsrl.services.runs.names import FileNames
from jsrl.services.runs.values import Registration
from tests.patience import stretched


def test_register_and_lookup(tmp_path):
    names = FileNames(tmp_path / "names")
    entry = names.register("learner/samples", "ipc:///run/a.sock", incarnation=2)
    found = FileNames(tmp_path / "names").lookup("learner/samples", timeout_s=0)
    assert found == entry
    assert (found.address, found.incarnation) == ("ipc:///run/a.sock", 2)
    assert list(names.names()) == ["learner/samples"]
    (tmp_path / "names" / "learner%2Fsamples.json").unlink()
    with pytest.raises(StreamTimeout, match="no worker registered it"):
        names.lookup("learner/samples", timeout_s=0)


def test_lookup_waits_for_a_late_registration(tmp_path):
    names = FileNames(tmp_path)
    timer = threading.Timer(0.15, names.register, ["inference-0", "tcp://127.0.0.1:5555"])
    timer.start()
    start_s = time.monotonic()
    assert names.lookup("inference-0", timeout_s=10).address == "tcp://127.0.0.1:5555"
    assert 0.1 < time.monotonic() - start_s < stretched(5)
    timer.join()


def test_timeout_lists_known_names(tmp_path):
    names = FileNames(tmp_path)
    names.register("actor-0", "a")
    start_s = time.monotonic()
    with pytest.raises(StreamTimeout, match=r"learner was not found within 0\.1 s.*known .*: actor-0"):
        names.lookup("learner", timeout_s=0.1)
    assert 0.1 <= time.monotonic() - start_s < stretched(2)


def test_an_earlier_incarnation_cannot_overwrite(tmp_path):
    names = FileNames(tmp_path)
    names.register("learner", "new", incarnation=3)
    with pytest.raises(StreamClosed, match="incarnation 3"):
        names.register("learner", "old", incarnation=2)
    assert names.lookup("learner", 0).address == "new"
    names.register("learner", "newer", incarnation=4)
    assert names.lookup("learner", 0).address == "newer"


@pytest.mark.parametrize("reap", [True, False])
def test_dead_process_is_not_listed(tmp_path, reap):
    program = (
        "import sys; from jsrl.services.runs.names import FileNames; FileNames(sys.argv[1]).register('learner', 'x')"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stderr=subprocess.PIPE)
    if reap:
        process.wait(30)
    else:
        process.stderr.read()
        time.sleep(0.2)
    with pytest.raises(StreamTimeout, match="which has ended"):
        FileNames(tmp_path).lookup("learner", 0)
    process.communicate()


def test_names_with_any_characters_stay_inside_the_folder(tmp_path):
    names = FileNames(tmp_path / "names")
    for name in ("../up", "a/b c", ".hidden", "ä", "a.json"):
        names.register(name, name)
    assert set(names.names()) == {"../up", "a/b c", ".hidden", "ä", "a.json"}
    assert [path.name for path in tmp_path.iterdir()] == ["names"]


def test_readers_never_see_a_partial_entry(tmp_path):
    names = FileNames(tmp_path)
    names.register("learner", "0")
    stop = threading.Event()

    def write():
        number = 0
        while not stop.is_set():
            number += 1
            names.register("learner", str(number) * 200)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(500):
            address = names.lookup("learner", 1).address
            assert len(address) < 2 or len(address) % 200 == 0
    finally:
        stop.set()
        thread.join()


def test_a_foreign_file_is_named(tmp_path):
    names = FileNames(tmp_path)
    (tmp_path / "learner.json").write_text(json.dumps({"what": 1}))
    with pytest.raises(StreamClosed, match=r"learner\.json is not a registration"):
        names.lookup("learner", 0)


def test_names_of_other_hosts_do_not_affect_local_names(tmp_path):
    names = FileNames(tmp_path)
    own = names.register("inference.inference-0", "tcp://here", 1)
    far = Registration("samples.learner", "tcp://there", 0, 4_000_000, "elsewhere")
    names.show([far, dataclasses.replace(own, address="tcp://echo", host="elsewhere")])
    assert names.own() == [own] and names.names()["samples.learner"] == dataclasses.replace(far, host="")
    names.show([dataclasses.replace(own, address="tcp://earlier", incarnation=0)])
    assert list(names.names().values()) == [own]
    later = dataclasses.replace(own, address="tcp://later", incarnation=2, host="elsewhere")
    names.show([later])  # its next incarnation is elsewhere
    assert names.names()["inference.inference-0"] == dataclasses.replace(later, host="") and not names.own()
    assert names.register("inference.inference-0", "tcp://back", 3) == names.own()[0]
