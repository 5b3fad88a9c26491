"""Memory layout of one group's request and reply, and fast copies of a tree of arrays into it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from jsrl.errors import StreamError
from jsrl.transport.base import LATEST_VERSION, ClientRequest, InferenceSpec, ProducerId, Reply, Request
from jsrl.transport.wire.schema import Layout, check_tree, flatten_schema, make_layout
from jsrl.types import ArraySpec, Tree, leaves, map_tree, unflatten


class RequestArrays(NamedTuple):
    """Arrays of a request."""

    observation: Tree
    is_first: Any
    policy: Any
    version: Any


class ReplyArrays(NamedTuple):
    """Arrays of every reply (the core is separate)."""

    action: Tree
    log_prob: Any
    extras: Tree
    version: Any
    policy: Any


POLICY, VERSION = ArraySpec((), "int32"), ArraySpec((), "int64")  # of one row


def question_schema(spec: InferenceSpec, num_rows: int) -> RequestArrays:
    rows = RequestArrays(spec.observation, ArraySpec((), "bool"), POLICY, version_schema(spec))
    return map_tree(lambda leaf: leaf.batched(num_rows), rows)


def version_schema(spec: InferenceSpec) -> ArraySpec:
    """Return the schema of a row's requested version: one number, or one for each agent of a group."""
    shape = spec.log_prob.shape if isinstance(spec.log_prob, ArraySpec) else ()
    return ArraySpec(shape, VERSION.dtype)


def answer_schema(spec: InferenceSpec, num_rows: int) -> ReplyArrays:
    """Return the schema of a reply of `num_rows` rows, without the core."""
    rows = ReplyArrays(spec.action, spec.log_prob, spec.extras, VERSION, POLICY)
    return map_tree(lambda leaf: leaf.batched(num_rows), rows)


def core_schema(spec: InferenceSpec, num_rows: int) -> Tree:
    return map_tree(lambda leaf: leaf.batched(num_rows), {"core": spec.core})


class TreeWriter:
    """Copies trees of one schema into fixed arrays, checking shapes and dtypes on the way.

    Built once per group, so that a copy needs no path names and no dicts.
    """

    def __init__(self, schema: Tree, views: Sequence[np.ndarray], prefix: str):
        self._leaves = flatten_schema(schema)
        self._flatten = _make_flatten(schema)
        self._targets = [(view, view.shape, view.dtype) for view in views]
        self._prefix = prefix

    def write(self, tree: Tree) -> None:
        try:
            for leaf, (view, shape, dtype) in zip(self._flatten(tree), self._targets, strict=True):
                if leaf.shape != shape or leaf.dtype != dtype:
                    raise TypeError
                view[...] = leaf
        except (TypeError, KeyError, AttributeError, ValueError):
            wrapped = {self._prefix: tree} if self._prefix else tree
            expected = tuple(leaf._replace(name=_join(self._prefix, leaf.name)) for leaf in self._leaves)
            for leaf, (view, _, _) in zip(check_tree(wrapped, expected), self._targets, strict=True):
                view[...] = leaf


class NumberWriter:
    """Writes a number for each row, such as its version, into a fixed array; the array starts with `last` everywhere.

    An int stands for all rows; it is written only if it differs from the last one.
    """

    def __init__(self, schema: ArraySpec, view: np.ndarray, name: str, last: int = 0):
        self._view, self._rows = view, TreeWriter(schema, [view], name)
        self._last: int | None = last

    def write(self, number: Any) -> None:
        """Write a number for all rows, or an array [B]."""
        if not isinstance(number, int):
            self._rows.write(number)
            self._last = None
        elif number != self._last:
            self._view[...] = number
            self._last = number


def _join(prefix: str, name: str) -> str:
    return "/".join(part for part in (prefix, name) if part)


def _make_flatten(schema: Tree) -> Callable[[Tree], Sequence[Any]]:
    if isinstance(schema, ArraySpec):
        return lambda tree: (tree,)
    if isinstance(schema, dict) and len(schema) > 1 and all(isinstance(leaf, ArraySpec) for leaf in schema.values()):
        pick, size = itemgetter(*sorted(schema)), len(schema)

        def flatten(tree: Tree) -> Sequence[Any]:
            if len(tree) != size:
                raise KeyError
            return pick(tree)

        return flatten
    if not leaves(schema):
        return _flatten_nothing
    if isinstance(schema, dict):
        return leaves

    def flatten_tuple(tree: Tree) -> Sequence[Any]:
        return leaves(tree) if isinstance(tree, tuple | list) else (tree,)

    return flatten_tuple


def _flatten_nothing(tree: Tree) -> Sequence[Any]:
    return leaves(tree) if tree is not None else ()


