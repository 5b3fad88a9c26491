"""A policy's program as an ONNX model, written with the package `onnx` (the extra of that name), without torch.

Inputs, state and outputs have the names of policy.json; is_first is an input if there is a state, and the new state's
names start with `next_`. The batch size is free.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jsrl.errors import ExportError, MissingExtra
from jsrl.export.function import PolicyFunction
from jsrl.export.program import Operation, Program
from jsrl.extras import install_command

OPSET, IR_VERSION = 18, 9
END = 2**63 - 1  # end of a slice without limit
SAME: dict[str, tuple[str, ...]] = {  # operations that are one ONNX operator, or several in sequence
    "add": ("Add",), "sub": ("Sub",), "mul": ("Mul",), "div": ("Div",), "max": ("Max",), "min": ("Min",), "neg": ("Neg",),
    "abs": ("Abs",), "sign": ("Sign",), "floor": ("Floor",), "ceil": ("Ceil",), "exp": ("Exp",), "log": ("Log",),
    "sqrt": ("Sqrt",), "rsqrt": ("Sqrt", "Reciprocal"), "tanh": ("Tanh",), "atanh": ("Atanh",), "sin": ("Sin",),
    "cos": ("Cos",), "pow": ("Pow",), "and": ("And",), "or": ("Or",), "not": ("Not",), "eq": ("Equal",),
    "ne": ("Equal", "Not"), "lt": ("Less",), "le": ("LessOrEqual",), "gt": ("Greater",), "ge": ("GreaterOrEqual",),
    "logistic": ("Sigmoid",), "erf": ("Erf",),
}  # fmt: skip
REDUCTIONS = {"reduce_sum": "ReduceSum", "reduce_max": "ReduceMax", "reduce_min": "ReduceMin"}


def model(function: PolicyFunction, program: Program) -> bytes:
    """Return the ONNX model of a program, as bytes.

    Raises:
      MissingExtra: onnx is not installed. ExportError: an operation has no counterpart in ONNX; the message names it.
    """
    try:
        import onnx
    except ImportError as error:
        raise MissingExtra(f"ONNX files need the package onnx; install it: {install_command('onnx')}") from error
    writer = _Writer(program, argument_names(function)[0])
    for op in program.operations:
        writer.operation(op)
    inputs, outputs = argument_names(function)
    for number, name in zip(program.outputs, outputs, strict=True):
        writer.node("Identity", [writer.name(number)], out=name)
    graph = onnx.helper.make_graph(
        writer.nodes,
        "policy",
        [_value(name, program, number) for name, number in zip(inputs, program.inputs, strict=True)],
        [_value(name, program, number) for name, number in zip(outputs, program.outputs, strict=True)],
        writer.initializers,
    )
    opsets = [onnx.helper.make_opsetid("", OPSET)]
    made = onnx.helper.make_model(graph, producer_name="jsrl", opset_imports=opsets, ir_version=IR_VERSION)
    try:
        onnx.checker.check_model(made, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ExportError(f"the ONNX model is not valid: {error}; export without it, and report this") from error
    return made.SerializeToString()


def reference_player(function: PolicyFunction, written: bytes) -> Callable[[list[np.ndarray]], list[np.ndarray]]:
    """Return a model as a player, run by the reference implementation of the package onnx."""
    from onnx.reference import ReferenceEvaluator

    evaluator, (inputs, _) = ReferenceEvaluator(written), argument_names(function)
    return lambda arrays: list(evaluator.run(None, dict(zip(inputs, arrays, strict=True))))


def argument_names(function: PolicyFunction) -> tuple[list[str], list[str]]:
    """Return the names of the model's inputs and outputs, in the order of the function's."""
    state = [port.name for port in function.state]
    inputs = [*(port.name for port in function.inputs), *(["is_first"] if state else []), *state]
    return inputs, [*(port.name for port in function.outputs), *(f"next_{name}" for name in state)]


def _value(name: str, program: Program, number: int) -> Any:
    import onnx

    shape, dtype = program.shapes[number]
    sizes = ["batch" if size < 0 else size for size in shape]
    return onnx.helper.make_tensor_value_info(name, _kind(dtype), sizes)


def _kind(dtype: str) -> int:
    import onnx

    return onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


class _Writer:
    """Nodes and constants of the model under construction.

    Attributes:
      nodes, initializers: of the graph.
    """

    def __init__(self, program: Program, inputs: list[str]) -> None:
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self._program = program
        self._names = dict(zip(program.inputs, inputs, strict=True))
        self._batch = self.node("Shape", [inputs[0]], start=0, end=1)

    def operation(self, op: Operation) -> None:
        """Append an operation.

        Raises:
          ExportError: it has no counterpart.
        """
        read = [self.name(number) for number in op.inputs]
        made: str | list[str]
        if op.name in SAME:
            for kind in SAME[op.name]:
                read = [self.node(kind, read)]
            made = read
        elif op.name in REDUCTIONS:
            made = self.node(REDUCTIONS[op.name], [*read, self.constant(op.options["axes"])], keepdims=0)
        elif op.name in WRITERS:
            made = WRITERS[op.name](self, op, read)
        else:
            raise ExportError(
                f"the policy uses the operation {op.name}, which is not written to ONNX; export a .zip or .stablehlo file"
            )
        names = made if isinstance(made, list) else [made]
        self._names.update(zip(op.outputs, names, strict=True))

    def node(self, kind: str, read: list[str], out: str | None = None, **attributes: Any) -> str:
        """Append a node; return the name of its result."""
        return self.many(kind, read, [out or f"v{len(self.nodes)}"], **attributes)[0]

    def many(self, kind: str, read: list[str], made: list[str], **attributes: Any) -> list[str]:
        """Append a node with several results; return their names."""
        import onnx

        self.nodes.append(onnx.helper.make_node(kind, read, made, **attributes))
        return made

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        """Return the name of a new constant."""
        import onnx

        name = f"c{len(self.initializers)}"
        self.initializers.append(onnx.numpy_helper.from_array(np.array(value, dtype, order="C"), name))
        return name

    def name(self, number: int) -> str:
        """Return the name of a value of the program."""
        if number not in self._names:
            array = self._program.constants[number]
            self._names[number] = self.constant(array, array.dtype)
        return self._names[number]

    def shape(self, number: int) -> tuple[int, ...]:
        """Return the shape of a value of the program; -k for k batches."""
        return self._program.shapes[number][0]

    def dtype(self, number: int) -> str:
        """Return the dtype of a value of the program."""
        return self._program.shapes[number][1]

    def sizes(self, shape: list[int]) -> str:
        """Return the name of a shape; a negative size stands for a multiple of the batch size."""
        if all(size >= 0 for size in shape):
            return self.constant(shape)
        parts = [
            self.constant([size]) if size >= 0 else self.node("Mul", [self._batch, self.constant([-size])])
            for size in shape
        ]
        return self.node("Concat", parts, axis=0)

    def typed(self, number: int, value: float) -> str:
        """Return the name of a number with the dtype of a value of the program."""
        return self.constant(value, self.dtype(number))


# -- operations that are several nodes, or have options: (writer, operation, names read) -> name or names ---------------


def _broadcast(writer: _Writer, op: Operation, read: list[str]) -> str:
    inner = [1] * len(op.options["shape"])
    for axis, size in zip(op.options["dimensions"], writer.shape(op.inputs[0]), strict=True):
        inner[axis] = size
    apart = writer.node("Reshape", [read[0], writer.sizes(inner)])
    return writer.node("Expand", [apart, writer.sizes(op.options["shape"])])


def _slice(writer: _Writer, op: Operation, read: list[str]) -> str:
    ends = []
    for stop, size in zip(op.options["stop"], writer.shape(op.inputs[0]), strict=True):
        if stop < 0 and stop != size:
            raise ExportError(
                "the policy slices its batch, which is not written to ONNX; export a .zip or .stablehlo file"
            )
        ends.append(END if stop < 0 else stop)
    axes = list(range(len(ends)))
    return writer.node("Slice", [read[0], *map(writer.constant, (op.options["start"], ends, axes, op.options["step"]))])


def _dot(writer: _Writer, op: Operation, read: list[str]) -> str:
    ranks = [len(writer.shape(number)) for number in op.inputs]
    x_axes, y_axes = op.options["x_axes"], op.options["y_axes"]
    if x_axes == [ranks[0] - 1] and y_axes == [0] and ranks[1] == 2:
        return writer.node("MatMul", read)
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    x = [next(letters) for _ in range(ranks[0])]
    y = [x[x_axes[y_axes.index(axis)]] if axis in y_axes else next(letters) for axis in range(ranks[1])]
    out = [*(n for i, n in enumerate(x) if i not in x_axes), *(n for i, n in enumerate(y) if i not in y_axes)]
    return writer.node("Einsum", read, equation=f"{''.join(x)},{''.join(y)}->{''.join(out)}")


def _images(writer: _Writer, op: Operation, read: str) -> str:
    """Return images in ONNX's layout: [N, C, H, W]."""
    n, h, w, c = op.options["x_order"]
    return writer.node("Transpose", [read], perm=[n, c, h, w])


