"""Optimizers and schedulers of PyTorch are described as params with the same settings and learning rates."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from functools import cache
from inspect import signature
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn, optim
from torch.optim import lr_scheduler

from millrace.torch import TracedModel, UnsupportedOptimizerError, optimizer_params, trace
from millrace.torch.schedule import momentum_schedule, schedule

STEPS = 50


BATCH = {"x": torch.randn(2, 3), "labels": torch.tensor([0, 1])}


def build() -> Any:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2), nn.Linear(2, 2))


@cache
def traced_net() -> TracedModel:
    return trace(build(), BATCH, F.cross_entropy)


def net() -> tuple[Any, TracedModel]:
    return build(), traced_net()


def two_groups(model: Any, **second: Any) -> list[dict[str, Any]]:
    biases = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    weights = [parameter for parameter in model.parameters() if parameter.dim() == 2]
    return [{"params": weights}, {"params": biases, **second}]


def rate_at(schedule: Any, step: int) -> float:
    """Return the rate of a step as docs/reference/params.md describes it."""
    if isinstance(schedule, float):
        return schedule
    assert schedule["scheduler"] == "PiecewiseConstant"
    place = sum(milestone <= step for milestone in schedule["milestones"])
    rate: float = schedule["learning_rates"][place]
    return rate


def momentum_at(params: dict[str, Any], group: dict[str, Any], step: int) -> float:
    """Return the momentum of a group at a step as docs/reference/params.md describes it."""
    schedule = group.get("momentum_schedule", params.get("momentum_schedule"))
    if schedule is None:
        return float(params["betas"][0] if "betas" in params else params["momentum"])
    if schedule.get("interpolation") == "linear":
        return float(np.interp(step, schedule["steps"], schedule["values"]))
    return float(schedule["values"][sum(begin <= step for begin in schedule["steps"]) - 1])


def restarted(optimizer: Any) -> Any:
    warmup = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=7)
    decay = lr_scheduler.CosineAnnealingLR(optimizer, 30)
    return lr_scheduler.SequentialLR(optimizer, [warmup, decay], milestones=[7])


def chained(optimizer: Any) -> Any:
    schedulers = [lr_scheduler.ConstantLR(optimizer, 0.1, 5), lr_scheduler.ExponentialLR(optimizer, 0.9)]
    return lr_scheduler.ChainedScheduler(schedulers, optimizer)


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "lambda": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: min(step / 10, 1)),
    "step": lambda optimizer: lr_scheduler.StepLR(optimizer, 20),
    "sequential": restarted,
    "chained": chained,
    "one cycle": lambda optimizer: lr_scheduler.OneCycleLR(
        optimizer, [0.5, 0.1], total_steps=STEPS + 9, cycle_momentum=False
    ),
    "cyclic": lambda optimizer: lr_scheduler.CyclicLR(
        optimizer, [0.01, 0.002], [0.1, 0.02], 8, cycle_momentum=False
    ),
}


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("made", [0, 9])
def test_learning_rates_are_those_of_pytorch_from_the_current_step_on(name: str, made: int) -> None:
    model, traced = net()
    optimizer = optim.AdamW(two_groups(model, lr=0.02), lr=0.1)
    scheduler = SCHEDULERS[name](optimizer)

    def train() -> list[float]:
        rates = [group["lr"] for group in optimizer.param_groups]
        optimizer.step()
        scheduler.step()
        return rates

    for _ in range(made):
        train()
    before = copy.deepcopy(optimizer.state_dict())
    params = optimizer_params(optimizer, model, traced, scheduler=scheduler, steps=STEPS)
    assert before == optimizer.state_dict(), "the user's optimizer changed"

    params = json.loads(json.dumps(params))
    first, second = (group["learning_rate_factor"] for group in params["params"])
    assert first == 1
    for step in range(STEPS):
        found, expected = rate_at(params["learning_rate"], step), train()
        assert found == pytest.approx(expected[0], rel=1e-8)
        assert found * second == pytest.approx(expected[1], rel=1e-8), step


@pytest.mark.parametrize(
    ("create", "scheduler"),
    [
        (lambda p: optim.SGD(p, 0.1, 0.5, nesterov=True), lambda o: lr_scheduler.OneCycleLR(o, 1, STEPS + 9)),
        (optim.AdamW, lambda o: lr_scheduler.CyclicLR(o, 0.1, 1, 8)),
        (optim.NAdam, lambda o: lr_scheduler.OneCycleLR(o, 1, STEPS + 9, base_momentum=[0.5, 0.25])),
        (lambda p: optim.RMSprop(p, momentum=0.5), lambda o: lr_scheduler.StepLR(o, 5)),
        (lambda p: optim.SGD([p[0], p[1] | {"momentum": 0.9}], 0.1), None),
        (lambda p: optim.SGD([p[0], p[1] | {"momentum": 0.0}], 0.1, 0.9, dampening=0.5), None),
        (lambda p: optim.Adamax([p[0], p[1] | {"betas": (0.5, 0.999)}]), None),
    ],
)
@pytest.mark.parametrize("made", [0, 9])
def test_momenta_are_those_of_pytorch_at_each_step(create: Any, scheduler: Any, made: int) -> None:
    model, traced = net()
    optimizer = create(two_groups(model))
    scheduler = scheduler and scheduler(optimizer)

    def train() -> list[float]:
        groups = optimizer.param_groups
        momenta = [float(group["betas"][0] if "betas" in group else group["momentum"]) for group in groups]
        optimizer.step()
        if scheduler:
            scheduler.step()
        return momenta

    for _ in range(made):
        train()
    params = optimizer_params(optimizer, model, traced, scheduler=scheduler, steps=STEPS)
    params = json.loads(json.dumps(params))
    for step in range(STEPS):
        found = [momentum_at(params, group, step) for group in params["params"]]
        assert found == pytest.approx(train(), rel=1e-11), step
    if "momentum" in params and any("momentum_schedule" in part for part in [params, *params["params"]]):
        assert params["momentum"] > 0, "no state would be kept"


def test_groups_name_all_tensors_and_settings_have_the_keys_of_params() -> None:
    model, traced = net()
    model[0].bias.requires_grad_(False)
    groups: list[dict[str, Any]] = [
        {"params": [model[0].bias]},
        {"params": [model[0].weight], "lr": 0.0},
        {"params": [model[2].bias, model[2].weight], "weight_decay": 0.5},
        {"params": [model[3].weight], "lr": 0.1},
    ]
    params = optimizer_params(optim.SGD(groups, lr=0.2, momentum=0.9), model, traced, steps=STEPS)
    assert params == {
        "optimizer_type": "SGD",
        "learning_rate": 0.2,
        "momentum": 0.9,
        "params": [
            {"params": ["0.weight"], "weight_decay": 0.0, "learning_rate_factor": 0.0},
            {"params": ["2.bias", "2.weight"], "weight_decay": 0.5, "learning_rate_factor": 1.0},
            {"params": ["3.weight"], "weight_decay": 0.0, "learning_rate_factor": 0.5},
            {"params": ["0.bias", "3.bias"], "weight_decay": 0.0, "learning_rate_factor": 0.0},
        ],
    }


@pytest.mark.parametrize(
    ("create", "expected"),
    [
        (optim.AdamW, {"optimizer_type": "AdamW", "betas": [0.9, 0.999], "eps": 1e-8}),
        (lambda p: optim.AdamW(p, lr=torch.tensor(0.5)), {"optimizer_type": "AdamW", "learning_rate": 0.5}),
        (lambda p: optim.Adam(p, weight_decay=0.1), {"optimizer_type": "Adam"}),
        pytest.param(
            lambda p: optim.Adam(p, weight_decay=0.1, decoupled_weight_decay=True),
            {"optimizer_type": "AdamW"},
            marks=pytest.mark.skipif(
                "decoupled_weight_decay" not in signature(optim.Adam).parameters,
                reason="PyTorch 2.6 does not have it",
            ),
        ),
        (
            lambda p: optim.RMSprop(p, centered=True),
            {"alpha": 0.99, "eps": 1e-8, "momentum": 0.0, "centered": True},
        ),
        (optim.Adagrad, {"lr_decay": 0.0, "initial_accumulator_value": 0.0, "eps": 1e-10}),
        (lambda p: optim.AdamW(p, amsgrad=True, maximize=True), {"amsgrad": True, "maximize": True}),
        (lambda p: optim.SGD(p, 1, 0.9, nesterov=True), {"momentum": 0.9, "nesterov": True}),
        (lambda p: optim.SGD(p, 1, 0.9, dampening=0.25), {"momentum": 0.9, "dampening": 0.25}),
        (optim.Adamax, {"optimizer_type": "Adamax", "betas": [0.9, 0.999], "eps": 1e-8}),
        (optim.Adadelta, {"optimizer_type": "Adadelta", "rho": 0.9, "eps": 1e-6}),
        (
            lambda p: optim.RAdam(p, weight_decay=1, decoupled_weight_decay=True),
            {"optimizer_type": "RAdam", "decoupled_weight_decay": True},
        ),
        (lambda p: optim.RMSprop(p, momentum=0.1, centered=True), {"momentum": 0.1, "centered": True}),
        (optim.NAdam, {"betas": [0.9, 0.999], "eps": 1e-8, "momentum_decay": 0.004}),
        (optim.RAdam, {"betas": [0.9, 0.999], "eps": 1e-8}),
        (
            lambda p: optim.Adafactor(p, eps=(1e-30, 1e-3)),
            {"eps": [1e-30, 1e-3], "decay_rate": -0.8, "clip_threshold": 1.0},
        ),
    ],
)
def test_settings_are_those_of_the_optimizer(create: Any, expected: dict[str, Any]) -> None:
    model, traced = net()
    params = optimizer_params(create(model.parameters()), model, traced, steps=STEPS)
    assert params | expected == params
    names = [name for group in params["params"] for name in group["params"]]
    assert sorted(names) == sorted(tensor["name"] for tensor in traced.document["tensors"])


def test_rates_of_adafactor_are_limited_as_by_pytorch() -> None:
    model, traced = net()
    optimizer = optim.Adafactor(model.parameters(), lr=0.2, eps=(1e-30, 1e-3))
    rate = optimizer_params(optimizer, model, traced, steps=STEPS)["learning_rate"]
    rates = [rate_at(rate, step) for step in (0, 24, 25, 35)]
    assert rates == pytest.approx([0.2, 0.2, 26**-0.5, 36**-0.5], rel=1e-8)


def test_tied_parameters_have_the_name_of_their_tensor() -> None:
    model: Any = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    traced = trace(model, BATCH, F.cross_entropy)
    params = optimizer_params(optim.AdamW([model[1].weight]), model, traced, steps=1)
    assert [group["params"] for group in params["params"]] == [["0.weight"], ["0.bias", "1.bias"]]


class DecaySchedule(lr_scheduler.LRScheduler):
    def get_lr(self) -> list[float]:
        for group in self.optimizer.param_groups:
            group["weight_decay"] = 0.1 * self.last_epoch
        return [group["lr"] for group in self.optimizer.param_groups]


@pytest.mark.parametrize(
    ("create", "scheduler", "part"),
    [
        (optim.LBFGS, None, "LBFGS is not supported; use one of torch.optim: AdamW, Adam, SGD"),
        (lambda p: optim.SGD(p, 1, 0.9, dampening=-0.1), None, "SGD with dampening=-0.1 .*from 0 to 1"),
        (
            lambda p: optim.SGD(p, 1, 0.9, dampening=0.1),
            lambda o: lr_scheduler.OneCycleLR(o, 1, 90, max_momentum=0),
            "dampening=0.1 .*a momentum above 0",
        ),
        (
            optim.SGD,
            lambda o: lr_scheduler.OneCycleLR(o, 1, 90, max_momentum=1.0),
            "momentum at step 0 is 1.0",
        ),
        (
            optim.SGD,
            lambda o: lr_scheduler.CyclicLR(o, 1, 2, 9, max_momentum=np.nan),
            "momentum at step 0 is nan",
        ),
        (optim.Adafactor, None, r"use eps=\(1e-30, 1e-3\)"),
        (lambda p: optim.SGD([*p, nn.Parameter(torch.ones(9))]), None, r"parameter 6 of group 0 .*\(9,\)"),
        (lambda p: optim.SGD([nn.Parameter(torch.ones(9))]), None, "is not in the module"),
        (optim.AdamW, lr_scheduler.ReduceLROnPlateau, "depends on the loss"),
        (
            optim.AdamW,
            DecaySchedule,
            "the scheduler changes weight_decay, and may change the learning rate and",
        ),
        (
            optim.AdamW,
            lambda o: lr_scheduler.OneCycleLR(o, 1, 20, cycle_momentum=False),
            "no learning rate for step 21",
        ),
        (optim.AdamW, lambda o: lr_scheduler.StepLR(copy.copy(o), 1), "has another optimizer"),
        (optim.AdamW, lambda o: lr_scheduler.LambdaLR(o, lambda step: -step), "rate at step 1 is -0.001"),
    ],
)
def test_what_the_appliance_does_not_have_is_rejected(create: Any, scheduler: Any, part: str) -> None:
    model, traced = net()
    optimizer = create(model.parameters())
    with pytest.raises(UnsupportedOptimizerError, match=part):
        optimizer_params(optimizer, model, traced, scheduler=scheduler and scheduler(optimizer), steps=STEPS)


def test_groups_that_differ_in_more_than_rate_and_decay_are_rejected() -> None:
    model, traced = net()
    with pytest.raises(UnsupportedOptimizerError, match="have different eps, 1e-08 and"):
        optimizer_params(optim.AdamW(two_groups(model, eps=1e-3)), model, traced, steps=STEPS)
    optimizer = optim.AdamW(two_groups(model))
    scheduler = lr_scheduler.LambdaLR(optimizer, [lambda step: 1.0, lambda step: 0.9**step])
    with pytest.raises(UnsupportedOptimizerError, match="no constant ratio"):
        optimizer_params(optimizer, model, traced, scheduler=scheduler, steps=STEPS)


def test_long_table_becomes_straight_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a cosine with a warm-up and a sudden fall over a long run."""
    steps = 40_000
    warm = np.linspace(0, 3e-4, 2000, endpoint=False)
    cosine = 1.5e-4 * (1 + np.cos(np.pi * np.arange(steps - 2000) / (steps - 2000)))
    rates = np.concatenate([warm, cosine])
    rates[30_000:] *= 0.1
    lines: Any = schedule(rates.tolist())
    found, first = [], 0
    for line in lines:
        assert line["scheduler"] == "Linear"
        begin, end = line["initial_learning_rate"], line["end_learning_rate"]
        found += [begin + (end - begin) * step / line["total_iters"] for step in range(line["total_iters"])]
        first += line["total_iters"]
    assert first == steps - 1
    assert np.abs(np.array(found) - rates[:-1]).max() <= 6e-7 * 3e-4
    assert len(lines) < 1000
    noise = np.random.default_rng(0).random(20_000).tolist()
    with pytest.raises(UnsupportedOptimizerError, match="neither 16384 rates nor 2048 straight lines"):
        schedule(noise)
    momentum: Any = momentum_schedule((0.95 - 1e3 * rates / 3).tolist(), 0.95)
    found = np.interp(np.arange(steps), momentum["steps"], momentum["values"])
    assert np.abs(found - (0.95 - 1e3 * rates / 3)).max() <= 2e-7
    assert len(momentum["steps"]) < 1200
    with pytest.raises(UnsupportedOptimizerError, match="4096 straight lines do not describe it"):
        momentum_schedule(noise, None)
