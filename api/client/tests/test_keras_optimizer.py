"""Optimizers of Keras are described as params by which the appliance computes the same updates, or rejected.

Runs on the backend that KERAS_BACKEND names.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

pytest.importorskip("keras", reason="Keras is not installed")
pytest.importorskip("torch", reason="PyTorch is not installed")

import keras
import numpy as np
from keras import optimizers
from keras.optimizers import schedules

from millrace.keras import UnsupportedOptimizerError
from millrace.keras.optimizer import optimizer_params
from millrace.keras.weights import Weight
from millrace.torch.traced_model import TracedModel

STEPS = 12
NAMES = ("kernel", "bias", "frozen")

Array: TypeAlias = Any
State: TypeAlias = dict[str, Any]
Rule: TypeAlias = Callable[[dict[str, Any], State, Array, Array, float, float, int], Array]
"""An update as params.md describes it, by params, state, weights, gradient, rate, decay and step."""


def variables() -> list[Any]:
    starts = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
    return [keras.Variable(start, name=name) for start, name in zip(starts, NAMES, strict=True)]


def described(optimizer: Any, given: list[Any], steps: int = STEPS) -> dict[str, Any]:
    weights = [Weight(name, item, name != "frozen") for name, item in zip(NAMES, given, strict=True)]
    return optimizer_params(optimizer, weights, TracedModel({}, dict.fromkeys(NAMES, False)), steps=steps)


def gradients() -> Array:
    """Returns gradients of which some are as small as epsilon, and some zero."""
    found = np.random.default_rng(2).normal(size=(STEPS, 2, 4)) * [1, 1e-3, 1e-7, 0]
    return found.astype(np.float32)


def adam(p: dict[str, Any], s: State, w: Array, g: Array, rate: float, decay: float, step: int) -> Array:
    first, second = p["betas"]
    s["m"] = first * s.get("m", 0) + (1 - first) * g
    s["v"] = second * s.get("v", 0) + (1 - second) * g * g
    s["v_max"] = np.maximum(s.get("v_max", 0), s["v"]) if p.get("amsgrad") else s["v"]
    m = s["m"] / (1 - first**step)
    root = math.sqrt(1 - second**step)
    epsilon = p["eps"] / root if p["epsilon_hat"] else p["eps"]
    return w * (1 - rate * decay) - rate * m / (np.sqrt(s["v_max"]) / root + epsilon)


def sgd(p: dict[str, Any], s: State, w: Array, g: Array, rate: float, decay: float, step: int) -> Array:
    g = g + decay * w
    s["m"] = p["momentum"] * s.get("m", 0) + g
    return w - rate * (g + p["momentum"] * s["m"] if p.get("nesterov") else s["m"])


def lion(p: dict[str, Any], s: State, w: Array, g: Array, rate: float, decay: float, step: int) -> Array:
    first, second = p["betas"]
    direction = np.sign(first * s.get("m", 0 * g) + (1 - first) * g)
    s["m"] = second * s.get("m", 0) + (1 - second) * g
    return w * (1 - rate * decay) - rate * direction


def nadam(p: dict[str, Any], s: State, w: Array, g: Array, rate: float, decay: float, step: int) -> Array:
    first, second = p["betas"]
    momenta = [first * (1 - 0.5 * 0.96 ** (at * p["momentum_decay"])) for at in range(1, step + 2)]
    s["m"] = first * s.get("m", 0) + (1 - first) * g
    s["v"] = second * s.get("v", 0) + (1 - second) * g * g
    now, following = math.prod(momenta[:-1]), math.prod(momenta)
    m = (1 - momenta[-2]) / (1 - now) * g + momenta[-1] / (1 - following) * s["m"]
    assert p.get("decoupled_weight_decay") or not decay
    return w * (1 - rate * decay) - rate * m / (np.sqrt(s["v"] / (1 - second**step)) + p["eps"])


def adagrad(p: dict[str, Any], s: State, w: Array, g: Array, rate: float, decay: float, step: int) -> Array:
    s["v"] = s.get("v", p["initial_accumulator_value"]) + g * g
    return w - rate * g / (np.sqrt(s["v"]) + p["eps"])


def adadelta(p: dict[str, Any], s: State, w: Array, g: Array, rate: float, decay: float, step: int) -> Array:
    s["v"] = p["rho"] * s.get("v", 0) + (1 - p["rho"]) * g * g
    direction = np.sqrt(s.get("a", 0) + p["eps"]) / np.sqrt(s["v"] + p["eps"]) * g
    s["a"] = p["rho"] * s.get("a", 0) + (1 - p["rho"]) * direction**2
    return w - rate * direction


RULES: dict[str, Rule] = {
    **{"Adam": adam, "AdamW": adam, "SGD": sgd, "Lion": lion, "NAdam": nadam, "Adagrad": adagrad},
    "Adadelta": adadelta,
}


def rate_at(schedule: Any, step: int) -> float:
    if isinstance(schedule, float):
        return schedule
    place = sum(milestone <= step for milestone in schedule["milestones"])
    rate: float = schedule["learning_rates"][place]
    return rate


def without_decay_of_biases() -> Any:
    optimizer = optimizers.AdamW(1e-2, weight_decay=0.3)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


@pytest.mark.parametrize(
    "create",
    [
        lambda: optimizers.Adam(1e-2),
        lambda: optimizers.Adam(
            schedules.CosineDecay(1e-2, 20, warmup_steps=4, warmup_target=3e-2), beta_2=0.9
        ),
        lambda: optimizers.Adam(schedules.ExponentialDecay(0.1, 3, 0.5, staircase=True), epsilon=1e-3),
        lambda: optimizers.SGD(0.1),
        lambda: optimizers.SGD(0.1, momentum=0.9),
        lambda: optimizers.SGD(schedules.PiecewiseConstantDecay([3, 5], [0.1, 0.2, 0.05]), weight_decay=0.1),
        lambda: optimizers.Lion(1e-2, weight_decay=0.1),
        lambda: optimizers.Nadam(1e-2),
        lambda: optimizers.Nadam(1e-2, weight_decay=0.1),
        lambda: optimizers.Adadelta(1.0),
        lambda: optimizers.Adam(1e-2, beta_2=0.5, amsgrad=True),
        lambda: optimizers.SGD(0.1, momentum=0.9, nesterov=True),
        lambda: optimizers.Adagrad(0.1, initial_accumulator_value=0.0, epsilon=1e-3),
        without_decay_of_biases,
    ],
)
def test_updates_are_those_of_keras(create: Callable[[], Any]) -> None:
    given = variables()
    optimizer = create()
    params = described(optimizer, given)
    rule = RULES[params["optimizer_type"]]
    groups = {name: group for group in params["params"] for name in group["params"]}
    assert groups.keys() == set(NAMES)
    assert groups["frozen"]["learning_rate_factor"] == 0
    ours = {item.name: keras.ops.convert_to_numpy(item).astype(np.float64) for item in given[:2]}
    states: dict[str, State] = {name: {} for name in ours}
    both: Any
    for step, both in enumerate(gradients(), 1):
        optimizer.apply([keras.ops.convert_to_tensor(gradient) for gradient in both], given[:2])
        for (name, weights), gradient in zip(list(ours.items()), both, strict=True):
            rate, decay = rate_at(params["learning_rate"], step - 1), groups[name]["weight_decay"]
            ours[name] = rule(params, states[name], weights, gradient.astype(np.float64), rate, decay, step)
        for item in given[:2]:
            np.testing.assert_allclose(
                keras.ops.convert_to_numpy(item),
                ours[item.name],
                rtol=2e-5,
                atol=2e-6,
                err_msg=f"step {step}",
            )


def test_rates_begin_where_the_optimizer_is_and_clipping_is_global() -> None:
    optimizer = optimizers.SGD(schedules.PolynomialDecay(1.0, 10, 0.0), global_clipnorm=0.5)
    given = variables()
    for _ in range(4):
        optimizer.apply([keras.ops.zeros((4,))], given[:1])
    params = described(optimizer, given, 3)
    rates = [rate_at(params["learning_rate"], step) for step in range(3)]
    assert rates == pytest.approx([0.6, 0.5, 0.4], rel=1e-6)
    assert params["max_gradient_norm"] == 0.5


class OwnAdam(optimizers.Adam):
    pass


@pytest.mark.parametrize(
    ("create", "message"),
    [
        (
            lambda: optimizers.RMSprop(),
            "RMSprop is not supported; it adds epsilon to the mean of squares: use one",
        ),
        (lambda: OwnAdam(), "OwnAdam is not supported"),
        (lambda: optimizers.SGD(0.1, 0.9, weight_decay=0.1), "weight_decay=0.1 .*use AdamW, Nadam or Lion"),
        (
            lambda: optimizers.SGD(schedules.CosineDecay(0.1, 9), 0.9),
            "momentum and a learning rate that changes",
        ),
        (lambda: optimizers.Adam(clipnorm=1.0), "clipnorm=1.0 .*use global_clipnorm"),
        (lambda: optimizers.Adam(clipvalue=1.0), "use global_clipnorm"),
        (lambda: optimizers.Adam(use_ema=True), "use_ema=True"),
        (lambda: optimizers.Adam(gradient_accumulation_steps=2), "use a larger batch_size"),
        (lambda: optimizers.Adam(lambda: 0.1), "the learning rate is a function"),
    ],
)
def test_what_the_appliance_does_not_have_is_rejected(create: Callable[[], Any], message: str) -> None:
    with pytest.raises(UnsupportedOptimizerError, match=message):
        described(create(), variables())
