"""A policy's function as a program of ONNX's operators, which the numpy player and ONNX files share.

The program is what JAX traces, with calls inlined, constants folded, and without what no output depends on; nothing here
depends on layers. An operation that has no counterpart is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal

from jsrl.errors import ExportError
from jsrl.tools.export import player
from jsrl.tools.export.function import PolicyFunction, any_batch

MAX_FOLDED = 2**24  # largest constant that replaces an operation
END = 2**63 - 1  # end of a slice without limit
CALLS = ("jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "remat", "checkpoint")
NOTHING = ("copy", "copy_p", "optimization_barrier", "stop_gradient")  # on a trained policy


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


class Equation(NamedTuple):
    """A primitive of JAX with its parameters; `inputs` and `outputs` are numbers of values."""

    name: str
    params: dict[str, Any]
    inputs: list[int]
    outputs: list[int]


class Value(NamedTuple):
    """The shape (with -k for k batches) and the dtype of a value."""

    shape: tuple[int, ...]
    dtype: str


class Trace:
    """What JAX traces of a policy's function, for batches of any size, without calls.

    Attributes:
      inputs, outputs: numbers of values, in the order of the function's arguments and results.
      values: by number. constants: number -> array. equations: in execution order.
    """

    def __init__(self, function: PolicyFunction) -> None:
        """Trace.

        Raises:
          ExportError: it cannot be traced, or its arrays do not grow with the batch.
        """
        (self._batch,) = jax.export.symbolic_shape("b")
        self.values: list[Value] = []
        self.constants: dict[int, Any] = {}
        self.equations: list[Equation] = []
        with any_batch():
            closed = jax.make_jaxpr(function.call)(*function.arguments(self._batch))
        self.inputs = [self._value(variable.aval) for variable in closed.jaxpr.invars]
        self.outputs = self._inline(closed.jaxpr, closed.consts, self.inputs)

    def needed(self, outputs: Sequence[int]) -> set[int]:
        """Return the numbers of the values that these outputs depend on."""
        found = set(outputs)
        for eqn in reversed(self.equations):
            if found & set(eqn.outputs):
                found.update(eqn.inputs)
        return found

    def _value(self, aval: Any) -> int:
        self.values.append(Value(tuple(map(self.size, aval.shape)), str(aval.dtype)))
        return len(self.values) - 1

    def _constant(self, array: Any) -> int:
        array = array if hasattr(array, "aval") else np.asarray(array)
        number = self._value(array)
        self.constants[number] = array
        return number

    def size(self, size: Any) -> int:
        if not jax.export.is_symbolic_dim(size):
            return int(size)
        times = size // self._batch
        if jax.export.is_symbolic_dim(times) or times * self._batch != size:
            raise ExportError(f"the policy makes arrays of {size} rows for b observations; expected a multiple of b")
        return -int(times)

    def _inline(self, jaxpr: Any, constants: Sequence[Any], inputs: list[int]) -> list[int]:
        """Append the equations of a jaxpr; return the numbers of its results."""
        numbers = dict(zip(jaxpr.constvars, map(self._constant, constants), strict=True))
        numbers.update(zip(jaxpr.invars, inputs, strict=True))

        def number_of(atom: Any) -> int:
            if not isinstance(atom, Literal):
                return numbers[atom]
            aval: Any = atom.aval
            return self._constant(np.asarray(atom.val, aval.dtype))

        for eqn in jaxpr.eqns:
            numbers.update(zip(eqn.outvars, self._equation(eqn, list(map(number_of, eqn.invars))), strict=True))
        return [number_of(atom) for atom in jaxpr.outvars]

    def _equation(self, eqn: Any, inputs: list[int]) -> list[int]:
        name = eqn.primitive.name
        if name == "platform_index":  # the branch of an unnamed platform, not that of CPUs
            at = next(i for i, names in enumerate(eqn.params["platforms"]) if names is None)
            return [self._constant(np.asarray(at, np.int32))]
        if name == "cond" and inputs[0] in self.constants:
            branch = eqn.params["branches"][int(self.constants[inputs[0]])]
            return self._inline(branch.jaxpr, branch.consts, inputs[1:])
        if name in CALLS:
            inner = next(eqn.params[key] for key in ("jaxpr", "call_jaxpr", "fun_jaxpr") if eqn.params.get(key))
            inner = inner if hasattr(inner, "consts") else ClosedJaxpr(inner, ())
            return self._inline(inner.jaxpr, inner.consts, inputs)
        if name in NOTHING:
            return inputs
        outputs = [self._value(variable.aval) for variable in eqn.outvars]
        small = all(min(self.values[i].shape, default=0) >= 0 for i in outputs)
        if small and all(i in self.constants for i in inputs) and self._count(outputs) <= MAX_FOLDED:
            read = [self.constants[i] for i in inputs]
            read = [jnp.asarray(array) if isinstance(array, np.ndarray) else array for array in read]
            made = eqn.primitive.bind(*read, **eqn.params)
            self.constants.update(zip(outputs, made if eqn.primitive.multiple_results else [made], strict=True))
        else:
            self.equations.append(Equation(name, eqn.params, inputs, outputs))
        return outputs

    def _count(self, numbers: list[int]) -> int:
        return max(int(np.prod(self.values[i].shape)) for i in numbers)


def translated(trace: Trace, inputs: list[str], outputs: list[str]) -> Program:
    """Return the program of a traced function, whose inputs and outputs have these names.

    Raises:
      ExportError: an operation has no counterpart; the message names it.
    """
    needed = trace.needed(trace.outputs)
    writer = _Writer(trace, inputs)
    for eqn in trace.equations:
        if needed & set(eqn.outputs):
            writer.equation(eqn)
    for number, name in zip(trace.outputs, outputs, strict=True):
        writer.nodes.append(Node("Identity", [writer.name(number)], [name], {}))
    return Program(inputs, outputs, writer.nodes, writer.constants)


def _refused(what: str) -> ExportError:
    return ExportError(f"the policy uses an operation that is exported to StableHLO only: {what}")


class _Writer:
    """Nodes and constants of the program under construction."""

    def __init__(self, trace: Trace, inputs: list[str]) -> None:
        self.nodes: list[Node] = []
        self.constants: dict[str, np.ndarray] = {}
        self._trace, self._first = trace, inputs[0]
        self._names = dict(zip(trace.inputs, inputs, strict=True))

    def equation(self, eqn: Equation) -> None:
        unknown = {self.dtype(number) for number in (*eqn.inputs, *eqn.outputs)} - set(player.DTYPES)
        if unknown:
            raise _refused(f"{eqn.name} of {', '.join(sorted(unknown))}")
        if eqn.name not in TRANSLATIONS and eqn.name not in SAME:
            raise _refused(eqn.name)
        read = list(map(self.name, eqn.inputs))
        if eqn.name in SAME:
            whole = self.dtype(eqn.inputs[0])[0] != "f"
            if (eqn.name == "div" and whole) or (
                eqn.name in ("and", "or", "not") and self.dtype(eqn.inputs[0]) != "bool"
            ):
                raise _refused(f"{eqn.name} of integers")
            for op in SAME[eqn.name]:
                read = [self.node(op, read)]
            made: str | list[str] = read
        else:
            made = TRANSLATIONS[eqn.name](self, eqn, read)
        self._names.update(zip(eqn.outputs, made if isinstance(made, list) else [made], strict=True))

    def node(self, op: str, read: list[str], **attributes: Any) -> str:
        return self.many(op, read, 1, **attributes)[0]

    def many(self, op: str, read: list[str], count: int, **attributes: Any) -> list[str]:
        """Append a node with several results; return their names."""
        made = [f"v{len(self.nodes)}" if count == 1 else f"v{len(self.nodes)}_{i}" for i in range(count)]
        self.nodes.append(Node(op, read, made, attributes))
        return made

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.array(value, dtype, order="C")
        return name

    def typed(self, number: int, value: float) -> str:
        """Return the name of a number with the dtype of a value."""
        return self.constant(value, self.dtype(number))

    def name(self, number: int) -> str:
        if number not in self._names:
            array = np.asarray(self._trace.constants[number])
            if str(array.dtype) not in player.DTYPES:
                raise _refused(f"numbers of {array.dtype}")
            self._names[number] = self.constant(array, array.dtype)
        return self._names[number]

    def shape(self, number: int) -> tuple[int, ...]:
        return self._trace.values[number].shape

    def dtype(self, number: int) -> str:
        return self._trace.values[number].dtype

    def known(self, number: int) -> np.ndarray | None:
        return np.asarray(self._trace.constants[number]) if number in self._trace.constants else None

    def size(self, size: Any) -> int:
        return self._trace.size(size)

    def reshaped(self, read: str, shape: Sequence[int]) -> str:
        """Reshape; the batch's size follows from the others."""
        if sum(size < 0 for size in shape) > 1:
            raise _refused("a reshape with the batch in two axes")
        return self.node("Reshape", [read, self.constant([max(size, -1) for size in shape])])

    def expanded(self, read: str, inner: Sequence[int], shape: Sequence[int]) -> str:
        """Repeat an array of shape `inner` along its axes of size 1."""
        # 1 leaves an axis as it is, so that the batch's size is only read where the array has none
        sizes = [1 if size == own else size for size, own in zip(shape, inner, strict=True)]
        if all(size == 1 for size in sizes):
            return read
        if min(sizes, default=1) >= 0:
            return self.node("Expand", [read, self.constant(sizes)])
        batch = self.node("Shape", [self._first], start=0, end=1)
        parts = [self.constant([n]) if n >= 0 else self.node("Mul", [batch, self.constant([-n])]) for n in sizes]
        return self.node("Expand", [read, self.node("Concat", parts, axis=0)])


