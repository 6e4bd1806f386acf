"""The terms of a loss, as a graph has them."""

from __future__ import annotations

from dataclasses import replace

from millrace.torch.operands import Loss, Losses, Operand, Ratio, Term, UnsupportedModelError
from millrace.torch.operators.elementwise import binary, count_term, is_count, sum_term
from millrace.torch.operators.functions import times
from millrace.torch.translator import Translator

MAX_TERMS = 4
"""Maximum operators of a graph that are losses."""


def terms_of(t: Translator, loss: Operand) -> list[Term]:
    """Return the terms whose sum is minimized, at most four. All are divided by the same number.

    Raises `UnsupportedModelError` if a graph has no such loss.
    """
    if isinstance(loss, Losses) and len(loss.items) == 1:
        loss = loss.items[0]
    if isinstance(loss, Ratio):
        loss = _counted_mean(t, loss)
    if not isinstance(loss, Loss):
        raise UnsupportedModelError(
            "the loss is not a mean over the samples of the batch; use reduction='mean'"
        )
    scalings = {term.scaling for term in loss.terms}
    if len(scalings) > 1:
        raise UnsupportedModelError(
            "the losses are divided by different numbers, of labels, of samples, or not at all: write the "
            "cross-entropy of several labels of each sample with reduction='none' and mean(), which counts "
            "ignored labels, too"
        )
    labels = {term.labels.number for term in loss.terms if term.labels}
    if scalings == {"num_tokens"} and len(labels) > 1:
        raise UnsupportedModelError(
            "the losses are means over different labels: use one loss, or none with ignore_index if no label "
            "is ignored, such as reduction='none' and mean()"
        )
    return _at_most(t, list(loss.terms))


def _counted_mean(t: Translator, ratio: Ratio) -> Loss:
    """Return a sum over the batch divided by the number of elements that count in it."""
    (divisor, *_), dividend = ratio.divisor.terms, ratio.dividend
    scalings = {term.scaling for term in (*dividend.terms, divisor)}
    if not is_count(t, ratio.divisor) or len(scalings) > 1 or "num_tokens" in scalings:
        raise UnsupportedModelError(
            "a division by a sum over the batch: the divisor may be the sum of a mask, such as "
            "(labels != 0).float(); else use cross_entropy with ignore_index, or a mean"
        )
    assert divisor.elements is not None
    count = _elements(divisor)
    terms = [
        replace(term, scaling="num_tokens", factor=term.factor * ratio.factor / count)
        for term in dividend.terms
    ]
    mask = t.cast(divisor.elements, "bool")
    return Loss((*(replace(term, labels=None) for term in terms), count_term(t, mask)))


def _elements(divisor: Term) -> float:
    """Return what the number of elements that count is multiplied by."""
    assert divisor.elements is not None
    total = 1
    for size in divisor.elements.shape:
        total *= size
    return divisor.factor / total


def _at_most(t: Translator, terms: list[Term]) -> list[Term]:
    """Return terms of which all but the last ones are added up, if there are too many."""
    while len(terms) > MAX_TERMS:
        first, second, *others = terms
        both = [times(t, term.of_samples(), term.factor) for term in (first, second)]
        total = replace(sum_term(t, binary(t, "add", *both)), scaling=first.scaling)
        terms = [total, *others]
    return terms
