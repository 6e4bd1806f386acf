"""Measures how fast worker processes read a dataset, beside PyTorch's DataLoader and a plain loop.

    measure_loader.py PROGRAM         PROGRAM is the example `loader_rate` of millrace-loader

Prints samples per second and ratios for small samples, for random augmentations, and for large samples.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from millrace.loader import PythonDataset, pack

BATCH = 256
SECONDS = 5
WORKERS = 2


class Samples(Dataset[Any]):
    """Random rows of this size; with `augment`, each read adds noise."""

    def __init__(self, size: int, *, augment: bool = False) -> None:
        self.rows = torch.randn(4096, size)
        self.augment = augment

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        row = self.rows[index]
        return row + torch.randn(row.shape) if self.augment else row, index % 10


def rate_of_loop(dataset: Samples) -> float:
    """Returns the samples per second that one process reads, without collating them."""
    begin, count = time.monotonic(), 0
    while time.monotonic() - begin < SECONDS:
        for index in range(BATCH):
            dataset[(count + index) % len(dataset)]
        count += BATCH
    return count / (time.monotonic() - begin)


def rate_of_data_loader(dataset: Samples) -> float:
    """Returns the samples per second of PyTorch's DataLoader with the same number of workers."""
    loader = DataLoader(dataset, BATCH, num_workers=WORKERS, persistent_workers=True)
    for _ in loader:
        pass
    begin, count = time.monotonic(), 0
    while time.monotonic() - begin < SECONDS:
        for rows, _ in loader:
            count += len(rows)
    return count / (time.monotonic() - begin)


def rate_of_workers(program: str, dataset: Samples) -> float:
    """Returns the samples per second of the workers of an activation server."""
    with tempfile.TemporaryDirectory() as directory:
        package = Path(directory, "train")
        pack(PythonDataset(dataset, workers=WORKERS), package)
        done = subprocess.run(
            [program, package, str(BATCH), str(SECONDS)], capture_output=True, text=True, check=True
        )
    return float(done.stdout)


def main() -> None:
    torch.set_num_threads(1)
    print(f"{'samples':24}{'loop':>10}{'DataLoader':>12}{'workers':>10}{'/ loop':>8}{'/ DataLoader':>14}")
    for name, dataset in {
        "64 numbers": Samples(64),
        "64 numbers, augmented": Samples(64, augment=True),
        "2,352 numbers": Samples(2352),
    }.items():
        loop, data_loader = rate_of_loop(dataset), rate_of_data_loader(dataset)
        workers = rate_of_workers(sys.argv[1], dataset)
        print(
            f"{name:24}{loop:10.0f}{data_loader:12.0f}{workers:10.0f}{workers / loop:8.2f}{workers / data_loader:14.2f}"
        )


if __name__ == "__main__":
    main()
