"""Losses that are divided by different sums over the batch, compared with PyTorch in f64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from millrace.torch import UnsupportedModelError, trace
from torch_reference import check_loss_and_gradients, in_double, results_of

SAMPLES, LENGTH, WORDS, CLASSES = 6, 5, 13, 4


def rows() -> dict[str, Any]:
    """Return a batch of numbers, labels of which some are ignored, weights, and two masks."""
    labels = torch.randint(0, CLASSES, (SAMPLES, LENGTH))
    labels[torch.rand(SAMPLES, LENGTH) < 0.4] = -100
    return {
        "x": torch.randn(SAMPLES, LENGTH, 8),
        "labels": labels,
        "weights": torch.rand(SAMPLES, LENGTH) + 0.1,
        "mask": (torch.rand(SAMPLES, LENGTH) < 0.5).float(),
    }


class Model(nn.Module):
    """Classifies rows, and computes a loss of its own."""

    def __init__(self, loss: Any) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 12), nn.Linear(12, CLASSES)
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("classes", torch.tensor([0.2, 1.0, 3.0, 0.7]))
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.loss = loss

    def forward(self, x: Any, labels: Any, weights: Any, mask: Any) -> Any:
        hidden = self.body(x).tanh()
        return self.loss(self, hidden, self.head(hidden), labels, weights, mask)


def means_over_labels_and_samples(
    m: Any, hidden: Any, logits: Any, labels: Any, weights: Any, mask: Any
) -> Any:
    of_first = F.cross_entropy(logits[:, 0], labels[:, 0].clamp(min=0))
    return of_first + 0.5 * F.cross_entropy(logits.transpose(1, 2), labels) + hidden.square().mean()


def means_over_different_labels(
    m: Any, hidden: Any, logits: Any, labels: Any, weights: Any, mask: Any
) -> Any:
    others = torch.where(labels == 2, -100, labels)
    logits = logits.transpose(1, 2)
    return F.cross_entropy(logits, labels) + F.cross_entropy(logits, others, label_smoothing=0.1)


def class_weights(m: Any, hidden: Any, logits: Any, labels: Any, weights: Any, mask: Any) -> Any:
    return nn.CrossEntropyLoss(m.classes)(logits.flatten(0, 1), labels.flatten())


def class_weights_of_likelihoods(
    m: Any, hidden: Any, logits: Any, labels: Any, weights: Any, mask: Any
) -> Any:
    likelihoods = F.log_softmax(logits, -1).transpose(1, 2)
    return 2 * F.nll_loss(likelihoods, labels, m.classes) - 0.1 * hidden.mean()


def masked_means(m: Any, hidden: Any, logits: Any, labels: Any, weights: Any, mask: Any) -> Any:
    x, y = hidden.square().mean(-1), logits.square().mean(-1)
    return (x * mask).sum() / mask.sum() + (y * weights).sum() / weights.sum() / 3


def weighted_mean(m: Any, hidden: Any, logits: Any, labels: Any, weights: Any, mask: Any) -> Any:
    return (hidden.square().mean(-1) * weights).mean() / weights.mean()


def scaled_by_parameter(m: Any, hidden: Any, logits: Any, labels: Any, weights: Any, mask: Any) -> Any:
    return m.scale * F.cross_entropy(logits.transpose(1, 2), labels) + hidden.square().mean()


def many_means(m: Any, hidden: Any, logits: Any, labels: Any, weights: Any, mask: Any) -> Any:
    """Six means, of which four have the same divisor."""
    total = F.cross_entropy(logits.transpose(1, 2), labels) + class_weights(m, hidden, logits, labels, 0, 0)
    return total + sum((hidden * (at + 1)).sin().mean() for at in range(4))


LOSSES = [
    *(
        means_over_labels_and_samples,
        means_over_different_labels,
        class_weights,
        class_weights_of_likelihoods,
    ),
    *(masked_means, weighted_mean, scaled_by_parameter, many_means),
]


@pytest.mark.parametrize("loss", LOSSES)
def test_losses_have_divisors_of_their_own(loss: Any) -> None:
    """Also in another batch, with other divisors, than the traced one."""
    torch.manual_seed(2)
    model = Model(loss)
    traced = trace(model, {name: data[:2] for name, data in rows().items()})
    document = traced.document
    losses = [node for node in document["nodes"] if node["output"] is None]
    assert document["reduction"] == "samples" and len(losses) <= 4
    batch, model = in_double(rows()), model.double()
    check_loss_and_gradients(traced, document, model, batch, model(*batch.values()))


def test_bert_has_its_losses_of_pretraining() -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(3)
    sizes = {"vocab_size": WORDS, "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 24}
    config = transformers.BertConfig(intermediate_size=48, max_position_embeddings=LENGTH, **sizes)
    model = transformers.BertForPreTraining(config)

    def batch() -> dict[str, Any]:
        labels = torch.randint(0, WORDS, (SAMPLES, LENGTH))
        labels[torch.rand(SAMPLES, LENGTH) < 0.6] = -100
        ids, next_sentence = torch.randint(0, WORDS, (SAMPLES, LENGTH)), torch.randint(0, 2, (SAMPLES,))
        return {"input_ids": ids, "labels": labels, "next_sentence_label": next_sentence}

    def call(model: Any, ids: Any, labels: Any, next_sentence: Any) -> Any:
        return model(input_ids=ids, labels=labels, next_sentence_label=next_sentence).loss

    traced = trace(model, {name: data[:2] for name, data in batch().items()}, call=call)
    *_, first, last = (node for node in traced.document["nodes"] if node["output"] is None)
    # The accuracy is that of the masked tokens, which are the main loss.
    assert (len(first["inputs"]), len(last["inputs"])) == (2, 3)
    other, model = batch(), model.double().eval()
    check_loss_and_gradients(traced, traced.document, model, other, call(model, *other.values()))


def test_ratio_of_sums_is_a_loss_and_a_metric() -> None:
    torch.manual_seed(4)

    def loss(*args: Any) -> Any:
        value = class_weights(*args)
        return value, {"weighted": value.detach()}

    model = Model(loss)
    traced = trace(model, rows())
    batch, model = in_double(rows()), model.double()
    total, metrics = results_of(traced.document, batch, traced.tensors(model))
    torch.testing.assert_close(total, metrics["weighted"], rtol=1e-12, atol=0.0)
    torch.testing.assert_close(total, model(*batch.values())[0], rtol=1e-6, atol=0.0)


def five_divisors(m: Any, hidden: Any, logits: Any, labels: Any, weights: Any, mask: Any) -> Any:
    x = hidden.mean(-1)
    return sum((x * weights**power).sum() / (weights**power).sum() for power in range(1, 6))


@pytest.mark.parametrize(
    ("loss", "part"),
    [
        (lambda m, h, x, y, w, k: (h.mean(-1) * w).sum() / h.square().sum(), "depends on parameters"),
        (lambda m, h, x, y, w, k: h.sum() / w.mean(), "divide a sum by a sum"),
        (lambda m, h, x, y, w, k: h.sum() + x.mean(), "one of the losses is a sum over the batch"),
        (five_divisors, "a sum of 5 means with different divisors"),
    ],
)
def test_divisors_that_can_not_be_computed_are_rejected(loss: Any, part: str) -> None:
    with pytest.raises(UnsupportedModelError, match=part):
        trace(Model(loss), rows())