def _from_images(writer: _Writer, op: Operation, images: str) -> str:
    return writer.node("Transpose", [images], perm=[(0, 2, 3, 1)[axis] for axis in op.options["out_order"]])


def _edges(op: Operation) -> list[int]:
    (top, bottom), (left, right) = op.options["edges"]
    return [top, left, bottom, right]


def _convolution(writer: _Writer, op: Operation, read: list[str]) -> str:
    h, w, c, o = op.options["kernel_order"]
    kernel = writer.node("Transpose", [read[1]], perm=[o, c, h, w])
    images = _images(writer, op, read[0])
    out = writer.node("Conv", [images, kernel], strides=op.options["step"], pads=_edges(op))
    return _from_images(writer, op, out)


def _max_pool(writer: _Writer, op: Operation, read: list[str]) -> str:
    sizes: Any = {"kernel_shape": op.options["size"], "strides": op.options["step"], "pads": _edges(op)}
    return _from_images(writer, op, writer.node("MaxPool", [_images(writer, op, read[0])], **sizes))


def _pad(writer: _Writer, op: Operation, read: list[str]) -> str:
    lows, highs = ([edge[i] for edge in op.options["edges"]] for i in (0, 1))
    return writer.node("Pad", [read[0], writer.constant([*lows, *highs]), read[1]])


