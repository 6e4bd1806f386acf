#!/usr/bin/env python3
"""Records twenty steps of each optimizer of PyTorch, which `emulator/tests/optimizers.rs` repeats.

    python tests/parity/make_optimizers.py tests/parity/fixtures/optimizers.json

Weights and gradients are formulas of step and element, the same here and there. Adafactor is that of transformers.
PyTorch has neither Lion nor LAMB: their formulas are those of the papers (arXiv:2302.06675, program 1, and
arXiv:1904.00962, algorithm 2).
"""

import argparse
import inspect
import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from transformers.optimization import Adafactor

STEPS, RATE = 20, 0.01
VECTOR, MATRIX, MATRICES = (61,), (7, 19), (2, 3, 17)


def initial(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.tensor([((element * 53) % 31 - 15) / 16 for element in range(math.prod(shape))]).reshape(shape)


def gradient(shape: tuple[int, ...], step: int) -> torch.Tensor:
    values = [((step * 37 + element * 101) % 97 - 48) / 64 for element in range(math.prod(shape))]
    return torch.tensor(values).reshape(shape)


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr: float, betas: tuple[float, float], weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            (first, second), rate = group["betas"], group["lr"]
            for weight in group["params"]:
                momentum = self.state[weight].setdefault("m", torch.zeros_like(weight))
                weight.mul_(1 - rate * group["weight_decay"])
                weight.sub_(rate * torch.sign(first * momentum + (1 - first) * weight.grad))
                momentum.copy_(second * momentum + (1 - second) * weight.grad)


class Lamb(torch.optim.Optimizer):
    def __init__(self, params, lr: float, betas: tuple[float, float], eps: float, weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            (first, second), rate = group["betas"], group["lr"]
            for weight in group["params"]:
                state = self.state[weight]
                state["step"] = state.get("step", 0) + 1
                m = state.setdefault("m", torch.zeros_like(weight))
                v = state.setdefault("v", torch.zeros_like(weight))
                m.copy_(first * m + (1 - first) * weight.grad)
                v.copy_(second * v + (1 - second) * weight.grad**2)
                unbiased = (m / (1 - first ** state["step"]), v / (1 - second ** state["step"]))
                update = unbiased[0] / (unbiased[1].sqrt() + group["eps"]) + group["weight_decay"] * weight
                weight.sub_(rate * weight.norm() / update.norm() * update)


BETAS = (0.9, 0.95)
ADAM = {"betas": BETAS, "eps": 1e-8, "correct_bias": True}
# A second moment that decays so fast that the largest one differs from it.
AMSGRAD = {"betas": (0.9, 0.5), "amsgrad": True}
# The settings as a job contains them, and PyTorch's optimizer.
CASES = [
    ({"name": "adamw"} | ADAM, torch.optim.AdamW, {"betas": BETAS}),
    ({"name": "adamw"} | ADAM | AMSGRAD, torch.optim.AdamW, AMSGRAD),
    ({"name": "adam"} | ADAM, torch.optim.Adam, {"betas": BETAS}),
    ({"name": "adam"} | ADAM | AMSGRAD, torch.optim.Adam, AMSGRAD),
    ({"name": "sgd", "momentum": 0.0}, torch.optim.SGD, {}),
    ({"name": "sgd", "momentum": 0.9}, torch.optim.SGD, {"momentum": 0.9}),
    (
        {"name": "sgd", "momentum": 0.9, "dampening": 0.25},
        torch.optim.SGD,
        {"momentum": 0.9, "dampening": 0.25},
    ),
    (
        {"name": "sgd", "momentum": 0.9, "nesterov": True},
        torch.optim.SGD,
        {"momentum": 0.9, "nesterov": True},
    ),
    ({"name": "lion", "betas": BETAS}, Lion, {"betas": BETAS}),
    (
        {"name": "rmsprop", "alpha": 0.9, "eps": 1e-8, "momentum": 0.0, "centered": False},
        torch.optim.RMSprop,
        {"alpha": 0.9},
    ),
    (
        {"name": "rmsprop", "alpha": 0.9, "eps": 1e-8, "momentum": 0.5, "centered": False},
        torch.optim.RMSprop,
        {"alpha": 0.9, "momentum": 0.5},
    ),
    (
        {"name": "rmsprop", "alpha": 0.9, "eps": 1e-8, "momentum": 0.0, "centered": True},
        torch.optim.RMSprop,
        {"alpha": 0.9, "centered": True},
    ),
    (
        {"name": "rmsprop", "alpha": 0.9, "eps": 1e-8, "momentum": 0.5, "centered": True},
        torch.optim.RMSprop,
        {"alpha": 0.9, "momentum": 0.5, "centered": True},
    ),
    (
        {"name": "adagrad", "lr_decay": 0.1, "initial_accumulator_value": 0.5, "eps": 1e-10},
        torch.optim.Adagrad,
        {"lr_decay": 0.1, "initial_accumulator_value": 0.5},
    ),
    ({"name": "nadam", "betas": BETAS, "eps": 1e-8, "momentum_decay": 0.004}, torch.optim.NAdam, {"betas": BETAS}),
    (
        {"name": "nadam", "betas": BETAS, "eps": 1e-8, "momentum_decay": 0.004, "decoupled_weight_decay": True},
        torch.optim.NAdam,
        {"betas": BETAS, "decoupled_weight_decay": True},
    ),
    ({"name": "radam", "betas": BETAS, "eps": 1e-8}, torch.optim.RAdam, {"betas": BETAS}),
    (
        {"name": "radam", "betas": BETAS, "eps": 1e-8, "decoupled_weight_decay": True},
        torch.optim.RAdam,
        {"betas": BETAS, "decoupled_weight_decay": True},
    ),
    ({"name": "adamax", "betas": BETAS, "eps": 1e-8}, torch.optim.Adamax, {"betas": BETAS}),
    ({"name": "adadelta", "rho": 0.9, "eps": 1e-6}, torch.optim.Adadelta, {"rho": 0.9}),
    (
        {"name": "lamb", "betas": BETAS, "eps": 1e-6, "correct_bias": True, "adam": False},
        Lamb,
        {"betas": BETAS, "eps": 1e-6},
    ),
]


def adafactor(clip_threshold: float = 1.0, beta1: float | None = None, scale_parameter: bool = True) -> tuple:
    settings = {
        "eps": (1e-30, 1e-3),
        "clip_threshold": clip_threshold,
        "decay_rate": -0.8,
        "beta1": beta1,
        "scale_parameter": scale_parameter,
    }
    return {"name": "adafactor"} | settings, Adafactor, settings | {"relative_step": False}


CASES += [adafactor(), adafactor(0.5, 0.9), adafactor(scale_parameter=False)]
# Optimizers with statistics of whole tensors.
OF_TENSORS = ("lamb", "adafactor")
# A momentum that changes as OneCycleLR changes it.
SCHEDULE = {"steps": [0, 6, 19], "values": [0.95, 0.85, 0.95], "curve": "linear"}


def momentum(step: int) -> float:
    return float(np.interp(step - 1, SCHEDULE["steps"], SCHEDULE["values"]))


def train(
    optimizer: type[torch.optim.Optimizer],
    shape: tuple[int, ...],
    weight_decay: float,
    settings: dict,
    is_scheduled: bool = False,
) -> list[float]:
    weights = initial(shape).requires_grad_()
    optimizer = optimizer([weights], lr=RATE, weight_decay=weight_decay, **settings)
    (group,) = optimizer.param_groups
    for step in range(1, STEPS + 1):
        if is_scheduled and "betas" in group:
            group["betas"] = (momentum(step), group["betas"][1])
        elif is_scheduled:
            group["momentum"] = momentum(step)
        weights.grad = gradient(shape, step)
        optimizer.step()
    return weights.flatten().tolist()


def cases() -> Iterator[dict]:
    for job, optimizer, settings in CASES:
        for shape in (VECTOR, MATRIX, MATRICES) if job["name"] in OF_TENSORS else (VECTOR,):
            for weight_decay in (0.0, 0.1):
                weights = train(optimizer, shape, weight_decay, settings)
                yield {"optimizer": job, "weight_decay": weight_decay, "shape": shape, "weights": weights}
        if settings.keys() & {"momentum", "betas"}:
            weights = train(optimizer, VECTOR, 0.1, settings, is_scheduled=True)
            scheduled = {"optimizer": job, "weight_decay": 0.1, "momentum_schedule": SCHEDULE}
            yield scheduled | {"shape": VECTOR, "weights": weights}
        if "maximize" in inspect.signature(optimizer).parameters:
            weights = train(optimizer, VECTOR, 0.1, settings | {"maximize": True})
            yield {"optimizer": job, "weight_decay": 0.1, "maximize": True, "shape": VECTOR, "weights": weights}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    lines = ",\n".join(json.dumps(case) for case in cases())
    parser.parse_args().file.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
