#!/usr/bin/env python3
"""A worker of the recovery benchmark: trains the benchmark's GPT on two workers with PyTorch, on the CPU.

    torchrun --nproc-per-node 2 --max-restarts 1000 tests/bench/torch_elastic.py --steps 4000 --directory DIR
    REPLICA_GROUP_ID=0 ... python tests/bench/torch_elastic.py --torchft --steps 4000 --directory DIR

Under torchrun, rank 0 saves model and optimizer every 100 steps, and all workers continue from the newest checkpoint
when they are restarted. With --torchft, a worker is a replica group of its own: the others continue while it is
restarted, and it takes over their state. The samples of a step depend on the step only.

Each worker appends lines `start STEP`, `step STEP SAMPLES` and `end` to DIR/worker-RANK.log.
"""

import argparse
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "parity"))
from gpt import Config, Gpt  # noqa: E402

WORKERS = 2
BATCH = 16
LENGTH = 64
CHECKPOINT_STEPS = 100
CONFIG = Config(vocab_size=512, positions=LENGTH, hidden=96, layers=2, heads=3, inner=384)


def samples(step: int, rank: int) -> torch.Tensor:
    """The tokens of a worker's half of a batch, with one more token each as label."""
    generator = torch.Generator().manual_seed(step)
    batch = torch.randint(CONFIG.vocab_size, (BATCH, LENGTH + 1), generator=generator)
    return batch[rank * BATCH // WORKERS : (rank + 1) * BATCH // WORKERS]


def loss_of(model: nn.Module, windows: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, fused=True)


class Log:
    def __init__(self, directory: Path, rank: int) -> None:
        self.file = directory.joinpath(f"worker-{rank}.log").open("a", buffering=1)

    def __call__(self, *words: object) -> None:
        print(*words, file=self.file)


def train_elastic(steps: int, directory: Path) -> None:
    """Trains as a worker of torchrun."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    log, saved = Log(directory, rank), directory / "checkpoint.pt"
    model = Gpt(CONFIG).initialise(seed=0)
    optimizer, first = optimizer_of(model), 0
    if saved.exists():
        state = torch.load(saved)
        first = state["step"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    parallel = nn.parallel.DistributedDataParallel(model)
    log("start", first)
    for step in range(first, steps):
        optimizer.zero_grad(set_to_none=True)
        loss_of(parallel, samples(step, rank)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        log("step", step + 1, BATCH)
        if rank == 0 and (step + 1) % CHECKPOINT_STEPS == 0:
            partial = saved.with_suffix(".part")
            torch.save({"step": step + 1, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, partial)
            partial.rename(saved)
    dist.barrier()
    log("end")
    dist.destroy_process_group()


def train_replica(steps: int, directory: Path) -> None:
    """Trains as one of two replica groups of torchft, each of one worker."""
    import torchft

    rank = int(os.environ["REPLICA_GROUP_ID"])
    log = Log(directory, rank)
    model = Gpt(CONFIG).initialise(seed=0)
    optimizer = optimizer_of(model)

    def load(state: dict[str, dict[str, object]]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=5)),
        min_replica_size=1,
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        replica_id=f"replica-{rank}",
        timeout=timedelta(seconds=10),
    )
    parallel = torchft.DistributedDataParallel(manager, model)
    guarded = torchft.Optimizer(manager, optimizer)
    log("start", manager.current_step())
    while (step := manager.current_step()) < steps:
        guarded.zero_grad()
        loss_of(parallel, samples(step, rank)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        guarded.step()
        if manager.current_step() > step:
            log("step", manager.current_step(), BATCH // WORKERS * manager.num_participants())
    log("end")
    manager.shutdown(wait=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--torchft", action="store_true")
    given = parser.parse_args()
    torch.set_flush_denormal(True)
    torch.set_num_threads(1)
    (train_replica if given.torchft else train_elastic)(given.steps, given.directory)


if __name__ == "__main__":
    main()
