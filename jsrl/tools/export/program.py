"""A policy's function as a program of ONNX's operators, which the numpy player and ONNX files share.

The program is what JAX traces, with calls inlined, constants folded, and without what no output depends on; nothing here
depends on layers. An operation that has no counterpart becomes a node REFUSED, which counts only if an output depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal

from jsrl.errors import ExportError

MAX_FOLDED = 2**24  # largest constant that replaces an operation
END = 2**63 - 1  # end of a slice without limit
CALLS = ("jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "remat", "checkpoint")
NOTHING = ("copy", "copy_p", "optimization_barrier", "stop_gradient")  # on a trained policy
DTYPES = ("bool", "uint8", "int8", "int16", "int32", "uint32", "int64", "float32", "float64")
REFUSED = "refused"


class Node(NamedTuple):
    """One operator of ONNX: its name, the names of what it reads and makes, and its attributes (a dtype is its name)."""

    op: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any]


class Program(NamedTuple):
    """Nodes in execution order; constants by name."""

    inputs: list[str]
    outputs: list[str]
    nodes: list[Node]
    constants: dict[str, np.ndarray]

    @property
    def refused(self) -> str:
        """Return why the program cannot be played; empty: it can."""
        return next((node.attributes["why"] for node in self.nodes if node.op == REFUSED), "")

    def needed(self, outputs: Iterable[str]) -> set[str]:
        """Return the names of the values that these outputs depend on."""
        found = set(outputs)
        for node in reversed(self.nodes):
            if found & set(node.outputs):
                found.update(node.inputs)
        return found


@dataclass
class Value:
    """A value of the traced function: its shape (with -k for k batches), its dtype, and the name of what makes it.

    known: the array of a constant, which has a name once a node reads it.
    """

    shape: tuple[int, ...]
    dtype: str
    name: str = ""
    known: Any = None


def translated(call: Callable[..., Any], arguments: Sequence[Any], inputs: list[str], outputs: list[str]) -> Program:
    """Return the program of a function of `arguments`, whose inputs and outputs have these names.

    Args:
      arguments: their schema, with a symbol for the batch size.
    """
    writer = _Writer(arguments[0].shape[0], inputs[0])
    closed = jax.make_jaxpr(call)(*arguments)
    given = [writer.value(variable.aval, name) for variable, name in zip(closed.jaxpr.invars, inputs, strict=True)]
    for made, name in zip(writer.inlined(closed.jaxpr, closed.consts, given), outputs, strict=True):
        writer.nodes.append(Node("Identity", [writer.name(made)], [name], {}))
    whole = Program(inputs, outputs, writer.nodes, writer.constants)
    needed = whole.needed(outputs)
    constants = {name: array for name, array in whole.constants.items() if name in needed}
    return whole._replace(nodes=[node for node in whole.nodes if needed & set(node.outputs)], constants=constants)


def _refused(what: str) -> ExportError:
    return ExportError(f"the policy uses an operation that is exported to StableHLO only: {what}")


class _Writer:
    """Nodes and constants of the program under construction."""

    def __init__(self, batch: Any, first: str) -> None:
        self.nodes: list[Node] = []
        self.constants: dict[str, np.ndarray] = {}
        self._batch, self._first = batch, first

    # -- what JAX traced --

    def value(self, aval: Any, name: str = "") -> Value:
        return Value(tuple(map(self.size, aval.shape)), str(aval.dtype), name)

    def size(self, size: Any) -> int:
        if not jax.export.is_symbolic_dim(size):
            return int(size)
        times = size // self._batch
        if jax.export.is_symbolic_dim(times) or times * self._batch != size:
            raise ExportError(f"the policy makes arrays of {size} rows for b observations; expected a multiple of b")
        return -int(times)

    def inlined(self, jaxpr: Any, constants: Sequence[Any], inputs: Sequence[Value]) -> list[Value]:
        """Append the nodes of a jaxpr; return its results."""
        values = dict(zip(jaxpr.constvars, map(self._known, constants), strict=True))
        values.update(zip(jaxpr.invars, inputs, strict=True))

        def value_of(atom: Any) -> Value:
            if not isinstance(atom, Literal):
                return values[atom]
            aval: Any = atom.aval
            return self._known(np.asarray(atom.val, aval.dtype))

        for eqn in jaxpr.eqns:
            values.update(zip(eqn.outvars, self._equation(eqn, list(map(value_of, eqn.invars))), strict=True))
        return [value_of(atom) for atom in jaxpr.outvars]

    def _known(self, array: Any) -> Value:
        array = array if hasattr(array, "aval") else np.asarray(array)
        return Value(tuple(array.shape), str(array.dtype), known=array)

    def _equation(self, eqn: Any, inputs: list[Value]) -> list[Value]:
        name = eqn.primitive.name
        if name == "platform_index":  # the branch of an unnamed platform, not that of CPUs
            at = next(i for i, names in enumerate(eqn.params["platforms"]) if names is None)
            return [self._known(np.asarray(at, np.int32))]
        if name == "cond" and inputs[0].known is not None:
            branch = eqn.params["branches"][int(inputs[0].known)]
            return self.inlined(branch.jaxpr, branch.consts, inputs[1:])
        if name in CALLS:
            inner = next(eqn.params[key] for key in ("jaxpr", "call_jaxpr", "fun_jaxpr") if eqn.params.get(key))
            inner = inner if hasattr(inner, "consts") else ClosedJaxpr(inner, ())
            return self.inlined(inner.jaxpr, inner.consts, inputs)
        if name in NOTHING:
            return inputs
        try:
            if any(value.dtype == REFUSED for value in inputs):
                raise _refused(name)
            outputs = [self.value(variable.aval) for variable in eqn.outvars]
            if all(value.known is not None for value in inputs) and _is_small(outputs):
                return self._folded(eqn, inputs)
            made = self._translated(name, eqn.params, inputs, outputs)
        except ExportError as error:
            outputs = [Value((), REFUSED) for _ in eqn.outvars]
            names = [value.name for value in inputs if value.name]
            made = self.many(REFUSED, names, len(outputs), why=str(error))
        for value, made_name in zip(outputs, made, strict=True):
            value.name = made_name
        return outputs

    def _folded(self, eqn: Any, inputs: list[Value]) -> list[Value]:
        read = [jnp.asarray(v.known) if isinstance(v.known, np.ndarray) else v.known for v in inputs]
        made = eqn.primitive.bind(*read, **eqn.params)
        return list(map(self._known, made if eqn.primitive.multiple_results else [made]))

    def _translated(self, name: str, params: dict[str, Any], x: list[Value], out: list[Value]) -> list[str]:
        unknown = {value.dtype for value in (*x, *out)} - set(DTYPES)
        if unknown:
            raise _refused(f"{name} of {', '.join(sorted(unknown))}")
        if name in TRANSLATIONS:
            made = TRANSLATIONS[name](self, params, x, out[0])
            return made if isinstance(made, list) else [made]
        if name not in SAME:
            raise _refused(name)
        if (name == "div" and x[0].dtype[0] != "f") or (name in ("and", "or", "not") and x[0].dtype != "bool"):
            raise _refused(f"{name} of integers")
        read = list(map(self.name, x))
        for op in SAME[name]:
            read = [self.node(op, read)]
        return read

    # -- what is written --

    def node(self, op: str, read: Sequence[str | Value], **attributes: Any) -> str:
        return self.many(op, read, 1, **attributes)[0]

    def many(self, op: str, read: Sequence[str | Value], count: int, **attributes: Any) -> list[str]:
        """Append a node with several results; return their names."""
        made = [f"v{len(self.nodes)}" if count == 1 else f"v{len(self.nodes)}_{i}" for i in range(count)]
        names = [self.name(one) if isinstance(one, Value) else one for one in read]
        self.nodes.append(Node(op, names, made, attributes))
        return made

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.array(value, dtype, order="C")
        return name

    def name(self, value: Value) -> str:
        if not value.name:
            value.name = self.constant(np.asarray(value.known), value.dtype)
        return value.name

    def reshaped(self, read: str | Value, shape: Sequence[int]) -> str:
        """Reshape; the batch's size follows from the others."""
        if sum(size < 0 for size in shape) > 1:
            raise _refused("a reshape with the batch in two axes")
        return self.node("Reshape", [read, self.constant([max(size, -1) for size in shape])])

    def expanded(self, read: str | Value, inner: Sequence[int], shape: Sequence[int]) -> str:
        """Repeat an array of shape `inner` along its axes of size 1."""
        # 1 leaves an axis as it is, so that the batch's size is only read where the array has none
        sizes = [1 if size == own else size for size, own in zip(shape, inner, strict=True)]
        if all(size == 1 for size in sizes):
            return self.name(read) if isinstance(read, Value) else read
        if min(sizes, default=1) >= 0:
            return self.node("Expand", [read, self.constant(sizes)])
        batch = self.node("Shape", [self._first], start=0, end=1)
        parts = [self.constant([n]) if n >= 0 else self.node("Mul", [batch, self.constant([-n])]) for n in sizes]
        return self.node("Expand", [read, self.node("Concat", parts, axis=0)])


