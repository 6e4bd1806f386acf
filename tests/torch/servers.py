"""Runs servers of the programs that are tested."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millrace import Appliance


@contextmanager
def server(data_dir: Path, *flags: str) -> Iterator[Appliance]:
    """Runs a server on a free port of this machine; with `--require-token`, its client has a token."""
    program = Path(os.environ["MILLRACE_PROGRAMS"], "millrace-api")
    data_dir.mkdir(exist_ok=True)
    command = [program, "serve", "--data", data_dir, "--listen", "127.0.0.1:0", "--log", "warn", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().removeprefix("listening on ").strip()
        token = None
        if "--require-token" in flags:
            create = [program, "token", "--data", data_dir, "--name", "test"]
            token = subprocess.run(create, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        with Appliance(url, token=token) as appliance:
            yield appliance
        process.terminate()
