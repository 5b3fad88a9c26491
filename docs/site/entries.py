"""An extension of griffe for the API page: `width: in rows. height: in pixels.` in a docstring become two entries.

The help text of an `option(default, help)` is the docstring of its field.
"""

from __future__ import annotations

import ast
import pydoc
import re
from typing import Any

import griffe

SECTION = re.compile(r"^(Args|Attributes|Raises):\n((?:[ ]+\S.*(?:\n|$))+)", re.MULTILINE)
NAMES = re.compile(r"(?:^|(?<=[.)] ))(\w+(?:, \w+)*): ")


class Entries(griffe.Extension):
    """Gives each name of a docstring's sections an entry of its own."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **kwargs: Any) -> None:
        """Give a field of a config its help text as docstring, and its default as value."""
        if isinstance(call := attr.value, griffe.ExprCall) and str(call.function) == "option":
            named = {each.name: each.value for each in call.arguments if isinstance(each, griffe.ExprKeyword)}
            given = [each for each in call.arguments if not isinstance(each, griffe.ExprKeyword)]
            text = named.get("help", given[1] if len(given) > 1 else None)
            if isinstance(text, griffe.Expr):  # the name of a text that several configs share
                attr.docstring = griffe.Docstring(pydoc.locate(text.canonical_path), parent=attr)
            elif text is not None:
                attr.docstring = griffe.Docstring(ast.literal_eval(text), parent=attr)
            attr.value = given[0] if given else named.get("factory")

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Change the docstring of a function or class."""
        if obj.docstring is not None and isinstance(obj, griffe.Function | griffe.Class):
            known = {each.name for each in obj.parameters} | set(obj.members)
            obj.docstring.value = split_entries(obj.docstring.value, known)


def split_entries(docstring: str, known: set[str]) -> str:
    """Return a docstring whose sections have one line for each name; known: names of parameters or fields."""

    def replace(section: re.Match[str]) -> str:
        names = known if section.group(1) != "Raises" else None
        return f"{section.group(1)}:\n{''.join(_entries(section.group(2), names))}"

    return SECTION.sub(replace, docstring)


def _entries(body: str, known: set[str] | None) -> list[str]:
    """Return one line for each name of a section's body; known: the names, None: those that begin with a capital."""
    margin = len(body) - len(body.lstrip(" "))
    lines = [line.strip() for line in re.split(rf"\n {{{margin}}}(?! )", f"\n{body.rstrip()}") if line.strip()]
    found = []
    for entry in lines:
        flat = " ".join(entry.split())
        starts = [match for match in NAMES.finditer(flat) if match.start() == 0 or _is_known(match.group(1), known)]
        ends = [match.start() for match in starts[1:]] + [len(flat)]
        if not starts:
            return body.splitlines(keepends=True)
        for match, end in zip(starts, ends, strict=True):
            found += [f"    {name}: {flat[match.end() : end].strip()}\n" for name in match.group(1).split(", ")]
    return found


def _is_known(names: str, known: set[str] | None) -> bool:
    return all(name[0].isupper() if known is None else name in known for name in names.split(", "))
