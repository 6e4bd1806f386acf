"""Finds the user's own modules that a dataset needs, by their imports."""

from __future__ import annotations

import ast
import fnmatch
import importlib.machinery
import os
import pickletools
import sys
import sysconfig
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

_MAX_DATA_BYTES = 1 << 20
"""Size up to which files of a package that are not Python are packed."""
_MAX_FILES = 5000
_SECRETS = (
    "*.pem",
    "*.key",
    "*.p12",
    "*.pfx",
    "*.token",
    "id_rsa*",
    "id_ed25519*",
    "*credential*",
    "*secret*",
)
_SKIPPED_DIRECTORIES = ("__pycache__", "node_modules")
_ZIP_DATE = (1980, 1, 1, 0, 0, 0)
"""The date of all files, so that the same files are the same archive."""


@dataclass
class Sources:
    """Files to pack, by their path in the archive."""

    files: dict[str, Path] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    """Modules and paths that are packed, and why."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Files that are not packed, and why."""

    def add_modules(self, names: Iterable[str], reason: str) -> None:
        """Adds the user's own modules among these, and those that they import."""
        waiting = [(name, reason) for name in names]
        while waiting:
            name, why = waiting.pop()
            top = name.partition(".")[0]
            if top in self.reasons or (root := _own_module(top)) is None:
                continue
            self.reasons[top] = why
            for archived, path in self._files_of(root):
                self.files[archived] = path
                if path.suffix == ".py":
                    waiting += [(imported, f"imported by {archived}") for imported in _imports_of(path)]

    def add_path(self, path: Path) -> None:
        """Adds a file or a directory below the working directory.

        Raises ValueError if the path is outside of it, and OSError if it does not exist.
        """
        inside = path.resolve(strict=True).relative_to(Path.cwd().resolve())
        self.reasons[str(inside)] = "included"
        files = [path] if path.is_file() else [file for file in sorted(path.rglob("*")) if file.is_file()]
        for file in files:
            archived = file.resolve().relative_to(Path.cwd().resolve()).as_posix()
            if reason := _secret(Path(archived)):
                self.left_out[str(file)] = reason
            else:
                self.files[archived] = file

    def write(self, path: Path, other: dict[str, bytes] | None = None) -> None:
        """Writes the archive, with further files by their content."""
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, file in sorted(self.files.items()):
                archive.writestr(zipfile.ZipInfo(name, _ZIP_DATE), file.read_bytes(), zipfile.ZIP_DEFLATED)
            for name, content in sorted((other or {}).items()):
                archive.writestr(zipfile.ZipInfo(name, _ZIP_DATE), content, zipfile.ZIP_DEFLATED)

    def _files_of(self, root: Path) -> Iterator[tuple[str, Path]]:
        """Yields the files of a module or a package, by their path in the archive."""
        if root.is_file():
            yield root.name, root
            return
        for directory, names, files in os.walk(root):
            names[:] = sorted(name for name in names if name not in _SKIPPED_DIRECTORIES)
            for hidden in [name for name in names if name.startswith(".")]:
                names.remove(hidden)
                self.left_out[str(Path(directory, hidden))] = "hidden"
            for name in sorted(files):
                path = Path(directory, name)
                archived = path.relative_to(root.parent)
                reason = _secret(Path(name)) or _large(path)
                if reason:
                    self.left_out[str(path)] = reason
                elif len(self.files) < _MAX_FILES:
                    yield archived.as_posix(), path
                else:
                    self.left_out[str(path)] = f"more than {_MAX_FILES} files"


def modules_of_pickle(content: bytes) -> list[str]:
    """Returns the names of loaded modules that a pickle contains."""
    strings = {argument for _, argument, _ in pickletools.genops(content) if isinstance(argument, str)}
    # The opcode GLOBAL has module and name in one string.
    parts = {part for text in strings for part in (text, text.partition(" ")[0])}
    return sorted(part for part in parts if part in sys.modules)


def _own_module(top: str) -> Path | None:
    """Returns file or directory of a module that is neither of the standard library nor installed."""
    loaded = sys.modules.get(top)
    spec = getattr(loaded, "__spec__", None) or importlib.machinery.PathFinder.find_spec(top)
    if spec is None:
        return None
    places = list(spec.submodule_search_locations or [])
    origin = spec.origin if spec.has_location else None
    root = Path(places[0]) if places else Path(origin) if origin else None
    if root is None or not root.exists() or (root.is_file() and root.suffix != ".py"):
        return None
    return None if _is_installed(root.resolve()) else root.resolve()


def _is_installed(path: Path) -> bool:
    """Returns whether a module belongs to the interpreter or was installed into it."""
    if {"site-packages", "dist-packages"} & set(path.parts):
        return True
    places = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
    return any(path.is_relative_to(Path(place).resolve()) for place in places if place)


def _imports_of(path: Path) -> list[str]:
    """Returns the names of modules that a file imports from outside of its package."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return []
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.append(node.module)
    return names


def _secret(path: Path) -> str | None:
    """Returns why a file is left out because of its name."""
    if any(part.startswith(".") for part in path.parts):
        return "hidden"
    lower = path.name.lower()
    is_secret = any(fnmatch.fnmatch(lower, pattern) for pattern in _SECRETS) and path.suffix != ".py"
    return "may contain a key" if is_secret else None


def _large(path: Path) -> str | None:
    """Returns why a file is left out because of its type or size."""
    if path.suffix in (".pyc", ".so", ".pyd"):
        return "not Python source"
    size = path.stat().st_size
    if path.suffix != ".py" and size > _MAX_DATA_BYTES:
        return f"{size / 1e6:.1f} MB; mount it as a volume, or name it in include="
    return None
