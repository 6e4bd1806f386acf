"""A server for all tests of this directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import server

from millrace import Appliance


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of `appliance`."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="session")
def appliance(data_dir: Path) -> Iterator[Appliance]:
    """A server for all tests of this directory."""
    with server(data_dir) as appliance:
        yield appliance