# -- primitives of JAX: (writer, equation, names read) -> name or names -------------------------------------------------

SAME: dict[str, tuple[str, ...]] = {  # those that are one operator, or several in sequence
    "add": ("Add",), "sub": ("Sub",), "mul": ("Mul",), "div": ("Div",), "max": ("Max",), "min": ("Min",), "neg": ("Neg",),
    "abs": ("Abs",), "sign": ("Sign",), "floor": ("Floor",), "ceil": ("Ceil",), "exp": ("Exp",), "log": ("Log",),
    "sqrt": ("Sqrt",), "rsqrt": ("Sqrt", "Reciprocal"), "tanh": ("Tanh",), "atanh": ("Atanh",), "sin": ("Sin",),
    "cos": ("Cos",), "pow": ("Pow",), "and": ("And",), "or": ("Or",), "not": ("Not",), "eq": ("Equal",),
    "ne": ("Equal", "Not"), "lt": ("Less",), "le": ("LessOrEqual",), "gt": ("Greater",), "ge": ("GreaterOrEqual",),
    "logistic": ("Sigmoid",), "erf": ("Erf",),
}  # fmt: skip


def _cast(w: _Writer, eqn: Equation, read: list[str]) -> str:
    return w.node("Cast", read, to=w.dtype(eqn.outputs[0]))


