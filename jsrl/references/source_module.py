"""The text of a module of captured definitions: its content, its order, and a check that it is complete."""

from __future__ import annotations

import builtins
import symtable
from dataclasses import dataclass, field
from typing import Any

from jsrl.errors import ConfigError
from jsrl.references.source_index import used_names

MODULE_NAMES = {"__name__", "__doc__", "__builtins__", "__spec__", "__package__", "__loader__", "__annotations__"}


@dataclass
class Entry:
    """One name of the module: a definition, a constant, or an import (whose text is all import statements)."""

    name: str
    value: Any
    text: str
    kind: str  # "import", "constant" or "definition"
    order: tuple[int, int] = (0, 0)
    origin: str = ""
    future: bool = False
    early: set[str] = field(default_factory=set)
    late: set[str] = field(default_factory=set)


def ordered(entries: dict[str, Entry]) -> list[Entry]:
    """Return entries so that each comes after what it needs when it runs; otherwise in their original order.

    Functions that a function calls come before it if something needs that function early (a decorator, say),
    unless that would put a class before its base.
    """
    placed: dict[str, Entry] = {}
    open_names: set[str] = set()

    def closure(name: str, seen: set[str]) -> set[str]:
        if name in entries and name not in seen:
            seen.add(name)
            for early in entries[name].early:
                closure(early, seen)
        return seen

    def place(name: str, called: bool) -> None:
        if name in placed or name in open_names or name not in entries:
            return
        entry = entries[name]
        open_names.add(name)
        for early in sorted(entry.early):
            place(early, True)
        for late in sorted(entry.late) if called else ():
            if not closure(late, set()) & open_names:
                place(late, True)
        open_names.discard(name)
        placed[name] = entry

    for entry in sorted(entries.values(), key=lambda entry: (entry.order, entry.name)):
        place(entry.name, False)
    return list(placed.values())


def module_text(entries: dict[str, Entry]) -> str:
    """Return the source of a module that holds `entries`."""
    in_order = ordered(entries)
    origins = sorted({entry.origin.rpartition(", line")[0] for entry in in_order if entry.origin})
    blocks = [
        '"""Definitions of a script or notebook, written by jsrl so that worker processes can import them.\n\n'
        f"From {', '.join(origins) or 'global variables'}.\n"
        '"""'
    ]
    if any(entry.future for entry in in_order):
        blocks.append("from __future__ import annotations")
    lines = {line for entry in in_order if entry.kind == "import" for line in entry.text.splitlines()}
    if lines:
        blocks.append("\n".join(sorted(lines, key=lambda line: (not line.startswith(("import ", "from ")), line))))
    constants: list[str] = []
    for entry in in_order:
        if entry.kind == "constant":
            constants.append(entry.text)
        elif entry.kind == "definition":
            blocks += ["\n".join(constants)] if constants else []
            constants = []
            blocks.append(f"# {entry.origin}\n{entry.text}")
    blocks += ["\n".join(constants)] if constants else []
    return "\n\n\n".join(blocks) + "\n"


def check_module(text: str, path: str) -> None:
    """Raise ConfigError if a module's source does not compile, or uses a name that it does not define."""
    try:
        compile(text, path, "exec", dont_inherit=True)
        names = used_names(text, "from __future__ import annotations" in text.splitlines())
        symbols = symtable.symtable(text, path, "exec").get_symbols()
    except SyntaxError as error:
        raise ConfigError(
            f"captured source does not compile ({error}); move the definitions to a module of their own. "
            f"The source was:\n{text}"
        ) from error
    defined = {symbol.get_name() for symbol in symbols if symbol.is_assigned() or symbol.is_imported()}
    missing = sorted((names.early | names.late) - defined - set(dir(builtins)) - MODULE_NAMES)
    if missing:
        raise ConfigError(
            f"captured source uses {', '.join(missing)}, which could not be captured; move the definitions to a module "
            f"of their own. The source was:\n{text}"
        )
