"""Functions of TensorFlow as modules of PyTorch: the graph of a concrete function is computed by PyTorch.

    loss = tf.function(...) ──get_concrete_function──► graph of TensorFlow ──GraphNetwork──► torch.export

* Sizes are computed as numbers, with that of the batch as a symbol; everything else as tensors.
* Functions that the graph calls are computed like the rest of it. Branches and loops are rejected.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import torch

from millrace.keras import model as models
from millrace.keras import tensorflow_images, tensorflow_products, tensorflow_shapes  # noqa: F401 (operators)
from millrace.keras.data import Structure
from millrace.keras.host import tensor
from millrace.keras.network import Network, user_frame
from millrace.keras.tensorflow_operators import OPERATORS, Function
from millrace.keras.weights import Weight
from millrace.torch.operands import UnsupportedModelError

CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
CONTROL_FLOW = frozenset({"If", "StatelessIf", "While", "StatelessWhile", "Case", "StatelessCase"})
ASSIGNMENTS = frozenset(
    {
        *("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"),
        *("ResourceScatterAdd", "ResourceScatterUpdate", "ResourceScatterNdUpdate"),
    }
)
ADVICE = {
    "FusedBatchNormV3": "batch norm computes over the samples of a batch: use group or layer normalization",
    "PyFunc": "use operators of TensorFlow in place of py_function",
    "EagerPyFunc": "use operators of TensorFlow in place of py_function",
    "Unique": "use a fixed size",
    "Where": "use tf.where with three arguments",
    "ScatterNd": "use tf.where, tf.gather or a product with tf.one_hot",
    "TensorScatterUpdate": "use tf.where, tf.gather or a product with tf.one_hot",
    "RandomStandardNormal": "use dropout, the only random operator that is supported",
    "StatelessRandomNormalV2": "use dropout, the only random operator that is supported",
    "TensorListReserve": "unroll the loop, as with unroll=True of recurrent layers",
}


class GraphNetwork(Network):
    """Computes the loss that a concrete function returns.

    `paths` are the paths of layers by the names of operators, for those that a layer has.
    """

    def __init__(
        self,
        function: Any,
        weights: Sequence[Weight],
        is_ignored: Callable[[Any], bool],
        paths: Mapping[str, str] | None = None,
    ) -> None:
        self_paths = dict(paths or {})
        operations = operations_of(function.graph)
        super().__init__(weights, {_path(op, self_paths) for op in operations})
        # Not as modules or buffers.
        self._computation = (function, self_paths)
        for variable, op in _changed_variables(function.graph, _resources(function)):
            if not is_ignored(variable):
                raise UnsupportedModelError(
                    f"{self._location(op)}: the state {variable.name} is changed: use layers and functions "
                    "without a state"
                )

    def forward(self, *batch: torch.Tensor) -> torch.Tensor:
        """Return the loss of a batch."""
        function, _ = self._computation
        values = zip(self.weights, self.values(), strict=True)
        by_variable = {id(_tensorflow_variable(weight.variable)): value for weight, value in values}
        captured = [
            _captured_value(item, variable, by_variable)
            for item, variable in zip(function.captured_inputs, variables_of(function), strict=True)
        ]
        results = self.compute(function.graph, [*batch, *captured])
        if len(results) != 1:
            raise UnsupportedModelError(f"the function returns {len(results)} tensors: return the loss only")
        return tensor(results[0])

    def compute(self, graph: Any, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs of a graph of TensorFlow."""
        values: dict[str, Any] = {item.name: value for item, value in zip(graph.inputs, inputs, strict=True)}
        for op in _needed(graph):
            if op.outputs and op.outputs[0].name in values:
                continue
            arguments = [values[item.name] for item in op.inputs]
            results = self._compute(op, arguments)
            for output, result in zip(op.outputs, results, strict=False):
                values[output.name] = result
        return [values[output.name] for output in graph.outputs]

    def _compute(self, op: Any, inputs: list[Any]) -> Sequence[Any]:
        if op.type in CALLS:
            return self.compute(_called(op), inputs)
        translation = OPERATORS.get(op.type)
        if translation is None:
            raise UnsupportedModelError(f"{self._location(op)}: {_unsupported_message(op.type)}")

        def call() -> Any:
            return translation(_Arguments(op, inputs))

        try:
            result = self.compute_in_scope(_path(op, self._computation[1]), _source_line(op), call)
        except UnsupportedModelError as error:
            raise UnsupportedModelError(f"{self._location(op)}: {op.type} of TensorFlow: {error}") from error
        return result if isinstance(result, list) else [result]

    def _location(self, op: Any) -> str:
        """Return where the user's code has an operator: layer or scope, file and line."""
        path, source_line = _path(op, self._computation[1]) or op.name, _source_line(op)
        return path if source_line is None else f"{path} ({source_line[0]}:{source_line[1]})"