def _reshape(w: _Writer, eqn: Equation, read: list[str]) -> str:
    return w.reshaped(read[0], w.shape(eqn.outputs[0]))


def _broadcast(w: _Writer, eqn: Equation, read: list[str]) -> str:
    inner, shape = [1] * len(w.shape(eqn.outputs[0])), w.shape(eqn.outputs[0])
    for axis, size in zip(eqn.params["broadcast_dimensions"], w.shape(eqn.inputs[0]), strict=True):
        inner[axis] = size
    apart = read[0] if tuple(inner) == w.shape(eqn.inputs[0]) else w.reshaped(read[0], inner)
    return w.expanded(apart, inner, shape)


def _iota(w: _Writer, eqn: Equation, read: list[str]) -> str:
    shape, at = w.shape(eqn.outputs[0]), eqn.params["dimension"]
    if shape[at] < 0:
        raise _refused("iota over the batch")
    inner = [shape[at] if axis == at else 1 for axis in range(len(shape))]
    return w.expanded(w.constant(np.arange(shape[at]).reshape(inner), w.dtype(eqn.outputs[0])), inner, shape)


def _reducing(op: str) -> Callable[[_Writer, Equation, list[str]], str]:
    return lambda w, eqn, read: w.node(op, [*read, w.constant(eqn.params["axes"])], keepdims=0)


