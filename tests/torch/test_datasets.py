"""Trains from datasets in Python, which worker processes of the activation servers read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from servers import server
from torch.nn import functional as F  # noqa: N812 (its usual name)
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from millrace import Appliance, errors
from millrace.loader import pack
from millrace.torch import trace

SAMPLES = 64
STEPS = 12
BATCH = 8


class Rows(Dataset[Any]):
    """Rows with a class each. With `noise`, every read of a row adds random numbers."""

    def __init__(self, noise: float = 0.0, fault_at: int | None = None, seconds: float = 0.0) -> None:
        generator = torch.Generator().manual_seed(1)
        self.rows = torch.randn(SAMPLES, 6, generator=generator)
        self.labels = (self.rows.sum(1) > 0).long()
        self.noise, self.fault_at, self.seconds = noise, fault_at, seconds

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        import time

        if index == self.fault_at:
            raise ValueError(f"row {index} can't be read")
        time.sleep(self.seconds)
        noise = torch.randn(6) + float(np.random.rand())
        return self.rows[index] + self.noise * noise, self.labels[index]


class RowStream(IterableDataset[Any]):
    """The rows of `Rows`, which can only be iterated over."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.rows = Rows(seconds=seconds)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return (self.rows[index] for index in range(SAMPLES))


def options(data: Any, **others: Any) -> tuple[torch.nn.Module, dict[str, Any]]:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    return module, {
        "loss": F.cross_entropy,
        "data": data,
        "optimizer": torch.optim.SGD(module.parameters(), lr=0.1),
        "batch_size": BATCH,
        "max_steps": STEPS,
        **others,
    }


def losses(appliance: Appliance, data: Any, num_csx: int = 1, **others: Any) -> list[float]:
    module, given = options(data, **others)
    job = appliance.train(module, num_csx=num_csx, **given)
    assert job.wait(timeout=300) == "Succeeded"
    return [point.loss for point in job.metrics() if point.loss is not None]


def test_dataset_trains_as_the_same_arrays(appliance: Appliance) -> None:
    rows = Rows()
    arrays = losses(appliance, TensorDataset(rows.rows, rows.labels))
    assert losses(appliance, rows, num_workers=3) == arrays
    loader = DataLoader(rows, batch_size=BATCH, shuffle=True, num_workers=1)
    assert losses(appliance, loader, batch_size=None) == arrays


def test_random_samples_are_the_same_on_any_number_of_systems_and_after_a_kill(
    appliance: Appliance, data_dir: Path
) -> None:
    noisy = Rows(noise=0.5)
    expected = losses(appliance, noisy)
    assert expected != losses(appliance, Rows())
    assert losses(appliance, noisy, num_csx=4, num_workers=1) == expected
    assert losses_after_a_kill(appliance, data_dir, Rows(noise=0.5, seconds=0.02)) == expected


def losses_after_a_kill(appliance: Appliance, data_dir: Path, data: Any) -> list[float]:
    """Returns the losses of a job on two systems whose activation servers are killed."""
    module, given = options(data, runconfig={"checkpoint_steps": 2})
    job = appliance.train(module, num_csx=2, **given)
    next(point for point in job.stream_metrics() if point.step >= 3)
    killed = activation_servers(data_dir)
    assert killed
    for process in killed:
        os.kill(process, signal.SIGKILL)
    assert job.wait(timeout=300) == "Succeeded"
    last = {point.step: point.loss for point in job.metrics() if point.loss is not None}
    return [last[step] for step in sorted(last)]


def test_stream_trains_as_the_same_arrays_in_their_order(appliance: Appliance, data_dir: Path) -> None:
    rows = Rows()
    arrays = losses(appliance, TensorDataset(rows.rows, rows.labels), shuffle=False)
    assert losses(appliance, DataLoader(RowStream(), batch_size=BATCH)) == arrays
    assert losses_after_a_kill(appliance, data_dir, RowStream(seconds=0.02)) == arrays
    evaluated = {"eval_data": RowStream(), "runconfig": {"eval_steps": 3}}
    assert losses(appliance, RowStream(), num_csx=4, **evaluated) == arrays
    for invalid, part in (
        ({"shuffle": True}, "shuffle them in the iterator"),
        ({"eval_data": RowStream()}, "have no end: give runconfig={'eval_steps': N}"),
        ({"runconfig": {"max_epochs": 2}}, "give max_steps, not max_epochs"),
    ):
        module, given = options(RowStream(), **invalid)
        with pytest.raises(errors.MillraceError, match=part):
            appliance.plan(module, **given)


