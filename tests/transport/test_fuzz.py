"""10,000 broken messages against the codec and against live sockets: typed errors, bounded memory, and the run continues."""

from __future__ import annotations

import tracemalloc

import pytest

from benchmarks import fuzz


def test_every_mutation_is_tried_and_most_are_refused() -> None:
    outcome = fuzz.fuzz_codec(2_000, seed=5)
    assert outcome.failures == [] and outcome.frames == 2_000
    assert outcome.answers["CodecError"] > 1_500 and outcome.answers["accepted"] > 50


def test_fuzz_search_finds_a_planted_fault(monkeypatch) -> None:
    """A codec that raises anything but CodecError is detected."""

    monkeypatch.setattr(fuzz, "unpack", lambda frames, *_: frames[0].decode("ascii"))
    monkeypatch.setattr(fuzz, "examples", lambda: [[b"abc"]])
    assert fuzz.fuzz_codec(200, seed=0).failures
    assert not tracemalloc.is_tracing()  # it would slow down all later tests of this process


@pytest.mark.slow
def test_codec() -> None:
    found = fuzz.own_process("--only", "codec", "--frames", "6000")
    assert found["failures"] == [] and found["memory_bytes"] <= found["limit_bytes"] == fuzz.CODEC_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("target", fuzz.LIVE)
def test_live_sockets(target: str) -> None:
    found = fuzz.own_process("--only", target, "--frames", "3000", "--seed", "1")
    assert found["failures"] == [] and found["frames"] == 3000
    assert found["memory_bytes"] <= found["limit_bytes"]
    assert target == "segment" or found["answers"]["a message without end"] > 0
    if target in ("samples", "segment", "inference"):
        assert found["answers"]["welcome"] > 0, "some were accepted before they sent garbage"
    if target in ("samples", "segment", "inference", "params"):
        assert sum(number for answer, number in found["answers"].items() if "refused" in answer) > 0, found
