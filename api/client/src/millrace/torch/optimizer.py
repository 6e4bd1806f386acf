"""Describes an optimizer of PyTorch, with its schedules, as the section `optimizer` of the params.

* PyTorch decays all parameters of a group, the appliance by itself none of biases and norms: the groups of
  the optimizer are always written out, with the names of their tensors.
* A scheduler is evaluated for each step of the run: the learning rate, and the momentum or the first of the
  betas. The state of the optimizer, such as its moments, is not part of the params: only these two begin
  where the scheduler is.
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
    momentum,
    momentum_schedule,
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

    @property
    def has_momentum(self) -> bool:
        """Whether it has a momentum, or betas, which a scheduler may change."""
        return not self.settings.keys().isdisjoint(("momentum", "betas"))


def _same_names(*names: str) -> dict[str, str]:
    return {name: name for name in names}


_ALGORITHMS: dict[type, _Algorithm] = {
    torch.optim.AdamW: _Algorithm("AdamW", _same_names("betas", "eps", "amsgrad")),
    torch.optim.Adam: _Algorithm("Adam", _same_names("betas", "eps", "amsgrad")),
    torch.optim.SGD: _Algorithm("SGD", _same_names("momentum", "dampening", "nesterov")),
    torch.optim.RMSprop: _Algorithm("RMSprop", _same_names("alpha", "eps", "momentum", "centered")),
    torch.optim.Adagrad: _Algorithm("Adagrad", _same_names("lr_decay", "initial_accumulator_value", "eps")),
    torch.optim.NAdam: _Algorithm(
        "NAdam", _same_names("betas", "eps", "momentum_decay", "decoupled_weight_decay")
    ),
    torch.optim.RAdam: _Algorithm("RAdam", _same_names("betas", "eps", "decoupled_weight_decay")),
    torch.optim.Adamax: _Algorithm("Adamax", _same_names("betas", "eps")),
    torch.optim.Adadelta: _Algorithm("Adadelta", _same_names("rho", "eps")),
    torch.optim.Adafactor: _Algorithm(
        "Adafactor", {"eps": "eps", "beta2_decay": "decay_rate", "d": "clip_threshold"}, {"weight_decay": 0}
    ),
}

_OMITTED = {
    "amsgrad": False,
    "nesterov": False,
    "dampening": 0.0,
    "decoupled_weight_decay": False,
    "maximize": False,
}
"""Values that the params do not need, because they are the defaults."""


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
    if algorithm.name == "Adafactor" and any(
        item.is_complex() for group in groups for item in group["params"]
    ):
        raise UnsupportedOptimizerError("Adafactor does not support complex parameters: use AdamW")
    settings = _common_settings(algorithm, groups)
    rates, momenta = _by_step(algorithm, optimizer, scheduler, steps, trained)
    reference = next((at for at in range(len(trained)) if any(row[at] for row in rates)), 0)
    described = [
        {"params": names[at], "weight_decay": float(group["weight_decay"]), "learning_rate_factor": ratio}
        for at, group, ratio in zip(trained, groups, constant_ratios(rates, reference), strict=True)
    ]
    if algorithm.has_momentum:
        of_groups = [list(column) for column in zip(*momenta, strict=True)]
        settings |= _momentum_settings(algorithm, settings, of_groups, reference, described)
    given = {name for group in names for name in group}
    if others := [name for name in traced.transposed if name not in given]:
        described.append({"params": others, "weight_decay": 0.0, "learning_rate_factor": 0.0})
    return {
        "optimizer_type": "AdamW" if algorithm.name == "Adam" and _is_decoupled(groups) else algorithm.name,
        "learning_rate": schedule([row[reference] for row in rates]),
        **{key: value for key, value in settings.items() if _OMITTED.get(key) != value},
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
                    f"the groups of the optimizer have different {key}, {settings[key]} and {value}; only "
                    "lr, weight_decay and momentum may differ"
                )
    return settings


def _settings(algorithm: _Algorithm, group: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a group as keys of the params, without its momentum."""
    for name, value in algorithm.required.items():
        if group.get(name, value) != value:
            _reject(algorithm, name, group[name], f"use {name}={value}")
    if algorithm.name == "SGD" and not 0 <= group["dampening"] <= 1:
        _reject(algorithm, "dampening", group["dampening"], "use a dampening from 0 to 1")
    # The appliance adds eps[0] to squared gradients, and PyTorch raises means of them to it.
    if algorithm.name == "Adafactor" and (group["eps"][0] is None or group["eps"][0] > 1e-20):
        _reject(algorithm, "eps", group["eps"], "use eps=(1e-30, 1e-3)")
    settings = {
        key: _plain(group[name])
        for name, key in algorithm.settings.items()
        if name not in ("momentum", "betas")
    }
    if "betas" in algorithm.settings:
        settings["beta2"] = _plain(group["betas"][1])
    return settings | {"maximize": bool(group.get("maximize"))}


