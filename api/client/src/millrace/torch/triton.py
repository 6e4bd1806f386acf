"""Keeps Triton, a package of PyTorch for GPUs, out of programs with TensorFlow."""

from __future__ import annotations

import sys
from typing import Any


def hide_triton() -> None:
    """Make Triton seem not to be installed if TensorFlow is loaded, and Triton is not.

    Both contain LLVM, and a process that loads the second one is aborted. Exports and optimizers of PyTorch
    load Triton if it is installed, and need it on a GPU only.
    """
    modules: dict[str, Any] = sys.modules
    if "tensorflow" in modules:
        modules.setdefault("triton", None)
