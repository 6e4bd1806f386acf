"""Losses: means over the samples of a batch, or over its labels."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from millrace.torch.document import Value
from millrace.torch.layout import Layout
from millrace.torch.operands import LabelLosses, Loss, Operand, Ratio, Term, Traced
from millrace.torch.operators.elementwise import binary, count_term, mean_loss, sum_term, unary
from millrace.torch.operators.functions import compare, plus, select, times
from millrace.torch.operators.reductions import reduce
from millrace.torch.operators.registry import completed, translates
from millrace.torch.operators.shapes import permute
from millrace.torch.translator import Translator

NONE, MEAN, SUM = 0, 1, 2
"""The numbers of the reductions `none`, `mean` and `sum` in PyTorch."""


@translates("cross_entropy_loss")
def _cross_entropy(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x, y, weight, reduction, ignored, smoothing = completed(args, None, None, None, MEAN, -100, 0.0)
    logits = t.traced(x)
    rows = _rows(t, logits)
    if not isinstance(y, Traced) or y.value.dtype != "i32":
        targets = _rows(t, Traced(t.value(y, logits.layout), logits.layout))
        return _of_probabilities(t, rows, targets, [weight, reduction, smoothing], layout)
    targets = y.value if ignored < 0 else _without(t, y.value, ignored)
    if weight is not None and reduction == SUM:
        return Loss((sum_term(t, _of_each_label(t, rows, targets, weight, smoothing)),))
    if reduction == NONE:
        if weight is None and not smoothing:
            return _label_losses(t, rows, targets, layout)
        return Traced(_of_each_label(t, rows, targets, weight, smoothing), layout)
    if weight is not None:
        return _weighted_mean(t, _of_each_label(t, rows, targets, weight, smoothing), rows, targets, weight)
    scaling, terms = "sum" if reduction == SUM else _scaling(targets, ignored), []
    if smoothing:
        even = _even_entropy(t, _log_probabilities(t, rows))
        counted = select(t, _counts(t, targets), even, t.number(0.0))
        even_term = _term(t, {"op": "sum_loss"}, [counted], smoothing, scaling)
        terms.append(replace(even_term, counted=targets))
    # The last loss of a graph is the one whose labels count.
    terms.append(_term(t, {"op": "logits_cross_entropy"}, [rows, targets], 1.0 - smoothing, scaling, targets))
    return Loss(tuple(terms))


def _label_losses(t: Translator, rows: Value, labels: Value, layout: Layout) -> LabelLosses:
    """Return the cross-entropy of each label, and their mean, to which labels that do not count add 0."""
    path = t.graph.path

    def emit() -> Value:
        here, t.graph.path = t.graph.path, path
        value = _of_each_label(t, rows, labels, None, 0.0)
        t.graph.path = here
        return value

    op = {"op": "logits_cross_entropy"}
    mean = _term(t, op, [rows, labels], 1.0 / prod(labels.shape), "batch_size", labels)
    return LabelLosses(emit, Loss((mean,)), layout)


def _term(
    t: Translator,
    op: dict[str, Any],
    inputs: list[Value],
    factor: float,
    scaling: str,
    labels: Value | None = None,
) -> Term:
    path = t.graph.path

    def emit(times: float, weight: Value | None) -> None:
        t.graph.path = path
        t.graph.loss(op | {"factor": times * factor}, inputs, weight)

    def of_samples() -> Value:
        losses = inputs[0] if labels is None else _of_each_label(t, inputs[0], labels, None, 0.0)
        return times(t, reduce(t, losses, list(range(len(losses.shape))), "sum", keep=False), factor)

    return Term(emit, of_samples, scaling, labels=labels, counted=labels)


def _scaling(labels: Value, ignored: int) -> str:
    """Return what a mean over labels is divided by. A sample's only label counts, unless it is ignored."""
    return "num_tokens" if labels.shape or ignored >= 0 else "batch_size"


def _rows(t: Translator, x: Traced) -> Value:
    """Return values with the dimension of classes, which is dimension 1 of PyTorch, as the last one."""
    axis, rank = x.layout.dimension(1 if x.layout.rank > 1 else 0), len(x.value.shape)
    return permute(t, x.value, [at for at in range(rank) if at != axis] + [axis])


def _log_probabilities(t: Translator, rows: Value) -> Value:
    return t.graph.node({"op": "softmax", "log": True}, [rows], rows.shape)


def _even_entropy(t: Translator, log_probabilities: Value) -> Value:
    """Add the cross-entropy of each row with even probabilities, whose logarithms may have weights."""
    axis = len(log_probabilities.shape) - 1
    return unary(t, "neg", reduce(t, log_probabilities, [axis], "mean", keep=False))


def _counts(t: Translator, labels: Value) -> Value:
    """Add whether each label counts."""
    return compare(t, "ge", labels, t.number(0, "i32"))


def _at_labels(t: Translator, rows: Value, labels: Value) -> Value:
    """Add the element of each row at its label; that of class 0 for a label that does not count."""
    counted_labels = select(t, _counts(t, labels), labels, t.number(0, "i32"))
    column = t.reshape(counted_labels, (*counted_labels.shape, 1))
    chosen = t.graph.node({"op": "gather", "axis": len(rows.shape) - 1}, [rows, column], column.shape)
    return t.reshape(chosen, counted_labels.shape)


