"""Write definitions of a script or notebook into a module that worker processes can import.

A `Capture` takes functions and classes from `__main__` (or from another module that cannot be imported by name)
and everything they use from there: other definitions, constants, imports. All of it goes into one module, so that an agent's
function and its config class refer to the same class. The module is named after these definitions, wherever they stand, so
that a run can be resumed after its script has changed elsewhere. Nothing is executed here, and workers never import the
user's own script, because that would run it again.
"""

from __future__ import annotations

import builtins
import hashlib
import inspect
import os
import pathlib
import sys
from types import FunctionType, ModuleType
from typing import Any

from jsrl.errors import ConfigError
from jsrl.references.importing import (
    CAPTURED,
    MAIN_MODULES,
    importable_target,
    is_importable,
    is_same,
    lookup,
    refuse,
    why_not_importable,
)
from jsrl.references.source_index import SourceIndex, Statement, used_names
from jsrl.references.source_module import MODULE_NAMES, Entry, check_module, module_text
from jsrl.references.source_values import ValueWriter, is_type_expression


class Capture:
    """Collect definitions, and write them as one module into `folder`; for one tree of values."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Create a capture; `folder` is created with the first file, and must be on the workers' sys.path."""
        self.folder = pathlib.Path(folder)
        self._entries: dict[str, Entry] = {}
        self._indexes: dict[int, SourceIndex] = {}
        self._module = ""

    # -- public interface -------------------------------------------------------------------------------------------------

    def add(self, thing: Any, path: str = "") -> None:
        """Take the source of a function or class, and of everything that it uses.

        Args:
          path: name for messages, such as `agent.network`.

        Raises:
          ConfigError: it, or something it uses, cannot be rebuilt; the message names the variable and a solution.
        """
        self._take(thing, path)

    def write(self) -> None:
        """Write what was added into `folder`.

        Raises:
          ConfigError: the folder cannot be written, or the result would not run.
        """
        text = module_text(self._entries)
        definitions = "\n".join(sorted(entry.text for entry in self._entries.values()))
        self._module = f"{CAPTURED}{hashlib.sha256(definitions.encode()).hexdigest()[:12]}"
        path = self.folder / f"{self._module}.py"
        check_module(text, str(path))
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(f".{os.getpid()}.tmp")
            partial.write_text(text, encoding="utf-8")
            partial.replace(path)
        except OSError as error:
            raise ConfigError(
                f"captured source cannot be written to {path}: {error}. Choose a folder that can be written."
            ) from error

    def target(self, thing: Any) -> str:
        """Return the "module:qualname" of an added and written function or class."""
        return f"{self._module}:{self._find(thing)[0]}"

    # -- taking definitions -------------------------------------------------------------------------------------------

    def _take(self, thing: Any, path: str) -> str:
        """Take the definition that contains `thing`; return its dotted name."""
        name, namespace = self._find(thing)
        if name:
            self._need(name.split(".")[0], namespace, path, thing)
            return name
        reason = why_not_importable(thing)
        if reason is not None:
            raise refuse(path, thing, *reason)
        if inspect.unwrap(thing) is not thing:
            raise _wrapped(thing, path)
        redefined = f"is not what `{thing.__qualname__}` is in {thing.__module__} now (it was defined again since)"
        raise refuse(path, thing, redefined, "use the new one, or give the two different names")

    def _find(self, thing: Any) -> tuple[str, dict[str, Any]]:
        """Return the dotted name of `thing` in a script or notebook, and its namespace; or ("", {})."""
        if not callable(thing) or not isinstance(getattr(thing, "__module__", None), str):
            return "", {}
        namespaces = [_namespace(thing), *(vars(sys.modules[name]) for name in MAIN_MODULES if name in sys.modules)]
        qualname = getattr(thing, "__qualname__", "")
        for namespace in namespaces:
            if is_same(lookup_in(namespace, qualname), thing):
                return qualname, namespace
            for name, value in namespace.items():  # a named lambda, or the result of a decorator
                own = value is thing and not name.startswith("_")
                if (
                    own
                    and not is_importable(namespace.get("__name__", ""))
                    and self._index(namespace).definition(name, thing)
                ):
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
        if known is not None:
            if known.value is not value:
                reason = f"uses `{name}`, of which another definition is captured already"
                raise refuse(path, user, reason, "give the two different names")
            return True
        if not self._import(name, value, namespace, path, user):
            self._define(name, value, namespace, path, user)
        return True

    def _put(self, entry: Entry) -> None:
        self._entries[entry.name] = entry

    def _import(self, name: str, value: Any, namespace: dict[str, Any], path: str, user: Any) -> bool:
        """Take a name that an import statement can bind; return False if none can."""
        index = self._index(namespace)
        if isinstance(value, ModuleType):
            module = value.__name__
            if module in MAIN_MODULES or not is_importable(module):
                reason = f"uses `{name}`, the module {module!r}, which no other process can import"
                raise refuse(path, user, reason, "put the module's file on sys.path under its own name")
            lines = [f"import {module}" if name == module else f"import {module} as {name}"]
            dotted = {imported for imported, attribute in index.imports(name) if attribute is None and "." in imported}
            lines += [f"import {imported}" for imported in sorted(dotted) if imported.split(".")[0] == module == name]
            self._put(Entry(name, value, "\n".join(lines), "import"))
            return True
        for module, attribute in index.imports(name):
            if attribute is not None and is_same(lookup(module, attribute), value) and is_importable(module):
                self._put(Entry(name, value, f"from {module} import {_as(attribute, name)}", "import"))
                return True
        target = importable_target(value)
        if target is None:
            return False
        module, _, qualname = target.partition(":")
        text = f"from {module} import {_as(qualname, name)}"
        if "." in qualname:
            outer, _, rest = qualname.partition(".")
            text = f"from {module} import {outer} as _{outer}\n{name} = _{outer}.{rest}"
        self._put(Entry(name, value, text, "import"))
        return True

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
            return
        if isinstance(value, FunctionType | type) and value.__qualname__ == name and "<" not in name:
            raise _no_source(name, value, path)
        where = f"{path}: " if path else ""
        writer = ValueWriter(f"{where}`{name}`, which {_name_of(user)} uses", self._take)
        entry = Entry(name, value, "", "constant", (0, 0))
        entry.text = f"{name} = {writer.write(value)}"
        entry.early = writer.names
        if writer.names and assigned is not None:
            entry.order = assigned.order
        for line in sorted(writer.imports):
            self._put(Entry(line.split()[-1], line, line, "import"))
        self._put(entry)

    def _source(self, name: str, value: Any, statement: Statement, namespace: dict[str, Any], path: str) -> None:
        future = _future_annotations(value, self._index(namespace))
        names = used_names(statement.text, future)
        entry = Entry(name, value, statement.text, "definition", statement.order, statement.origin, future)
        self._put(entry)
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
            if key in self._entries:
                continue
            future = _future_annotations(value, index)
            entry = Entry(key, extra, extra.text, "definition", extra.order, extra.origin, future)
            self._put(entry)
            uses = used_names(extra.text, future)
            entry.early = {used for used in uses.early | uses.late if self._need(used, namespace, path, value)}


