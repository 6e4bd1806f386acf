"""Finds out whether modules change numbers of their own, which a trace would keep as they are.

    self.calls += 1
    return x * (1 - 1 / self.calls)    # in each step what it is in the first one

* A number that is set once, such as a cached size, is accepted if the modules compute the same afterwards.
* One that changes in each call is accepted with a warning if they compute the same with other values of it.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from millrace.torch.lines import line_that_changes
from millrace.torch.operands import UnsupportedModelError

FAR_CALLS = 1_000_000
"""Number of further calls after which a counter is assumed to have passed what it is compared with."""

MAX_ITEMS = 1024
"""Maximum number of items of a list or mapping that is observed."""

Key = tuple[str, str]
"""The name of a module, and that of an attribute."""

_ABSENT = object()


@dataclass(frozen=True)
class Tracing:
    """What is needed to trace modules again."""

    trace: Callable[[], Any]
    differ: Callable[[Any, Any], bool]
    """Returns whether two traces compute something else."""
    call: Callable[[], Any]
    """Calls the modules without tracing them."""


class Counters:
    """Numbers, texts and switches of modules, and lists and mappings of them, as they were at first."""

    def __init__(self, modules: dict[str, torch.nn.Module]) -> None:
        """Observe modules, which are given by their names in messages."""
        self.modules = modules
        self.attributes = {name: dict(vars(module)) for name, module in modules.items()}
        self.before = self._values()
        self.after = self.before

    def observe(self) -> None:
        """Record the numbers at the end of a call. A trace gives modules most of their attributes back."""
        self.after = self._values()

    def check(self, first: Any, tracing: Tracing) -> None:
        """Reject modules that depend on what they change, if `first` is their trace.

        Raises `UnsupportedModelError`. The modules get their numbers back.
        """
        once = self.after
        changed = _changed(self.before, once)
        if not changed:
            return
        try:
            self._assign({key: once[key] for key in changed})
            is_used = tracing.differ(first, tracing.trace())
            twice = self.after
            counting = [key for key in _changed(once, twice) if key in changed]
            if counting and not is_used:
                self._assign({key: _after_many_calls(once[key], twice[key]) for key in counting})
                is_used = _fails_or_differs(first, tracing)
        finally:
            self._restore(changed)
        if is_used or counting:
            self._report((counting or changed)[0], changed, tracing, is_used=is_used)

    def _report(self, key: Key, changed: list[Key], tracing: Tracing, *, is_used: bool) -> None:
        expected = self.before.get(key, _ABSENT)
        line = line_that_changes(lambda: self._values(key).get(key, _ABSENT) != expected, tracing.call)
        self._restore(changed)
        name = ".".join(part for part in key if part)
        if is_used:
            raise UnsupportedModelError(
                f"{line}the loss depends on {name}, which the module changes, and which would be the same in "
                "each step: compute with inputs, parameters and fixed numbers only"
            )
        warnings.warn(
            f"{line}{name} changes in each call of the module, but not on the appliance, which trains the "
            "trace of one call",
            stacklevel=2,
        )

    def _values(self, only: Key | None = None) -> dict[Key, Any]:
        return {
            (name, attribute): copy.deepcopy(value)
            for name, module in self.modules.items()
            for attribute, value in vars(module).items()
            if attribute != "training" and only in (None, (name, attribute)) and _is_plain(value)
        }

    def _assign(self, values: dict[Key, Any]) -> None:
        for (name, attribute), value in values.items():
            vars(self.modules[name])[attribute] = copy.deepcopy(value)

    def _restore(self, keys: list[Key]) -> None:
        for name, attribute in keys:
            attributes = vars(self.modules[name])
            if (name, attribute) in self.before:
                attributes[attribute] = copy.deepcopy(self.before[name, attribute])
            elif attribute in self.attributes[name]:
                attributes[attribute] = self.attributes[name][attribute]
            else:
                attributes.pop(attribute, None)


def _changed(earlier: dict[Key, Any], later: dict[Key, Any]) -> list[Key]:
    return [key for key, value in later.items() if value != earlier.get(key, _ABSENT)]


def _after_many_calls(once: Any, twice: Any) -> Any:
    is_number = type(once) in (int, float) and type(twice) in (int, float)
    return twice + FAR_CALLS * (twice - once) if is_number else twice


def _fails_or_differs(first: Any, tracing: Tracing) -> bool:
    try:
        return tracing.differ(first, tracing.trace())
    except Exception:
        return True


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple | dict):
        items = [*value, *value.values()] if isinstance(value, dict) else value
        return len(value) <= MAX_ITEMS and all(_is_scalar(item) for item in items)
    return _is_scalar(value)


def _is_scalar(value: Any) -> bool:
    return value is None or type(value) in (int, float, bool, str)
