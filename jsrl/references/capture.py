"""Write definitions of a script or notebook into a module that worker processes can import.

A `Capture` takes functions and classes from `__main__` (or from another module that cannot be imported by name)
and everything they use from there: other definitions as source, values, imports. All of it goes into one module, so that an
agent's function and its config class refer to the same class. The module is named after these definitions, wherever they
stand, so that a run can be resumed after its script has changed elsewhere. Nothing is executed here, and workers never import
the user's own script, because that would run it again.
"""

from __future__ import annotations

import builtins
import hashlib
import inspect
import json
import os
import pathlib
import pprint
import re
import sys
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any

from jsrl.errors import ConfigError
from jsrl.references.importing import (
    CAPTURED,
    ITSELF,
    MAIN_MODULES,
    importable_target,
    is_importable,
    is_same,
    lookup,
    refuse,
    why_not_importable,
)
from jsrl.references.reference import encoded
from jsrl.references.source_index import SourceIndex, Statement, is_type_expression, plain_function, used_names

MODULE_NAMES = {"__name__", "__doc__", "__builtins__", "__spec__", "__package__", "__loader__", "__annotations__"}
DECODER = "_jsrl_value"  # in the module: from_json


@dataclass
class Entry:
    """One name of the module: a definition, a value, or an import (whose text is all import statements).

    Attributes:
      order, origin: of a definition, as of its Statement. future: its annotations stay text.
      early, late: names that it uses as soon as it runs, and when it is called.
    """

    name: str
    value: Any
    text: str
    kind: str  # "import", "value" or "definition"
    order: tuple[int, int] = (0, 0)
    origin: str = ""
    future: bool = False
    early: set[str] = field(default_factory=set)
    late: set[str] = field(default_factory=set)


