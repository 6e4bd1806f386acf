#!/usr/bin/env python3
"""Records twenty steps of each optimizer of PyTorch, which `emulator/tests/optimizers.rs` repeats.

    python tests/parity/make_optimizers.py tests/parity/fixtures/optimizers.json

Weights and gradients are formulas of step and element, the same here and there. Adafactor is that of transformers.
PyTorch has neither Lion nor LAMB: their formulas are those of the papers (arXiv:2302.06675, program 1, and
arXiv:1904.00962, algorithm 2).
"""

import argparse
import json
import math
from pathlib import Path

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
# The settings as a job contains them, and PyTorch's optimizer.
CASES = [
    ({"name": "adamw", "betas": BETAS, "eps": 1e-8, "correct_bias": True}, torch.optim.AdamW, {"betas": BETAS}),
    ({"name": "adam", "betas": BETAS, "eps": 1e-8, "correct_bias": True}, torch.optim.Adam, {"betas": BETAS}),
    ({"name": "sgd", "momentum": 0.0}, torch.optim.SGD, {}),
    ({"name": "sgd", "momentum": 0.9}, torch.optim.SGD, {"momentum": 0.9}),
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
        {"name": "adagrad", "lr_decay": 0.1, "initial_accumulator_value": 0.5, "eps": 1e-10},
        torch.optim.Adagrad,
        {"lr_decay": 0.1, "initial_accumulator_value": 0.5},
    ),
    ({"name": "nadam", "betas": BETAS, "eps": 1e-8, "momentum_decay": 0.004}, torch.optim.NAdam, {"betas": BETAS}),
    ({"name": "radam", "betas": BETAS, "eps": 1e-8}, torch.optim.RAdam, {"betas": BETAS}),
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


def train(
    optimizer: type[torch.optim.Optimizer], shape: tuple[int, ...], weight_decay: float, settings: dict
) -> list[float]:
    weights = initial(shape).requires_grad_()
    optimizer = optimizer([weights], lr=RATE, weight_decay=weight_decay, **settings)
    for step in range(1, STEPS + 1):
        weights.grad = gradient(shape, step)
        optimizer.step()
    return weights.flatten().tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    cases = [
        {
            "optimizer": job,
            "weight_decay": weight_decay,
            "shape": shape,
            "weights": train(optimizer, shape, weight_decay, settings),
        }
        for job, optimizer, settings in CASES
        for shape in ((VECTOR, MATRIX, MATRICES) if job["name"] in OF_TENSORS else (VECTOR,))
        for weight_decay in (0.0, 0.1)
    ]
    lines = ",\n".join(json.dumps(case) for case in cases)
    parser.parse_args().file.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