def _argmax(w: _Writer, eqn: Equation, read: list[str]) -> str:
    return _cast(w, eqn, [w.node("ArgMax", read, axis=int(eqn.params["axes"][0]), keepdims=0)])


def _select(w: _Writer, eqn: Equation, read: list[str]) -> str:
    if len(read) != 3 or w.dtype(eqn.inputs[0]) != "bool":
        raise _refused("select_n of integers")
    return w.node("Where", [read[0], read[2], read[1]])


def _index(w: _Writer, eqn: Equation, read: list[str]) -> str:
    """Translate x[..., i, ..., j] with constant i and j, the only form of `gather` that is known."""
    numbers, sizes, shape = eqn.params["dimension_numbers"], eqn.params["slice_sizes"], w.shape(eqn.inputs[0])
    axes, index = tuple(numbers.start_index_map), w.known(eqn.inputs[1])
    if index is None or index.shape != (len(axes),) or sorted(numbers.collapsed_slice_dims) != sorted(axes):
        raise _refused("gather (indexing by an array)")
    whole = all(w.size(size) == shape[axis] for axis, size in enumerate(sizes) if axis not in axes)
    if not whole or any(not 0 <= i < shape[axis] for i, axis in zip(index, axes, strict=True)):
        raise _refused("gather (indexing by an array)")
    made = read[0]
    for axis, at in sorted(zip(axes, index.tolist(), strict=True), reverse=True):
        made = w.node("Gather", [made, w.constant(at)], axis=axis)
    return made


def _slice(w: _Writer, eqn: Equation, read: list[str]) -> str:
    starts, stops, shape = eqn.params["start_indices"], eqn.params["limit_indices"], w.shape(eqn.inputs[0])
    stops = list(map(w.size, stops))
    if any(stop < 0 and stop != size for stop, size in zip(stops, shape, strict=True)):
        raise _refused("slice of the batch")
    ends = [END if stop < 0 else stop for stop in stops]
    steps = eqn.params["strides"] or [1] * len(ends)
    return w.node("Slice", [read[0], *map(w.constant, (starts, ends, list(range(len(ends))), steps))])


def _pad(w: _Writer, eqn: Equation, read: list[str]) -> str:
    edges = eqn.params["padding_config"]
    if any(inner or low < 0 or high < 0 for low, high, inner in edges):
        raise _refused("pad inside or by less than nothing")
    return w.node("Pad", [read[0], w.constant([edge[i] for i in (0, 1) for edge in edges]), read[1]])


def _stack(w: _Writer, eqn: Equation, read: list[str]) -> str:
    axis = int(eqn.params["axis"])
    return w.node("Concat", [w.node("Unsqueeze", [x, w.constant([axis])]) for x in read], axis=axis)


def _split(w: _Writer, eqn: Equation, read: list[str]) -> list[str]:
    sizes = list(map(int, eqn.params["sizes"]))
    return w.many("Split", [read[0], w.constant(sizes)], len(sizes), axis=int(eqn.params["axis"]))


