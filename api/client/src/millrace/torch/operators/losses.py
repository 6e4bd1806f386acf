"""Losses: means over the samples of a batch, or over its labels."""

from __future__ import annotations

from typing import Any

from millrace.torch.document import Value
from millrace.torch.layout import Layout
from millrace.torch.operands import Loss, Operand, Term, Traced, UnsupportedModelError
from millrace.torch.operators.elementwise import binary, unary
from millrace.torch.operators.reductions import mean_loss
from millrace.torch.operators.registry import completed, translates
from millrace.torch.operators.shapes import permute
from millrace.torch.translator import Translator

MEAN = 1
"""The number of the reduction `mean` in PyTorch."""


@translates("cross_entropy_loss")
def _cross_entropy(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x, y, weight, reduction, ignored, smoothing = completed(args, None, None, None, MEAN, -100, 0.0)
    if weight is not None or smoothing != 0 or reduction != MEAN:
        raise UnsupportedModelError(
            "a cross-entropy with weights of classes, label smoothing, or without a mean"
        )
    logits, labels = t.traced(x), t.traced(y)
    if labels.value.dtype != "i32":
        raise UnsupportedModelError("a cross-entropy of labels that are probabilities")
    axis = logits.layout.dimension(1)
    rank = len(logits.value.shape)
    rows = permute(t, logits.value, [at for at in range(rank) if at != axis] + [axis])
    targets = labels.value if ignored < 0 else _without(t, labels.value, ignored)
    path = t.graph.path

    def emit(factor: float) -> None:
        t.graph.path = path
        t.graph.loss({"op": "logits_cross_entropy", "factor": factor}, [rows, targets])

    return Loss((Term(emit, "num_tokens" if targets.shape else "batch_size"),))


def _without(t: Translator, labels: Value, ignored: int) -> Value:
    """Return labels of which those that are `ignored` do not count."""
    node = {"op": "compare", "relation": "eq"}
    is_ignored = t.graph.node(node, [labels, t.number(ignored, "i32")], labels.shape, "bool")
    return t.graph.node({"op": "select"}, [is_ignored, t.number(-1, "i32"), labels], labels.shape, "i32")


@translates("mse_loss")
def _squared_error(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x, y, reduction = completed([t.traced(args[0]), *args[1:]], None, None, MEAN)
    if reduction != MEAN:
        raise UnsupportedModelError("a squared error without a mean")
    difference = binary(t, "sub", x.value, t.value(y, x.layout))
    return mean_loss(t, Traced(unary(t, "square", difference), x.layout))
