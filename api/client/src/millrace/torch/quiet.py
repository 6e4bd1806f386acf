"""Keeps what PyTorch prints about a failed export from hiding the message of the error."""

from __future__ import annotations

import io
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr

_LOGGERS = ("torch.fx.experimental.symbolic_shapes", "torch._subclasses.fake_tensor")
"""They log tracebacks, and variables that no user knows."""


@contextmanager
def quiet() -> Iterator[None]:
    """Drop what is logged and printed to stderr during a failed export: the graph up to the failure."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    before = [logger.disabled for logger in loggers]
    printed = io.StringIO()
    try:
        for logger in loggers:
            logger.disabled = True
        with redirect_stderr(printed), warnings.catch_warnings():
            # Recurrent layers assign their weights to another attribute in each call.
            warnings.filterwarnings("ignore", message=".*_flat_weights.* assigned during export")
            yield
        sys.stderr.write(printed.getvalue())
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled
