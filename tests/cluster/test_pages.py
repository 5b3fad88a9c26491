"""Count pages sent from a host's agent to the run folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jsrl.cluster.kept_files import PageWatch, keep_pages
from jsrl.cluster.messages import PAGE_BYTES, Pages
from jsrl.transport.base import ProducerId
from jsrl.transport.ledger.leg_page import LegPage
from jsrl.transport.ledger.legs import SAMPLES, ledger_path, leg_folder


def test_only_changes_are_sent_and_new_hosts_get_everything(tmp_path: Path) -> None:
    there, here = tmp_path / "host", tmp_path / "run"
    leg = there / "legs" / "samples.rank-1"
    leg.mkdir(parents=True)
    (leg / "ledger").write_bytes(b"a" * PAGE_BYTES)
    (leg / ".ledger.1.draft").write_bytes(b"d" * PAGE_BYTES)
    watch, known = PageWatch(there), set[str]()
    first = watch.changed()
    assert list(first) == ["samples.rank-1/ledger"] and not watch.changed()
    keep_pages(here, Pages(1, first).pages, known)
    (leg / "actor-1.0.00000000000a.page").write_bytes(b"b" * PAGE_BYTES)
    keep_pages(here, Pages(1, watch.changed()).pages, known)
    kept = here / "legs" / "samples.rank-1"
    assert sorted(path.name for path in kept.iterdir()) == ["actor-1.0.00000000000a.page", "ledger"]
    keep_pages(here, first, set())  # another host: the lost one's connection counts are dropped
    assert [path.name for path in kept.iterdir()] == ["ledger"]
    (kept / "actor-0.0.00000000000b.page").write_bytes(b"c" * PAGE_BYTES)
    keep_pages(here, first, {"samples.rank-1"})  # one that continues its counts
    assert len(list(kept.iterdir())) == 2
    keep_pages(tmp_path / "new", first, {"samples.rank-1"})  # the first host of all
    assert (tmp_path / "new" / "legs" / "samples.rank-1" / "ledger").exists()
    watch.forget()
    assert len(watch.changed()) == 2


def test_a_host_that_joins_again_sends_no_counts_of_its_earlier_membership(tmp_path: Path) -> None:
    """The run folder has what counts; the next learner here continues from that."""
    leg = leg_folder(tmp_path, SAMPLES)
    leg.mkdir(parents=True)
    for path in (leg / "actor-1.0.00000000000a.page", ledger_path(tmp_path, SAMPLES)):
        path.write_bytes(b"a" * PAGE_BYTES)
    watch = PageWatch(tmp_path)
    assert len(watch.changed()) == 2
    watch.discard()
    assert not watch.changed()


def test_a_page_that_is_just_being_made_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent's message refuses its name, and the agent ended."""
    watch, sent, rename = PageWatch(tmp_path), list[list[str]](), os.replace

    def look_before(source: Path, target: Path) -> None:
        sent.append(list(Pages(1, watch.changed()).pages))
        rename(source, target)

    monkeypatch.setattr("jsrl.transport.ledger.leg_page.os.replace", look_before)
    LegPage.create(leg_folder(tmp_path, SAMPLES), ProducerId("actor-0", 0), 7, blocks=2, transport=0)
    sent.append(list(Pages(1, watch.changed()).pages))
    assert sent == [[], ["samples/actor-0.0.000000000007.page"]]


def test_learner_counts_are_stored_with_the_legs(tmp_path: Path) -> None:
    there, here = tmp_path / "host", tmp_path / "run"
    there.mkdir()
    (there / "ledger").write_bytes(b"a" * PAGE_BYTES)
    changed = PageWatch(there).changed()
    assert list(Pages(1, changed).pages) == ["samples/ledger"]
    keep_pages(here, changed, set())
    assert (here / "ledger").read_bytes() == b"a" * PAGE_BYTES


@pytest.mark.parametrize("name", ["../x/ledger", "samples/../ledger", "samples.rank-1/x", "/etc/ledger", "a/b/ledger"])
def test_page_names_that_escape_the_folder_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="page"):
        Pages(1, {name: bytes(PAGE_BYTES)})
    with pytest.raises(ValueError, match="page"):
        Pages(1, {"samples.rank-1/ledger": b"short"})


def test_full_disk_keeps_the_counts_of_pages_that_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = set[str]()
    keep_pages(tmp_path, {"samples/ledger": b"a" * PAGE_BYTES}, known)

    def no_space(*_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr("jsrl.services.runs.files.os.replace", no_space)
    keep_pages(
        tmp_path, {"samples/a.0.000000000001.page": b"b" * PAGE_BYTES, "samples/ledger": b"b" * PAGE_BYTES}, known
    )
    assert ledger_path(tmp_path, SAMPLES).read_bytes() == b"b" * PAGE_BYTES
    assert not list(leg_folder(tmp_path, SAMPLES).iterdir())
