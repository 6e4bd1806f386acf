"""Operators on each element: functions of one and of two numbers, comparisons, selection, types, dropout."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from math import prod
from typing import Any

import torch

from millrace.torch.document import DTYPES, Value
from millrace.torch.layout import Layout
from millrace.torch.operands import (
    BatchSize,
    Fixed,
    LabelLosses,
    Loss,
    Losses,
    Operand,
    Parameter,
    ParameterView,
    Ratio,
    Term,
    Traced,
    Uniform,
    UnsupportedModelError,
)
from millrace.torch.operators.registry import TRANSLATIONS, Translation, completed, translates
from millrace.torch.translator import Translator

BINARY = {
    **{"add": "add", "sub": "sub", "mul": "mul", "div": "div"},
    **{"maximum": "max", "minimum": "min", "fmax": "max", "fmin": "min", "pow": "pow"},
}
UNARY = [
    *("neg", "abs", "sign", "floor", "exp", "log", "sqrt", "rsqrt", "reciprocal", "square"),
    *("sin", "cos", "erf"),
]
ACTIVATIONS = ["gelu", "relu", "silu", "sigmoid", "tanh"]
RELATIONS = ["eq", "ne", "lt", "le", "gt", "ge"]
NAMED_POWERS = {2: "square", -1: "reciprocal", 0.5: "sqrt", -0.5: "rsqrt"}


def binary(t: Translator, function: str, left: Value, right: Value) -> Value:
    """Add a function of two values."""
    shape = t.broadcast(left, right)
    return t.graph.node({"op": "binary", "function": function}, [left, right], shape)


def total(t: Translator, values: list[Value]) -> Value:
    """Add the sum of values, in their order."""
    return reduce(lambda left, right: binary(t, "add", left, right), values)


def unary(t: Translator, function: str, x: Value) -> Value:
    """Add a function of a value."""
    return t.graph.node({"op": "unary", "function": function}, [x], x.shape)


def mean_loss(t: Translator, x: Traced) -> Loss:
    """Return the mean of all elements of all samples as a loss."""
    path, elements = t.graph.path, prod(x.value.shape)
    value = t.cast(x.value, "f32")

    def emit(factor: float, weight: Value | None) -> None:
        t.graph.path = path
        t.graph.loss({"op": "sum_loss", "factor": factor / elements}, [value], weight)

    def of_samples() -> Value:
        axes = list(range(len(value.shape)))
        node = {"op": "reduce", "reduction": "mean", "axes": axes}
        return t.graph.node(node, [value], ()) if axes else value

    return Loss((Term(emit, of_samples, "batch_size", elements=value),))


def _binary(function: str) -> Translation:
    def translation(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
        if any(isinstance(item, Losses) for item in args):
            return _of_each_loss(t, function, *args[:2])
        if any(isinstance(item, Loss | Ratio) for item in args):
            return _arithmetic_of_losses(t, function, *_with_alpha(args, kwargs))
        if function == "add" and any(isinstance(item, Uniform) for item in args[:2]):
            numbers, shift = args[:2] if isinstance(args[0], Uniform) else reversed(args[:2])
            if isinstance(shift, int | float):
                return Uniform(numbers.layout, numbers.start + shift)
        left, right = (t.cast(t.value(item, layout), "f32") for item in args[:2])
        if kwargs.get("alpha", 1) != 1:
            right = binary(t, "mul", right, t.number(kwargs["alpha"]))
        return Traced(t.cast(binary(t, function, left, right), t.dtype), layout)

    return translation


def _with_alpha(args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
    """Return the operands of a sum, the second one times `alpha`."""
    alpha, second = kwargs.get("alpha", 1), args[1]
    return [
        args[0],
        second if alpha == 1 else second.times(alpha) if isinstance(second, Loss) else second * alpha,
    ]


def _of_each_loss(t: Translator, function: str, left: Operand, right: Operand) -> Losses:
    """Return the results of a function of each of several losses and one number, or one for each."""
    count = len((left if isinstance(left, Losses) else right).items)

    def item(operand: Operand, at: int) -> Operand:
        if isinstance(operand, Losses):
            return operand.items[at]
        if isinstance(operand, Fixed):
            return float(operand.tensor.expand(count)[at])
        if isinstance(operand, Parameter | ParameterView | Traced):
            value = t.reshape(t.traced(operand).value, (prod(t.traced(operand).value.shape),))
            if value.shape != (1,):
                node = {"op": "slice", "axis": 0, "start": at, "end": at + 1}
                value = t.graph.node(node, [value], (1,))
            return Traced(value, Layout((1,)))
        return operand

    results = [_arithmetic_of_losses(t, function, item(left, at), item(right, at)) for at in range(count)]
    losses = tuple(result for result in results if isinstance(result, Loss))
    if len(losses) < count:
        raise UnsupportedModelError(NO_MEAN)
    return Losses(losses)


def _arithmetic_of_losses(t: Translator, function: str, left: Operand, right: Operand) -> Loss | Ratio:
    if function in ("add", "sub"):
        # A number that depends on parameters only, such as the sum of their squares, is its own mean.
        left, right = (
            mean_loss(t, t.traced(item)) if is_of_parameters(item) else item for item in (left, right)
        )
    if function in ("add", "sub") and all(isinstance(item, Loss | Ratio) for item in (left, right)):
        left, right = (item.as_loss() if isinstance(item, Ratio) else item for item in (left, right))
        return Loss(left.terms + right.times(1.0 if function == "add" else -1.0).terms)
    if function == "div" and isinstance(left, Loss) and isinstance(right, Loss):
        return Ratio(left, right)
    is_left = isinstance(left, Loss | Ratio)
    loss: Loss | Ratio = left if is_left else right
    number = right if is_left else left
    if isinstance(number, Fixed) and number.layout.axis is None and number.tensor.numel() == 1:
        number = float(number.tensor)
    if isinstance(number, int | float):
        if function == "add" and number == 0:
            return loss
        if function == "mul":
            return loss.times(number)
        if function == "div" and is_left:
            return loss.times(1.0 / number)
        if function in ("add", "maximum") and is_count(t, loss) and 0 < number <= LEAST[function]:
            return loss
        if function in ("add", "sub") and isinstance(loss, Loss):
            constant = mean_loss(t, Traced(t.number(number), Layout(())))
            return _arithmetic_of_losses(t, function, *((loss, constant) if is_left else (constant, loss)))
    if (
        isinstance(loss, Loss)
        and is_of_parameters(number)
        and (function == "mul" or (function == "div" and is_left))
    ):
        return loss_times_value(t, loss, function, t.reshape(t.traced(number).value, ()))
    if function == "div" and isinstance(left, Loss) and (multiple := _multiple_of_batch(number)):
        return left.by_samples(multiple)
    raise UnsupportedModelError(NO_MEAN)


LEAST = {"add": 1e-5, "maximum": 1.0}
"""What a number of elements, by which a sum is divided, may be increased by, or be at least."""

NO_MEAN = (
    "a mean over the batch can be multiplied by numbers and added to another, and nothing else: apply other "
    "functions to the losses of each sample, before the mean"
)


def is_count(t: Translator, loss: Loss | Ratio) -> bool:
    """Return whether a sum over the batch counts elements, with 1 for each that counts and 0 for others."""
    if not isinstance(loss, Loss) or len(loss.terms) != 1:
        return False
    elements = loss.terms[0].elements
    return elements is not None and t.is_indicator(elements)


def loss_times_value(t: Translator, loss: Loss, function: str, number: Value) -> Loss:
    """Return a loss multiplied or divided by a number that depends on parameters."""
    terms = []
    for term in loss.terms:
        total = binary(t, function, term.of_samples(), number)
        new = sum_term(t, total)
        terms.append(
            replace(term, emit=new.emit, of_samples=new.of_samples, labels=None, elements=new.elements)
        )
        if term.labels is not None and term.scaling == "num_tokens":
            terms.append(count_term(t, compared(t, "ge", term.labels, t.number(0, "i32")), term.labels))
    return Loss(tuple(terms))


def sum_term(t: Translator, value: Value) -> Term:
    """Return the sum of a value's elements as a term."""
    (term,) = mean_loss(t, Traced(value, Layout((1, *value.shape), 0))).as_sum(prod(value.shape)).terms
    return term


