"""IPython and Jupyter: errors, a progress display that is updated in place, and tables.

    JobFailed: job kjv ended as BadData: labels of leaf 3 is 5 at position 2, but must be less than 5
    Cell In[4], line 10: job.follow()
    (%tb shows the traceback)

* An error that leaves a cell is shown by its message. `%tb` shows the whole traceback, with causes.
* Without IPython nothing of this module is used.
"""

from __future__ import annotations

import html
import linecache
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PACKAGE = str(Path(__file__).parent)


def shell() -> Any:
    """Returns the shell of IPython that runs this code; None outside of IPython."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None


def is_notebook() -> bool:
    """Whether this code runs in a kernel of Jupyter."""
    found = shell()
    return found is not None and "IPKernelApp" in found.config


class ShownByMessage:
    """Makes IPython show an exception by its message. A base class beside one of Python's exceptions."""

    def _render_traceback_(self) -> list[str]:
        """Returns what IPython shows of the exception, in lines."""
        assert isinstance(self, BaseException)
        ipython = shell()
        if sys.exc_info()[1] is not self:
            # It does not leave a cell now: %tb shows it again.
            rendered: list[str] = ipython.InteractiveTB.structured_traceback(
                type(self), self, self.__traceback__
            )
            return rendered
        lines = [f"{type(self).__name__}: {_with_cells(ipython, str(self))}"]
        lines += [f"  {line}" for line in getattr(self, "log_tail", ())]
        if caller := _caller(self):
            lines.append(f"{_with_cells(ipython, f'{caller.filename}:{caller.lineno}')}: {caller.line}")
        return [*lines, "(%tb shows the traceback)"]


def _caller(error: BaseException) -> traceback.FrameSummary | None:
    """Returns the line of the user's code that called this package; None for an error without traceback."""
    caller = None
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename.startswith(PACKAGE):
            break
        caller = frame
    return caller


def _with_cells(ipython: Any, text: str) -> str:
    """Returns a text with the numbers of cells in place of the names of their files."""
    for file in [name for name in linecache.cache if name in text]:
        if formatted := ipython.compile.format_code_name(file):
            cell = " ".join(formatted)
            text = re.sub(re.escape(file) + r":(\d+)", rf"{cell}, line \1", text)
            text = text.replace(file, cell)
    return text


class ProgressDisplay:
    """A progress bar with a text beside it and lines below it, which are updated in place.

    A saved notebook contains its last state only.
    """

    def __init__(self) -> None:
        self._handle: Any = None
        self._state: tuple[int, int | None, str, Sequence[str]] = (0, None, "", ())

    def show(self, done: int, total: int | None, text: str, lines: Sequence[str] = ()) -> None:
        """Shows this state. Without `total` there is no bar."""
        from IPython.display import display

        self._state = done, total, text, lines
        if self._handle is None:
            self._handle = display(self, display_id=True)
        else:
            self._handle.update(self)

    def __repr__(self) -> str:
        _, _, text, lines = self._state
        return "\n".join([text, *lines])

    def _repr_html_(self) -> str:
        """Returns the state for Jupyter."""
        done, total, text, lines = self._state
        bar = f"<progress max='{total}' value='{done}' style='width:40ex'></progress> " if total else ""
        below = f"<pre>{html.escape(chr(10).join(lines))}</pre>" if lines else ""
        return f"<div>{bar}{html.escape(text)}{below}</div>"


def table(caption: str, rows: Mapping[str, object]) -> str:
    """Returns a table of labels and values as HTML."""
    left = "style='text-align:left'"
    cells = "".join(
        f"<tr><th {left}>{html.escape(label)}</th><td {left}>{html.escape(str(value))}</td></tr>"
        for label, value in rows.items()
    )
    return f"<table><caption>{html.escape(caption)}</caption>{cells}</table>"