def _is_small(values: list[Value]) -> bool:
    """Return whether none has the batch as an axis, or is too large to be kept as a constant."""
    sizes = [int(np.prod(value.shape)) for value in values]
    return all(min(value.shape, default=0) >= 0 for value in values) and max(sizes) <= MAX_FOLDED


# -- primitives of JAX: (writer, parameters, inputs, first output) -> name or names --------------------------------------

SAME: dict[str, tuple[str, ...]] = {  # those that are one operator, or several in sequence
    "add": ("Add",), "sub": ("Sub",), "mul": ("Mul",), "div": ("Div",), "max": ("Max",), "min": ("Min",), "neg": ("Neg",),
    "abs": ("Abs",), "sign": ("Sign",), "floor": ("Floor",), "ceil": ("Ceil",), "exp": ("Exp",), "log": ("Log",),
    "sqrt": ("Sqrt",), "rsqrt": ("Sqrt", "Reciprocal"), "tanh": ("Tanh",), "atanh": ("Atanh",), "sin": ("Sin",),
    "cos": ("Cos",), "pow": ("Pow",), "and": ("And",), "or": ("Or",), "not": ("Not",), "eq": ("Equal",),
    "ne": ("Equal", "Not"), "lt": ("Less",), "le": ("LessOrEqual",), "gt": ("Greater",), "ge": ("GreaterOrEqual",),
    "logistic": ("Sigmoid",), "erf": ("Erf",),
}  # fmt: skip


