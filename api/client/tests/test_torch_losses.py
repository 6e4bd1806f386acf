"""Losses of PyTorch, and sums of them, are traced to graphs with the same loss and gradients."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from millrace.torch import trace
from torch_reference import SAMPLES, check_loss_and_gradients, in_double

ROWS, WIDTH, CLASSES = 7, 12, 5


def rows() -> Any:
    return torch.randn(SAMPLES, ROWS, WIDTH)


def smoothed(logits: Any, labels: Any) -> Any:
    return F.cross_entropy(logits.transpose(1, 2), labels, label_smoothing=0.1, ignore_index=2)


def weighted(logits: Any, labels: Any) -> Any:
    weights = torch.arange(1.0, CLASSES + 1, dtype=logits.dtype)
    return F.cross_entropy(logits.transpose(1, 2), labels, weights, reduction="none").mean()


def weighted_and_smoothed(logits: Any, labels: Any) -> Any:
    weights = torch.arange(1.0, CLASSES + 1, dtype=logits.dtype)
    return F.cross_entropy(logits.transpose(1, 2), labels, weights, label_smoothing=0.1, ignore_index=2)


def weighted_and_smoothed_of_each(logits: Any, labels: Any) -> Any:
    weights = torch.arange(1.0, CLASSES + 1, dtype=logits.dtype)
    losses = F.cross_entropy(logits.transpose(1, 2), labels, weights, reduction="none", label_smoothing=0.1)
    total = F.cross_entropy(logits.transpose(1, 2), labels, weights, reduction="sum", label_smoothing=0.1)
    return losses.square().mean() + total / (logits.shape[0] * ROWS)


def likelihood(logits: Any, labels: Any) -> Any:
    return F.nll_loss(logits.log_softmax(-1).flatten(0, 1), labels.flatten(), ignore_index=2)


def focal(logits: Any, labels: Any) -> Any:
    losses = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none", label_smoothing=0.1)
    return ((1 - torch.exp(-losses)) ** 2 * losses).mean()


def divergence(logits: Any, labels: Any) -> Any:
    targets = F.one_hot(labels, CLASSES).to(logits.dtype).softmax(-1)
    return F.kl_div(logits.log_softmax(-1), targets, reduction="batchmean")


def of_numbers(logits: Any, labels: Any) -> Any:
    targets = labels[..., None].to(logits.dtype) / CLASSES
    losses = [F.huber_loss(logits, targets.expand_as(logits)), F.l1_loss(logits, targets.expand_as(logits))]
    losses += [F.binary_cross_entropy_with_logits(logits, targets.expand_as(logits))]
    losses += [-(logits - targets).square().sum() / logits.shape[0]]
    return sum(losses)


def of_rows_and_columns(logits: Any, labels: Any) -> Any:
    return F.cross_entropy(logits.transpose(1, 2), labels) + F.cross_entropy(logits[:, 0], labels[:, 0])


def of_two_labels(logits: Any, labels: Any) -> Any:
    return smoothed(logits, labels) + smoothed(logits[:, 1:], labels[:, 1:])


def of_samples(logits: Any, labels: Any) -> Any:
    losses = F.cross_entropy(logits[:, 0], labels[:, 0], reduction="none")
    return (losses * losses.exp()).mean() + F.nll_loss(logits[:, 1].log_softmax(-1), labels[:, 1])


def of_some_samples(logits: Any, labels: Any) -> Any:
    return F.cross_entropy(logits[:, 0], labels[:, 0] // 3, ignore_index=0)


def of_mask(logits: Any, labels: Any) -> Any:
    losses = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
    counted = (labels > 0).to(losses.dtype) * (labels != 3)
    return (losses * counted).sum() / counted.sum().clamp(min=1)


def of_mask_means(logits: Any, labels: Any) -> Any:
    counted = F.one_hot(labels, CLASSES).bool()
    return (logits.square() * counted).mean() / (counted.to(logits.dtype).mean() + 1e-9)


def of_raw_likelihoods(logits: Any, labels: Any) -> Any:
    return 2 * F.nll_loss(logits.square().flatten(0, 1), labels.flatten(), ignore_index=2)


def of_sums(logits: Any, labels: Any) -> Any:
    weights = torch.arange(1.0, CLASSES + 1, dtype=logits.dtype)
    columns = logits.transpose(1, 2)
    losses = [
        F.nll_loss(columns, labels, weights, reduction="sum"),
        F.mse_loss(logits, logits + 1, reduction="sum"),
    ]
    losses += [F.cross_entropy(columns, labels, weights, reduction="sum")]
    return sum(losses) / logits.shape[0]


def of_soft_labels(logits: Any, labels: Any) -> Any:
    targets = F.one_hot(labels, CLASSES).to(logits.dtype) * 0.7 + 0.3 / CLASSES
    weights = torch.arange(1.0, CLASSES + 1, dtype=logits.dtype)
    columns, rows = logits.transpose(1, 2), targets.transpose(1, 2)
    return F.cross_entropy(columns, rows, weights, label_smoothing=0.2) + F.cross_entropy(columns, rows)


def of_many_tasks(logits: Any, labels: Any) -> Any:
    losses = [F.cross_entropy(logits[:, at], labels[:, at]) for at in range(6)]
    weights = torch.arange(6, dtype=logits.dtype)
    return (torch.stack(losses) * weights).sum() + torch.stack(losses).mean().squeeze() + 0.5


LOSSES = [
    of_mask,
    of_mask_means,
    of_raw_likelihoods,
    of_sums,
    of_soft_labels,
    of_many_tasks,
    smoothed,
    weighted,
    weighted_and_smoothed,
    weighted_and_smoothed_of_each,
    likelihood,
    focal,
    divergence,
    of_numbers,
    of_samples,
    of_some_samples,
]


@pytest.mark.parametrize("loss", LOSSES)
def test_losses_are_those_of_pytorch(loss: Any) -> None:
    torch.manual_seed(1)
    model: Any = nn.Linear(WIDTH, CLASSES)
    batch = {"x": rows(), "labels": torch.randint(0, CLASSES, (SAMPLES, ROWS))}
    traced = trace(model, {name: data[:4] for name, data in batch.items()}, loss)
    model, double = model.double().eval(), in_double(batch)
    expected = loss(model(double["x"]), double["labels"])
    check_loss_and_gradients(traced, traced.document, model, double, expected)


class Weighing(nn.Module):
    """Weighs two losses by parameters, as the uncertainty of tasks."""

    def __init__(self, ignored: int) -> None:
        super().__init__()
        self.linear, self.weights = nn.Linear(WIDTH, CLASSES), nn.Parameter(torch.tensor([0.3, -0.2]))
        self.ignored = ignored

    def forward(self, x: Any, labels: Any) -> Any:
        logits = self.linear(x)
        losses = [F.cross_entropy(logits[:, at], labels, ignore_index=self.ignored) for at in (0, 1)]
        both = torch.stack(losses)
        weighed = (torch.exp(-self.weights) * both).sum() + losses[0] / self.weights[0].cosh()
        return weighed if self.ignored >= 0 else weighed + self.weights.sum()


@pytest.mark.parametrize("ignored", [-100, 2])
def test_losses_are_weighed_by_parameters(ignored: int) -> None:
    torch.manual_seed(1)
    model: Any = Weighing(ignored)
    batch = {"x": rows(), "labels": torch.randint(0, CLASSES, (SAMPLES,))}
    traced = trace(model, {name: data[:4] for name, data in batch.items()})
    model, double = model.double(), in_double(batch)
    check_loss_and_gradients(traced, traced.document, model, double, model(**double))


def of_sum(logits: Any, labels: Any) -> Any:
    losses = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
    return (losses * labels).sum() / labels.sum()


def test_losses_may_be_means_over_different_numbers() -> None:
    batch = {"x": rows(), "labels": torch.randint(0, CLASSES, (SAMPLES, ROWS))}
    model, double = nn.Linear(WIDTH, CLASSES), in_double(batch)
    for loss in (of_rows_and_columns, of_two_labels, of_sum):
        traced = trace(model.float(), batch, loss)
        model.double()
        expected = loss(model(double["x"]), double["labels"])
        check_loss_and_gradients(traced, traced.document, model, double, expected)