def activation_servers(data_dir: Path) -> list[int]:
    """Returns the processes of activation servers of the server with this data directory."""
    lines = {path: path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")}
    is_wanted = (b"\0role\0activation\0", os.fsencode(data_dir))
    return [int(path.parent.name) for path, line in lines.items() if all(part in line for part in is_wanted)]


def test_exception_ends_the_job_with_its_traceback(appliance: Appliance) -> None:
    module, given = options(Rows(fault_at=11))
    job = appliance.train(module, num_csx=1, **given)
    with pytest.raises(errors.JobFailed) as failed:
        job.wait(timeout=300)
    message = str(failed.value)
    assert "ended as BadData: the dataset failed at sample 11: ValueError: row 11 can't be read" in message
    assert f'File "{__file__}", line ' in message
    assert "in __getitem__" in message


def test_command_packs_a_dataset(appliance: Appliance, tmp_path: Path) -> None:
    """`--data` names a class; its module is packed, and params give the workers."""
    (tmp_path / "net.py").write_text(
        "import torch\n"
        "def build():\n    torch.manual_seed(0)\n    return torch.nn.Linear(3, 2)\n"
        "class Rows:\n"
        "    def __len__(self): return 32\n"
        "    def __getitem__(self, index): return {'x': torch.full((3,), index / 32), 'labels': index % 2}\n"
    )
    (tmp_path / "params.yaml").write_text(
        "train_input: {batch_size: 8, num_workers: 1}\nmodel: {}\n"
        "optimizer: {optimizer_type: SGD, learning_rate: 0.1}\nrunconfig: {max_steps: 4}\n"
    )
    flags = ["--model", "net:build", "--data", "net:Rows", "--loss", "torch.nn.functional:cross_entropy"]
    command = [sys.executable, "-m", "millrace", "train", "-p", "params.yaml", *flags, "--url", appliance.url]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "packed net (class Rows)" in done.stderr
    assert "num_workers" not in done.stdout + done.stderr


def test_local_run_reads_a_package_by_a_relative_path(tmp_path: Path) -> None:
    """`millrace-agent` trains from a package beside the params, with the interpreter that packed it."""
    rows = Rows()
    module = torch.nn.Linear(6, 2)
    package = pack(rows, tmp_path / "train")
    example = {name: torch.from_numpy(array) for name, array in package.example.items()}
    trace(module, example, loss=F.cross_entropy).save(tmp_path / "net.json")
    (tmp_path / "params.yaml").write_text(
        "train_input: {data_processor: PythonDataProcessor, data_dir: train, batch_size: 8}\n"
        "eval_input: {batch_size: 8}\nmodel: {graph: net.json}\n"
        "optimizer: {optimizer_type: SGD, learning_rate: 0.1}\n"
        "runconfig: {max_steps: 4, mode: train_and_eval}\n"
    )
    agent = Path(os.environ["MILLRACE_PROGRAMS"], "millrace-agent")
    command = [agent, "run", "-p", "params.yaml", "-o", "out"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "replaced" not in done.stderr


def test_code_of_clients_with_tokens_needs_an_interpreter_of_the_server(tmp_path: Path) -> None:
    """Such code runs as the server's user, so an administrator has to permit it by --python."""
    module, given = options(Rows())
    with server(tmp_path / "denied", "--require-token") as appliance:
        with pytest.raises(errors.BadParams, match="start the server with --python"):
            appliance.train(module, num_csx=1, **given)
    with server(tmp_path / "permitted", "--require-token", "--python", sys.executable) as appliance:
        assert appliance.train(module, num_csx=1, **given).wait(timeout=300) == "Succeeded"
