"""Describes an optimizer of PyTorch, with its learning rates, as the section `optimizer` of the params.

* PyTorch decays all parameters of a group, the appliance by itself none of biases and norms: the groups of
  the optimizer are always written out, with the names of their tensors.
* A scheduler is evaluated for each step of the run. The state of the optimizer, such as its moments, is not
  part of the params: only the learning rates begin where the scheduler is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from millrace.torch.schedule import (
    UnsupportedOptimizerError,
    constant_ratios,
    groups_by_step,
    learning_rate,
    schedule,
)
from millrace.torch.traced_model import TracedModel


@dataclass(frozen=True)
class _Algorithm:
    """An optimizer of PyTorch that the appliance has."""

    name: str
    """Its `optimizer_type` in the params."""
    settings: dict[str, str]
    """The names of its settings in PyTorch, and in the params."""
    required: dict[str, Any] = field(default_factory=dict)
    """The values that other settings must have."""


def _same_names(*names: str) -> dict[str, str]:
    return {name: name for name in names}


_ALGORITHMS: dict[type, _Algorithm] = {
    torch.optim.AdamW: _Algorithm("AdamW", _same_names("betas", "eps"), {"amsgrad": False}),
    torch.optim.Adam: _Algorithm("Adam", _same_names("betas", "eps"), {"amsgrad": False}),
    torch.optim.SGD: _Algorithm("SGD", _same_names("momentum"), {"nesterov": False}),
    torch.optim.RMSprop: _Algorithm("RMSprop", _same_names("alpha", "eps", "momentum", "centered")),
    torch.optim.Adagrad: _Algorithm("Adagrad", _same_names("lr_decay", "initial_accumulator_value", "eps")),
    torch.optim.NAdam: _Algorithm("NAdam", _same_names("betas", "eps", "momentum_decay")),
    torch.optim.RAdam: _Algorithm("RAdam", _same_names("betas", "eps")),
    torch.optim.Adafactor: _Algorithm(
        "Adafactor", {"eps": "eps", "beta2_decay": "decay_rate", "d": "clip_threshold"}, {"weight_decay": 0}
    ),
}


def optimizer_params(
    optimizer: torch.optim.Optimizer,
    model: torch.nn.Module,
    traced: TracedModel,
    *,
    scheduler: LRScheduler | None = None,
    steps: int,
) -> dict[str, Any]:
    """Return the section `optimizer` of the params for an optimizer of a traced module.

    `scheduler` is one whose `step()` is called after each of the `steps` that the optimizer makes. Neither
    object is changed. Parameters that the optimizer does not have are not trained.

    Raises `UnsupportedOptimizerError` if the appliance can't do what the optimizer and the scheduler do.
    """
    algorithm = _ALGORITHMS.get(type(optimizer))
    if algorithm is None:
        supported = ", ".join(known.name for known in _ALGORITHMS.values())
        raise UnsupportedOptimizerError(
            f"the optimizer {type(optimizer).__name__} is not supported; use one of torch.optim: {supported}"
        )
    names = _tensor_names(optimizer, model, traced)
    trained = [at for at, group in enumerate(names) if group]
    if not trained:
        raise UnsupportedOptimizerError("the optimizer trains no parameter of the graph")
    groups = [dict(optimizer.param_groups[at]) for at in trained]
    settings = _common_settings(algorithm, groups)
    rates = _rates(algorithm, optimizer, scheduler, steps, trained)
    reference = next((at for at in range(len(trained)) if any(row[at] for row in rates)), 0)
    described = [
        {"params": names[at], "weight_decay": float(group["weight_decay"]), "learning_rate_factor": ratio}
        for at, group, ratio in zip(trained, groups, constant_ratios(rates, reference), strict=True)
    ]
    given = {name for group in names for name in group}
    if others := [name for name in traced.transposed if name not in given]:
        described.append({"params": others, "weight_decay": 0.0, "learning_rate_factor": 0.0})
    return {
        "optimizer_type": "AdamW" if algorithm.name == "Adam" and _is_decoupled(groups) else algorithm.name,
        "learning_rate": schedule([row[reference] for row in rates]),
        **settings,
        "params": described,
    }


def _tensor_names(
    optimizer: torch.optim.Optimizer, model: torch.nn.Module, traced: TracedModel
) -> list[list[str]]:
    """Return the tensors of the graph that each group of the optimizer trains."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    if unknown := [name for name in traced.transposed if name not in parameters]:
        raise UnsupportedOptimizerError(
            f"the module has no parameter {unknown[0]}; pass the module that was traced"
        )
    tensors = {id(parameters[name]): name for name in traced.transposed}
    known = {id(parameter) for parameter in parameters.values()}
    names = []
    for at, group in enumerate(optimizer.param_groups):
        for index, parameter in enumerate(group["params"]):
            if id(parameter) not in known:
                raise UnsupportedOptimizerError(
                    f"parameter {index} of group {at} of the optimizer, of shape {tuple(parameter.shape)}, "
                    "is not in the module; create the optimizer with the parameters of the traced module"
                )
        found = [item for item in group["params"] if id(item) in tensors and item.requires_grad]
        names.append([tensors[id(item)] for item in found])
    return names