def _momentum_of(group: dict[str, Any], step: int) -> float:
    """Return the momentum of a group, or the first of its betas."""
    return momentum(group["betas"][0] if "betas" in group else group["momentum"], step)


def _momentum_settings(
    algorithm: _Algorithm,
    settings: dict[str, Any],
    of_groups: list[list[float]],
    reference: int,
    described: list[dict[str, Any]],
) -> dict[str, Any]:
    """Return the momentum of the optimizer as keys of the params, from the momenta of each group by step.

    That of the group `reference` is also that of the optimizer. Groups with another one are given it in
    `described`. Removes settings of `settings` that need a momentum if there is none.
    """
    constant = of_groups[reference][0]
    if "betas" in algorithm.settings:
        keys: dict[str, Any] = {"betas": [constant, settings.pop("beta2")]}
    else:
        # A momentum of 0 is none, for which no state is kept.
        constant = constant or max(max(momenta) for momenta in of_groups)
        keys = {"momentum": constant}
    if not constant and "dampening" in settings:
        settings["dampening"] = 0.0
    # The first gradient of a momentum is not dampened, which is that of the first step for the appliance.
    if settings.get("dampening") and any(any(momenta) and not momenta[0] for momenta in of_groups):
        _reject(algorithm, "dampening", settings["dampening"], "begin with a momentum above 0")
    common = momentum_schedule(of_groups[reference], constant)
    for group, momenta in zip(described, of_groups, strict=True):
        if momenta != of_groups[reference]:
            group["momentum_schedule"] = momentum_schedule(momenta, None)
    return keys | ({"momentum_schedule": common} if common else {})


def _reject(algorithm: _Algorithm, name: str, value: Any, remedy: str) -> None:
    raise UnsupportedOptimizerError(f"{algorithm.name} with {name}={value} is not supported; {remedy}")


def _plain(value: Any) -> Any:
    """Return a setting as JSON has it."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, bool) else float(value)


def _by_step(
    algorithm: _Algorithm,
    optimizer: torch.optim.Optimizer,
    scheduler: LRScheduler | None,
    steps: int,
    trained: list[int],
) -> tuple[list[list[float]], list[list[float]]]:
    """Return the learning rates and the momenta of some groups of the optimizer at each step."""
    if steps < 1:
        raise UnsupportedOptimizerError(f"steps is {steps}; it must be the number of steps of the run")
    is_limited = algorithm.name == "Adafactor"
    rates, momenta = [], []
    for step, groups in enumerate(groups_by_step(optimizer, scheduler, steps)):
        current = [groups[at] for at in trained]
        for group, at in zip(current, trained, strict=True):
            _check_unchanged(algorithm, group, optimizer.param_groups[at])
        if algorithm.has_momentum:
            momenta.append([_momentum_of(group, step) for group in current])
        # PyTorch's Adafactor has at most this rate. It counts steps from 1.
        limit = (step + 1) ** -0.5 if is_limited else None
        rates.append([learning_rate(group["lr"], step, limit) for group in current])
        if scheduler is None and not is_limited:
            break
    return rates, momenta


def _check_unchanged(algorithm: _Algorithm, group: dict[str, Any], before: dict[str, Any]) -> None:
    """Reject a scheduler that changes more than the learning rate and the momentum."""
    for name in (*algorithm.settings, "weight_decay"):
        now, then = (values[name][1:] if name == "betas" else values[name] for values in (group, before))
        if name != "momentum" and now != then:
            raise UnsupportedOptimizerError(
                f"the scheduler changes {name}, and may change the learning rate and the momentum only"
            )


def _is_decoupled(groups: list[dict[str, Any]]) -> bool:
    """Return whether Adam decays weights as AdamW does."""
    found = {bool(group.get("decoupled_weight_decay")) for group in groups if group["weight_decay"]}
    if len(found) > 1:
        raise UnsupportedOptimizerError(
            "the groups of the optimizer have different decoupled_weight_decay; only lr, weight_decay and "
            "momentum may differ"
        )
    return found == {True}
