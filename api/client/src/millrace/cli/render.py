"""Formats results for standard output: tables for people, JSON, YAML and CSV for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click


def emit(output: str, value: Any, table: Callable[[], str], name: str | None = None) -> None:
    """Prints `value` in the format `output`. `table` builds the text for people, `name` is for use in
    `$(...)`.
    """
    if output == "json":
        click.echo(json.dumps(value, indent=2, ensure_ascii=False))
    elif output == "yaml":
        import yaml

        click.echo(yaml.safe_dump(value, sort_keys=False, allow_unicode=True), nl=False)
    elif output == "name" and name is not None:
        if name:
            click.echo(name)
    elif text := table():
        click.echo(text)


def csv_lines(rows: Iterable[Mapping[str, Any]]) -> None:
    """Prints rows as CSV as they arrive. The columns are those of the first row."""
    import csv
    import sys

    writer: csv.DictWriter[str] | None = None
    for row in rows:
        if writer is None:
            writer = csv.DictWriter(sys.stdout, list(row), extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
        writer.writerow({key: value for key, value in row.items() if value is not None})
        sys.stdout.flush()


def csv_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints rows as CSV with the columns of all rows."""
    columns = {key: None for row in rows for key in row}
    csv_lines({**columns, **row} for row in rows)


def emit_line(output: str, value: Any, text: str) -> None:
    """Prints one item of a stream: a line of text, a line of JSON, or a YAML document."""
    if output == "json":
        click.echo(json.dumps(value, ensure_ascii=False))
    elif output == "yaml":
        import yaml

        click.echo("---\n" + yaml.safe_dump(value, sort_keys=False, allow_unicode=True), nl=False)
    else:
        click.echo(text)


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Formats left-aligned columns, three spaces apart, like kubectl; `-` stands for a missing value."""
    cells = [list(headers), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headers))]
    return "\n".join("   ".join(map(str.ljust, row, widths)).rstrip() for row in cells)


def fields(pairs: Mapping[str, object]) -> str:
    """Formats fields, one per line, without those that have no value."""
    shown = {key: value for key, value in pairs.items() if value not in (None, "", [])}
    width = max(map(len, shown), default=0) + 2
    return "\n".join(f"{key + ':':<{width}}{value}" for key, value in shown.items())


def _cell(value: object) -> str:
    return "-" if value is None or value == "" else str(value)
