"""Modules that change numbers of their own are rejected if their loss depends on them."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from millrace.torch import UnsupportedModelError, trace

BATCH = {"x": torch.randn(2, 3), "labels": torch.tensor([0, 1])}


class Counting(nn.Module):
    """Has a number that its derived classes change."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.calls = 0
        self.width: Any = None
        self.seen: list[int] = []


class Scaled(Counting):
    def forward(self, x: Any) -> Any:
        self.calls += 1
        return self.linear(x) / self.calls


class Warm(Counting):
    def forward(self, x: Any) -> Any:
        self.calls += 1
        return self.linear(x) * (1 if self.calls < 1000 else 2)


class Listing(Counting):
    def forward(self, x: Any) -> Any:
        self.seen.append(1)
        return self.linear(x) * len(self.seen)


class Created(Counting):
    def forward(self, x: Any) -> Any:
        self.further = getattr(self, "further", 0) + 1
        return self.linear(x) + self.further


class Unused(Counting):
    def forward(self, x: Any) -> Any:
        self.calls += 1
        return self.linear(x)


class Cached(Counting):
    def forward(self, x: Any) -> Any:
        if self.width is None:
            self.width = x.shape[1]
        return self.linear(x) * self.width


def attributes(model: nn.Module) -> dict[str, Any]:
    return {name: copy.copy(value) for name, value in vars(model).items() if not name.startswith("_")}


@pytest.mark.parametrize(
    ("kind", "name"),
    [(Scaled, "calls"), (Warm, "calls"), (Listing, "seen"), (Created, "further")],
)
def test_loss_that_depends_on_a_changed_number_is_rejected(kind: type[Counting], name: str) -> None:
    model = nn.Sequential(kind())
    before = attributes(model[0])
    with pytest.raises(
        UnsupportedModelError, match=rf"^\S*counters.py:\d+: the loss depends on 0.{name}, which"
    ):
        trace(model, BATCH, F.cross_entropy)
    assert attributes(model[0]) == before


def test_number_of_a_loss_is_one_of_the_module() -> None:
    class Loss(Counting):
        def forward(self, x: Any, labels: Any) -> Any:
            self.calls += 1
            return F.cross_entropy(x, labels) * self.calls

    with pytest.raises(UnsupportedModelError, match=r"counters.py:\d+: the loss depends on loss.calls"):
        trace(nn.Linear(3, 2), BATCH, Loss())


def test_number_without_influence_is_left_as_it_is() -> None:
    model = Unused()
    with pytest.warns(UserWarning, match=r"counters.py:\d+: calls changes in each call"):
        trace(model, BATCH, F.cross_entropy)
    assert model.calls == 0
    cached = Cached()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trace(cached, BATCH, F.cross_entropy)
