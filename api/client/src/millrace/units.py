"""Formats quantities."""

from __future__ import annotations


def size(count: int) -> str:
    """Formats a number of bytes: 812 B, 4.2 KiB, 1.3 GiB."""
    amount, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"
