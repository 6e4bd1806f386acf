"""The table of translations, by the names of PyTorch's operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from millrace.torch.layout import Layout
    from millrace.torch.operands import Operand
    from millrace.torch.translator import Translator

Translation: TypeAlias = Callable[["Translator", "Layout", list[Any], dict[str, Any]], "Operand"]
"""Translates an operator: its translator, the layout of its (first) output, and its arguments."""

TRANSLATIONS: dict[str, Translation] = {}
"""Translations by name, `add`, or by name and overload, `pow.Tensor_Scalar`."""


def translates(*names: str) -> Callable[[Translation], Translation]:
    """Register a translation of these operators."""

    def register(translation: Translation) -> Translation:
        TRANSLATIONS.update(dict.fromkeys(names, translation))
        return translation

    return register


def completed(args: list[Any], *defaults: Any) -> list[Any]:
    """Return positional arguments with `defaults`, one for each position, where they are missing."""
    return [*args, *defaults[len(args) :]]
