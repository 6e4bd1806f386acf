"""Translations of PyTorch's operators (ATen) to operators of a graph, in files by kind."""

from millrace.torch.operators import (
    complex_numbers,
    convolutions,
    elementwise,
    fourier,
    functions,
    indexing,
    layers,
    losses,
    overlap,
    random,
    recurrent,
    reductions,
    sampling,
    scatter,
    shapes,
    sorting,
    special_functions,
)
from millrace.torch.operators.complex_numbers import COMPLEX_TRANSLATIONS, is_complex
from millrace.torch.operators.registry import TRANSLATIONS, Translation

__all__ = [
    "COMPLEX_TRANSLATIONS",
    "TRANSLATIONS",
    "Translation",
    "complex_numbers",
    "convolutions",
    "elementwise",
    "fourier",
    "functions",
    "indexing",
    "is_complex",
    "layers",
    "losses",
    "overlap",
    "random",
    "recurrent",
    "reductions",
    "sampling",
    "scatter",
    "shapes",
    "sorting",
    "special_functions",
]
