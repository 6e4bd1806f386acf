"""Finds out whether a model changes numbers of its own, which a trace would keep as they are.

    self.calls += 1
    return x * (1 - 1 / self.calls)    # in each step what it is in the first one

* A number that is set once, such as a cached size, is accepted if the model computes the same afterwards.
* One that changes in each call is accepted with a warning if it computes the same with other values of it.
"""

from __future__ import annotations

import copy
import warnings
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from millrace.torch.lines import line_that_changes
from millrace.torch.operands import UnsupportedModelError
from millrace.torch.places import ABSENT, Place

FAR_CALLS = 1_000_000
"""Number of further calls after which a counter is assumed to have passed what it is compared with."""

MAX_ITEMS = 1024
"""Maximum number of items of a list or mapping that is observed."""

Key = tuple[int, str]
"""The index of a place, and a name in it."""


@dataclass(frozen=True)
class Tracing:
    """What is needed to trace a model again."""

    trace: Callable[[], Any]
    differ: Callable[[Any, Any], bool]
    """Returns whether two traces compute something else."""
    call: Callable[[], Any]
    """Calls the model without tracing it."""


class Counters:
    """Numbers, texts and switches of a model, and lists and mappings of them, as they were at first."""

    def __init__(self, places: list[Place]) -> None:
        """Observe what is in these places."""
        self.places = places
        self.originals = [place.values() for place in places]
        self.before = self._values()
        self.after = self.before

    def observe(self) -> None:
        """Record the numbers at the end of a call. A trace gives modules most of their attributes back."""
        self.after = self._values()

    def check(self, first: Any, tracing: Tracing) -> None:
        """Reject a model that depends on what it changes, if `first` is its trace.

        Raises `UnsupportedModelError`. The model gets its numbers back.
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
        expected = self.before.get(key, ABSENT)
        line = line_that_changes(lambda: self._values(key).get(key, ABSENT) != expected, tracing.call)
        self._restore(changed)
        name = self.places[key[0]].prefix + key[1]
        if is_used:
            raise UnsupportedModelError(
                f"{line}the loss depends on {name}, which the model changes, and which would be the same in "
                "each step: compute with inputs, parameters and fixed numbers only"
            )
        warnings.warn(
            f"{line}{name} changes in each call of the model, but not on the appliance, which trains the "
            "trace of one call",
            stacklevel=2,
        )

    def _values(self, only: Key | None = None) -> dict[Key, Any]:
        places = enumerate(self.places) if only is None else [(only[0], self.places[only[0]])]
        return {
            (index, name): copy.deepcopy(value)
            for index, place in places
            for name, value in place.values().items()
            if name != "training" and only in (None, (index, name)) and _is_plain(value)
        }

    def _assign(self, values: dict[Key, Any]) -> None:
        for (index, name), value in values.items():
            self.places[index].assign(name, copy.deepcopy(value))

    def _restore(self, keys: list[Key]) -> None:
        for index, name in keys:
            if (index, name) in self.before:
                value = copy.deepcopy(self.before[index, name])
            else:
                value = self.originals[index].get(name, ABSENT)
            self.places[index].assign(name, value)


def _changed(earlier: dict[Key, Any], later: dict[Key, Any]) -> list[Key]:
    return [key for key, value in later.items() if value != earlier.get(key, ABSENT)]


def _after_many_calls(once: Any, twice: Any) -> Any:
    is_number = type(once) in (int, float) and type(twice) in (int, float)
    return twice + FAR_CALLS * (twice - once) if is_number else twice


def _fails_or_differs(first: Any, tracing: Tracing) -> bool:
    try:
        return tracing.differ(first, tracing.trace())
    except Exception:
        return True


def _is_plain(value: Any) -> bool:
    # Types derived from these may do anything when they are read, such as importing what they list.
    if type(value) in (list, tuple, deque):
        return len(value) <= MAX_ITEMS and all(map(_is_scalar, value))
    if type(value) in (dict, defaultdict, OrderedDict, Counter):
        return len(value) <= MAX_ITEMS and all(map(_is_scalar, [*value, *value.values()]))
    return _is_scalar(value)


def _is_scalar(value: Any) -> bool:
    return value is None or type(value) in (int, float, bool, str)
