"""Learning rates and momenta of PyTorch's schedulers, as schedules of the params."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from math import isfinite
from typing import Any

import numpy as np
import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from millrace.errors import MillraceError

MAX_CHANGES = 16_384
"""Maximum number of steps at which the learning rate changes."""

MAX_LINES = 2048
"""Maximum number of straight lines that take the place of a table."""

LINE_TOLERANCE = 5e-7
"""Maximum distance of a rate from its line, divided by the largest rate."""

MAX_MOMENTUM_STEPS = 4096
"""Maximum number of steps in a schedule of the momentum."""

MOMENTUM_TOLERANCE = 1e-7
"""Maximum distance of a momentum from its line."""

RELATIVE_TOLERANCE = 1e-6
"""Rounding errors in the ratio of two learning rates."""


class UnsupportedOptimizerError(MillraceError):
    """The appliance does not have an optimizer, a scheduler, or a setting of one: which, and what to use."""


def groups_by_step(
    optimizer: torch.optim.Optimizer, scheduler: LRScheduler | None, steps: int
) -> Iterator[list[dict[str, Any]]]:
    """Yield the groups of an optimizer at each step, as a scheduler sets them. Neither object is changed."""
    if scheduler is None:
        for _ in range(steps):
            yield optimizer.param_groups
        return
    name = type(scheduler).__name__
    if isinstance(scheduler, ReduceLROnPlateau):
        raise UnsupportedOptimizerError(
            f"{name} depends on the loss; use a scheduler that depends on the step, such as CosineAnnealingLR"
        )
    if not isinstance(scheduler, LRScheduler):
        raise UnsupportedOptimizerError(f"{name} is no scheduler; use one of torch.optim.lr_scheduler")
    if scheduler.optimizer is not optimizer:
        raise UnsupportedOptimizerError(f"{name} has another optimizer; create it with the optimizer given")
    # Everything is copied but the parameters and their state, which schedulers do not change.
    shared = [optimizer.state, *(item for group in optimizer.param_groups for item in group["params"])]
    evaluated = copy.deepcopy(scheduler, {id(item): item for item in shared})
    for step in range(steps):
        if step > 0:
            _advance(evaluated, step)
        yield evaluated.optimizer.param_groups


def _advance(scheduler: LRScheduler, step: int) -> None:
    try:
        with warnings.catch_warnings():
            # Schedulers warn because the copied optimizer makes no steps.
            warnings.simplefilter("ignore")
            scheduler.step()
    except Exception as error:
        raise UnsupportedOptimizerError(
            f"{type(scheduler).__name__} has no learning rate for step {step}: {error}"
        ) from error


def learning_rate(given: Any, step: int, limit: float | None) -> float:
    """Return a learning rate as a number, at most `limit`."""
    rate = float(given)
    if not isfinite(rate) or rate < 0:
        raise UnsupportedOptimizerError(
            f"the learning rate at step {step} is {rate}; it must be a number of at least 0"
        )
    return rate if limit is None else min(rate, limit)


def momentum(given: Any, step: int) -> float:
    """Return a momentum as a number."""
    value = float(given)
    if not 0 <= value < 1:
        raise UnsupportedOptimizerError(
            f"the momentum at step {step} is {value}; it must be at least 0 and less than 1"
        )
    return value


def constant_ratios(rates: list[list[float]], reference: int) -> list[float]:
    """Return the rate of each group divided by that of the group `reference`, the same at all steps."""
    row = next((row for row in rates if row[reference]), None)
    if row is None:
        return [1.0] * len(rates[0])
    ratios = [rate / row[reference] for rate in row]
    for step, row in enumerate(rates):
        for rate, ratio in zip(row, ratios, strict=True):
            expected = ratio * row[reference]
            if abs(rate - expected) > RELATIVE_TOLERANCE * max(rate, expected):
                raise UnsupportedOptimizerError(
                    "the learning rates of the groups of the optimizer have no constant ratio: one is "
                    f"{rate:.6g} at step {step}, and would be {expected:.6g} by the schedule of another; use "
                    "the same schedule for all groups"
                )
    return ratios


def schedule(rates: list[float]) -> float | dict[str, Any] | list[dict[str, Any]]:
    """Return the learning rate of each step as a number or a schedule of the params.

    The appliance computes with rates in f32, so they are written with nine digits, from which each f32 can be
    read back. A table that is too long becomes straight lines, from which no rate differs by more than
    LINE_TOLERANCE of the largest one: a cosine needs about 850, however long it is. OneCycleLR has two.
    """
    rates = [float(f"{rate:.9g}") for rate in rates]
    changes = [step for step in range(1, len(rates)) if rates[step] != rates[step - 1]]
    if len(changes) > MAX_CHANGES:
        return _lines(np.array(rates))
    if not changes:
        return rates[0]
    return {
        "scheduler": "PiecewiseConstant",
        "milestones": changes,
        "learning_rates": [rates[step] for step in (0, *changes)],
    }


def momentum_schedule(momenta: list[float], constant: float | None) -> dict[str, Any] | None:
    """Return the momentum of each step as a schedule of the params; None if it is `constant` at all steps.

    It is written with twelve digits. A table that is too long becomes straight lines.
    """
    if all(value == constant for value in momenta):
        return None
    momenta = [float(f"{value:.12g}") for value in momenta]
    changes = [step for step in range(1, len(momenta)) if momenta[step] != momenta[step - 1]]
    if len(changes) < MAX_MOMENTUM_STEPS:
        steps = [0, *changes]
        return {"steps": steps, "values": [momenta[step] for step in steps]}
    steps = [0]
    for end in _ends_of_lines(np.array(momenta), MOMENTUM_TOLERANCE):
        steps.append(end)
        if len(steps) > MAX_MOMENTUM_STEPS:
            raise UnsupportedOptimizerError(
                f"the momentum changes at almost each of {len(momenta)} steps, and {MAX_MOMENTUM_STEPS} "
                "straight lines do not describe it; use cycle_momentum=False, or a smooth scheduler"
            )
    return {"steps": steps, "values": [momenta[step] for step in steps], "interpolation": "linear"}


def _lines(rates: np.ndarray[Any, Any]) -> list[dict[str, Any]]:
    """Return straight lines, one after the other, that run close to the rates."""
    lines: list[dict[str, Any]] = []
    first = 0
    for end in _ends_of_lines(rates, LINE_TOLERANCE * rates.max()):
        lines.append(
            {
                "scheduler": "Linear",
                "initial_learning_rate": float(rates[first]),
                "end_learning_rate": float(rates[end]),
                "total_iters": end - first,
            }
        )
        if len(lines) > MAX_LINES:
            raise UnsupportedOptimizerError(
                f"the learning rate changes at almost each of {len(rates)} steps, and neither {MAX_CHANGES} "
                f"rates nor {MAX_LINES} straight lines describe it; use a scheduler that changes it less "
                "often, or a smooth one"
            )
        first = end
    return lines


def _ends_of_lines(values: np.ndarray[Any, Any], tolerance: float) -> Iterator[int]:
    """Yield the last step of each straight line, from which no value differs by more than `tolerance`."""
    last = len(values) - 1

    def fits(first: int, end: int) -> bool:
        line = np.linspace(values[first], values[end], end - first + 1)
        return bool(np.abs(line - values[first : end + 1]).max() <= tolerance)

    first = 0
    while first < last:
        # The longest line is searched by doubling, then by halving.
        reach = 1
        while first + 2 * reach <= last and fits(first, first + 2 * reach):
            reach *= 2
        for step in (2**power for power in reversed(range(reach.bit_length()))):
            if first + reach + step <= last and fits(first, first + reach + step):
                reach += step
        first += reach
        yield first
