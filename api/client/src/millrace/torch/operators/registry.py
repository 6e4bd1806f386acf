"""The table of translations, by the names of PyTorch's operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

if TYPE_CHECKING:
    from millrace.torch.layout import Layout
    from millrace.torch.operands import Operand
    from millrace.torch.translator import Translator

Translation: TypeAlias = Callable[["Translator", "Layout", list[Any], dict[str, Any]], "Operand"]
"""Translates an operator: its translator, the layout of its (first) output, and its arguments."""

TRANSLATIONS: dict[str, Translation] = {}
"""Translations by name, `add`, or by name and overload, `pow.Tensor_Scalar`."""


Entry = TypeVar("Entry")


def registers_in(table: dict[str, Entry]) -> Callable[..., Callable[[Entry], Entry]]:
    """Return a decorator that enters a function in a table, under the names that are its arguments."""

    def names_of(*names: str) -> Callable[[Entry], Entry]:
        def register(entry: Entry) -> Entry:
            table.update(dict.fromkeys(names, entry))
            return entry

        return register

    return names_of


translates = registers_in(TRANSLATIONS)
"""Registers a translation of operators."""


def completed(args: list[Any], *defaults: Any) -> list[Any]:
    """Return positional arguments with `defaults`, one for each position, where they are missing."""
    return [*args, *defaults[len(args) :]]
