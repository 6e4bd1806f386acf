"""Metrics of a traced module: numbers that it returns beside its loss."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch

from millrace.torch.document import Value
from millrace.torch.operands import (
    Fixed,
    Loss,
    Operand,
    Parameter,
    ParameterView,
    Ratio,
    Traced,
    UnsupportedModelError,
)
from millrace.torch.operators.elementwise import mean_loss
from millrace.torch.operators.functions import compare, times
from millrace.torch.operators.reductions import reduce
from millrace.torch.operators.terms import sum_of_samples
from millrace.torch.translator import Translator

_NAME = re.compile(r"[A-Za-z0-9_./-]{1,100}")
"""The names that metrics have in a graph."""

_TAKEN = frozenset({"loss", "learning_rate", "grad_norm"})
"""The names of what every job reports."""


def loss_and_metrics(result: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    """Return the loss of what a module or its loss returns, and the metrics by their names.

    A mapping has the loss as `loss`; its other numbers are metrics. A tuple begins with the loss, which a
    mapping of metrics may follow.

    Raises `UnsupportedModelError` if a mapping has no loss, a metric can't have its name, or it is the result
    of `item()`.
    """
    others: Any = {}
    if isinstance(result, Mapping):
        if "loss" not in result:
            names = ", ".join(map(str, result)) or "nothing"
            raise UnsupportedModelError(
                f"the module returns {names} and no 'loss': give it labels, or train it with loss="
            )
        loss, others = result["loss"], {name: value for name, value in result.items() if name != "loss"}
    elif isinstance(result, tuple | list) and result:
        loss, others = result[0], result[1] if len(result) > 1 else {}
    else:
        loss = result
    given = {str(name): value for name, value in others.items()} if isinstance(others, Mapping) else {}
    for name, value in given.items():
        if isinstance(value, torch.SymFloat | torch.SymInt):
            raise UnsupportedModelError(
                f"the metric {name} is the result of item(): return the tensor itself"
            )
    metrics = {name: value for name, value in given.items() if _is_number(value)}
    for name in metrics:
        if not _NAME.fullmatch(name):
            raise UnsupportedModelError(
                f"a metric is called {name!r}: use up to 100 letters, digits and the characters _-./"
            )
        if name in _TAKEN:
            raise UnsupportedModelError(f"a metric is called {name!r}, as what every job reports: rename it")
    return loss, metrics


def _is_number(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() == 0


def add_metric(t: Translator, name: str, operand: Operand) -> None:
    """Add the operators of a metric.

    Raises `UnsupportedModelError` if it is no mean over samples.
    """
    if isinstance(operand, Fixed | Parameter | ParameterView | Traced):
        # A number that no sample is part of.
        operand = mean_loss(t, t.traced(operand))
    # Operators outside modules belong to the last layer.
    t.graph.path = "root"
    try:
        value, weight = _value_and_weight(t, operand)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"the metric {name}: {error}") from error
    inputs = [value] if weight is None else [value, weight]
    t.graph.node({"op": "metric"}, inputs, (), name=name)


def _value_and_weight(t: Translator, operand: Operand) -> tuple[Value, Value | None]:
    """Return the number of each sample whose mean is the metric, and the weight of each if it has one."""
    if isinstance(operand, Ratio):
        scalings = {term.scaling for term in (*operand.dividend.terms, *operand.divisor.terms)}
        if len(scalings) == 1 and scalings <= {"sum", "batch_size"}:
            value = times(t, sum_of_samples(t, operand.dividend), operand.factor)
            return value, sum_of_samples(t, operand.divisor)
    if isinstance(operand, Loss):
        scalings = {term.scaling for term in operand.terms}
        labels = [term.labels for term in operand.terms if term.labels]
        if scalings == {"batch_size"}:
            return sum_of_samples(t, operand), None
        if scalings == {"num_tokens"} and len({value.number for value in labels}) == 1:
            counted = t.cast(compare(t, "ge", labels[0], t.number(0, "i32")), "f32")
            axes = list(range(len(counted.shape)))
            return sum_of_samples(t, operand), reduce(t, counted, axes, "sum", keep=False)
    raise UnsupportedModelError(
        "it is not a mean over the samples of the batch, nor a sum divided by another sum: compute it from "
        "means after the training, or leave it out"
    )
