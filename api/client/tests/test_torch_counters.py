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


CALLS = 0


class Global(Counting):
    def forward(self, x: Any) -> Any:
        global CALLS
        CALLS += 1
        return self.linear(x) * CALLS


class OfClass(Counting):
    total = 1

    def forward(self, x: Any) -> Any:
        type(self).total += 1
        return self.linear(x) * self.total


class Schedule:
    def __init__(self) -> None:
        self.step = 0

    def factor(self) -> int:
        self.step += 1
        return self.step


class OfObject(Counting):
    def __init__(self) -> None:
        super().__init__()
        self.schedule = Schedule()

    def forward(self, x: Any) -> Any:
        return self.linear(x) * self.schedule.factor()


def test_numbers_outside_of_modules_are_found() -> None:
    of_object = OfObject()
    for model, name in (
        (Global(), "the global variable CALLS"),
        (OfClass(), "OfClass.total"),
        (of_object, "schedule.step"),
    ):
        with pytest.raises(
            UnsupportedModelError, match=rf"counters.py:\d+: the loss depends on {name}, which"
        ):
            trace(model, BATCH, F.cross_entropy)
    assert (CALLS, OfClass.total, of_object.schedule.step) == (0, 1, 0)


def test_variable_of_an_enclosing_function_is_found() -> None:
    calls = 0

    def loss(x: Any, labels: Any) -> Any:
        nonlocal calls
        calls += 1
        return F.cross_entropy(x, labels) * calls

    with pytest.raises(
        UnsupportedModelError, match=r"counters.py:\d+: the loss depends on the variable calls, which"
    ):
        trace(nn.Linear(3, 2), BATCH, loss)
    assert calls == 0


def test_number_without_influence_is_left_as_it_is() -> None:
    model = Unused()
    with pytest.warns(UserWarning, match=r"counters.py:\d+: calls changes in each call"):
        trace(model, BATCH, F.cross_entropy)
    assert model.calls == 0
    cached = Cached()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trace(cached, BATCH, F.cross_entropy)
