#!/usr/bin/env python3
"""Records twenty steps of each optimizer of PyTorch, which `emulator/tests/optimizers.rs` repeats.

    python tests/parity/make_optimizers.py tests/parity/fixtures/optimizers.json

Weights and gradients are formulas of step and element, the same here and there. PyTorch has no Lion: its formula is
that of the paper (arXiv:2302.06675, program 1).
"""

import argparse
import json
from pathlib import Path

import torch

ELEMENTS, STEPS, RATE = 61, 20, 0.01


def initial() -> torch.Tensor:
    return torch.tensor([((element * 53) % 31 - 15) / 16 for element in range(ELEMENTS)])


def gradient(step: int) -> torch.Tensor:
    return torch.tensor([((step * 37 + element * 101) % 97 - 48) / 64 for element in range(ELEMENTS)])


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
]


def train(optimizer: type[torch.optim.Optimizer], weight_decay: float, settings: dict) -> list[float]:
    weights = initial().requires_grad_()
    optimizer = optimizer([weights], lr=RATE, weight_decay=weight_decay, **settings)
    for step in range(1, STEPS + 1):
        weights.grad = gradient(step)
        optimizer.step()
    return weights.tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    cases = [
        {"optimizer": job, "weight_decay": weight_decay, "weights": train(optimizer, weight_decay, settings)}
        for job, optimizer, settings in CASES
        for weight_decay in (0.0, 0.1)
    ]
    lines = ",\n".join(json.dumps(case) for case in cases)
    parser.parse_args().file.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
