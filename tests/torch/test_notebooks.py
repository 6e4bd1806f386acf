"""Executes the notebooks in examples/notebooks, which check their own results, and cells with errors in a kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager, start_new_kernel

from millrace import Appliance

NOTEBOOKS = Path(__file__).parents[2] / "examples/notebooks"
JOB = """
import torch, millrace
appliance = millrace.Appliance()
net, x, labels = torch.nn.Linear(4, 3), torch.randn(64, 4), torch.randint(0, 3, (64,))
def train(labels, max_steps):
    return appliance.train(
        net, loss=torch.nn.functional.cross_entropy, data={"x": x, "labels": labels},
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1), batch_size=8, max_steps=max_steps, shuffle=False)
"""
NET = """
class Net(torch.nn.Linear):
    def __init__(self): super().__init__(4, 3)
    def forward(self, x): return super().forward(x if x.sum() > 0 else -x)
"""


@pytest.mark.parametrize("name", sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb")))
def test_notebook_runs(name: str, appliance: Appliance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_URL", appliance.url)
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(NOTEBOOKS)}})
    client.execute()
    assert all(cell.get("execution_count") for cell in notebook.cells if cell.cell_type == "code")


@pytest.fixture
def kernel(
    appliance: Appliance, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[KernelManager, BlockingKernelClient]]:
    monkeypatch.setenv("MILLRACE_URL", appliance.url)
    manager, client = start_new_kernel()
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def execute(
    client: BlockingKernelClient, source: str, on_message: Callable[[Any], object] = lambda _: None
) -> list[Any]:
    """Executes a cell and returns the messages of its outputs."""
    messages = []

    def add(message: Any) -> None:
        messages.append(message)
        on_message(message)

    client.execute_interactive(source, timeout=100, output_hook=add)
    kinds = ("stream", "display_data", "update_display_data", "error")
    return [message for message in messages if message["msg_type"] in kinds]


def test_failed_job_is_a_message_in_a_kernel(kernel: tuple[KernelManager, BlockingKernelClient]) -> None:
    _, client = kernel
    execute(client, JOB)
    *_, error = execute(client, "labels[20] = 5\njob = train(labels, 20)\njob.follow()")
    cause, *lines = error["content"]["traceback"]
    assert (
        cause.startswith("JobFailed: job job-")
        and "labels of leaf" in cause
        and "must be less than 3" in cause
    )
    assert lines[-2:] == ["Cell In[2], line 3: job.follow()", "(%tb shows the traceback)"]


def test_rejected_module_names_the_line_of_its_cell(
    kernel: tuple[KernelManager, BlockingKernelClient],
) -> None:
    _, client = kernel
    execute(client, JOB)
    execute(client, NET)
    *_, error = execute(client, "net = Net()\ntrain(labels, 1)")
    message, line, _ = error["content"]["traceback"]
    assert message.startswith("UnsupportedModelError: Cell In[2], line 3: PyTorch can't export the module")
    assert line == "Cell In[1], line 5: return appliance.train("


def test_interrupt_in_a_kernel_leaves_the_job(
    kernel: tuple[KernelManager, BlockingKernelClient], appliance: Appliance
) -> None:
    """The kernel is interrupted after the first step. The progress is one output until then."""
    manager, client = kernel
    execute(client, JOB)
    interrupted = []

    def interrupt(message: Any) -> None:
        text = message["content"].get("data", {}).get("text/plain", "")
        if "step" in text and "loss" in text and not interrupted:
            interrupted.append(text)
            manager.interrupt_kernel()

    outputs = execute(client, "job = train(labels, 1_000_000)\njob.follow()", interrupt)
    assert [message["msg_type"] for message in outputs].count("display_data") == 1
    assert interrupted and outputs[-1]["content"]["ename"] == "Interrupted"
    (job,) = (job for job in appliance.jobs(finished=False))
    assert f'appliance.job("{job.name}").follow()' in outputs[-1]["content"]["traceback"][0]
    job.cancel()