def _dot(w: _Writer, eqn: Equation, read: list[str]) -> str:
    (x_axes, y_axes), (x_batch, y_batch) = eqn.params["dimension_numbers"]
    ranks = [len(w.shape(number)) for number in eqn.inputs]
    if tuple(x_axes) == (ranks[0] - 1,) and tuple(y_axes) == (0,) and ranks[1] == 2:
        return w.node("MatMul", read)
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    x = [next(letters) for _ in range(ranks[0])]
    of_x = dict(zip((*y_axes, *y_batch), (*x_axes, *x_batch), strict=True))
    y = [x[of_x[axis]] if axis in of_x else next(letters) for axis in range(ranks[1])]
    shared = [x[axis] for axis in x_batch]
    out = [*shared, *(letter for letter in x if letter not in y), *(letter for letter in y if letter not in x)]
    return w.node("Einsum", read, equation=f"{''.join(x)},{''.join(y)}->{''.join(out)}")


def _convolution(w: _Writer, eqn: Equation, read: list[str]) -> str:
    p, numbers = eqn.params, eqn.params["dimension_numbers"]
    plain = p["feature_group_count"] == p["batch_group_count"] == 1 and len(numbers.lhs_spec) == 4
    if not plain or any(d != 1 for d in (*p["lhs_dilation"], *p["rhs_dilation"])):
        raise _refused("conv_general_dilated with groups, dilation, or not two axes")
    # the specs: (batch, feature, rows, columns) of images, (out, in, rows, columns) of kernels, as ONNX wants both
    images, kernel = (
        w.node("Transpose", [name], perm=list(map(int, spec)))
        for name, spec in zip(read, (numbers.lhs_spec, numbers.rhs_spec), strict=True)
    )
    out = w.node("Conv", [images, kernel], strides=list(p["window_strides"]), pads=_edges(p["padding"]))
    return w.node("Transpose", [out], perm=np.argsort(numbers.out_spec).tolist())


def _max_pool(w: _Writer, eqn: Equation, read: list[str]) -> str:
    p = eqn.params
    size, step, edges = p["window_dimensions"], p["window_strides"], p["padding"]
    axes = [i for i, n in enumerate(size) if n > 1]
    still = [i for i in range(len(size)) if i not in axes]
    idle = all(step[i] == 1 and tuple(edges[i]) == (0, 0) for i in still)
    dilated = any(d != 1 for d in (*p["base_dilation"], *p["window_dilation"]))
    if len(size) != 4 or len(axes) != 2 or not idle or dilated:
        raise _refused("reduce_window_max not over two of four axes, or with dilation")
    order = [*still, *axes]
    sizes = {"kernel_shape": [size[i] for i in axes], "strides": [step[i] for i in axes]}
    images = w.node("Transpose", read, perm=order)
    out = w.node("MaxPool", [images], **sizes, pads=_edges([edges[i] for i in axes]))
    return w.node("Transpose", [out], perm=np.argsort(order).tolist())


def _edges(padding: Any) -> list[int]:
    (top, bottom), (left, right) = padding
    return [top, left, bottom, right]


TRANSLATIONS: dict[str, Callable[[_Writer, Equation, list[str]], str | list[str]]] = {
    "square": lambda w, eqn, read: w.node("Mul", [read[0], read[0]]),
    "integer_pow": lambda w, eqn, read: w.node("Pow", [read[0], w.typed(eqn.inputs[0], eqn.params["y"])]),
    "expm1": lambda w, eqn, read: w.node("Sub", [w.node("Exp", read), w.typed(eqn.inputs[0], 1.0)]),
    "log1p": lambda w, eqn, read: w.node("Log", [w.node("Add", [read[0], w.typed(eqn.inputs[0], 1.0)])]),
    "clamp": lambda w, eqn, read: w.node("Min", [w.node("Max", [read[1], read[0]]), read[2]]),
    "transpose": lambda w, eqn, read: w.node("Transpose", read, perm=list(map(int, eqn.params["permutation"]))),
    "concatenate": lambda w, eqn, read: w.node("Concat", read, axis=int(eqn.params["dimension"])),
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