def compared(t: Translator, relation: str, left: Value, right: Value) -> Value:
    """Add a comparison of two values."""
    shape = t.broadcast(left, right)
    return t.graph.node({"op": "compare", "relation": relation}, [left, right], shape, "bool")


def count_term(t: Translator, mask: Value, labels: Value | None = None) -> Term:
    """Return a term that is 0, and makes the sum of all terms be divided by the number of true elements.

    It is a cross-entropy with one class. `labels` are those that another term counts in the same way.
    """
    path, shape = t.graph.path, mask.shape
    both = [t.number(0, "i32"), t.number(-1, "i32")]
    counted = t.graph.node({"op": "select"}, [mask, *both], shape, "i32")
    logits = t.expand(t.number(0.0), (*shape, 1))

    def emit(factor: float, weight: Value | None) -> None:
        t.graph.path = path
        t.graph.loss({"op": "logits_cross_entropy", "factor": factor}, [logits, counted], weight)

    labels = counted if labels is None else labels
    return Term(emit, lambda: t.number(0.0), "num_tokens", labels=labels, counted=labels, only_counts=True)


def _multiple_of_batch(number: Operand) -> int | None:
    """Return by what the number of samples is multiplied; None if the number is no multiple of it."""
    if isinstance(number, torch.SymInt):
        return Layout.of([number]).merged
    if isinstance(number, BatchSize) and number.tensor.numel() == 1:
        multiple, remainder = divmod(int(number.tensor), 2)
        return multiple if remainder == 0 and multiple * 3 == int(number.next) else None
    return None


