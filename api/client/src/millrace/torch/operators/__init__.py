"""Translations of PyTorch's operators (ATen) to operators of a graph, in files by kind."""

from millrace.torch.operators import (
    convolutions,
    elementwise,
    functions,
    indexing,
    layers,
    losses,
    random,
    recurrent,
    reductions,
    scatter,
    shapes,
    sorting,
)
from millrace.torch.operators.registry import TRANSLATIONS, Translation

__all__ = [
    "TRANSLATIONS",
    "Translation",
    "convolutions",
    "elementwise",
    "functions",
    "indexing",
    "layers",
    "losses",
    "random",
    "recurrent",
    "reductions",
    "scatter",
    "shapes",
    "sorting",
]
