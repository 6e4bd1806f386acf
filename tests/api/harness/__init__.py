"""The server under test, and users of it.

A `Server` is the whole appliance as a user node sees it. It is written so that cases know no backend: what not every backend
can is a capability, and a case says with `@pytest.mark.needs(...)` which ones it takes. MILLRACE_TEST_BACKEND says which
backend there is: `process`, or `kubernetes`, the chart as it is installed on the cluster of KUBECONFIG.

A `User` drives it the three ways there are: the `millrace` command as a process of its own, the Python client, and bare HTTP.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .common import PARAMS, ROOT, CommandResult, RunningCommand, trainjob, until
from .kubernetes import KubernetesServer
from .process import ProcessServer
from .reference import Reference
from .server import Server, raw
from .user import User, path, step, until_job, until_state, until_step

__all__ = [
    "BACKEND",
    "PARAMS",
    "ROOT",
    "CommandResult",
    "KubernetesServer",
    "ProcessServer",
    "Reference",
    "RunningCommand",
    "Serve",
    "Server",
    "User",
    "path",
    "raw",
    "serving",
    "step",
    "trainjob",
    "until",
    "until_job",
    "until_state",
    "until_step",
]

BACKENDS: dict[str, type[Server]] = {"process": ProcessServer, "kubernetes": KubernetesServer}
BACKEND = BACKENDS[os.environ.get("MILLRACE_TEST_BACKEND", "process")]

Serve = Callable[..., Server]


@contextmanager
def serving(home: Path) -> Iterator[Serve]:
    """Starts servers with flags of one's own; at the end they are gone, and have left nothing running."""
    servers: list[Server] = []

    def serve(*flags: object) -> Server:
        servers.append(BACKEND(home / f"server-{len(servers)}", *flags))
        return servers[-1]

    try:
        yield serve
    finally:
        for server in servers:
            print(f"--- log of {server.home.name}\n{server.log}")
            server.close()