def _cast(w: _Writer, p: Any, x: list[Value], out: Value) -> str:
    return w.node("Cast", x, to=out.dtype)


def _reshape(w: _Writer, p: Any, x: list[Value], out: Value) -> str:
    return w.reshaped(x[0], out.shape)


def _broadcast(w: _Writer, p: Any, x: list[Value], out: Value) -> str:
    inner = [1] * len(out.shape)
    for axis, size in zip(p["broadcast_dimensions"], x[0].shape, strict=True):
        inner[axis] = size
    apart = x[0] if tuple(inner) == x[0].shape else w.reshaped(x[0], inner)
    return w.expanded(apart, inner, out.shape)


def _iota(w: _Writer, p: Any, x: list[Value], out: Value) -> str:
    size = out.shape[p["dimension"]]
    if size < 0:
        raise _refused("iota over the batch")
    inner = [size if axis == p["dimension"] else 1 for axis in range(len(out.shape))]
    return w.expanded(w.constant(np.arange(size).reshape(inner), out.dtype), inner, out.shape)


def _reducing(op: str) -> Callable[[_Writer, Any, list[Value], Value], str]:
    return lambda w, p, x, out: w.node(op, [x[0], w.constant(p["axes"])], keepdims=0)


def _argmax(w: _Writer, p: Any, x: list[Value], out: Value) -> str:
    return w.node("Cast", [w.node("ArgMax", x, axis=int(p["axes"][0]), keepdims=0)], to=out.dtype)


