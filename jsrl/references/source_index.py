"""Source of a script or a notebook: its statements, what they define, and the names that a definition uses."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import linecache
import symtable
import textwrap
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from jsrl.references.importing import MAIN_MODULES

_TYPING = typing.TypeVar | typing.NewType | typing.ParamSpec | types.GenericAlias | types.UnionType
_FUTURE = "from __future__ import annotations\n"
_EARLY_SCOPES = ("listcomp", "setcomp", "dictcomp", "genexpr")  # run as soon as the scope around them


class Statement(NamedTuple):
    """One statement at the top level of a script or cell.

    Attributes:
      text: its source, dedented. origin: file or cell, and line. order: (file or cell, line), as they ran.
    """

    node: ast.stmt
    text: str
    origin: str
    order: tuple[int, int]


@dataclass(frozen=True)
class UsedNames:
    """The global names used by a piece of source.

    Attributes:
      early: as soon as the source runs (decorators, bases, defaults, class bodies).
      late: when its functions are called.
      soft: may be missing without harm (annotations that stay text).
    """

    early: frozenset[str]
    late: frozenset[str]
    soft: frozenset[str]


def used_names(text: str, future_annotations: bool) -> UsedNames:
    """Return the global names that `text` (one or more statements) uses."""
    early, late, soft = _global_names(text)
    if future_annotations:
        strict_early, strict_late, _ = _global_names(_FUTURE + text)
        soft |= (early | late) - (strict_early | strict_late)
        early, late = strict_early, strict_late
    return UsedNames(frozenset(early), frozenset(late - early), frozenset(soft - early - late))


def _global_names(text: str) -> tuple[set[str], set[str], set[str]]:
    early: set[str] = set()
    late: set[str] = set()
    soft: set[str] = set()

    def visit(table: symtable.SymbolTable, runs_early: bool) -> None:
        for symbol in table.get_symbols():
            name = symbol.get_name()
            if table.get_type() == "module":
                if symbol.is_referenced():
                    early.add(name)
            elif symbol.is_global() and (symbol.is_referenced() or symbol.is_declared_global()):
                (early if runs_early else late).add(name)
            elif table.get_type() == "class" and symbol.is_local() and symbol.is_referenced():
                soft.add(name)  # `x = x` in a class body reads the global
        for child in table.get_children():
            child_early = child.get_type() != "function" or child.get_name() in _EARLY_SCOPES
            visit(child, runs_early and child_early)

    visit(symtable.symtable(text, "<captured>", "exec"), True)
    return early, late, soft - early - late


def _dotted(node: ast.AST) -> tuple[str, ...]:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return (node.id, *reversed(parts)) if parts and isinstance(node, ast.Name) else ()


class SourceIndex:
    """The statements of the script or the notebook cells that filled a namespace."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self._namespace = namespace
        self._units: list[tuple[str, str]] = []  # (origin, text) as they ran
        self._statements: list[Statement] = []
        cells = namespace.get("In")
        if isinstance(cells, list):  # IPython's history, one text for each cell that ran
            for number, cell in enumerate(cells):
                if isinstance(cell, str) and cell.strip():
                    self._read(f"cell {number}", cell)
        elif isinstance(path := namespace.get("__file__"), str):
            self._read(path, "".join(linecache.getlines(path)))

    def _read(self, origin: str, text: str) -> int:
        self._units.append((origin, text))
        self._statements += _statements(origin, text, len(self._units))
        return len(self._units)

    @property
    def future_annotations(self) -> bool:
        """Whether annotations stay text (`from __future__ import annotations`)."""
        return ("__future__", "annotations") in self.imports("annotations")

    def definition(self, name: str, thing: Any) -> Statement | None:
        """Return the statement that defined `thing` as `name`: def, class, or `name = lambda ...`; or None."""
        function = plain_function(thing)
        own = function is not None and function.__globals__ is self._namespace
        units = self._units_of(function.__code__.co_filename) if function is not None and own else []
        found = [statement for statement in self._statements if _defines(statement.node, name)]
        if function is None or not own:  # the result of a foreign decorator, or a class without methods
            found = [s for s in found if function is None or getattr(s.node, "decorator_list", [])]
            return found[-1] if found else None
        found = [statement for statement in found if statement.order[0] in units]
        line = function.__code__.co_firstlineno
        if isinstance(thing, type):  # the line of a method
            found = [s for s in found if s.node.lineno <= line <= (s.node.end_lineno or line)]
        elif function.__name__ in (name, "<lambda>"):
            found = [s for s in found if _first_line(s.node) == line and self._is_unchanged(s, function)]
        else:  # the result of a decorator
            found = [s for s in found if getattr(s.node, "decorator_list", [])]
        return found[-1] if found else None

    def _is_unchanged(self, statement: Statement, function: FunctionType) -> bool:
        """Return whether a script's file still matches the executed code: it may have been edited (cells keep their text)."""
        if function.__module__ not in MAIN_MODULES or "In" in self._namespace:
            return True
        ran, (origin, text) = function.__code__, self._units[statement.order[0] - 1]
        codes = [compile(text, origin, "exec", dont_inherit=True)]
        while codes:
            code = codes.pop()
            if (code.co_name, code.co_firstlineno) == (ran.co_name, ran.co_firstlineno):
                return _meaning(code) == _meaning(ran)
            codes += [const for const in code.co_consts if isinstance(const, CodeType)]
        return False

    def _units_of(self, path: str) -> list[int]:
        """Return the numbers of the units with the text of `path`; reads it if it is new (a %run file)."""
        known = [number for number, (origin, _) in enumerate(self._units, 1) if origin == path]
        text = "".join(linecache.getlines(path))
        same = [number for number, (_, other) in enumerate(self._units, 1) if text and other.strip() == text.strip()]
        return known or same or ([self._read(path, text)] if text else [])

    def assignment(self, name: str) -> Statement | None:
        """Return the last statement `name = ...` (one target), or None."""
        for statement in reversed(self._statements):
            node = statement.node
            single = getattr(node, "target", None) or getattr(node, "name", None)  # x: int = 1, or `type X = int`
            targets = node.targets if isinstance(node, ast.Assign) else [single]
            if len(targets) == 1 and isinstance(targets[0], ast.Name) and targets[0].id == name:
                return statement if getattr(node, "value", None) is not None else None
        return None

    def imports(self, name: str) -> Iterator[tuple[str, str | None]]:
        """Yield (module, attribute or None) of the imports that bind `name`, the last first."""
        for statement in reversed(self._statements):
            node = statement.node
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if (alias.asname or alias.name.split(".")[0]) == name:
                        yield alias.name, None
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        yield self._absolute(node), alias.name

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = self._namespace.get("__package__") or ""
        try:
            return importlib.util.resolve_name("." * node.level + (node.module or ""), package)
        except ImportError:
            return ""

    def registrations(self, name: str) -> list[Statement]:
        """Return the statements that complete the definition of `name`.

        These are `name.defvjp(...)`, `register_something(name, ...)`, and functions decorated with `@name.something`.
        """
        found = []
        for statement in self._statements:
            node = statement.node
            if isinstance(node, ast.FunctionDef):
                chains = [_dotted(d.func if isinstance(d, ast.Call) else d) for d in node.decorator_list]
                if any(chain[:1] == (name,) for chain in chains):
                    found.append(statement)
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _registers(node.value, name):
                found.append(statement)
        return list({statement.text: statement for statement in found}.values())


