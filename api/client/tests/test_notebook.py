"""Errors, interrupts and progress in cells of IPython, executed by a real shell.

Needs IPython.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("IPython", reason="IPython is not installed")

from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from conftest import JOBS, Handler, Server, event, job, point, problem, stream
from millrace import Appliance, reporters
from millrace.metrics import MetricPoint

Cell = Callable[[str], str]


@pytest.fixture
def shell(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[InteractiveShell]:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    config = Config({"HistoryManager": {"enabled": False}, "InteractiveShell": {"colors": "nocolor"}})
    yield InteractiveShell.instance(config=config)
    InteractiveShell.clear_instance()


@pytest.fixture
def cell(shell: InteractiveShell, appliance: Appliance, capsys: pytest.CaptureFixture[str]) -> Cell:
    """Executes a cell and returns what it prints."""
    shell.user_ns["appliance"] = appliance

    def execute(source: str) -> str:
        shell.run_cell(source, store_history=True)
        return capsys.readouterr().out.strip()

    return execute


def test_error_is_its_message_with_the_line_of_the_cell(server: Server, cell: Cell) -> None:
    server.on("GET", f"{JOBS}/kjv", problem(404, "NotFound", "job kjv not found"))
    expected = ["NotFound: job kjv not found", "Cell In[1], line 2: appliance.job(name)"]
    assert cell('name = "kjv"\nappliance.job(name)').splitlines() == [*expected, "(%tb shows the traceback)"]


def test_error_in_a_function_of_another_cell_names_that_cell(server: Server, cell: Cell) -> None:
    server.on("GET", f"{JOBS}/kjv", problem(404, "NotFound", "job kjv not found"))
    cell("def find():\n    return appliance.job('kjv')")
    assert "Cell In[1], line 2: return appliance.job('kjv')" in cell("find()")


def test_failed_job_is_its_cause_with_the_last_lines_of_the_log(server: Server, cell: Cell) -> None:
    failure = {"message": "label 5", "pod": "act-0", "logTail": ["last words"]}
    server.on("GET", f"{JOBS}/kjv", job("BadParams", failure=failure))
    shown = cell("appliance.job('kjv').wait()").splitlines()
    assert shown[:2] == ["JobFailed: job kjv ended as BadParams: label 5 (act-0)", "  last words"]


def test_missing_params_and_an_exceeded_time_are_messages(server: Server, cell: Cell) -> None:
    assert cell("appliance.train('no.yaml')").startswith(
        "UnreadableFile: [Errno 2] No such file or directory"
    )
    server.on("GET", f"{JOBS}/kjv", job("Training"))
    assert cell("appliance.job('kjv').wait(1)").startswith("WaitTimeout: job kjv has not finished after 1 s")


def test_tb_shows_the_traceback_with_its_causes(cell: Cell) -> None:
    cell("import millrace")
    message = cell('millrace.Appliance("http://127.0.0.1:1", retry_seconds=0).whoami()')
    assert "Unreachable: can't reach http://127.0.0.1:1" in message and len(message.splitlines()) == 3
    whole = cell("%tb")
    assert "The above exception was the direct cause" in whole and "transport.py" in whole


def test_unexpected_error_keeps_its_traceback(cell: Cell) -> None:
    shown = cell("appliance.jobs(state=3).no_such_method()")
    assert "Traceback (most recent call last)" in shown and "appliance.py" in shown


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Lets SIGINT raise KeyboardInterrupt. A program that a script starts in the background ignores it."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("waiting", ["follow()", "wait()", "stream_metrics()", "logs(follow=True)"])
def test_interrupt_says_that_the_job_continues(server: Server, cell: Cell, waiting: str) -> None:
    """The server interrupts the kernel, which waits for more of the stream."""
    main = threading.main_thread().ident
    assert main is not None

    def interrupt(_handler: Handler) -> None:
        signal.pthread_kill(main, signal.SIGINT)

    def interrupted_stream(handler: Handler) -> None:
        stream(event("job", job("Training")), whole=False)(handler)
        interrupt(handler)
        handler.rfile.read(1)  # until the client closes the connection

    def interrupted_poll(handler: Handler) -> None:
        interrupt(handler)
        handler.rfile.read(1)

    server.on("GET", f"{JOBS}/kjv", job("Training"), interrupted_poll)
    for path in ("follow", "metrics", "logs"):
        server.on("GET", f"{JOBS}/kjv/{path}", interrupted_stream)
    shown = cell(f"job = appliance.job('kjv')\nfor _ in job.{waiting}:\n    pass")
    message = (
        'Interrupted: job kjv continues; follow it again with appliance.job("kjv").follow(), or end it with '
        'appliance.job("kjv").cancel()'
    )
    assert message in shown and "Traceback" not in shown


def test_display_of_a_long_run_is_one_output(shell: InteractiveShell) -> None:
    shell.display_pub = published = CapturingDisplayPublisher()
    reporter = reporters.NotebookReporter("kjv")
    reporter.progress({"totalSteps": 1000})
    for step in range(1, 1001):
        reporter.point(MetricPoint.read(point(step)))
        reporter.message(f"saved a checkpoint at step {step}")
    reporter.close()
    first, *others = published.outputs
    assert not first["update"] and all(output["update"] for output in others)
    assert len({output["transient"]["display_id"] for output in published.outputs}) == 1
    lines = others[-1]["data"]["text/plain"].splitlines()
    assert lines[0] == "kjv: step 1000 of 1000, loss 0.0080, 64.00 samples/s"
    assert lines[1:] == [f"saved a checkpoint at step {step}" for step in range(981, 1001)]
    assert "<progress max='1000' value='1000'" in others[-1]["data"]["text/html"]


def test_plan_and_job_are_tables(shell: InteractiveShell, server: Server, appliance: Appliance) -> None:
    plan = {
        "fits": True,
        "message": "the job would start <soon>",
        "projected": {"seconds": 90, "stepSeconds": 0.5, "samplesPerSecond": 2000},
        "needs": {"memoryx": {"count": 2, "bytes": 1 << 30}},
    }
    server.on("POST", f"{JOBS}:plan", plan)
    server.on("GET", f"{JOBS}/kjv", job("Training", progress={"step": 5, "totalSteps": 9}))
    shown = [
        shell.display_formatter.format(value)[0]["text/html"]
        for value in (appliance.plan({}), appliance.job("kjv"))
    ]
    for label, value in [
        ("Fits", "yes: the job would start &lt;soon&gt;"),
        ("Start", "at once"),
        ("Projected time", "0:01:30"),
        ("Projected rate", "2,000 samples/s"),
        ("Agents", "2 memoryx of 1.0 GiB"),
    ]:
        assert f">{label}</th><td style='text-align:left'>{value}</td>" in shown[0]
    assert "Queue" not in shown[0], "rows without a value are left out"
    assert "<caption>kjv</caption>" in shown[1] and ">5 of 9</td>" in shown[1]
