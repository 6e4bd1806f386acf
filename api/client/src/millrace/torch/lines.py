"""Finds the line of the user's code that changes something."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from millrace.torch.locations import is_of_user


def line_that_changes(has_changed: Callable[[], bool], call: Callable[[], Any]) -> str:
    """Return the first line of the user's code after which `has_changed` returns true during a call.

    It is the beginning of a message, or empty if no line of the user changes anything.
    """
    found, last = "", ""

    def observe(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal found, last
        if found or not is_of_user(frame.f_code.co_filename):
            return None
        if has_changed():
            found = last
        last = f"{frame.f_code.co_filename}:{frame.f_lineno}: "
        return observe

    tracer = sys.gettrace()
    sys.settrace(observe)
    try:
        with torch.no_grad(), torch.random.fork_rng():
            call()
    except Exception:
        return found
    finally:
        sys.settrace(tracer)
    return found or (last if has_changed() else "")
