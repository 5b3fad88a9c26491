"""A trained policy as one pure function of arrays: observations and recurrent state in, greedy actions out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jsrl.agents.base import ActParams, Agent
from jsrl.errors import ExportError
from jsrl.tools.export.program import Program, translated
from jsrl.types import Array, EnvSpec, named_leaves, to_environment, unflatten


class Port(NamedTuple):
    """An input or output array: its name, the shape of one row, dtype, and keys in the observation's dict."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    path: tuple[str, ...] = ()

    def zeros(self, batch: Any) -> jax.ShapeDtypeStruct:
        """Return the schema of a batch; its size may be a symbol."""
        return jax.ShapeDtypeStruct((batch, *self.shape), self.dtype)


class PolicyFunction(NamedTuple):
    """A policy as a function.

    Attributes:
      call: (*inputs, is_first, *state) -> (*outputs, *new state), each [B, ...]; is_first only if there is a state.
      inputs, state, outputs: the arrays. The first output is `action`, clipped or scaled to the environment's
        bounds; the others are the distribution's parameters.
    """

    call: Callable[..., tuple[Array, ...]]
    inputs: tuple[Port, ...]
    state: tuple[Port, ...]
    outputs: tuple[Port, ...]

    def arguments(self, batch: Any) -> list[jax.ShapeDtypeStruct]:
        """Return the schema of all arguments of `call`, in order."""
        first = [jax.ShapeDtypeStruct((batch,), bool)] if self.state else []
        return [*(p.zeros(batch) for p in self.inputs), *first, *(p.zeros(batch) for p in self.state)]

    def program(self) -> Program:
        """Return the function as operators of ONNX; the new state's names begin with `next_`."""
        (batch,) = jax.export.symbolic_shape("b")
        state = [port.name for port in self.state]
        inputs = [*(port.name for port in self.inputs), *(["is_first"] if state else []), *state]
        outputs = [*(port.name for port in self.outputs), *(f"next_{name}" for name in state)]
        with any_batch():
            return translated(self.call, self.arguments(batch), inputs, outputs)


@contextlib.contextmanager
def any_batch() -> Iterator[None]:
    """Turn what goes wrong while JAX traces a policy for batches of any size into an ExportError."""
    try:
        yield
    except Exception as error:  # of the policy's own code, too
        raise ExportError(
            f"the policy cannot be traced for batches of any size: {error}. Its network must not depend on the batch size"
        ) from error


def exported_function(agent: Agent, spec: EnvSpec, params: ActParams) -> tuple[PolicyFunction, Program]:
    """Return the policy's function with the state that its outputs depend on, and its program."""
    function = policy_function(agent, spec, params)
    program = function.program()
    kept: list[str] = []
    while True:  # a leaf of the core may affect the outputs at once, or through later states
        needed = program.needed([*(port.name for port in function.outputs), *(f"next_{name}" for name in kept)])
        found = [port.name for port in function.state if port.name in needed]
        if found == kept:
            break
        kept = found
    if len(kept) == len(function.state):
        return function, program
    function = policy_function(
        agent, spec, params, tuple(i for i, port in enumerate(function.state) if port.name in kept)
    )
    return function, function.program()


def policy_function(
    agent: Agent, spec: EnvSpec, params: ActParams, kept: tuple[int, ...] | None = None
) -> PolicyFunction:
    """Return the greedy policy with its params (weights and observation moments) inside.

    Args:
      kept: numbers of the core's leaves that are the function's state; the others always have their values at an episode's
        start. None: all.
    """
    params = jax.tree.map(jnp.asarray, params)
    fresh = agent.initial_core(1)
    paths = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in jax.tree.leaves_with_path(fresh)]
    first_rows, structure = jax.tree.flatten(fresh)
    kept = tuple(range(len(paths))) if kept is None else kept
    inputs = tuple(_input(path, leaf) for path, leaf in named_leaves(spec.observation))
    state = tuple(Port(_state_name(paths[i]), first_rows[i].shape[1:], str(first_rows[i].dtype)) for i in kept)

    def choose(*arrays: Array) -> tuple[dict[str, Array], list[Array]]:
        batch = arrays[0].shape[0]
        observation = unflatten(spec.observation, list(arrays[: len(inputs)]))
        is_first = arrays[len(inputs)] if kept else jnp.ones((batch,), bool)
        core = [jnp.broadcast_to(row, (batch, *row.shape[1:])) for row in first_rows]
        for place, array in zip(kept, arrays[len(inputs) + 1 :], strict=True):
            core[place] = array
        output, new_core = agent.act(
            params, jax.random.key(0), observation, is_first, jax.tree.unflatten(structure, core), greedy=True
        )
        action = to_environment(spec.action, output.action, jnp)
        new_leaves = jax.tree.leaves(new_core)
        return {"action": action, **dict(output.distribution)}, [new_leaves[i] for i in kept]

    def call(*arrays: Array) -> tuple[Array, ...]:
        outputs, new_state = choose(*arrays)
        return (*(outputs[port.name] for port in found), *new_state)

    bare = PolicyFunction(call, inputs, state, ())
    shapes = jax.eval_shape(choose, *bare.arguments(1))[0]
    names = ["action", *(name for name in shapes if name != "action")]  # jax sorts the keys of dicts
    found = tuple(Port(name, shapes[name].shape[1:], str(shapes[name].dtype)) for name in names)
    return bare._replace(outputs=found)


def _input(path: str, leaf: Any) -> Port:
    keys = tuple(path.split("/")) if path else ()
    return Port("/".join(("observation", *keys)), tuple(leaf.shape), str(np.dtype(leaf.dtype)), keys)


def _state_name(path: str) -> str:
    return f"state/{path}" if path else "state"
