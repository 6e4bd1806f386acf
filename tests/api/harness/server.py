"""The interface of servers under test."""

from __future__ import annotations

import socket
import ssl
import time
from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from .user import User


class Server(ABC):
    """A new appliance with its REST server."""

    can: ClassVar[frozenset[str]]
    """Capabilities that tests may need:

    * kill: the server can be killed and stopped; its jobs end with it.
    * open: by default it accepts all clients of this machine without a token.
    * own appliance, own volumes: the test can configure them.
    * local files: the server's files are on this machine.
    * local paths: jobs run on the server's machine, so params may name only paths that the server offers.
    * quick jobs: a job takes one or two seconds instead of half a minute.
    * exact times: the order of two jobs is known, however close their creation.
    * cluster: the server runs in a Kubernetes cluster, which tests can query.
    """
    url: str
    namespace: str
    """Namespace of its users."""
    ca: Path | None = None
    """Certificate authority of its certificate."""

    def __init__(self, home: Path) -> None:
        self.home = home
        home.mkdir(parents=True)

    @cached_property
    def user(self) -> User:
        """A user who may create, change and delete jobs in the namespace, and read the appliance."""
        return self.another_user()

    @abstractmethod
    def another_user(self) -> User:
        """Returns a user with the same permissions and separate connections."""

    def user_with(self, token: str | None) -> User:
        """Returns a user with this token, or without a token."""
        return User(self.url, self.home / f"user-{time.monotonic_ns()}", self.namespace, token, self.ca)

    @abstractmethod
    def token(self, name: str, role: str, *namespaces: str, seconds: int | None = None) -> str:
        """Creates an API token as an administrator."""

    @abstractmethod
    def metrics(self) -> str:
        """Returns the server's Prometheus metrics."""

    @abstractmethod
    def another_namespace(self) -> str:
        """Returns a namespace for which its users have no permissions."""

    @property
    @abstractmethod
    def log(self) -> str:
        """The log since the first start."""

    @abstractmethod
    def close(self) -> None:
        """Stops it in any state, and checks that nothing is left."""


def raw(server: Server, method: str, target: str) -> tuple[int, bytes]:
    """Sends a request with exactly this target, which HTTP clients would normalize; returns status and body."""
    at, token = urlsplit(server.url), server.user.token
    connection = socket.create_connection((at.hostname or "", at.port or 80), timeout=30)
    if at.scheme == "https":
        connection = ssl.create_default_context(cafile=server.ca).wrap_socket(connection, server_hostname=at.hostname)
    headers = f"Host: {at.netloc}\r\nConnection: close\r\n"
    if token:
        headers += f"Authorization: Bearer {token}\r\n"
    with connection:
        connection.sendall(f"{method} {target} HTTP/1.1\r\n{headers}\r\n".encode())
        head, _, body = b"".join(iter(lambda: connection.recv(65536), b"")).partition(b"\r\n\r\n")
    return int(head.split()[1]), body
