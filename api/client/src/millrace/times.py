"""Parses and formats times and durations."""

from __future__ import annotations

import re
from datetime import datetime, timezone

_RFC3339 = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d+))?([Zz]|[+-]\d\d:\d\d)")


def parse_rfc3339(text: str | None) -> datetime | None:
    """Parses an RFC 3339 time; returns None for None and for an invalid time."""
    # Before Python 3.11, datetime.fromisoformat accepts neither Z nor an arbitrary number of decimals.
    match = _RFC3339.fullmatch(text or "")
    if not match:
        return None
    date, clock, fraction, zone = match.groups()
    micros = (fraction or "")[:6].ljust(6, "0")
    offset = "+00:00" if zone in "Zz" else zone
    try:
        return datetime.fromisoformat(f"{date}T{clock}.{micros}{offset}")
    except ValueError:
        return None


def format_rfc3339(time: datetime | None) -> str | None:
    """Formats a time as RFC 3339 in UTC."""
    return None if time is None else time.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")


def seconds_since(text: str | None) -> float | None:
    """Returns the seconds since a time; None if the time is missing or invalid."""
    then = parse_rfc3339(text)
    return None if then is None else (datetime.now(timezone.utc) - then).total_seconds()


def age(seconds: float) -> str:
    """Formats an age like kubectl: 42s, 3m5s, 17m, 5h12m, 14h, 2d3h, 30d."""
    total_seconds = max(0, int(seconds))
    minutes, hours, days = total_seconds // 60, total_seconds // 3600, total_seconds // 86400
    if total_seconds < 120:
        return f"{total_seconds}s"
    if minutes < 10:
        return f"{minutes}m" + (f"{total_seconds % 60}s" if total_seconds % 60 else "")
    if hours < 3:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h" + (f"{minutes % 60}m" if minutes % 60 else "")
    if days < 2:
        return f"{hours}h"
    if days < 8:
        return f"{days}d" + (f"{hours % 24}h" if hours % 24 else "")
    return f"{days}d"


def duration(seconds: float) -> str:
    """Formats a duration like the appliance's progress lines: `1:18:05`, or `2 days, 0:00:09`."""
    total_seconds = max(0, round(seconds))
    days, rest = divmod(total_seconds, 86400)
    clock = f"{rest // 3600}:{rest // 60 % 60:02}:{rest % 60:02}"
    if days == 0:
        return clock
    return f"{days} day{'s' if days > 1 else ''}, {clock}"


def local(text: str | None) -> str:
    """Formats a time in the local time zone; `-` if it is missing or invalid."""
    then = parse_rfc3339(text)
    return "-" if then is None else then.astimezone().strftime("%Y-%m-%d %H:%M:%S")
