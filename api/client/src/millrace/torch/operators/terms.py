"""The terms of a loss, as a graph has them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from millrace.torch.document import Value
from millrace.torch.operands import Loss, Losses, Operand, Ratio, Term, UnsupportedModelError
from millrace.torch.operators.elementwise import binary, compared, count_term, is_count, sum_term
from millrace.torch.operators.functions import times
from millrace.torch.operators.reductions import reduce
from millrace.torch.translator import Translator

MAX_TERMS = 4
"""Maximum operators of a graph that are losses."""

REDUCTIONS = {"num_tokens": "labels", "batch_size": "samples", "sum": "sum"}
"""The reduction of a document, by what the sum of the losses is divided by."""


@dataclass(frozen=True)
class _Divided:
    """A term, and what it is divided by: a key that is the same for the same divisor, and its weight."""

    term: Term
    key: tuple[str, int]
    weight: Value | None


def emit_losses(t: Translator, terms: list[Term]) -> str:
    """Add the operators of the terms of a loss; return the reduction of the document.

    If the terms are divided by different numbers, those that are not divided by the number of samples have
    weights: each is divided by the sum of its weight over the batch.
    """
    if _have_one_divisor(terms):
        for term in terms:
            term.emit(term.factor, None)
        return REDUCTIONS[terms[-1].scaling]
    for item in _at_most(t, _divided(t, terms)):
        item.term.emit(item.term.factor, item.weight)
    return "samples"


def terms_of(t: Translator, loss: Operand) -> list[Term]:
    """Return the terms whose sum is minimized.

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
    if len(scalings) > 1 and "sum" in scalings:
        raise UnsupportedModelError(
            "one of the losses is a sum over the batch, and another one a mean: use means, or sums only"
        )
    terms = list(loss.terms)
    if _have_one_divisor(terms):
        return [item.term for item in _at_most(t, [_Divided(term, ("", 0), None) for term in terms])]
    return terms


def _have_one_divisor(terms: list[Term]) -> bool:
    """Return whether all terms are divided by the same number, which needs no weight."""
    scalings = {term.scaling for term in terms}
    labels = {term.labels.number for term in terms if term.labels}
    return scalings in ({"sum"}, {"batch_size"}) or (scalings == {"num_tokens"} and len(labels) < 2)


def _counted_mean(t: Translator, ratio: Ratio) -> Loss:
    """Return a sum over the batch divided by the number of elements that count in it, or by another sum."""
    (divisor, *_), dividend = ratio.divisor.terms, ratio.dividend
    scalings = {term.scaling for term in (*dividend.terms, divisor)}
    if not is_count(t, ratio.divisor) or len(scalings) > 1 or not scalings <= {"sum", "batch_size"}:
        return ratio.as_loss()
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


def _divided(t: Translator, terms: list[Term]) -> list[_Divided]:
    """Return terms with the weights that they are divided by the sums of. Means over labels come last.

    The labels of the last loss of a graph are those whose accuracy is reported.
    """
    t.graph.path = "root"
    weights: dict[tuple[str, int], Value] = {}
    divided = []
    for term in terms:
        if term.only_counts:
            continue
        key, weight = ("batch_size", 0), None
        if term.scaling == "num_tokens":
            assert term.counted is not None
            key = "num_tokens", term.counted.number
            if key not in weights:
                counts = t.cast(compared(t, "ge", term.counted, t.number(0, "i32")), "f32")
                weights[key] = reduce(t, counts, list(range(len(counts.shape))), "sum", keep=False)
            weight = weights[key]
        elif term.scaling == "divisor":
            assert term.divisor is not None
            key = "divisor", id(term.divisor)
            if key not in weights:
                weights[key] = _without_parameters(t, sum_of_samples(t, term.divisor))
            weight = weights[key]
        divided.append(_Divided(term, key, weight))
    order = ["batch_size", "divisor", "num_tokens"]
    return sorted(divided, key=lambda item: order.index(item.key[0]))


def sum_of_samples(t: Translator, loss: Loss) -> Value:
    """Add the sum of all terms for each sample."""
    first, *others = [times(t, term.of_samples(), term.factor) for term in loss.terms]
    for other in others:
        first = binary(t, "add", first, other)
    return first


def _without_parameters(t: Translator, weight: Value) -> Value:
    """Return a weight. It is known before a step, so that it can't depend on parameters."""
    needed = {weight.number}
    for node in reversed(t.graph.nodes):
        if node["output"] not in needed:
            continue
        if node["params"]:
            raise UnsupportedModelError(
                "a division by a sum over the batch that depends on parameters: the divisor may depend on "
                "the data and on random numbers, such as the sum of a mask"
            )
        needed.update(node["inputs"])
    return weight


def _at_most(t: Translator, terms: list[_Divided]) -> list[_Divided]:
    """Return terms of which the first ones with the same divisor are added up, if there are too many."""
    terms = list(terms)
    while len(terms) > MAX_TERMS:
        at = next((at for at in range(len(terms) - 1) if terms[at].key == terms[at + 1].key), None)
        if at is None:
            raise UnsupportedModelError(
                f"the loss is a sum of {len(terms)} means with different divisors; at most {MAX_TERMS} are "
                "supported"
            )
        pair = [terms[at].term, terms[at + 1].term]
        first, second = (times(t, term.of_samples(), term.factor) for term in pair)
        total = replace(sum_term(t, binary(t, "add", first, second)), scaling=pair[0].scaling)
        terms[at : at + 2] = [replace(terms[at], term=total)]
    return terms