def _registers(call: ast.Call, name: str) -> bool:
    chain = _dotted(call.func) or ((call.func.id,) if isinstance(call.func, ast.Name) else ("",))
    registers = chain[-1].startswith("register_") or (chain[-1] == "register" and chain[0] != "atexit")
    if not registers and chain[-1] not in ("defvjp", "defjvp", "defjvps"):
        return False
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return chain[0] == name or any(isinstance(argument, ast.Name) and argument.id == name for argument in given)


def plain_function(thing: Any) -> FunctionType | None:
    """Return the function whose code locates `thing`: itself, the function it wraps, or a class's method."""
    if isinstance(thing, type):
        for member in vars(thing).values():
            member = getattr(member, "fget", None) or getattr(member, "__func__", member)
            plain = inspect.unwrap(member) if callable(member) else None
            if not isinstance(plain, FunctionType) or plain.__module__ != thing.__module__:
                continue
            if plain.__qualname__.startswith(f"{thing.__qualname__}.") and plain.__code__.co_filename != "<string>":
                return plain
        return None
    try:
        plain = inspect.unwrap(thing)
    except ValueError:  # it wraps itself
        return None
    return plain if isinstance(plain, FunctionType) else None


def is_type_expression(value: Any) -> bool:
    """Return whether a value only describes types (TypeVar, NewType, list[int], X | Y): its source may run again.

    The same holds for classes made by a call, such as namedtuple("Point", "x y").
    """
    return isinstance(value, _TYPING | type) or type(value).__module__ == "typing"


def _meaning(code: CodeType) -> tuple[Any, ...]:
    """Return the content of a code object without its line numbers."""
    consts = [_meaning(const) if isinstance(const, CodeType) else repr(const) for const in code.co_consts]
    return code.co_code, code.co_names, code.co_varnames, consts


def _defines(node: ast.stmt, name: str) -> bool:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name == name
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
        return len(node.targets) == 1 and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name
    return False


def _first_line(node: ast.stmt) -> int:
    decorators = getattr(node, "decorator_list", [])
    if isinstance(node, ast.Assign):
        return node.value.lineno
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _statements(origin: str, text: str, unit: int) -> list[Statement]:
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return []  # a cell of another language, or a file that is not Python: it defines nothing usable
    lines = text.splitlines()
    found = []
    for node in _top_level(tree.body):
        first, last = _first_line(node), node.end_lineno or node.lineno
        block = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        source = "\n".join(lines[first - 1 : last]) if block else ast.get_source_segment(text, node) or ""
        found.append(Statement(node, textwrap.dedent(source), f"{origin}, line {first}", (unit, first)))
    return found


def _top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements that run in the module's own scope, also those inside if, try, with and loops."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With | ast.For | ast.While):
            for part in ("body", "orelse", "finalbody"):
                yield from _top_level(getattr(node, part, []))
            for handler in getattr(node, "handlers", []):
                yield from _top_level(handler.body)
