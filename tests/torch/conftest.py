"""A server for all tests of this directory."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace import Appliance


@pytest.fixture(scope="session")
def appliance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    """A server on a free port of this machine."""
    program = Path(os.environ["MILLRACE_PROGRAMS"], "millrace-api")
    command = [
        program,
        "serve",
        "--data",
        tmp_path_factory.mktemp("data"),
        "--listen",
        "127.0.0.1:0",
        "--log",
        "warn",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = server.stdout.readline().removeprefix("listening on ").strip()
        with Appliance(url) as appliance:
            yield appliance
        server.terminate()
