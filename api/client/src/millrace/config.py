"""The contexts file: the appliances that this user knows, with their tokens.

    current-context: lab
    contexts:
        lab: {url: https://millrace.example.org, namespace: default, token: ..., ca: /etc/ssl/lab.pem}

Its path is $MILLRACE_CONFIG, else $XDG_CONFIG_HOME/millrace/config.yaml, else ~/.config/millrace/config.yaml.
The file contains secrets:

* It is replaced atomically, and only its owner can read it.
* Unknown keys, such as those of other versions, are kept.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from millrace.errors import ConfigError


@dataclass(frozen=True)
class Context:
    """An appliance's address and the credentials of one user."""

    url: str | None = None
    namespace: str | None = None
    token: str | None = None
    ca: str | None = None

    def without_token(self) -> dict[str, str]:
        """Returns the fields that may be printed, with a placeholder for the token."""
        fields = {"url": self.url, "namespace": self.namespace, "ca": self.ca}
        shown = {key: value for key, value in fields.items() if value is not None}
        return shown | ({"token": "(not shown)"} if self.token else {})


def default_path() -> Path:
    """Returns the path of the contexts file, whether or not it exists."""
    if path := os.environ.get("MILLRACE_CONFIG"):
        return Path(path)
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "millrace" / "config.yaml"


class Config:
    """The content of the contexts file. Changes are written by `save`."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or default_path()
        self._document = _read(self.path)

    @property
    def current(self) -> str | None:
        """The name of the context that is used by default; None if there is none."""
        name = self._document.get("current-context")
        return str(name) if name else None

    @current.setter
    def current(self, name: str | None) -> None:
        if name is not None:
            self.context(name)
        self._document["current-context"] = name

    @property
    def contexts(self) -> Mapping[str, Context]:
        """All contexts by name."""
        return {str(name): _context(str(name), fields) for name, fields in self._contexts().items()}

    def context(self, name: str) -> Context:
        """Returns a context. Raises ConfigError if the name is unknown."""
        contexts = self.contexts
        if name not in contexts:
            available = ", ".join(sorted(contexts)) or "none; create one with `millrace login URL`"
            raise ConfigError(f"context {name} not found in {self.path}; known contexts: {available}")
        return contexts[name]

    def set(self, name: str, **changes: str | None) -> Context:
        """Creates or changes a context and returns it. Fields that are not given stay; None removes one."""
        changed = replace(self.contexts.get(name, Context()), **changes)
        stored = self._contexts().setdefault(name, {})
        for key in ("url", "namespace", "token", "ca"):
            value = getattr(changed, key)
            if value is None:
                stored.pop(key, None)
            else:
                stored[key] = value
        return changed

    def delete(self, name: str) -> None:
        """Removes a context with its token. Raises ConfigError if the name is unknown."""
        self.context(name)
        del self._contexts()[name]
        if self.current == name:
            self.current = None

    def save(self) -> None:
        """Writes the file atomically, readable by its owner only. Raises ConfigError if that fails."""
        target = self.path.resolve()
        try:
            target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # mkstemp creates the file with mode 0600.
            handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=target.name)
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    yaml.safe_dump(self._document, file, sort_keys=False, allow_unicode=True)
                    file.flush()
                    os.fsync(file.fileno())
                Path(temporary).replace(target)
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
        except OSError as error:
            raise ConfigError(f"can't write {self.path}: {error.strerror}") from error

    def _contexts(self) -> dict[str, Any]:
        contexts = self._document.setdefault("contexts", {})
        if not isinstance(contexts, dict):
            raise ConfigError(f"{self.path}: `contexts` is not a map: repair the file or move it away")
        return contexts


def _read(path: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"can't read {path} ({reason}): repair it or move it away") from error
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigError(f"{path} is not a YAML map: repair it or move it away")
    return document


def _context(name: str, fields: object) -> Context:
    if not isinstance(fields, dict):
        raise ConfigError(
            f"context {name} is not a map: remove it with `millrace config delete-context {name}`"
        )
    values = {key: fields.get(key) for key in ("url", "namespace", "token", "ca")}
    return Context(**{key: None if value is None else str(value) for key, value in values.items()})
