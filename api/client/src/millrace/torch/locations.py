"""Where the user's code has an operator or an error: module, file and line."""

from __future__ import annotations

import linecache
import re
import sys
import sysconfig
import traceback
from functools import cache
from pathlib import Path

import torch

GENERATED = re.compile("<(?!ipython-input)")
"""Beginning of the file names of generated code. Cells of IPython have such a name, too."""

CONTEXT_LINES = 8
"""Number of lines before an error that say what it is about."""

LIBRARIES = (f"{Path(torch.__file__).parent}/", f"{Path(__file__).parents[1]}/")
"""Directories of PyTorch and of this client."""


def library_directories() -> tuple[str, ...]:
    """Return the directories of the imported libraries that models are written with."""
    return _directories(tuple(name for name in ("keras", "tensorflow", "jax") if name in sys.modules))


@cache
def _directories(names: tuple[str, ...]) -> tuple[str, ...]:
    files = [getattr(sys.modules[name], "__file__", None) for name in names]
    return (*LIBRARIES, *(f"{Path(file).parent}/" for file in files if file))


@cache
def _installation() -> tuple[str, str]:
    """Return the directories of the standard library and of packages, which take long to find."""
    return sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")


def is_of_user(file: str) -> bool:
    """Return whether a file is code of the user, and neither of a library nor generated."""
    standard, packages = _installation()
    # Packages may be below the standard library.
    is_standard = file.startswith(standard) and not file.startswith(packages)
    return not (is_standard or GENERATED.match(file) or file.startswith(library_directories()))


def line_of(error: Exception) -> str:
    """Return the last line of the user's code that an error passed, as the beginning of a message."""
    frame = _last_frame(error)
    return f"{frame.filename}:{frame.lineno}: " if frame else ""


def lines_before(error: Exception) -> str:
    """Return the last lines of the user's code up to the one that `line_of` returns."""
    frame = _last_frame(error)
    if frame is None or frame.lineno is None:
        return ""
    lines = range(frame.lineno - CONTEXT_LINES, frame.lineno + 1)
    return "".join(linecache.getline(frame.filename, number) for number in lines)


def _last_frame(error: Exception) -> traceback.FrameSummary | None:
    frames = reversed(traceback.extract_tb(error.__traceback__))
    return next((frame for frame in frames if is_of_user(frame.filename)), None)


def module_path(node: torch.fx.Node) -> str:
    """Return the path of the module that an operator is part of, such as `layers.3.mlp`."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    paths = [str(path) for path, _ in stack if str(path).startswith("model.")]
    return paths[-1].removeprefix("model.") if paths else "root"


def source_location(node: torch.fx.Node, location: str) -> str:
    """Return where the user's code has an operator: module, file and line; outside modules `location`."""
    while not node.meta.get("stack_trace") and node.all_input_nodes:
        node = node.all_input_nodes[0]
    frames = re.findall(r'File "(.+?)", line (\d+)', node.meta.get("stack_trace") or "")
    # The last line outside of the libraries and of this client.
    of_user = [f"{file}:{line}" for file, line in frames if is_of_user(file)]
    path, kind = module_path(node), _module_class(node)
    if of_user:
        return f"{path} ({of_user[-1]})"
    return location if path == "root" else f"{path} ({kind})"


def _module_class(node: torch.fx.Node) -> str:
    """Return the name of the class of the module that an operator is part of."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    kind = stack[-1][1] if stack else "module"
    return kind.rpartition(".")[2] if isinstance(kind, str) else str(kind.__name__)
