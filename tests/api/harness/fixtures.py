"""Fixtures of tests/api and tests/security: servers, a finished job for reading, and reference runs without a server.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count
from pathlib import Path

import pytest
from millrace import Job

from . import BACKEND, Reference, Serve, Server, serving
from .bucket import Bucket


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*capabilities): what the backend must be able to do for the case")
    config.addinivalue_line("markers", "last: it would be in the way of the others")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        wanted = {each for mark in item.iter_markers("needs") for each in mark.args}
        if missing := wanted - BACKEND.can:
            item.add_marker(pytest.mark.skip(reason=f"this backend's tests have no: {', '.join(sorted(missing))}"))
    items.sort(key=lambda item: item.get_closest_marker("last") is not None)


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """Adds the duration to the line of each test."""
    if report.when != "call" or not report.passed or hasattr(report, "wasxfail"):
        return None
    return "passed", ".", f"PASSED in {report.duration:.1f} s"


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts servers for one test."""
    with serving(tmp_path) as serve:
        yield serve


@pytest.fixture
def server(serve: Serve) -> Server:
    """A server for one test."""
    return serve()


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server for tests that leave it unchanged."""
    with serving(tmp_path_factory.mktemp("shared")) as serve:
        yield serve()


@pytest.fixture(scope="session")
def finished(shared: Server) -> Job:
    """A finished job on the shared server."""
    job = shared.user.submit("finished", 200)
    job.wait(120)
    return job


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Reference]:
    """Returns the reference run of a number of steps."""
    home, numbers = tmp_path_factory.mktemp("reference"), count()

    @cache
    def train(steps: int) -> Reference:
        return Reference.train(home / f"model_dir-{next(numbers)}", steps)

    return train


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """A bucket, and its settings in the environment of programs."""
    made = Bucket()
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    yield made
    made.close()
