"""Ledger pages of workers on other hosts: their agents send the pages, and the run folder keeps them."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping
from pathlib import Path

from jsrl.runs.files import write_atomic
from jsrl.transport.ledger.hops import HOPS, SAMPLES, hop_folder, ledger_path
from jsrl.transport.ledger.page import LEDGER

PAGE_BYTES = 4096


class PageWatch:
    """The pages of a host, as last sent.

    Args:
      folder: of a run on this host; see jsrl.transport.ledger.hops.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._sent = folder, dict[str, int]()

    def changed(self) -> dict[str, bytes]:
        """Return HOP/FILE -> content of the changed pages; they count as sent."""
        found = {}
        paths = {f"{path.parent.name}/{path.name}": path for path in (self._folder / HOPS).glob("*/[!.]*")}
        for name, path in (paths | {f"{SAMPLES}/{LEDGER}": ledger_path(self._folder, SAMPLES)}).items():
            with contextlib.suppress(OSError):  # just removed, or there is none
                content = path.read_bytes()
                digest = hash(content)
                if self._sent.get(name) != digest and len(content) == PAGE_BYTES:
                    self._sent[name], found[name] = digest, content
        return found

    def forget(self) -> None:
        self._sent.clear()

    def discard(self) -> None:
        """Delete the pages. Those of an earlier membership would differ from what the run folder has, which counts."""
        shutil.rmtree(self._folder / HOPS, ignore_errors=True)
        ledger_path(self._folder, SAMPLES).unlink(missing_ok=True)
        self.forget()


def keep_pages(folder: Path, pages: Mapping[str, bytes], known: set[str]) -> None:
    """Write the pages of one host to the folder of a run.

    Args:
      known: hops of which this host has sent pages before, or goes on with the counts of an earlier host. For other hops the
        pages of an earlier host are deleted.
    """
    for hop in {name.partition("/")[0] for name in pages}:
        if hop not in known:
            shutil.rmtree(hop_folder(folder, hop), ignore_errors=True)
            known.add(hop)
        hop_folder(folder, hop).mkdir(parents=True, exist_ok=True)
    for name, content in pages.items():
        hop, _, file = name.partition("/")
        path = ledger_path(folder, hop) if file == LEDGER else hop_folder(folder, hop) / file
        try:
            write_atomic(path, content, durable=False)
        except OSError:  # a full disk: the blocks of the old page are there
            with contextlib.suppress(FileNotFoundError), path.open("r+b") as page:
                page.write(content)