def _select(w: _Writer, p: Any, x: list[Value], out: Value) -> str:
    if len(x) != 3 or x[0].dtype != "bool":
        raise _refused("select_n of integers")
    return w.node("Where", [x[0], x[2], x[1]])


def _index(w: _Writer, p: Any, x: list[Value], out: Value) -> str:
    """Translate x[..., i, ..., j] with constant i and j, the only form of `gather` that is known."""
    numbers, sizes, shape = p["dimension_numbers"], p["slice_sizes"], x[0].shape
    axes, index = tuple(numbers.start_index_map), x[1].known
    if index is None or index.shape != (len(axes),) or sorted(numbers.collapsed_slice_dims) != sorted(axes):
        raise _refused("gather (indexing by an array)")
    whole = all(w.size(size) == shape[axis] for axis, size in enumerate(sizes) if axis not in axes)
    if not whole or any(not 0 <= i < shape[axis] for i, axis in zip(index, axes, strict=True)):
        raise _refused("gather (indexing by an array)")
    made: str | Value = x[0]
    for axis, at in sorted(zip(axes, np.asarray(index).tolist(), strict=True), reverse=True):
        made = w.node("Gather", [made, w.constant(at)], axis=axis)
    return made if isinstance(made, str) else w.name(made)


def _slice(w: _Writer, p: Any, x: list[Value], out: Value) -> str:
    stops = list(map(w.size, p["limit_indices"]))
    if any(stop < 0 and stop != size for stop, size in zip(stops, x[0].shape, strict=True)):
        raise _refused("slice of the batch")
    ends = [END if stop < 0 else stop for stop in stops]
    steps = p["strides"] or [1] * len(ends)
    return w.node("Slice", [x[0], *map(w.constant, (p["start_indices"], ends, list(range(len(ends))), steps))])


def _pad(w: _Writer, p: Any, x: list[Value], out: Value) -> str:
    edges = p["padding_config"]
    if any(inner or low < 0 or high < 0 for low, high, inner in edges):
        raise _refused("pad inside or by less than nothing")
    return w.node("Pad", [x[0], w.constant([edge[i] for i in (0, 1) for edge in edges]), x[1]])


def _stack(w: _Writer, p: Any, x: list[Value], out: Value) -> str:
    axis = int(p["axis"])
    return w.node("Concat", [w.node("Unsqueeze", [one, w.constant([axis])]) for one in x], axis=axis)


def _split(w: _Writer, p: Any, x: list[Value], out: Value) -> list[str]:
    sizes = list(map(int, p["sizes"]))
    return w.many("Split", [x[0], w.constant(sizes)], len(sizes), axis=int(p["axis"]))


def _dot(w: _Writer, p: Any, x: list[Value], out: Value) -> str:
    (a_axes, b_axes), (a_batch, b_batch) = p["dimension_numbers"]
    ranks = [len(one.shape) for one in x]
    if tuple(a_axes) == (ranks[0] - 1,) and tuple(b_axes) == (0,) and ranks[1] == 2:
        return w.node("MatMul", x)
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    a = [next(letters) for _ in range(ranks[0])]
    of_a = dict(zip((*b_axes, *b_batch), (*a_axes, *a_batch), strict=True))
    b = [a[of_a[axis]] if axis in of_a else next(letters) for axis in range(ranks[1])]
    shared = [a[axis] for axis in a_batch]
    product = [*shared, *(letter for letter in a if letter not in b), *(letter for letter in b if letter not in a)]
    return w.node("Einsum", x, equation=f"{''.join(a)},{''.join(b)}->{''.join(product)}")