def _index(writer: _Writer, op: Operation, read: list[str]) -> str:
    made = read[0]
    for axis, at in sorted(zip(op.options["axes"], op.options["at"], strict=True), reverse=True):
        made = writer.node("Gather", [made, writer.constant(at)], axis=axis)
    return made


def _stack(writer: _Writer, op: Operation, read: list[str]) -> str:
    axis = op.options["axis"]
    apart = [writer.node("Unsqueeze", [x, writer.constant([axis])]) for x in read]
    return writer.node("Concat", apart, axis=axis)


def _split(writer: _Writer, op: Operation, read: list[str]) -> list[str]:
    names = [f"v{len(writer.nodes)}_{i}" for i in range(len(op.outputs))]
    return writer.many("Split", [read[0], writer.constant(op.options["sizes"])], names, axis=op.options["axis"])


def _cast(writer: _Writer, op: Operation, made: str) -> str:
    return writer.node("Cast", [made], to=_kind(op.options["dtype"]))


WRITERS: dict[str, Callable[[_Writer, Operation, list[str]], str | list[str]]] = {
    "square": lambda w, op, read: w.node("Mul", [read[0], read[0]]),
    "integer_pow": lambda w, op, read: w.node("Pow", [read[0], w.typed(op.inputs[0], op.options["power"])]),
    "expm1": lambda w, op, read: w.node("Sub", [w.node("Exp", read), w.typed(op.inputs[0], 1.0)]),
    "log1p": lambda w, op, read: w.node("Log", [w.node("Add", [read[0], w.typed(op.inputs[0], 1.0)])]),
    "clamp": lambda w, op, read: w.node("Min", [w.node("Max", [read[1], read[0]]), read[2]]),
    "select_n": lambda w, op, read: w.node("Where", [read[0], read[2], read[1]]),
    "convert_element_type": lambda w, op, read: _cast(w, op, read[0]),
    "reshape": lambda w, op, read: w.node("Reshape", [read[0], w.sizes(op.options["shape"])]),
    "transpose": lambda w, op, read: w.node("Transpose", read, perm=op.options["order"]),
    "concatenate": lambda w, op, read: w.node("Concat", read, axis=op.options["axis"]),
    "argmax": lambda w, op, read: _cast(w, op, w.node("ArgMax", read, axis=op.options["axis"], keepdims=0)),
    "broadcast_in_dim": _broadcast,
    "slice": _slice,
    "dot_general": _dot,
    "conv_general_dilated": _convolution,
    "reduce_window_max": _max_pool,
    "pad": _pad,
    "index": _index,
    "stack": _stack,
    "split": _split,
}