class _Arguments(Function):
    """An operator of a graph with its inputs."""

    def __init__(self, op: Any, inputs: list[Any]) -> None:
        self.type, self.inputs, self._op = op.type, inputs, op

    def attribute(self, name: str) -> Any:
        """Return an attribute of the operator."""
        value = self._op.get_attr(name)
        if isinstance(value, bytes):
            return value.decode()
        return value.as_numpy_dtype if isinstance(value, tf.DType) else value

    def is_within(self, file: str) -> bool:
        """Return whether a function in this file of TensorFlow has added the operator."""
        return any(frame.filename.endswith(file) for frame in self._op.traceback or ())

    def constant(self) -> np.ndarray[Any, Any]:
        """Return the elements of a constant."""
        return np.asarray(tf.make_ndarray(self._op.get_attr("value")))


def _source_line(op: Any) -> tuple[str, int] | None:
    return user_frame([(frame.filename, frame.lineno) for frame in op.traceback or ()])


def _called(op: Any) -> Any:
    """Return the graph of the function that an operator calls."""
    return op.graph._get_function(op.get_attr("f").name).graph


def _tensorflow_variable(variable: Any) -> Any:
    """Return the variable of TensorFlow that a variable of Keras has."""
    return getattr(variable, "_value", variable)


def variables_of(function: Any) -> list[Any]:
    """Return the variables that a concrete function captures, in their order, None for other tensors."""
    variables = function.graph.variables
    return [
        next((variable for variable in variables if variable.handle is item), None)
        for item in function.captured_inputs
    ]


def _resources(function: Any) -> list[Any]:
    """Return the variables that the inputs of the graph of a function are, None for other inputs."""
    captures = variables_of(function)
    return [None] * (len(function.graph.inputs) - len(captures)) + captures


def _captured_value(item: Any, variable: Any, by_variable: Mapping[int, Any]) -> Any:
    """Return what a captured input is: a parameter, or the elements of another variable or tensor."""
    if variable is not None:
        value = by_variable.get(id(variable))
        return np.asarray(variable.numpy()) if value is None else value
    if item.dtype == tf.resource:
        raise UnsupportedModelError(
            "the function uses a table, a dataset or another resource: use tensors only"
        )
    return np.asarray(item.numpy())


def _unsupported_message(kind: str) -> str:
    if kind in CONTROL_FLOW:
        return (
            "a branch or a loop of TensorFlow, which depends on data: use tf.where, or a loop of Python; for "
            "recurrent layers unroll=True"
        )
    advice = ADVICE.get(kind)
    return f"the operator {kind} of TensorFlow is not supported" + (f": {advice}" if advice else "")


def _path(op: Any, paths: Mapping[str, str]) -> str:
    """Return the path of the layer of an operator, or its name scope."""
    scope: str = op.name.rpartition("/")[0]
    return paths.get(op.name, scope)