class AreaLayout:
    """Positions of the areas of a client's groups in one buffer (request, reply, core for each group)."""

    def __init__(self, spec: InferenceSpec, group_sizes: dict[int, int]):
        self.spec = spec
        self.group_sizes = dict(group_sizes)
        self.offsets: dict[int, tuple[int, int, int]] = {}
        self._parts: dict[int, tuple[Layout, Layout, Layout]] = {}  # by rows: most groups have the same
        end = 0
        for group, rows in sorted(self.group_sizes.items()):
            parts = self.parts(rows)
            starts = []
            for part in parts:
                starts.append(end)
                end += part.size_bytes
            self.offsets[group] = (starts[0], starts[1], starts[2])
        self.size_bytes = max(end, 64)

    def question(self, group: int) -> slice:
        at_question, at_answer, _ = self.offsets[group]
        return slice(at_question, at_answer)

    def question_bytes(self, group: int) -> int:
        where = self.question(group)
        return int(where.stop - where.start)

    def answer(self, group: int, has_core: bool) -> slice:
        _, at_answer, at_core = self.offsets[group]
        core_bytes = self.parts(self.group_sizes[group])[2].size_bytes if has_core else 0
        return slice(at_answer, at_core + core_bytes)

    def parts(self, rows: int) -> tuple[Layout, Layout, Layout]:
        found = self._parts.get(rows)
        if found is None:
            found = self._parts[rows] = self._make_parts(rows)
        return found

    def _make_parts(self, rows: int) -> tuple[Layout, Layout, Layout]:
        schemas = (question_schema(self.spec, rows), answer_schema(self.spec, rows), core_schema(self.spec, rows))
        question, answer, core = (make_layout(flatten_schema(schema)) for schema in schemas)
        return question, answer, core


class ClientArea:
    """A group's area as the client sees it: writes requests, reads replies."""

    def __init__(self, layout: AreaLayout, group: int, buffer: Any):
        self.rows = layout.group_sizes[group]
        schema = question_schema(layout.spec, self.rows)
        at_question, at_answer, at_core = layout.offsets[group]
        question, answer, core = layout.parts(self.rows)
        *observation, is_first, policy, version = question.views(buffer, at_question)
        self._observation = TreeWriter(schema.observation, observation, "observation")
        self._is_first = TreeWriter(schema.is_first, [is_first], "is_first")
        self._policy = NumberWriter(schema.policy, policy, "policy")
        version[...] = LATEST_VERSION
        self._version = NumberWriter(schema.version, version, "version", LATEST_VERSION)
        answer_views = answer.views(buffer, at_answer, writeable=False)
        self._reply: ReplyArrays = unflatten(answer_schema(layout.spec, self.rows), answer_views)
        self._core: Tree = unflatten(layout.spec.core, core.views(buffer, at_core, writeable=False))
        self.in_flight = False

    def write(self, request: Request) -> None:
        self._observation.write(request.observation)
        self._is_first.write(request.is_first)
        self._policy.write(request.policy)
        self._version.write(request.version)

    def read(self, has_core: bool) -> Reply:
        """Return the reply as views."""
        action, log_prob, extras, version, policy = self._reply
        return Reply(action, log_prob, extras, version, self._core if has_core else (), policy)


class ServerArea:
    """A group's area as the server sees it: reads requests, writes replies.

    Attributes:
      asked: the last request that was read. open: it is not answered yet.
    """

    def __init__(self, layout: AreaLayout, client: ProducerId, group: int, buffer: Any):
        self.client, self.group = client, group
        rows = layout.group_sizes[group]
        at_question, at_answer, at_core = layout.offsets[group]
        question, answer, core = layout.parts(rows)
        schema = question_schema(layout.spec, rows)
        asked: RequestArrays = unflatten(schema, question.views(buffer, at_question, writeable=False))
        self._observation, self._is_first, self._policy, self._version = asked
        wanted = answer_schema(layout.spec, rows)
        views: ReplyArrays = unflatten(wanted, answer.views(buffer, at_answer))
        self._action = TreeWriter(wanted.action, leaves(views.action), "action")
        self._log_prob = TreeWriter(wanted.log_prob, leaves(views.log_prob), "log_prob")
        self._extras = TreeWriter(wanted.extras, leaves(views.extras), "extras")
        self._version_out = NumberWriter(wanted.version, views.version, "version")
        self._policy_out = NumberWriter(wanted.policy, views.policy, "policy")
        self._core = TreeWriter(core_schema(layout.spec, rows)["core"], core.views(buffer, at_core), "core")
        self.asked: Request | None = None
        self.open = False

    def read(self, min_updates: int, step: int, wants_core: bool) -> ClientRequest:
        """Return the request that was just announced; its arrays are views."""
        self.open = True
        asked = (self._observation, self._is_first, min_updates, step, wants_core, self._policy, self._version)
        self.asked = Request(*asked)
        return ClientRequest(self.client, self.group, self.asked)

    def write(self, reply: Reply, wants_core: bool) -> None:
        """Copy a reply's arrays in; the core only where it was asked for."""
        self._check_open()
        self._action.write(reply.action)
        self._log_prob.write(reply.log_prob)
        self._extras.write(reply.extras)
        self._version_out.write(reply.version)
        self._policy_out.write(reply.policy)
        if wants_core:
            self._core.write(reply.core)
        self.open = False

    def refuse(self) -> None:
        """Mark the request as answered, without arrays."""
        self._check_open()
        self.open = False

    def _check_open(self) -> None:
        if not self.open:
            raise StreamError(
                f"group {self.group} of {self.client.name} was answered already; reply once to each collected request."
            )
