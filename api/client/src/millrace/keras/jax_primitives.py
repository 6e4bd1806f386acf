"""Primitives of JAX, computed by PyTorch.

An input is a tensor or an array, see `millrace.keras.host`. A primitive whose inputs are all arrays is
computed by NumPy where that is possible.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from millrace.keras.host import is_numpy, number, tensor
from millrace.torch.operands import UnsupportedModelError
from millrace.torch.operators.registry import registers_in

LIBRARY_FILES = ("jax/_src/nn/functions.py", "jax/_src/ops/special.py")
"""Files of JAX that stop gradients only where they are 0: by the maximum that a softmax subtracts."""


class Equation:
    """A primitive with its inputs."""

    def __init__(self, equation: Any, inputs: list[Any], batch: Any) -> None:
        self.inputs, self.params, self.batch = inputs, equation.params, batch
        self.name = equation.primitive.name
        self.outputs = equation.outvars
        self._source = equation.source_info.traceback

    def sizes(self, shape: Sequence[Any]) -> list[Any]:
        """Return dimensions as numbers, with the size of the batch in place of its symbol."""
        return [self.size(item) for item in shape]

    def size(self, dimension: Any) -> Any:
        """Return a dimension as a number."""
        if isinstance(dimension, int | np.integer):
            return int(dimension)
        at_zero, at_one, at_five = (int(dimension._evaluate({"batch": value})) for value in (0, 1, 5))
        factor = at_one - at_zero
        if at_five != at_zero + 5 * factor:
            raise UnsupportedModelError(f"the size {dimension} is no multiple of that of the batch")
        return self.batch * factor + at_zero

    def is_within(self, files: tuple[str, ...]) -> bool:
        """Return whether a function in one of these files has added the primitive."""
        frames = [] if self._source is None else self._source.frames
        return any(frame.file_name.endswith(files) for frame in frames)


Translation: TypeAlias = Callable[[Equation], Any]
"""Computes a primitive; returns a list if it has several outputs."""

PRIMITIVES: dict[str, Translation] = {}
NAMED: dict[str, Translation] = {}
"""Functions of Keras, by the names of their calls."""


translates = registers_in(PRIMITIVES)
"""Registers the computation of primitives."""


def dtype_of(given: Any) -> torch.dtype:
    """Return a type of elements of JAX as that of PyTorch."""
    name = np.dtype(given).name
    if name in ("bfloat16", "float16"):
        raise UnsupportedModelError(
            f"values of type {name}: use float32, and mixed_precision=True of the job"
        )
    dtype: torch.dtype = getattr(torch, {"uint32": "int64"}.get(name, name))
    return dtype


def _unary(function: Callable[[torch.Tensor], torch.Tensor], of_array: Any = None) -> Translation:
    def translation(e: Equation) -> Any:
        x = e.inputs[0]
        return np.asarray(of_array(x)) if is_numpy(x) and of_array else function(tensor(x))

    return translation


UNARY: dict[str, Translation] = {
    "exp": _unary(torch.exp, np.exp),
    "exp2": _unary(torch.exp2, np.exp2),
    "log": _unary(torch.log, np.log),
    "log1p": _unary(torch.log1p, np.log1p),
    "expm1": _unary(torch.expm1, np.expm1),
    "tanh": _unary(torch.tanh, np.tanh),
    "logistic": _unary(torch.sigmoid),
    "sqrt": _unary(torch.sqrt, np.sqrt),
    "rsqrt": _unary(torch.rsqrt, lambda x: 1 / np.sqrt(x)),
    "neg": _unary(torch.neg, np.negative),
    "abs": _unary(torch.abs, np.abs),
    "sign": _unary(torch.sign, np.sign),
    "floor": _unary(torch.floor, np.floor),
    "ceil": _unary(torch.ceil, np.ceil),
    "round": _unary(torch.round),
    "sin": _unary(torch.sin, np.sin),
    "cos": _unary(torch.cos, np.cos),
    "tan": _unary(torch.tan, np.tan),
    "sinh": _unary(torch.sinh),
    "cosh": _unary(torch.cosh),
    "asinh": _unary(torch.asinh),
    "acosh": _unary(torch.acosh),
    "atanh": _unary(torch.atanh),
    "erf": _unary(torch.erf),
    "erfc": _unary(torch.erfc),
    "square": _unary(torch.square, np.square),
    "not": _unary(torch.logical_not, np.logical_not),
    "is_finite": _unary(lambda x: x.abs() < torch.inf, np.isfinite),
}
PRIMITIVES.update(UNARY)


def _binary(
    function: Callable[[Any, Any], Any], of_arrays: Callable[[Any, Any], Any] | None = None
) -> Translation:
    def translation(e: Equation) -> Any:
        left, right = e.inputs
        if is_numpy(left) and is_numpy(right):
            return np.asarray((of_arrays or function)(left, right))
        if of_arrays is None:
            left, right = (number(item) for item in (left, right))
        left, right = (tensor(item) if is_numpy(item) else item for item in (left, right))
        return function(left, right)

    return translation


BINARY: dict[str, Translation] = {
    "add": _binary(lambda a, b: a + b),
    "add_any": _binary(lambda a, b: a + b),
    "sub": _binary(lambda a, b: a - b),
    "mul": _binary(lambda a, b: a * b),
    "pow": _binary(lambda a, b: a**b),
    "lt": _binary(lambda a, b: a < b),
    "le": _binary(lambda a, b: a <= b),
    "gt": _binary(lambda a, b: a > b),
    "ge": _binary(lambda a, b: a >= b),
    "eq": _binary(lambda a, b: a == b),
    "ne": _binary(lambda a, b: a != b),
    "max": _binary(torch.maximum, np.maximum),
    "min": _binary(torch.minimum, np.minimum),
    "rem": _binary(torch.fmod, np.fmod),
    "and": _binary(torch.logical_and, np.logical_and),
    "or": _binary(torch.logical_or, np.logical_or),
    "xor": _binary(torch.logical_xor, np.logical_xor),
}
PRIMITIVES.update(BINARY)


@translates("div")
def _quotient(e: Equation) -> Any:
    left, right = e.inputs
    if is_numpy(left) and is_numpy(right):
        is_whole = np.dtype(e.outputs[0].aval.dtype).kind in "iu"
        return np.asarray(left // right if is_whole else left / right)
    left, right = (number(item) for item in (left, right))
    left, right = (tensor(item) if is_numpy(item) else item for item in (left, right))
    if np.dtype(e.outputs[0].aval.dtype).kind in "iu":
        return torch.div(left, right, rounding_mode="trunc")
    return left / right


@translates("integer_pow")
def _integer_power(e: Equation) -> Any:
    x = e.inputs[0]
    return x ** e.params["y"] if is_numpy(x) else torch.pow(tensor(x), e.params["y"])


@translates("copy", "copy_p", "optimization_barrier", "reduce_precision")
def _identity(e: Equation) -> Any:
    return e.inputs[0] if len(e.inputs) == 1 else list(e.inputs)


@translates("stop_gradient")
def _stop_gradient(e: Equation) -> Any:
    x = e.inputs[0]
    return x if is_numpy(x) or e.is_within(LIBRARY_FILES) else x.detach()


@translates("convert_element_type")
def _cast(e: Equation) -> Any:
    x, dtype = e.inputs[0], np.dtype(e.params["new_dtype"])
    if is_numpy(x):
        return x if x.dtype == object else x.astype(dtype)
    return x.to(dtype_of(dtype))


@translates("dim_as_value")
def _dimension(e: Equation) -> Any:
    return np.array(e.size(e.params["dim"]), dtype=object)


@translates("select_n")
def _select(e: Equation) -> Any:
    condition, *cases = e.inputs
    if len(cases) != 2:
        raise UnsupportedModelError("a choice of more than two: use keras.ops.where")
    if is_numpy(condition) and condition.shape == ():
        return cases[int(condition)]
    if all(is_numpy(item) for item in e.inputs):
        return np.where(condition, cases[1], cases[0])
    return torch.where(tensor(condition), tensor(cases[1]), tensor(cases[0]))


@translates("clamp")
def _clamp(e: Equation) -> Any:
    least, x, most = (number(item) for item in e.inputs)
    return torch.clamp(tensor(x), least, most)


def _reduction(name: str) -> Translation:
    def translation(e: Equation) -> Any:
        x, axes = e.inputs[0], list(e.params["axes"])
        if is_numpy(x):
            function = {"amax": "max", "amin": "min"}.get(name, name)
            return np.asarray(getattr(np, function)(x, axis=tuple(axes)))
        if not axes:
            return x
        if name == "sum" and len(axes) == x.dim():
            return x.sum()
        if name in ("any", "all", "prod"):
            for axis in sorted(axes, reverse=True):
                x = getattr(torch, name)(x, dim=axis)
            return x
        return getattr(torch, name)(x, dim=axes)

    return translation


REDUCTIONS = {
    **{"reduce_sum": "sum", "reduce_max": "amax", "reduce_min": "amin", "reduce_prod": "prod"},
    **{"reduce_or": "any", "reduce_and": "all"},
}
PRIMITIVES.update({name: _reduction(function) for name, function in REDUCTIONS.items()})


@translates("argmax", "argmin")
def _extreme(e: Equation) -> Any:
    return getattr(torch, e.name)(tensor(e.inputs[0]), dim=e.params["axes"][0])


@translates("cumsum")
def _cumulative_sum(e: Equation) -> Any:
    x, axis = tensor(e.inputs[0]), e.params["axis"]
    return x.flip(axis).cumsum(axis).flip(axis) if e.params["reverse"] else x.cumsum(axis)


@translates("top_k")
def _top(e: Equation) -> Any:
    return list(torch.topk(tensor(e.inputs[0]), e.params["k"]))


@translates("dot_general")
def _product(e: Equation) -> Any:
    left, right = (tensor(item) for item in e.inputs)
    (of_left, of_right), (batch_left, batch_right) = e.params["dimension_numbers"]
    if not batch_left and list(of_left) == [left.dim() - 1] and list(of_right) == [0] and right.dim() == 2:
        return torch.matmul(left, right)
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    names_left = [next(letters) for _ in range(left.dim())]
    names_right = [next(letters) for _ in range(right.dim())]
    for pair in (zip(of_left, of_right, strict=True), zip(batch_left, batch_right, strict=True)):
        for at_left, at_right in pair:
            names_right[at_right] = names_left[at_left]
    result = [names_left[at] for at in batch_left]
    result += [name for at, name in enumerate(names_left) if at not in {*of_left, *batch_left}]
    result += [name for at, name in enumerate(names_right) if at not in {*of_right, *batch_right}]
    return torch.einsum(f"{''.join(names_left)},{''.join(names_right)}->{''.join(result)}", left, right)


def _dropout(e: Equation) -> Any:
    x, rate, mask = tensor(e.inputs[0]), float(e.inputs[1]), e.inputs[2]
    sizes = list(mask.shape)
    if all(wanted is size or wanted == size for wanted, size in zip(sizes, x.shape, strict=True)):
        return F.dropout(x, rate)
    return x * F.dropout(torch.ones(sizes), rate)


def _cross_entropy(e: Equation) -> Any:
    labels, logits = (tensor(item) for item in e.inputs)
    if labels.dim() == logits.dim():
        labels = labels.squeeze(-1)
    return F.cross_entropy(logits.movedim(-1, 1), labels.long(), reduction="none")


def _attention(e: Equation) -> Any:
    query, key, value, *mask = (tensor(item) for item in e.inputs)
    options = json.loads(str(e.params["name"]).partition(" ")[2] or "{}")
    heads_first = [item.transpose(1, 2) for item in (query, key, value)]
    mixed = F.scaled_dot_product_attention(
        *heads_first,
        attn_mask=mask[0] if mask else None,
        is_causal=bool(options.get("is_causal")),
        scale=options.get("scale"),
    )
    return mixed.transpose(1, 2)


NAMED.update(
    {
        "millrace_dropout": _dropout,
        "millrace_dot_product_attention": _attention,
        "millrace_softmax": lambda e: torch.softmax(tensor(e.inputs[0]), -1),
        "millrace_log_softmax": lambda e: torch.log_softmax(tensor(e.inputs[0]), -1),
        "millrace_sparse_categorical_crossentropy": _cross_entropy,
        "relu": lambda e: torch.relu(tensor(e.inputs[0])),
        "silu": lambda e: F.silu(tensor(e.inputs[0])),
    }
)