class Capture:
    """Collect definitions, and write them as one module into `folder`; for one tree of values."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Create a capture; `folder` is created with the first file, and must be on the workers' sys.path."""
        self.folder = pathlib.Path(folder)
        self._entries: dict[str, Entry] = {}
        self._indexes: dict[int, SourceIndex] = {}

    # -- public interface -------------------------------------------------------------------------------------------------

    def target(self, thing: Any, path: str = "") -> str:
        """Take the source of a function or class, and of everything that it uses; return "ITSELF:qualname".

        Args:
          path: name for messages, such as `agent.network`.

        Raises:
          ConfigError: it, or something it uses, cannot be rebuilt; the message names the variable and a solution.
        """
        name, namespace = self._find(thing)
        if name:
            self._need(name.split(".")[0], namespace, path, thing)
            return f"{ITSELF}:{name}"
        reason = why_not_importable(thing)
        if reason is not None:
            raise refuse(path, thing, *reason)
        if inspect.unwrap(thing) is not thing:
            raise _wrapped(thing, path)
        redefined = f"is not what `{thing.__qualname__}` is in {thing.__module__} now (it was defined again since)"
        raise refuse(path, thing, redefined, "use the new one, or give the two different names")

    def write(self) -> str:
        """Write what was taken into `folder`, and return the module's name; ITSELF stands for it in the targets."""
        definitions = "\n".join(sorted(entry.text for entry in self._entries.values()))
        module = f"{CAPTURED}{hashlib.sha256(definitions.encode()).hexdigest()[:12]}"
        path = self.folder / f"{module}.py"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(f".{os.getpid()}.tmp")
            partial.write_text(module_text(self._entries).replace(ITSELF, module), encoding="utf-8")
            partial.replace(path)
        except OSError as error:
            raise ConfigError(
                f"captured source cannot be written to {path}: {error}. Choose a folder that can be written."
            ) from error
        return module

    # -- taking definitions -------------------------------------------------------------------------------------------

    def _find(self, thing: Any) -> tuple[str, dict[str, Any]]:
        """Return the dotted name of `thing` in a script or notebook, and its namespace; or ("", {})."""
        if not callable(thing) or not isinstance(getattr(thing, "__module__", None), str):
            return "", {}
        namespaces = [_namespace(thing), *(vars(sys.modules[name]) for name in MAIN_MODULES if name in sys.modules)]
        qualname = getattr(thing, "__qualname__", "")
        for namespace in namespaces:
            root, *rest = qualname.split(".")
            found = namespace.get(root)
            for part in rest:
                found = getattr(found, part, None)
            if is_same(found, thing):
                return qualname, namespace
            for name, value in namespace.items():  # a named lambda, or the result of a decorator
                own = value is thing and not name.startswith("_") and not is_importable(namespace.get("__name__", ""))
                if own and self._index(namespace).definition(name, thing):
                    return name, namespace
        return "", {}

    def _index(self, namespace: dict[str, Any]) -> SourceIndex:
        if id(namespace) not in self._indexes:
            self._indexes[id(namespace)] = SourceIndex(namespace)
        return self._indexes[id(namespace)]

    def _need(self, name: str, namespace: dict[str, Any], path: str, user: Any) -> bool:
        """Take the value of `name` in `namespace`; return whether the module will define it."""
        if name in MODULE_NAMES:
            return False
        if name not in namespace:
            if hasattr(builtins, name):
                return False
            way_out = f"define `{name}` before, or pass it as an argument"
            raise refuse(path, user, f"uses `{name}`, which is not defined", way_out)
        value = namespace[name]
        known = self._entries.get(name)
        if known is None:
            text = self._import(name, value, namespace, path, user)
            if text:
                self._entries[name] = Entry(name, value, text, "import")
            else:
                self._define(name, value, namespace, path, user)
        elif known.value is not value:
            reason = f"uses `{name}`, of which another definition is captured already"
            raise refuse(path, user, reason, "give the two different names")
        return True

    def _import(self, name: str, value: Any, namespace: dict[str, Any], path: str, user: Any) -> str:
        """Return import statements that bind a name; empty: none can."""
        index = self._index(namespace)
        if isinstance(value, ModuleType):
            module = value.__name__
            if not is_importable(module):
                reason = f"uses `{name}`, the module {module!r}, which no other process can import"
                raise refuse(path, user, reason, "put the module's file on sys.path under its own name")
            lines = [f"import {module}" if name == module else f"import {module} as {name}"]
            dotted = {imported for imported, attribute in index.imports(name) if attribute is None and "." in imported}
            lines += [f"import {imported}" for imported in sorted(dotted) if imported.split(".")[0] == module == name]
            return "\n".join(lines)
        for module, attribute in index.imports(name):
            if attribute is not None and is_same(lookup(module, attribute), value) and is_importable(module):
                return f"from {module} import {attribute} as {name}"
        target = importable_target(value)
        if target is None:
            return ""
        module, _, qualname = target.partition(":")
        outer, _, rest = qualname.partition(".")
        if rest:
            return f"from {module} import {outer} as _{outer}\n{name} = _{outer}.{rest}"
        return f"from {module} import {outer} as {name}"

    def _define(self, name: str, value: Any, namespace: dict[str, Any], path: str, user: Any) -> None:
        """Take a name by the source of its definition, or by its value."""
        index = self._index(namespace)
        statement = index.definition(name, value) if callable(value) else None
        if statement is not None:
            if inspect.unwrap(value) is not value and not getattr(statement.node, "decorator_list", []):
                raise _wrapped(value, path)
            self._source(name, value, statement, namespace, path)
            return
        assigned = index.assignment(name)
        own_name = not isinstance(value, type) or value.__qualname__ == name  # else it is another name of a class
        if is_type_expression(value) and own_name and assigned is not None:
            self._source(name, value, assigned, namespace, path)
        elif isinstance(value, FunctionType | type) and value.__qualname__ == name and "<" not in name:
            raise _no_source(name, value, path)
        else:
            where = f"{path}: " if path else ""
            order = assigned.order if assigned is not None else (0, 0)
            self._value(Entry(name, value, "", "value", order), f"{where}`{name}`, which {_name_of(user)} uses")

    def _value(self, entry: Entry, path: str) -> None:
        """Take a value; those of definitions come after them."""
        if type(entry.value) is object:  # a sentinel
            written = "object()"
        else:
            tree = encoded(entry.value, self, path)
            written = repr(tree)
            if '"$' in json.dumps(tree):  # more than plain JSON
                written = f"{DECODER}({pprint.pformat(tree, width=110, sort_dicts=False)})"
                imported = f"from jsrl.references.reference import from_json as {DECODER}"
                self._entries[DECODER] = Entry(DECODER, None, imported, "import")
        entry.text = f"{entry.name} = {written}"
        entry.early = set(re.findall(rf"'{ITSELF}:(\w+)", written))
        entry.order = entry.order if entry.early else (0, 0)
        self._entries[entry.name] = entry

    def _source(self, name: str, value: Any, statement: Statement, namespace: dict[str, Any], path: str) -> None:
        future = _future_annotations(value, self._index(namespace))
        names = used_names(statement.text, future)
        entry = Entry(name, value, statement.text, "definition", statement.order, statement.origin, future)
        self._entries[name] = entry
        for used in sorted(names.early | names.late):
            if used != name and self._need(used, namespace, path, value):
                (entry.early if used in names.early else entry.late).add(used)
        for used in sorted(names.soft):
            if used in namespace and used != name:
                before = dict(self._entries)
                try:
                    self._need(used, namespace, path, value)
                    entry.late.add(used)
                except ConfigError:  # an annotation stays text: its names need not exist
                    self._entries = before
        self._registrations(name, value, namespace, path)

    def _registrations(self, name: str, value: Any, namespace: dict[str, Any], path: str) -> None:
        """Take the statements that complete a definition: `name.defvjp(...)`, `register_pytree_node(name, ...)`."""
        index = self._index(namespace)
        for extra in index.registrations(name):
            own = getattr(extra.node, "name", "")
            if own and callable(namespace.get(own)) and index.definition(own, namespace[own]) == extra:
                self._need(own, namespace, path, value)
                continue
            key = f"statement at {extra.origin}"
            if key not in self._entries:
                future = _future_annotations(value, index)
                entry = Entry(key, extra, extra.text, "definition", extra.order, extra.origin, future)
                self._entries[key] = entry
                uses = used_names(extra.text, future)
                entry.early = {used for used in uses.early | uses.late if self._need(used, namespace, path, value)}


