"""Operators of TensorFlow on elements, random numbers and reductions, computed by PyTorch.

An input is a tensor or an array, see `millrace.keras.host`. An operator whose inputs are all arrays is
computed by NumPy.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from millrace.keras.host import DropoutMask, Uniform, is_numpy, number, sizes, tensor
from millrace.torch.operands import UnsupportedModelError
from millrace.torch.operators.registry import registers_in


class Function:
    """An operator with its inputs."""

    type: str
    inputs: list[Any]

    @abstractmethod
    def attribute(self, name: str) -> Any:
        """Return an attribute of the operator."""

    @abstractmethod
    def is_within(self, file: str) -> bool:
        """Return whether a function in this file of TensorFlow has added the operator."""

    @abstractmethod
    def constant(self) -> np.ndarray[Any, Any]:
        """Return the elements of a constant."""


Translation: TypeAlias = Callable[[Function], Any]
"""Computes an operator; returns a list if it has several outputs."""

OPERATORS: dict[str, Translation] = {}


translates = registers_in(OPERATORS)
"""Registers the computation of operators."""


@translates("Const")
def _constant(f: Function) -> Any:
    return f.constant()


@translates(*("Identity", "PreventGradient", "EnsureShape", "CheckNumerics", "ReadVariableOp", "Snapshot"))
def _identity(f: Function) -> Any:
    return f.inputs[0]


@translates("StopGradient")
def _stop_gradient(f: Function) -> Any:
    value = f.inputs[0]
    # The mean from which a variance is computed: the gradient of the variance by it is 0.
    is_mean = f.is_within("tensorflow/python/ops/nn_impl.py")
    return value if is_mean or not isinstance(value, torch.Tensor) else value.detach()


@translates("IdentityN")
def _all_same(f: Function) -> Any:
    return list(f.inputs)


def _unary(function: Callable[[torch.Tensor], torch.Tensor], of_array: Any = None) -> Translation:
    def translation(f: Function) -> Any:
        value = f.inputs[0]
        return of_array(value) if is_numpy(value) and of_array else function(tensor(value))

    return translation


UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **{"Abs": torch.abs, "Neg": torch.neg, "Exp": torch.exp, "Expm1": torch.expm1, "Log": torch.log},
    **{"Log1p": torch.log1p, "Sqrt": torch.sqrt, "Rsqrt": torch.rsqrt, "Square": torch.square},
    **{"Sin": torch.sin, "Cos": torch.cos, "Tan": torch.tan, "Tanh": torch.tanh, "Sinh": torch.sinh},
    **{"Cosh": torch.cosh, "Asinh": torch.asinh, "Acosh": torch.acosh, "Atanh": torch.atanh},
    **{"Sigmoid": torch.sigmoid, "Relu": F.relu, "Relu6": F.relu6, "Elu": F.elu, "Selu": F.selu},
    **{"Softplus": F.softplus, "Softsign": F.softsign, "Erf": torch.erf, "Erfc": torch.erfc},
    **{
        "Sign": torch.sign,
        "Floor": torch.floor,
        "Ceil": torch.ceil,
        "Round": torch.round,
        "Rint": torch.round,
    },
    **{"Reciprocal": torch.reciprocal, "Inv": torch.reciprocal, "IsNan": torch.isnan},
    **{"LogicalNot": torch.logical_not, "ZerosLike": torch.zeros_like, "OnesLike": torch.ones_like},
    "L2Loss": lambda x: x.square().sum() / 2,
}
OF_ARRAYS: dict[str, Any] = {
    **{"Abs": np.abs, "Neg": np.negative, "LogicalNot": np.logical_not, "Floor": np.floor, "Ceil": np.ceil},
    **{"Sqrt": np.sqrt, "Square": np.square, "ZerosLike": np.zeros_like, "OnesLike": np.ones_like},
}
OPERATORS.update({name: _unary(function, OF_ARRAYS.get(name)) for name, function in UNARY.items()})


@translates("LeakyRelu")
def _leaky_relu(f: Function) -> Any:
    return F.leaky_relu(tensor(f.inputs[0]), f.attribute("alpha"))


def _binary(
    function: Callable[[Any, Any], Any],
    of_arrays: Callable[[Any, Any], Any] | None = None,
    *,
    takes_numbers: bool = True,
) -> Translation:
    def translation(f: Function) -> Any:
        left, right = f.inputs
        if is_numpy(left) and is_numpy(right):
            return np.asarray((of_arrays or function)(left, right))
        if takes_numbers:
            left, right = (number(item) for item in (left, right))
        left, right = (
            tensor(item) if is_numpy(item) or isinstance(item, DropoutMask | Uniform) else item
            for item in (left, right)
        )
        return function(left, right)

    return translation


def _no_nan(left: Any, right: Any) -> Any:
    if not isinstance(right, torch.Tensor):
        return left / right
    return torch.where(right == 0, 0.0, left / torch.where(right == 0, 1.0, right))


def _floor_quotient(left: Any, right: Any) -> Any:
    return torch.div(left, right, rounding_mode="floor")


BINARY: dict[str, Translation] = {
    **{name: _binary(lambda a, b: a * b) for name in ("Mul", "MulNoNan")},
    **{name: _binary(lambda a, b: a + b) for name in ("Add", "AddV2")},
    "Sub": _binary(lambda a, b: a - b),
    **{name: _binary(lambda a, b: a / b) for name in ("RealDiv", "Div")},
    "DivNoNan": _binary(_no_nan, lambda a, b: a / b),
    "SquaredDifference": _binary(lambda a, b: (a - b) ** 2),
    "Maximum": _binary(torch.maximum, np.maximum, takes_numbers=False),
    "Minimum": _binary(torch.minimum, np.minimum, takes_numbers=False),
    "Pow": _binary(torch.pow, np.power),
    "FloorDiv": _binary(_floor_quotient, lambda a, b: a // b),
    "FloorMod": _binary(torch.remainder, lambda a, b: a % b),
    "Less": _binary(lambda a, b: a < b),
    "LessEqual": _binary(lambda a, b: a <= b),
    "Greater": _binary(lambda a, b: a > b),
    "GreaterEqual": _binary(lambda a, b: a >= b),
    "Equal": _binary(lambda a, b: a == b),
    "NotEqual": _binary(lambda a, b: a != b),
    "LogicalAnd": _binary(torch.logical_and, np.logical_and, takes_numbers=False),
    "LogicalOr": _binary(torch.logical_or, np.logical_or, takes_numbers=False),
}
OPERATORS.update(BINARY)


def _random(name: str) -> Translation:
    """Compute an operator that may have random numbers of dropout as an input."""
    plain = BINARY[name]

    def translation(f: Function) -> Any:
        left, right = f.inputs
        uniform = next((item for item in f.inputs if isinstance(item, Uniform)), None)
        if uniform is None:
            return plain(f)
        other = number(right if uniform is left else left)
        # Random numbers are scaled to an interval, which is that from 0 to 1.
        if other == {"Mul": 1, "AddV2": 0}.get(name):
            return uniform
        if uniform is left and name == "GreaterEqual":
            return DropoutMask(float(other), uniform.shape)
        if uniform is left and name == "Less":
            return DropoutMask(1.0 - float(other), uniform.shape)
        return plain(f)

    return translation


OPERATORS.update({name: _random(name) for name in ("Mul", "AddV2", "GreaterEqual", "Less")})


@translates("StatelessRandomUniformV2", "StatelessRandomUniform", "RandomUniform")
def _uniform(f: Function) -> Any:
    return Uniform(sizes(f.inputs[0]))


@translates("StatelessRandomGetKeyCounter")
def _random_key(f: Function) -> Any:
    return [np.zeros(1), np.zeros(2)]


@translates("Select", "SelectV2")
def _select(f: Function) -> Any:
    condition, left, right = f.inputs
    if isinstance(condition, DropoutMask):
        if not is_numpy(right) or right.any():
            raise UnsupportedModelError("random numbers other than those of dropout")
        left = tensor(left)
        if len(condition.shape) == left.dim() and all(
            wanted is size or wanted == size for wanted, size in zip(condition.shape, left.shape, strict=True)
        ):
            return F.dropout(left * (1.0 - condition.rate), condition.rate)
        return left * condition.numbers()
    if is_numpy(condition) and condition.shape == ():
        return left if bool(condition) else right
    if all(is_numpy(item) for item in f.inputs):
        return np.where(condition, left, right)
    if f.type == "Select" and len(condition.shape) == 1 and len(left.shape) > 1:
        condition = condition.reshape(-1, *(1 for _ in left.shape[1:]))
    left, right = tensor(left), tensor(right)
    return torch.where(tensor(condition), left, right)


@translates("Cast")
def _cast(f: Function) -> Any:
    value, dtype = f.inputs[0], f.attribute("DstT")
    if is_numpy(value):
        return value if value.dtype == object else value.astype(dtype)
    kind = np.dtype(dtype)
    if kind.name == "bfloat16":
        raise UnsupportedModelError(
            "values of type bfloat16: use float32, and mixed_precision=True of the job"
        )
    return tensor(value).to(getattr(torch, kind.name))


@translates("AddN")
def _sum_of_inputs(f: Function) -> Any:
    total = tensor(f.inputs[0])
    for item in f.inputs[1:]:
        total = total + tensor(item)
    return total


@translates("ClipByValue")
def _clip(f: Function) -> Any:
    x, least, most = (number(item) for item in f.inputs)
    return torch.clamp(tensor(x), least, most)


def _reduction(name: str) -> Translation:
    def translation(f: Function) -> Any:
        value, axes = f.inputs[0], sizes(f.inputs[1])
        keep = f.attribute("keep_dims")
        if is_numpy(value):
            function = getattr(np, {"amax": "max", "amin": "min"}.get(name, name))
            return np.asarray(function(value, axis=tuple(axes), keepdims=keep))
        value = tensor(value)
        if not axes:
            return value
        if name in ("sum", "mean") and len(axes) == value.dim() and not keep:
            return getattr(torch, name)(value)
        if name in ("any", "all", "prod"):
            for axis in sorted((axis % value.dim() for axis in axes), reverse=True):
                value = getattr(torch, name)(value, dim=axis, keepdim=keep)
            return value
        return getattr(torch, name)(value, dim=axes, keepdim=keep)

    return translation


REDUCTIONS = {
    "Sum": "sum",
    "Mean": "mean",
    "Max": "amax",
    "Min": "amin",
    "Prod": "prod",
    "Any": "any",
    "All": "all",
}
OPERATORS.update({name: _reduction(function) for name, function in REDUCTIONS.items()})


@translates("ArgMax", "ArgMin")
def _extreme(f: Function) -> Any:
    function = torch.argmax if f.type == "ArgMax" else torch.argmin
    return function(tensor(f.inputs[0]), dim=int(number(f.inputs[1])))


@translates("TopKV2")
def _top(f: Function) -> Any:
    return list(torch.topk(tensor(f.inputs[0]), int(number(f.inputs[1]))))


@translates("Cumsum")
def _cumulative_sum(f: Function) -> Any:
    x, axis = tensor(f.inputs[0]), int(number(f.inputs[1]))
    ordered = x.flip(axis) if f.attribute("reverse") else x
    total = torch.cumsum(ordered, axis)
    total = total - ordered if f.attribute("exclusive") else total
    return total.flip(axis) if f.attribute("reverse") else total
