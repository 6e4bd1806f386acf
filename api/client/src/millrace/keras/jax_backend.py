"""Keras models on JAX: the jaxpr of the loss is computed by PyTorch.

    model(x, training=True), loss ──jax.make_jaxpr──► jaxpr ──JaxNetwork──► torch.export

* The batch has a symbolic size in the jaxpr. Sizes are computed as numbers, everything else as tensors.
* Functions of Keras that JAX writes with random bits, or with many operators, are calls with a name instead.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import keras
import numpy as np
import torch

from millrace.keras import jax_shapes  # noqa: F401 (registers primitives)
from millrace.keras import model as models
from millrace.keras.data import Structure
from millrace.keras.host import tensor
from millrace.keras.jax_primitives import NAMED, PRIMITIVES, Equation
from millrace.keras.network import Network, user_frame
from millrace.torch.operands import UnsupportedModelError

INNER = ("jaxpr", "call_jaxpr", "fun_jaxpr")
"""The parameters of primitives that call a jaxpr."""
CONTROL_FLOW = frozenset({"while", "scan", "cond"})
BATCH = "batch"
"""The symbol of the size of the batch."""


class JaxNetwork(Network):
    """Computes the loss of a Keras model on JAX."""

    def __init__(
        self, loss: models.LossOfModel, structure: Structure, arrays: Mapping[str, torch.Tensor]
    ) -> None:
        weights = models.weights_of(loss.model)
        closed = _jaxpr(loss, structure, arrays, weights)
        super().__init__(weights, _paths(closed.jaxpr))
        # Not as modules or buffers.
        self._computation = (closed, [weight.variable for weight in weights])

    def forward(self, *batch: torch.Tensor) -> torch.Tensor:
        """Return the loss of a batch."""
        closed, variables = self._computation
        given = {
            id(weight.variable): value for weight, value in zip(self.weights, self.values(), strict=True)
        }
        states = [given.get(id(item), np.asarray(item)) for item in variables]
        (loss,) = self.compute(closed.jaxpr, closed.consts, [*states, *batch], batch[0].shape[0])
        return tensor(loss)

    def compute(
        self,
        jaxpr: Any,
        consts: Sequence[Any],
        inputs: Sequence[Any],
        batch: Any,
        outer: tuple[str, tuple[str, int] | None] = ("", None),
    ) -> list[Any]:
        """Return the outputs of a jaxpr for inputs. `outer` are the path and the source line of its call."""
        values: dict[Any, Any] = dict(zip(jaxpr.constvars, (_array(item) for item in consts), strict=True))
        values.update(zip(jaxpr.invars, inputs, strict=True))

        def read(variable: Any) -> Any:
            return _array(variable.val) if hasattr(variable, "val") else values[variable]

        for equation in _needed(jaxpr):
            results = self._compute(equation, [read(item) for item in equation.invars], batch, outer)
            values.update(zip(equation.outvars, results, strict=True))
        return [read(item) for item in jaxpr.outvars]

    def _compute(
        self, equation: Any, inputs: list[Any], batch: Any, outer: tuple[str, tuple[str, int] | None]
    ) -> Sequence[Any]:
        name, path = equation.primitive.name, _path(equation, outer[0])
        # JAX traces a function once: the lines in it may be those of an earlier call.
        source_line = outer[1] or _source_line(equation)
        named = NAMED.get(str(equation.params.get("name")).split(" ")[0])
        inner = next((equation.params[key] for key in INNER if key in equation.params), None)
        where = path if source_line is None else f"{path} ({source_line[0]}:{source_line[1]})"
        if name in CONTROL_FLOW:
            raise UnsupportedModelError(
                f"{where}: a branch or a loop of JAX ({name}): use keras.ops.where, or a loop of Python"
            )
        if inner is not None and named is None:
            jaxpr, consts = (inner.jaxpr, inner.consts) if hasattr(inner, "jaxpr") else (inner, ())
            return self.compute(jaxpr, consts, inputs, batch, (path, source_line))
        compute = named or PRIMITIVES.get(name)
        if compute is None:
            raise UnsupportedModelError(f"{where}: {_unsupported_message(name)}")
        function = compute

        def call() -> Any:
            return function(Equation(equation, inputs, batch))

        try:
            result = self.compute_in_scope(path, source_line, call)
        except UnsupportedModelError as error:
            raise UnsupportedModelError(f"{where}: {name} of JAX: {error}") from error
        return result if isinstance(result, list) else [result]


def _unsupported_message(name: str) -> str:
    advice = ": use dropout, the only random operator that is supported" if name.startswith("random") else ""
    return f"the primitive {name} of JAX is not supported{advice}"


def _array(value: Any) -> np.ndarray[Any, Any]:
    return np.asarray(value)


def _path(equation: Any, outer: str) -> str:
    return "/".join(part for part in (outer, str(equation.source_info.name_stack)) if part)


def _source_line(equation: Any) -> tuple[str, int] | None:
    found = equation.source_info.traceback
    frames = [] if found is None else [(frame.file_name, frame.line_num) for frame in found.frames]
    return user_frame(frames[::-1])


def _paths(jaxpr: Any, outer: str = "") -> set[str]:
    """Return the paths of all equations of a jaxpr."""
    found = set()
    for equation in jaxpr.eqns:
        found.add(path := _path(equation, outer))
        for key in INNER:
            if (inner := equation.params.get(key)) is not None:
                found |= _paths(getattr(inner, "jaxpr", inner), path)
    return found


def _needed(jaxpr: Any) -> list[Any]:
    """Return the equations that the outputs of a jaxpr are computed from, in their order."""
    needed = {item for item in jaxpr.outvars if not hasattr(item, "val")}
    found = []
    for equation in reversed(jaxpr.eqns):
        if needed.intersection(equation.outvars):
            found.append(equation)
            needed.update(item for item in equation.invars if not hasattr(item, "val"))
    return found[::-1]


def _jaxpr(
    loss: models.LossOfModel, structure: Structure, arrays: Mapping[str, torch.Tensor], weights: Sequence[Any]
) -> Any:
    """Return the computation of the loss by the variables of the model and a batch of any size."""
    variables = [weight.variable for weight in weights]
    (size,) = jax.export.symbolic_shape(BATCH)
    kinds = {name: np.dtype(str(array.dtype).removeprefix("torch.")).name for name, array in arrays.items()}
    samples = [
        # JAX has no integers of 64 bits.
        jax.ShapeDtypeStruct((size, *array.shape[1:]), kinds[name].replace("64", "32"))
        for name, array in arrays.items()
    ]
    states = [jax.ShapeDtypeStruct(tuple(item.shape), item.dtype) for item in variables]

    def compute(given: Sequence[Any], *batch: Any) -> Any:
        mapping = list(zip(variables, given, strict=True))
        with keras.StatelessScope(mapping, collect_losses=True) as scope:
            total = loss(*structure.assembled(batch))
        of_variable = {id(variable): value for variable, value in mapping}

        def is_changed(variable: Any) -> bool:
            value = scope.get_current_value(variable)
            return value is not None and value is not of_variable.get(id(variable))

        models.check_states(loss.model.non_trainable_variables, is_changed)
        return total

    try:
        with models.tracing(loss.model, _dropout), _named_functions():
            return jax.make_jaxpr(compute)(states, *samples)
    except UnsupportedModelError:
        raise
    except Exception as error:
        frames = [(item.filename, item.lineno or 0) for item in traceback.extract_tb(error.__traceback__)]
        source_line = user_frame(frames)
        where = "" if source_line is None else f"{source_line[0]}:{source_line[1]}: "
        reason = next(
            (line for line in str(error).strip().splitlines() if line.strip()), type(error).__name__
        )
        raise UnsupportedModelError(f"{where}JAX can't trace the model ({reason.strip()})") from error


@contextlib.contextmanager
def _named_functions() -> Iterator[None]:
    """Trace functions of Keras as calls with a name."""
    nn = keras.src.backend.nn
    with contextlib.ExitStack() as stack:
        for name, is_supported in _IS_SUPPORTED.items():
            stack.enter_context(models.replaced(nn, name, _with_name(name, getattr(nn, name), is_supported)))
        yield


def _last_axis(x: Any, axis: Any = -1) -> bool:
    return isinstance(axis, int) and axis % len(x.shape) == len(x.shape) - 1


_IS_SUPPORTED: dict[str, Callable[..., bool]] = {
    "softmax": _last_axis,
    "log_softmax": _last_axis,
    "sparse_categorical_crossentropy": lambda target, output, from_logits=False, axis=-1: (
        from_logits and _last_axis(output, axis) and len(output.shape) > 1
    ),
    "dot_product_attention": lambda query, key, value, bias=None, mask=None, attn_logits_soft_cap=None, **_: (
        bias is None and attn_logits_soft_cap is None and query.shape[2] == key.shape[2]
    ),
}
"""Functions of Keras that a graph has as a whole, and whether it has them with these arguments."""


def _with_name(
    name: str, function: Callable[..., Any], is_supported: Callable[..., bool]
) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if not is_supported(*args, **kwargs):
            return function(*args, **kwargs)
        arguments = inspect.signature(function).bind(*args, **kwargs).arguments
        arrays = {key: item for key, item in arguments.items() if hasattr(item, "shape")}
        others = {key: item for key, item in arguments.items() if key not in arrays}

        def inner(*given: Any) -> Any:
            return function(**dict(zip(arrays, given, strict=True)), **others)

        # Arguments other than arrays are part of the name.
        inner.__name__ = f"millrace_{name}"
        options = {key: item for key, item in others.items() if isinstance(item, int | float)}
        inner.__name__ += f" {json.dumps(options)}" if options else ""
        return jax.jit(inner)(*(jax.numpy.asarray(item) for item in arrays.values()))

    return call


def _dropout(inputs: Any, rate: float, noise_shape: Any = None, seed: Any = None) -> Any:
    if rate in (0.0, 1.0):
        return inputs * (1.0 - rate)
    sizes = [
        size if noise_shape is None or noise_shape[at] is None else noise_shape[at]
        for at, size in enumerate(inputs.shape)
    ]

    def inner(x: Any, probability: Any, mask: Any) -> Any:
        return x * probability * mask

    inner.__name__ = "millrace_dropout"
    return jax.jit(inner)(inputs, np.float32(rate), jax.numpy.ones(sizes))