def is_of_parameters(operand: Operand) -> bool:
    """Return whether an operand is one number that depends on parameters and on no sample."""
    if isinstance(operand, Parameter | ParameterView):
        return prod(operand.shape) == 1
    return isinstance(operand, Traced) and operand.layout.axis is None and prod(operand.value.shape) == 1


@translates("pow.Tensor_Scalar")
def _power(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x = t.cast(t.value(args[0], layout), "f32")
    if args[1] in NAMED_POWERS:
        return Traced(t.cast(unary(t, NAMED_POWERS[args[1]], x), t.dtype), layout)
    return Traced(t.cast(binary(t, "pow", x, t.number(args[1])), t.dtype), layout)


@translates("rsub")
def _reversed_difference(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    return TRANSLATIONS["sub"](t, layout, [args[1], args[0]], kwargs)


def _unary(function: str) -> Translation:
    def translation(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
        if isinstance(args[0], Loss) and function == "neg":
            return args[0].times(-1.0)
        if isinstance(args[0], Uniform) and function == "floor":
            return TRANSLATIONS["bernoulli.p"](t, layout, [None, args[0].start], {})
        x = t.cast(t.value(args[0], layout), "f32")
        return Traced(t.cast(unary(t, function, x), t.dtype), layout)

    return translation


def activation(t: Translator, kind: str, x: Value) -> Value:
    """Add an activation of a value."""
    return t.graph.node({"op": "activation", "kind": kind}, [x], x.shape)


def _activation(kind: str) -> Translation:
    def translation(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
        x = t.cast(t.value(args[0], layout), "f32")
        is_tanh = kind == "gelu" and kwargs.get("approximate") == "tanh"
        y = activation(t, "gelu_tanh" if is_tanh else kind, x)
        return Traced(t.cast(y, t.dtype), layout)

    return translation


@translates("native_dropout")
def _dropout(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x, rate = t.value(args[0], layout), float(args[1])
    y = x if rate == 0 else t.graph.node({"op": "dropout", "rate": rate}, [x], x.shape)
    return [Traced(y, layout), None]


def _comparison(relation: str) -> Translation:
    def translation(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
        left, right = t.value(args[0], layout), args[1]
        is_integer = isinstance(right, int) and left.dtype == "i32"
        right = t.number(right, "i32") if is_integer else t.value(right, layout)
        if left.dtype != right.dtype:
            left, right = t.cast(left, "f32"), t.cast(right, "f32")
        shape = t.broadcast(left, right)
        node = {"op": "compare", "relation": relation}
        return Traced(t.graph.node(node, [left, right], shape, "bool"), layout)

    return translation


def _logical(function: str) -> Translation:
    def translation(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
        if t.dtype != "bool":
            raise UnsupportedModelError("an operation on the bits of integers")
        left, right = (t.cast(t.value(item, layout), "bool") for item in args[:2])
        shape = t.broadcast(left, right)
        return Traced(
            t.graph.node({"op": "logical", "function": function}, [left, right], shape, "bool"), layout
        )

    return translation


@translates("logical_not", "bitwise_not")
def _negation(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    if t.dtype != "bool":
        raise UnsupportedModelError("an operation on the bits of integers")
    x = t.cast(t.value(args[0], layout), "bool")
    false = t.graph.constant(torch.tensor(False))
    return Traced(t.graph.node({"op": "compare", "relation": "eq"}, [x, false], x.shape, "bool"), layout)


@translates("where")
def _where(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    if isinstance(args[0], Fixed) and args[0].tensor.numel() == 1:
        chosen = args[1] if bool(args[0].tensor) else args[2]
        if isinstance(chosen, Loss):
            return chosen
    condition = t.cast(t.value(args[0], layout), "bool")
    a, b = (t.cast(t.value(item, layout), t.dtype) for item in args[1:3])
    return Traced(
        t.graph.node({"op": "select"}, [condition, a, b], t.broadcast(condition, a, b), t.dtype), layout
    )


@translates("clamp", "hardtanh")
def _clamp(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    _, least, most = completed(args, None, kwargs.get("min"), kwargs.get("max"))
    if isinstance(args[0], Loss) and is_count(t, args[0]) and most is None and 0 < least <= LEAST["maximum"]:
        return args[0]
    x = t.cast(t.value(args[0], layout), "f32")
    for function, bound in (("max", least), ("min", most)):
        if bound is not None:
            x = binary(t, function, x, t.value(bound, layout))
    return Traced(t.cast(x, t.dtype), layout)


@translates("_to_copy", "to")
def _convert(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    dtype = kwargs.get("dtype")
    if dtype is not None and dtype not in DTYPES:
        raise UnsupportedModelError(
            f"values of type {dtype}: use float32, integers and bool, and mixed_precision=True in place of "
            "autocast"
        )
    is_whole = isinstance(args[0], Parameter | ParameterView | LabelLosses | Loss | Losses | Ratio)
    if is_whole or dtype is None:
        return args[0]
    return Traced(t.cast(args[0].value, DTYPES[dtype]), layout)


@translates("stop_gradient")
def _stop_gradient(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x = t.value(args[0], layout)
    return Traced(t.graph.node({"op": "stop_gradient"}, [x], x.shape), layout)


@translates("full_like")
def _fill(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    return Traced(t.expand(t.number(args[1], t.dtype), layout.sample), layout)


@translates("clone", "alias", "lift_fresh_copy", "contiguous")
def _identity(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    return args[0]


TRANSLATIONS.update({name: _binary(function) for name, function in BINARY.items()})
TRANSLATIONS.update({name: _unary(name) for name in UNARY})
TRANSLATIONS.update({name: _activation(name) for name in ACTIVATIONS})
TRANSLATIONS.update({name: _comparison(name) for name in RELATIONS})
for _name in ("and", "or", "xor"):
    TRANSLATIONS[f"logical_{_name}"] = TRANSLATIONS[f"bitwise_{_name}"] = _logical(_name)