def lookup_in(namespace: dict[str, Any], qualname: str) -> Any:
    """Return the value of a dotted name in a namespace, or None."""
    root, *rest = qualname.split(".")
    found = namespace.get(root)
    for part in rest:
        found = getattr(found, part, None)
    return found


def _namespace(thing: Any) -> dict[str, Any]:
    plain = inspect.unwrap(thing) if callable(thing) and not isinstance(thing, type) else thing
    plain = getattr(plain, "__func__", plain)
    if isinstance(plain, FunctionType) and plain.__module__ == thing.__module__:
        return plain.__globals__
    return vars(sys.modules[thing.__module__]) if thing.__module__ in sys.modules else {}


def _as(attribute: str, name: str) -> str:
    return name if attribute == name else f"{attribute} as {name}"


def _name_of(thing: Any) -> str:
    return f"`{getattr(thing, '__qualname__', None) or type(thing).__name__}`"


def _future_annotations(value: Any, index: SourceIndex) -> bool:
    import __future__

    plain = inspect.unwrap(value) if callable(value) and not isinstance(value, type) else value
    if isinstance(plain, FunctionType):
        return bool(plain.__code__.co_flags & __future__.annotations.compiler_flag)
    return index.future_annotations


def _wrapped(thing: Any, path: str) -> ConfigError:
    name = thing.__name__
    reason = f"is `{name}` wrapped after its definition, by a call that cannot be repeated from its result"
    way_out = f"write the wrapper as a decorator above `def {name}`, or wrap it inside the function that uses it"
    return refuse(path, thing, reason, way_out)


def _no_source(name: str, value: Any, path: str) -> ConfigError:
    plain = inspect.unwrap(value) if not isinstance(value, type) else value
    code = getattr(plain, "__code__", None)
    where = code.co_filename if code is not None else value.__module__
    return refuse(
        path,
        value,
        f"has no source that can be found (`{name}`, defined in {where}; `python -c`, the interactive prompt and "
        "%%time cells keep none, and a file may have changed since it ran)",
        "put it into a file or a notebook cell, or run the changed file again",
    )
