"""A progress bar for bytes that are sent or received."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millrace import notebook, retry_budget, units

_DISPLAY_INTERVAL_SECONDS = 1.0
"""Interval in which a notebook's display is updated; a shorter transfer is not displayed."""


class ByteProgress:
    """A progress bar in bytes, shown on a terminal or in a notebook."""

    def __init__(self, name: str, total: int, shown: bool) -> None:
        self._bar: Any = None
        if shown and notebook.is_notebook():
            self._bar = _NotebookBar(name, total)
        elif shown:
            from tqdm import tqdm

            self._bar = tqdm(
                total=total,
                desc=name,
                unit="B",
                unit_scale=True,
                unit_divisor=1024,
                disable=None,
                leave=False,
            )

    def __enter__(self) -> Callable[[int], None]:
        return self._advance

    def _advance(self, by: int) -> None:
        if self._bar is not None:
            self._bar.update(by)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()


class _NotebookBar:
    """A bar in a notebook, which stays there."""

    def __init__(self, name: str, total: int) -> None:
        self._name = name
        self._total = total
        self._done = 0
        self._display: notebook.ProgressDisplay | None = None
        self._updated_at = retry_budget.clock()

    def update(self, by: int) -> None:
        """Adds bytes."""
        self._done += by
        if retry_budget.clock() - self._updated_at >= _DISPLAY_INTERVAL_SECONDS:
            self._display = self._display or notebook.ProgressDisplay()
            self._show(self._display)

    def close(self) -> None:
        """Shows the last state, if there was one before."""
        if self._display is not None:
            self._show(self._display)

    def _show(self, display: notebook.ProgressDisplay) -> None:
        self._updated_at = retry_budget.clock()
        text = f"{self._name}: {units.size(self._done)} of {units.size(self._total)}"
        display.show(self._done, self._total, text)