def _of_each_label(t: Translator, rows: Value, labels: Value, weight: Operand, smoothing: float) -> Value:
    """Add the cross-entropy of each label, 0 for one that does not count."""
    log_probabilities = _log_probabilities(t, rows)
    losses = unary(t, "neg", _at_labels(t, log_probabilities, labels))
    weights = None if weight is None else t.expand(t.traced(weight).value, rows.shape)
    if weights is not None:
        losses = binary(t, "mul", losses, _at_labels(t, weights, labels))
    if smoothing:
        if weights is not None:
            log_probabilities = binary(t, "mul", log_probabilities, weights)
        even = times(t, _even_entropy(t, log_probabilities), smoothing)
        losses = binary(t, "add", times(t, losses, 1.0 - smoothing), even)
    return select(t, _counts(t, labels), losses, t.number(0.0))


def _weighted_mean(t: Translator, losses: Value, rows: Value, labels: Value, weight: Operand) -> Ratio:
    """Return losses with weights of classes as their mean: divided by the weights of all labels."""
    weights = _at_labels(t, t.expand(t.traced(weight).value, rows.shape), labels)
    counted = select(t, _counts(t, labels), weights, t.number(0.0))
    return Ratio(Loss((sum_term(t, losses),)), Loss((sum_term(t, counted),)))


def _of_probabilities(t: Translator, rows: Value, targets: Value, how: list[Any], layout: Layout) -> Operand:
    """Add the cross-entropy with probabilities, of which each row has one for each class."""
    weight, reduction, smoothing = how
    axis = len(rows.shape) - 1
    if smoothing:
        targets = plus(t, times(t, targets, 1.0 - smoothing), smoothing / rows.shape[axis])
    if weight is not None:
        targets = binary(t, "mul", targets, t.traced(weight).value)
    products = binary(t, "mul", _log_probabilities(t, rows), targets)
    losses = unary(t, "neg", reduce(t, products, [axis], "sum", keep=False))
    if reduction == NONE:
        return Traced(losses, layout)
    mean = mean_loss(t, Traced(losses, Layout((1, *losses.shape), 0)))
    return mean if reduction == MEAN else mean.as_sum(prod(losses.shape))


@translates("nll_loss", "nll_loss_nd", "nll_loss2d")
def _negative_log_likelihood(
    t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]
) -> Operand:
    x, y, weight, reduction, ignored = completed(args, None, None, None, MEAN, -100)
    rows = _rows(t, t.traced(x))
    labels = t.traced(y).value
    targets = labels if ignored < 0 else _without(t, labels, ignored)
    if reduction == MEAN and weight is None and _is_log_softmax(t, rows):
        # The logarithm of the softmax of such values are the values, with the same gradient.
        op = {"op": "logits_cross_entropy"}
        return Loss((_term(t, op, [rows, targets], 1.0, _scaling(targets, ignored), targets),))
    losses = unary(t, "neg", _at_labels(t, rows, targets))
    if weight is not None:
        losses = binary(
            t, "mul", losses, _at_labels(t, t.expand(t.traced(weight).value, rows.shape), targets)
        )
    losses = select(t, _counts(t, targets), losses, t.number(0.0))
    if reduction == NONE:
        return Traced(losses, layout)
    total = sum_term(t, losses)
    if reduction == SUM:
        return Loss((total,))
    if weight is not None:
        return _weighted_mean(t, losses, rows, targets, weight)
    total = replace(total, scaling=_scaling(targets, ignored), counted=targets)
    count = count_term(t, _counts(t, targets), targets)
    return Loss((total, count) if total.scaling == "num_tokens" else (total,))


def _is_log_softmax(t: Translator, x: Value) -> bool:
    """Return whether a value is a logarithm of a softmax, perhaps with its rows in another order."""
    number = x.number
    for node in reversed(t.graph.nodes):
        if node["output"] == number:
            if node["op"]["op"] not in ("reshape", "permute"):
                return bool(node["op"] == {"op": "softmax", "log": True})
            number = node["inputs"][0]
    return False


def _without(t: Translator, labels: Value, ignored: int) -> Value:
    """Return labels of which those that are `ignored` do not count. Losses of the same labels share them."""
    key = labels.number, ignored
    if key not in t.counted_labels:
        node = {"op": "compare", "relation": "eq"}
        is_ignored = t.graph.node(node, [labels, t.number(ignored, "i32")], labels.shape, "bool")
        inputs = [is_ignored, t.number(-1, "i32"), labels]
        t.counted_labels[key] = t.graph.node({"op": "select"}, inputs, labels.shape, "i32")
    return t.counted_labels[key]


@translates("mse_loss")
def _squared_error(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x, y, reduction = completed([t.traced(args[0]), *args[1:]], None, None, MEAN)
    difference = binary(t, "sub", x.value, t.value(y, x.layout))
    squares = Traced(unary(t, "square", difference), x.layout)
    if reduction == NONE:
        return squares
    mean = mean_loss(t, squares)
    return mean if reduction == MEAN else mean.as_sum(prod(squares.value.shape))