def _common_settings(algorithm: _Algorithm, groups: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the settings of all groups as keys of the params; they must be the same."""
    settings = _settings(algorithm, groups[0])
    for group in groups[1:]:
        for key, value in _settings(algorithm, group).items():
            if value != settings[key]:
                raise UnsupportedOptimizerError(
                    f"the groups of the optimizer have different {key}, {settings[key]} and {value}; only lr "
                    "and weight_decay may differ"
                )
    return settings


def _settings(algorithm: _Algorithm, group: dict[str, Any]) -> dict[str, Any]:
    for name, value in {"maximize": False, **algorithm.required}.items():
        if group.get(name, value) != value:
            _reject(algorithm, name, group[name], f"use {name}={value}")
    if algorithm.name == "SGD" and group["momentum"] and group["dampening"]:
        _reject(algorithm, "dampening", group["dampening"], "use dampening=0")
    if algorithm.name == "RMSprop" and group["momentum"] and group["centered"]:
        _reject(algorithm, "centered", True, "use centered=False or momentum=0")
    is_coupled = algorithm.name in ("NAdam", "RAdam")
    if is_coupled and group["weight_decay"] and group.get("decoupled_weight_decay"):
        _reject(algorithm, "decoupled_weight_decay", True, "use decoupled_weight_decay=False, or AdamW")
    # The appliance adds eps[0] to squared gradients, and PyTorch raises means of them to it.
    if algorithm.name == "Adafactor" and (group["eps"][0] is None or group["eps"][0] > 1e-20):
        _reject(algorithm, "eps", group["eps"], "use eps=(1e-30, 1e-3)")
    return {key: _plain(group[name]) for name, key in algorithm.settings.items()}


def _reject(algorithm: _Algorithm, name: str, value: Any, remedy: str) -> None:
    raise UnsupportedOptimizerError(f"{algorithm.name} with {name}={value} is not supported; {remedy}")


def _plain(value: Any) -> Any:
    """Return a setting as JSON has it."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, bool) else float(value)


def _rates(
    algorithm: _Algorithm,
    optimizer: torch.optim.Optimizer,
    scheduler: LRScheduler | None,
    steps: int,
    trained: list[int],
) -> list[list[float]]:
    """Return the learning rates of some groups of the optimizer at each step."""
    if steps < 1:
        raise UnsupportedOptimizerError(f"steps is {steps}; it must be the number of steps of the run")
    is_limited = algorithm.name == "Adafactor"
    rates = []
    for step, groups in enumerate(groups_by_step(optimizer, scheduler, steps)):
        current = [groups[at] for at in trained]
        for group, at in zip(current, trained, strict=True):
            for name in (*algorithm.settings, "weight_decay"):
                if group[name] != optimizer.param_groups[at][name]:
                    raise UnsupportedOptimizerError(
                        f"the scheduler changes {name}, and may change the learning rate only; OneCycleLR "
                        "and CyclicLR need cycle_momentum=False"
                    )
        # PyTorch's Adafactor has at most this rate. It counts steps from 1.
        limit = (step + 1) ** -0.5 if is_limited else None
        rates.append([learning_rate(group["lr"], step, limit) for group in current])
        if scheduler is None and not is_limited:
            break
    return rates


def _is_decoupled(groups: list[dict[str, Any]]) -> bool:
    """Return whether Adam decays weights as AdamW does."""
    found = {bool(group.get("decoupled_weight_decay")) for group in groups if group["weight_decay"]}
    if len(found) > 1:
        raise UnsupportedOptimizerError(
            "the groups of the optimizer have different decoupled_weight_decay; only lr and weight_decay may "
            "differ"
        )
    return found == {True}
