"""Where the code of a model may keep numbers between its calls."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CellType, FunctionType, ModuleType
from typing import Any

import torch

from millrace.torch.locations import is_of_user

PACKAGES = frozenset({"site-packages", "dist-packages"})
"""Names of directories of installed packages."""

ABSENT = object()
"""The value of a name that a place does not have."""


class Place(ABC):
    """Names with values, such as the attributes of a module."""

    def __init__(self, prefix: str) -> None:
        """Create a place whose names begin with `prefix` in messages."""
        self.prefix = prefix

    @abstractmethod
    def values(self) -> dict[str, Any]:
        """Return the present values."""

    @abstractmethod
    def assign(self, name: str, value: Any) -> None:
        """Give a name a value, or remove it if the value is `ABSENT`."""


class _Attributes(Place):
    """The attributes of a module, a class or another object, or the global variables of a Python module."""

    def __init__(self, prefix: str, owner: Any) -> None:
        super().__init__(prefix)
        self.owner = owner

    def values(self) -> dict[str, Any]:
        return dict(vars(self.owner))

    def assign(self, name: str, value: Any) -> None:
        # PyTorch's modules treat some attributes in a special way, but not those of classes.
        kind: Any = type if isinstance(self.owner, type) else object
        if value is not ABSENT:
            kind.__setattr__(self.owner, name, value)
        elif name in vars(self.owner):
            kind.__delattr__(self.owner, name)


class _Enclosing(Place):
    """The variables of the functions in which a function is defined."""

    def __init__(self, cells: dict[str, CellType]) -> None:
        super().__init__("the variable ")
        self.cells = cells

    def values(self) -> dict[str, Any]:
        found = {}
        for name, cell in self.cells.items():
            try:
                found[name] = cell.cell_contents
            except ValueError:  # it has no value yet
                continue
        return found

    def assign(self, name: str, value: Any) -> None:
        if value is not ABSENT:
            self.cells[name].cell_contents = value


def places(model: torch.nn.Module, *functions: Callable[..., Any] | None) -> list[Place]:
    """Return where a model, and functions that are called with it, may keep numbers.

    They are the attributes of modules, of objects that modules have, and of their classes; variables of
    enclosing functions; and the global variables of the user's Python modules.
    """
    modules = dict(model.named_modules())
    for function in functions:
        if isinstance(function, torch.nn.Module):
            modules |= {f"loss.{name}".rstrip("."): module for name, module in function.named_modules()}
    found: list[Place] = []
    for name, module in modules.items():
        path = f"{name}." if name else ""
        found.append(_Attributes(path, module))
        found += [
            _Attributes(f"{path}{attribute}.", value)
            for attribute, value in vars(module).items()
            if _is_object_of_user(value)
        ]
    classes = {kind for module in modules.values() for kind in type(module).__mro__ if _is_of_user(kind)}
    found += [
        _Attributes(f"{kind.__name__}.", kind) for kind in sorted(classes, key=lambda kind: kind.__name__)
    ]
    methods = [method for kind in classes for method in vars(kind).values()]
    found += [_Enclosing(cells) for cells in _cells([*methods, *functions])]
    found += [
        _Attributes("the global variable ", module)
        for module in list(sys.modules.values())
        if isinstance(module, ModuleType) and _is_own_module(module)
    ]
    return found


def _is_of_user(kind: type) -> bool:
    module = sys.modules.get(kind.__module__)
    return module is not None and _is_own_module(module)


def _is_object_of_user(value: Any) -> bool:
    kind = type(value)
    if issubclass(kind, torch.nn.Module | ModuleType | type) or not hasattr(value, "__dict__"):
        return False
    return _is_of_user(kind)


def _is_own_module(module: ModuleType) -> bool:
    """Return whether a module is the user's own, and not of an installed package."""
    if module.__name__ == "__main__":
        return True
    file = getattr(module, "__file__", None) or ""
    return file != "" and PACKAGES.isdisjoint(Path(file).parts) and is_of_user(file)


def _cells(functions: list[Any]) -> Iterator[dict[str, CellType]]:
    # That of functools.partial, or the function itself.
    plain = [getattr(function, "func", function) for function in functions]
    for function in plain:
        if isinstance(function, FunctionType) and function.__closure__:
            yield dict(zip(function.__code__.co_freevars, function.__closure__, strict=True))
