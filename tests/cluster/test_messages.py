"""Messages to an agent: only workers of jsrl can be started."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsrl.cluster.messages import AnyAgentMessage, AnyControllerMessage, Begin, decode, encode
from jsrl.errors import CodecError

FINE = {
    "kind": "begin", "membership": 1, "worker_kind": "actor", "worker": "actor-0", "incarnation": 0, "job": b"{}",
    "variables": {"OMP_NUM_THREADS": "1"}, "code": "", "forks": False,
}  # fmt: skip


def begin(**changes):
    return decode(msgspec.msgpack.encode(FINE | changes), AnyControllerMessage)


def test_messages_round_trip():
    message = begin(worker_kind="my_workers:AUGMENT", code="a" * 64)
    assert isinstance(message, Begin) and decode(encode(message), AnyControllerMessage) == message


@pytest.mark.parametrize(
    "changes",
    [
        {"worker": "../../etc/cron.d/x"},
        {"worker": "a" * 65},
        {"worker": "--job"},
        {"incarnation": -1},
        {"incarnation": "0"},
        {"worker_kind": "actor; rm -rf /"},
        {"worker_kind": "--keys"},
        {"variables": {"LD_PRELOAD": "/tmp/x.so"}},
        {"variables": {"PYTHONPATH": "/tmp"}},
        {"code": "../x"},
        {"command": ["sh"]},
        {"kind": "run"},
    ],
)
def test_modules_that_are_not_workers_are_refused(changes):
    with pytest.raises(CodecError):
        begin(**changes)


@pytest.mark.parametrize("key", ["../x", "a" * 79, "/etc/x", "A" * 80, ""])
def test_host_key_with_a_path_is_refused(key):
    with pytest.raises(CodecError):
        decode(encode_names([key]), AnyControllerMessage)
    assert decode(encode_names({"0a" * 40: ["actor-0"]}), AnyControllerMessage).host_keys == {"0a" * 40: ["actor-0"]}


def test_player_name_with_a_path_is_refused():
    beat = {"kind": "beat", "membership": 1, "sent_s": 0.0, "frames": [], "wanted": ["5", "rover/7", "../8"]}
    with pytest.raises(CodecError):
        decode(msgspec.msgpack.encode(beat), AnyAgentMessage)
    found = decode(msgspec.msgpack.encode(beat | {"wanted": ["5", "rover/7"]}), AnyAgentMessage)
    assert found.wanted == ["5", "rover/7"]


def encode_names(host_keys):
    return msgspec.msgpack.encode({"kind": "names", "membership": 1, "entries": [], "host_keys": host_keys})


letters = "aB0_/. \x00é☃𝄞"  # one to four bytes each
values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.text(letters, max_size=20),
    st.binary(max_size=20),
    st.lists(st.text(letters)),
)


@pytest.mark.slow
@given(
    st.one_of(
        st.binary(max_size=200), st.dictionaries(st.sampled_from([*FINE, "x"]), values).map(msgspec.msgpack.encode)
    )
)
def test_garbage_is_refused_with_one_kind_of_error(frame):
    for kinds in (AnyControllerMessage, AnyAgentMessage):
        try:
            decode(frame, kinds)
        except CodecError:
            continue
