"""The server under test, and its users.

A `Server` is an appliance with its REST server. Tests do not depend on the backend: what only some backends support is
a capability, and a test names those that it needs with `@pytest.mark.needs(...)`. MILLRACE_TEST_BACKEND selects the
backend: `process` (default), or `kubernetes`, the chart as installed on the cluster of KUBECONFIG.

A `User` accesses a server in three ways: the `millrace` command in a process of its own, the Python client, and HTTP.
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
    """Yields a function that starts servers. Afterwards stops them and checks that nothing keeps running."""
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
