"""What cases know of a server."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from .user import User


class Server(ABC):
    """An appliance with its REST server, as good as new."""

    can: ClassVar[frozenset[str]]
    """
    What cases may ask for:

    - kill: the server can be ended, at once or in good order, and its jobs end with it;
    - open: it takes whoever is on this machine, without a token, unless it is told otherwise;
    - own appliance, own volumes: what it runs on is chosen by the case;
    - local files: what it keeps lies on this machine;
    - local paths: jobs run where the server does, so that params may name nothing but what it offers;
    - quick jobs: a job takes a second or two, and not half a minute;
    - exact times: of two jobs the newer one is known, however soon one followed the other;
    - cluster: it stands in a Kubernetes cluster, which can be asked, too.
    """
    url: str
    namespace: str
    """Where its users are."""
    ca: Path | None = None
    """Who has signed its certificate."""

    def __init__(self, home: Path) -> None:
        self.home = home
        home.mkdir(parents=True)

    @cached_property
    def user(self) -> User:
        """Somebody who may make, change and delete jobs in the namespace, and look at the machine."""
        return self.another_user()

    @abstractmethod
    def another_user(self) -> User:
        """The same with connections of their own."""

    def user_with(self, token: str | None) -> User:
        """Somebody with a token, or none."""
        return User(self.url, self.home / f"user-{time.monotonic_ns()}", self.namespace, token, self.ca)

    @abstractmethod
    def token(self, name: str, role: str, *namespaces: str, seconds: int | None = None) -> str:
        """A new API token, as an administrator makes one where the server runs."""

    @abstractmethod
    def another_namespace(self) -> str:
        """One where its users have no business."""

    @property
    @abstractmethod
    def log(self) -> str:
        """What it has logged, in all its lives."""

    @abstractmethod
    def close(self) -> None:
        """End it, however it stands, and see that nothing stays."""
