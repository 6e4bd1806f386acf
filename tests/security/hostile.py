"""Hostile values for names and paths."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

NAMES = {
    "empty": "",
    "dot": ".",
    "dots": "..",
    "three dots": "...",
    "parent": "../x",
    "deep parent": "../../../../../../../../tmp/millrace-x",
    "parent inside": "a/../../x",
    "absolute": "/tmp/millrace-x",
    "slash inside": "a/b",
    "trailing slash": "a/",
    "backslash": "..\\x",
    "NUL": "a\0b",
    "newline": "a\nb",
    "percent-encoded": "%2e%2e%2fx",
    "twice percent-encoded": "%252e%252e%252fx",
    "full-width dots": "．．/x",
    "right-to-left": "a\u202eb",
    "not ASCII": "é",
    "upper case": "Name",
    "hidden": ".name",
    "hyphen at the end": "name-",
    "tilde": "~root",
    "variable": "$HOME",
    "command": "$(id)",
    "glob": "*",
    "too long": "x" * 254,
    "much too long": "x" * 100_000,
}
"""None of them is a valid name of a Kubernetes object, or of a file that the server creates."""

PATHS = {
    "absolute": "/etc/passwd",
    "absolute directory": "/",
    "parent": "../secret.txt",
    "parent inside": "examples/../../secret.txt",
    "parent at the end": "examples/..",
    "NUL": "examples/data/kjv.txt\0.txt",
    "proc": "/proc/self/environ",
    "out of a mount": "/var/lib/millrace/texts/../../../../etc/passwd",
    "many slashes": "//etc//passwd",
    "glob": "/etc/pass*",
    "parent in a glob": "*/../../*",
}
"""None of them leads to anything that a server offers."""


def strings(schema: dict[str, Any], document: dict[str, Any], at: str = "") -> Iterator[str]:
    """Yields every place of a schema that accepts a free string, with `[]` for the items of a list."""
    if "$ref" in schema:
        found: Any = document
        for part in schema["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        schema = {**found, **{key: value for key, value in schema.items() if key != "$ref"}}
    for each in (*schema.get("anyOf", []), *schema.get("oneOf", []), *schema.get("allOf", [])):
        yield from strings(each, document, at)
    kinds = schema.get("type", [])
    kinds = kinds if isinstance(kinds, list) else [kinds]
    is_open = not kinds and not ({"$ref", "anyOf", "oneOf", "allOf", "enum", "const", "properties"} & schema.keys())
    if ("string" in kinds or is_open) and "enum" not in schema and "const" not in schema:
        yield at
    for name, below in schema.get("properties", {}).items():
        yield from strings(below, document, f"{at}.{name}".lstrip("."))
    if isinstance(schema.get("items"), dict):
        yield from strings(schema["items"], document, f"{at}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from strings(schema["additionalProperties"], document, f"{at}.*".lstrip("."))


def put(object: dict[str, Any], at: str, text: str) -> None:
    """Writes a string at such a place of an object."""
    *way, last = at.replace("[]", ".0").split(".")
    here: Any = object
    for part in way:
        if part == "0":
            here = here[0]
        else:
            here = here.setdefault(part, {})
    if last == "0":
        here[0] = text
    else:
        here[last] = text
