"""Finds out whether a module draws random numbers outside of PyTorch, which a trace would repeat."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from millrace.torch.lines import line_that_changes


class Generators:
    """The states of the generators of Python and NumPy when this object was created."""

    def __init__(self) -> None:
        self.before = _states()

    def changed(self) -> str:
        """Return the module whose generator has changed, or nothing."""
        return next((name for name, state in _states().items() if state != self.before[name]), "")

    def restore(self) -> None:
        """Give the generators their states again."""
        python, numpy = self.before.values()
        random.setstate(python)
        kind, keys, *rest = numpy
        np.random.set_state((kind, np.frombuffer(keys, dtype=np.uint32), *rest))

    def line_that_draws(self, call: Callable[[], Any]) -> str:
        """Return the line of the user's code that draws during a call, as the beginning of a message.

        The call begins with the states from before.
        """
        self.restore()
        return line_that_changes(lambda: bool(self.changed()), call)


def _states() -> dict[str, Any]:
    kind, keys, *rest = np.random.get_state()
    return {"random": random.getstate(), "numpy.random": (kind, np.asarray(keys).tobytes(), *rest)}
