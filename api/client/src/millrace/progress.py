"""A progress bar for bytes that are sent or received."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class ByteProgress:
    """A progress bar in bytes, shown on a terminal or in a notebook."""

    def __init__(self, name: str, total: int, shown: bool) -> None:
        self._bar: Any = None
        if shown:
            from tqdm.auto import tqdm

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