def _convolution(w: _Writer, p: Any, x: list[Value], out: Value) -> str:
    numbers = p["dimension_numbers"]
    plain = p["feature_group_count"] == p["batch_group_count"] == 1 and len(numbers.lhs_spec) == 4
    if not plain or any(d != 1 for d in (*p["lhs_dilation"], *p["rhs_dilation"])):
        raise _refused("conv_general_dilated with groups, dilation, or not two axes")
    # the specs: (batch, feature, rows, columns) of images, (out, in, rows, columns) of kernels, as ONNX wants both
    images, kernel = (
        w.node("Transpose", [one], perm=list(map(int, spec)))
        for one, spec in zip(x, (numbers.lhs_spec, numbers.rhs_spec), strict=True)
    )
    made = w.node("Conv", [images, kernel], strides=list(p["window_strides"]), pads=_edges(p["padding"]))
    return w.node("Transpose", [made], perm=np.argsort(numbers.out_spec).tolist())


def _max_pool(w: _Writer, p: Any, x: list[Value], out: Value) -> str:
    size, step, edges = p["window_dimensions"], p["window_strides"], p["padding"]
    axes = [i for i, n in enumerate(size) if n > 1]
    still = [i for i in range(len(size)) if i not in axes]
    idle = all(step[i] == 1 and tuple(edges[i]) == (0, 0) for i in still)
    dilated = any(d != 1 for d in (*p["base_dilation"], *p["window_dilation"]))
    if len(size) != 4 or len(axes) != 2 or not idle or dilated:
        raise _refused("reduce_window_max not over two of four axes, or with dilation")
    order = [*still, *axes]
    sizes = {"kernel_shape": [size[i] for i in axes], "strides": [step[i] for i in axes]}
    images = w.node("Transpose", x, perm=order)
    made = w.node("MaxPool", [images], **sizes, pads=_edges([edges[i] for i in axes]))
    return w.node("Transpose", [made], perm=np.argsort(order).tolist())


def _edges(padding: Any) -> list[int]:
    (top, bottom), (left, right) = padding
    return [top, left, bottom, right]


TRANSLATIONS: dict[str, Callable[[_Writer, Any, list[Value], Value], str | list[str]]] = {
    "square": lambda w, p, x, out: w.node("Mul", [x[0], x[0]]),
    "integer_pow": lambda w, p, x, out: w.node("Pow", [x[0], w.constant(p["y"], x[0].dtype)]),
    "expm1": lambda w, p, x, out: w.node("Sub", [w.node("Exp", x), w.constant(1, x[0].dtype)]),
    "log1p": lambda w, p, x, out: w.node("Log", [w.node("Add", [x[0], w.constant(1, x[0].dtype)])]),
    "clamp": lambda w, p, x, out: w.node("Min", [w.node("Max", [x[1], x[0]]), x[2]]),
    "transpose": lambda w, p, x, out: w.node("Transpose", x, perm=list(map(int, p["permutation"]))),
    "concatenate": lambda w, p, x, out: w.node("Concat", x, axis=int(p["dimension"])),
    "convert_element_type": _cast,
    "reshape": _reshape,
    "squeeze": _reshape,
    "expand_dims": _reshape,
    "broadcast_in_dim": _broadcast,
    "iota": _iota,
    "reduce_sum": _reducing("ReduceSum"),
    "reduce_max": _reducing("ReduceMax"),
    "reduce_min": _reducing("ReduceMin"),
    "argmax": _argmax,
    "select_n": _select,
    "gather": _index,
    "slice": _slice,
    "pad": _pad,
    "stack": _stack,
    "split": _split,
    "dot_general": _dot,
    "conv_general_dilated": _convolution,
    "reduce_window_max": _max_pool,
}