def _needed(graph: Any) -> list[Any]:
    """Return the operators that the outputs of a graph are computed from, in their order."""
    needed: set[str] = set()
    remaining = [tensor.op for tensor in graph.outputs]
    while remaining:
        op = remaining.pop()
        if op.name not in needed:
            needed.add(op.name)
            remaining += [tensor.op for tensor in op.inputs]
    return [op for op in graph.get_operations() if op.name in needed]


def operations_of(graph: Any) -> list[Any]:
    """Return the operators of a graph and of the functions that it calls."""
    found: list[Any] = []
    for op in graph.get_operations():
        found.append(op)
        if op.type in CALLS:
            found += operations_of(_called(op))
    return found


def _changed_variables(graph: Any, inputs: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the variables that a graph changes, with the operators; `inputs` are those of the graph."""
    known = {tensor.name: variable for tensor, variable in zip(graph.inputs, inputs, strict=True)}
    for op in graph.get_operations():
        if op.type in ASSIGNMENTS and known.get(op.inputs[0].name) is not None:
            yield known[op.inputs[0].name], op
        elif op.type in CALLS:
            yield from _changed_variables(_called(op), [known.get(tensor.name) for tensor in op.inputs])


def concrete_function(function: Any, arrays: Mapping[str, torch.Tensor]) -> Any:
    """Return the graph of a function for a batch of any size.

    Raises `UnsupportedModelError` if TensorFlow can't trace it.
    """
    specs = [
        tf.TensorSpec(
            [None, *array.shape[1:]], tf.as_dtype(str(array.dtype).removeprefix("torch.")), name=name
        )
        for name, array in arrays.items()
    ]
    try:
        return function.get_concrete_function(*specs)
    except UnsupportedModelError:
        raise
    except Exception as error:
        frames = [(item.filename, item.lineno or 0) for item in traceback.extract_tb(error.__traceback__)]
        reason, frames = _reason(error, frames)
        source_line = user_frame(frames)
        where = "" if source_line is None else f"{source_line[0]}:{source_line[1]}: "
        raise UnsupportedModelError(f"{where}TensorFlow can't trace the function ({reason})") from error


def _reason(error: Exception, frames: list[tuple[str, int]]) -> tuple[str, list[tuple[str, int]]]:
    """Return the message of an error of a trace, and its frames.

    For converted functions, both are in the text of the error: lines of the user's code, then the message.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    found = [re.match(r'File "(.+?)", line (\d+)', line) for line in lines]
    if not lines or not lines[0].startswith("in user code") or not any(found):
        return (lines or [type(error).__name__])[0], frames
    last = max(at for at, match in enumerate(found) if match)
    return lines[min(last + 2, len(lines) - 1)], [(match[1], int(match[2])) for match in found if match]


def network_of_model(
    loss: models.LossOfModel, structure: Structure, arrays: Mapping[str, torch.Tensor]
) -> GraphNetwork:
    """Return the computation of the loss of a Keras model on TensorFlow."""
    weights = models.weights_of(loss.model)
    paths: dict[str, str] = {}
    call = keras.layers.Layer.__call__

    def call_layer(layer: Any, *args: Any, **kwargs: Any) -> Any:
        before = {op.name for op in tf.compat.v1.get_default_graph().get_operations()}
        outputs = call(layer, *args, **kwargs)
        for op in tf.compat.v1.get_default_graph().get_operations():
            if op.name not in before:
                paths.setdefault(op.name, layer.path or layer.name)
        return outputs

    def function(*batch: Any) -> Any:
        return loss(*structure.assembled(batch))

    with models.tracing(loss.model), models.replaced(keras.layers.Layer, "__call__", call_layer):
        concrete = concrete_function(tf.function(function, autograph=False), arrays)
    # Seeds and metrics change; nothing else may.
    states = [item for item in loss.model.weights if "seed_generator_state" not in item.path]
    kept = {id(_tensorflow_variable(item)) for item in states}
    return GraphNetwork(concrete, weights, lambda variable: id(variable) not in kept, paths)
