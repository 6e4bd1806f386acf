"""The contexts file: which appliances this user knows, and the tokens for them.

    current-context: lab
    contexts:
        lab: {url: https://millrace.example.org, namespace: default, token: ..., ca: /etc/ssl/lab.pem}

It lies at $MILLRACE_CONFIG, or at $XDG_CONFIG_HOME/millrace/config.yaml (~/.config without that). It holds
secrets: it is replaced as a whole and never readable by others. Keys of other versions are kept.
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
    """One appliance as one user knows it."""

    url: str | None = None
    namespace: str | None = None
    token: str | None = None
    ca: str | None = None

    def without_token(self) -> dict[str, str]:
        """What may be shown."""
        fields = {"url": self.url, "namespace": self.namespace, "ca": self.ca}
        shown = {key: value for key, value in fields.items() if value is not None}
        return shown | ({"token": "(not shown)"} if self.token else {})


def default_path() -> Path:
    """Where the file is, or would be."""
    if given := os.environ.get("MILLRACE_CONFIG"):
        return Path(given)
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "millrace" / "config.yaml"


class Config:
    """The file's content; `save` writes it."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or default_path()
        self._document = _read(self.path)

    @property
    def current(self) -> str | None:
        """The name of the context that is used where none is named."""
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
        """One context."""
        contexts = self.contexts
        if name not in contexts:
            known = ", ".join(sorted(contexts)) or "there is none yet: millrace login URL makes one"
            raise ConfigError(f"There is no context {name} in {self.path}; known are: {known}.")
        return contexts[name]

    def set(self, name: str, **changes: str | None) -> Context:
        """Make or change a context; a field that is not named stays as it is."""
        changed = replace(self.contexts.get(name, Context()), **changes)
        kept = self._contexts().setdefault(name, {})
        for key in ("url", "namespace", "token", "ca"):
            value = getattr(changed, key)
            if value is None:
                kept.pop(key, None)
            else:
                kept[key] = value
        return changed

    def delete(self, name: str) -> None:
        """Forget a context, its token included."""
        self.context(name)
        del self._contexts()[name]
        if self.current == name:
            self.current = None

    def save(self) -> None:
        """Write the file: whole or not at all, and for its owner alone."""
        target = self.path.resolve()
        try:
            target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # mkstemp makes the file readable by its owner alone.
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
            raise ConfigError(f"{self.path} can't be written ({error.strerror}).") from error

    def _contexts(self) -> dict[str, Any]:
        contexts = self._document.setdefault("contexts", {})
        if not isinstance(contexts, dict):
            raise ConfigError(f"{self.path}: contexts is no map of names; repair it or move the file away.")
        return contexts


def _read(path: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        why = " ".join(str(error).split())
        raise ConfigError(f"{path} can't be read ({why}); repair it or move it away.") from error
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigError(f"{path} is no map of keys; repair it or move it away.")
    return document


def _context(name: str, fields: object) -> Context:
    if not isinstance(fields, dict):
        raise ConfigError(
            f"The context {name} has no fields: millrace config delete-context {name} removes it."
        )
    known = {key: fields.get(key) for key in ("url", "namespace", "token", "ca")}
    return Context(**{key: None if value is None else str(value) for key, value in known.items()})
