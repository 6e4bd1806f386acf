"""Describes an optimizer of Keras, with its learning rates, as the section `optimizer` of the params.

Keras writes some rules otherwise than PyTorch, whose rules the appliance has:

    Adam      adds epsilon before the correction of the bias, and so does AdamW: `epsilon_hat`
    Adagrad   adds epsilon to the sum of squares: the sum begins with that number more
    Nadam     has PyTorch's momentum decay 1
    SGD       multiplies each gradient of the momentum by its learning rate: the same at a constant rate

* The weight decay of Keras is decoupled, for all optimizers. Excluded variables have none.
* What the appliance would compute otherwise is rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from millrace.keras.weights import Weight
from millrace.torch.schedule import UnsupportedOptimizerError, learning_rate, schedule
from millrace.torch.traced_model import TracedModel


@dataclass(frozen=True)
class _Algorithm:
    """An optimizer of Keras that the appliance has."""

    name: str
    """Its `optimizer_type` in the params."""
    settings: Callable[[Any], dict[str, Any]]
    """Returns its settings as keys of the params."""
    is_decoupled: bool = False
    """Whether the appliance decays weights apart from the gradient."""


def _betas(optimizer: Any) -> list[float]:
    return [float(optimizer.beta_1), float(optimizer.beta_2)]


def _adam(optimizer: Any) -> dict[str, Any]:
    return {"betas": _betas(optimizer), "eps": float(optimizer.epsilon)}


def _adam_with_epsilon_hat(optimizer: Any) -> dict[str, Any]:
    return {**_adam(optimizer), "epsilon_hat": True, **_switched_on(amsgrad=optimizer.amsgrad)}


def _sgd(optimizer: Any) -> dict[str, Any]:
    has_momentum = bool(optimizer.momentum)
    return {
        "momentum": float(optimizer.momentum),
        **_switched_on(nesterov=has_momentum and optimizer.nesterov),
    }


def _nadam(optimizer: Any) -> dict[str, Any]:
    decay = {"decoupled_weight_decay": bool(optimizer.weight_decay)}
    return {**_adam(optimizer), "momentum_decay": 1.0, **_switched_on(**decay)}


def _switched_on(**switches: bool) -> dict[str, Any]:
    return {name: True for name, is_on in switches.items() if is_on}


_ALGORITHMS: dict[type, _Algorithm] = {
    keras.optimizers.Adam: _Algorithm("Adam", _adam_with_epsilon_hat),
    keras.optimizers.AdamW: _Algorithm("AdamW", _adam_with_epsilon_hat, is_decoupled=True),
    keras.optimizers.SGD: _Algorithm("SGD", _sgd),
    keras.optimizers.Lion: _Algorithm(
        "Lion", lambda optimizer: {"betas": _betas(optimizer)}, is_decoupled=True
    ),
    keras.optimizers.Nadam: _Algorithm("NAdam", _nadam, is_decoupled=True),
    keras.optimizers.Adadelta: _Algorithm(
        "Adadelta", lambda optimizer: {"rho": float(optimizer.rho), "eps": float(optimizer.epsilon)}
    ),
    keras.optimizers.Adagrad: _Algorithm(
        "Adagrad",
        lambda optimizer: {
            "initial_accumulator_value": float(optimizer.initial_accumulator_value + optimizer.epsilon),
            # Must be positive, and is too small to have an influence.
            "eps": 1e-30,
        },
    ),
}
_COMMON = {
    "clipnorm": "use global_clipnorm",
    "clipvalue": "use global_clipnorm",
    "use_ema": "use use_ema=False",
    "gradient_accumulation_steps": "use a larger batch_size",
    "loss_scale_factor": "use mixed_bfloat16, which needs none",
}
"""Settings of all optimizers that are not supported, and what to use."""


def optimizer_params(
    optimizer: Any, weights: Sequence[Weight], traced: TracedModel, *, steps: int
) -> dict[str, Any]:
    """Return the section `optimizer` of the params for an optimizer of Keras.

    The optimizer is not changed. The learning rates begin where it is; its moments begin at zero.

    Raises `UnsupportedOptimizerError` if the appliance can't do what the optimizer does.
    """
    algorithm = _algorithm_of(optimizer)
    if algorithm is None:
        supported = ", ".join(kind.__name__ for kind in _ALGORITHMS)
        advice = "; it adds epsilon to the mean of squares" if type(optimizer).__name__ == "RMSprop" else ""
        raise UnsupportedOptimizerError(
            f"the optimizer {type(optimizer).__name__} is not supported{advice}: use one of "
            f"keras.optimizers: {supported}"
        )
    _check_settings(optimizer)
    if steps < 1:
        raise UnsupportedOptimizerError(f"max_steps is {steps}; it must be the number of steps of the run")
    trained = [weight for weight in weights if weight.is_trained and weight.name in traced.transposed]
    if not trained:
        raise UnsupportedOptimizerError("no variable of the model is trained")
    decay = float(optimizer.weight_decay or 0.0)
    rates = _rates(optimizer, steps)
    settings, name = algorithm.settings(optimizer), algorithm.name
    is_constant = all(rate == rates[0] for rate in rates)
    if decay and name == "SGD" and not settings["momentum"]:
        pass  # The same rule, whether the decay is part of the gradient or not.
    elif decay and name == "Adam":
        name = "AdamW"
    elif decay and not algorithm.is_decoupled:
        _reject(optimizer, "weight_decay", decay, "use AdamW, Nadam or Lion, or weight_decay=0")
    if name == "SGD" and settings["momentum"] and not is_constant:
        raise UnsupportedOptimizerError(
            "SGD with momentum and a learning rate that changes is not supported: use a constant learning "
            "rate, momentum=0, or Adam"
        )
    norm = optimizer.global_clipnorm
    return {
        "optimizer_type": name,
        "learning_rate": schedule(rates),
        **settings,
        **({"max_gradient_norm": float(norm)} if norm else {}),
        "params": _groups(optimizer, trained, traced, decay),
    }


def _algorithm_of(optimizer: Any) -> _Algorithm | None:
    """Return the rule of an optimizer; None for those of users, who may have changed it."""
    # On PyTorch, Keras derives classes of its own.
    kind = next((kind for kind in type(optimizer).__mro__ if kind in _ALGORITHMS), None)
    is_of_keras = type(optimizer).__module__.split(".")[0] == "keras"
    return _ALGORITHMS[kind] if kind and is_of_keras else None


def _check_settings(optimizer: Any) -> None:
    for name, advice in _COMMON.items():
        if getattr(optimizer, name, None):
            _reject(optimizer, name, getattr(optimizer, name), advice)


def _reject(optimizer: Any, name: str, value: Any, remedy: str) -> None:
    raise UnsupportedOptimizerError(
        f"{type(optimizer).__name__} of Keras with {name}={value} is not supported: {remedy}"
    )


def _rates(optimizer: Any, steps: int) -> list[float]:
    """Return the learning rate of each step, from that of the optimizer on."""
    given = optimizer._learning_rate
    if isinstance(given, keras.optimizers.schedules.LearningRateSchedule):
        first = int(keras.ops.convert_to_numpy(optimizer.iterations))
        values = (given(keras.ops.convert_to_tensor(first + step, dtype="int32")) for step in range(steps))
        rates = [float(keras.ops.convert_to_numpy(value)) for value in values]
    elif isinstance(given, keras.Variable):
        rates = [float(keras.ops.convert_to_numpy(given))] * steps
    else:
        raise UnsupportedOptimizerError(
            "the learning rate is a function: use a number, or a schedule of keras.optimizers.schedules"
        )
    # Schedules compute in f32.
    return [learning_rate(float(f"{rate:.9g}"), step, None) for step, rate in enumerate(rates)]


def _groups(
    optimizer: Any, trained: Sequence[Weight], traced: TracedModel, decay: float
) -> list[dict[str, Any]]:
    """Return the groups of tensors: with decay, without, and those that are not trained."""
    decayed = [weight.name for weight in trained if decay and _is_decayed(optimizer, weight.variable)]
    names = [weight.name for weight in trained]
    others = [name for name in traced.transposed if name not in names]
    groups = [
        {"params": decayed, "weight_decay": decay, "learning_rate_factor": 1.0},
        {
            "params": [name for name in names if name not in decayed],
            "weight_decay": 0.0,
            "learning_rate_factor": 1.0,
        },
        {"params": others, "weight_decay": 0.0, "learning_rate_factor": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _is_decayed(optimizer: Any, variable: Any) -> bool:
    # Without its cache, which would fix the answer before the optimizer is built.
    cache = dict(getattr(optimizer, "_exclude_from_weight_decay_cache", {}))
    try:
        return bool(optimizer._use_weight_decay(variable))
    finally:
        optimizer._exclude_from_weight_decay_cache = cache