# -- the module -------------------------------------------------------------------------------------------------------


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
    blocks += ["\n".join(sorted(lines, key=lambda line: (not line.startswith(("import ", "from ")), line)))]
    for entry in in_order:
        if entry.kind == "definition":
            blocks.append(f"# {entry.origin}\n{entry.text}")
        elif entry.kind == "value":
            blocks.append(entry.text)
    return "\n\n\n".join(filter(None, blocks)) + "\n"


# -- refusals ---------------------------------------------------------------------------------------------------------


def _namespace(thing: Any) -> dict[str, Any]:
    plain = plain_function(getattr(thing, "__func__", thing)) if not isinstance(thing, type) else None
    if plain is not None and plain.__module__ == thing.__module__:
        return plain.__globals__
    return vars(sys.modules[thing.__module__]) if thing.__module__ in sys.modules else {}


def _name_of(thing: Any) -> str:
    return f"`{getattr(thing, '__qualname__', None) or type(thing).__name__}`"


def _future_annotations(value: Any, index: SourceIndex) -> bool:
    import __future__

    plain = plain_function(value) if not isinstance(value, type) else None
    if plain is not None:
        return bool(plain.__code__.co_flags & __future__.annotations.compiler_flag)
    return index.future_annotations


def _wrapped(thing: Any, path: str) -> ConfigError:
    name = thing.__name__
    reason = f"is `{name}` wrapped after its definition, by a call that cannot be repeated from its result"
    way_out = f"write the wrapper as a decorator above `def {name}`, or wrap it inside the function that uses it"
    return refuse(path, thing, reason, way_out)


def _no_source(name: str, value: Any, path: str) -> ConfigError:
    plain = plain_function(value) if not isinstance(value, type) else None
    where = plain.__code__.co_filename if plain is not None else value.__module__
    return refuse(
        path,
        value,
        f"has no source that can be found (`{name}`, defined in {where}; `python -c`, the interactive prompt and "
        "%%time cells keep none, and a file may have changed since it ran)",
        "put it into a file or a notebook cell, or run the changed file again",
    )
