"""Describes a plan in words, for the command and for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace import times, units

if TYPE_CHECKING:
    from millrace.records import Document, Plan


def fields(plan: Plan) -> dict[str, str | None]:
    """Returns the texts of a plan by their labels; None for what is unknown."""
    projected = plan.projected
    position = f"position {plan.queue_position}" if plan.queue_position else None
    at_once = "at once" if plan.fits and position is None else None
    start = (
        plan.estimated_start.astimezone().strftime("%Y-%m-%d %H:%M:%S") if plan.estimated_start else at_once
    )
    seconds, step, rate = (projected.get(key) for key in ("seconds", "stepSeconds", "samplesPerSecond"))
    return {
        "Fits": f"{_fits(plan)}{f': {plan.message}' if plan.message else ''}",
        "Systems": ", ".join(plan.systems) or None,
        "Queue": position,
        "Start": start,
        "Projected time": times.duration(seconds) if seconds else None,
        "Projected step": f"{step:.3g} s" if step else None,
        "Projected rate": f"{_number(rate)} samples/s" if rate else None,
        "Host memory": _host_memory(plan),
        "Step on host": _step_on_host(plan.host),
        "Epoch": _epoch(plan.epoch),
        "Not checked": "; ".join(plan.notes) or None,
    }


def agents(plan: Plan) -> list[tuple[str, int | None, str]]:
    """Returns role, number and memory of the agents of a plan."""
    return [
        (role, need.get("count"), units.size(need.get("bytes") or 0)) for role, need in plan.needs.items()
    ]


def _fits(found: Plan) -> str:
    if found.fits:
        return "yes"
    return "no on this host" if found.reason == "ExceedsHost" else "no"


def _host_memory(found: Plan) -> str | None:
    """Returns the memory that a job's processes need on the server's host, and what the host has.

    None if it exceeds the host: then the message says so.
    """
    host = found.host
    if not host or found.reason == "ExceedsHost":
        return None
    memory = host.get("memory") or {}
    needed, total = units.size(memory.get("needed") or 0), memory.get("total")
    if total is None:
        return f"{needed} needed"
    available = units.size(memory.get("available") or 0)
    return f"{needed} needed; the server's host has {units.size(total)}, of which {available} are available"


def _step_on_host(host: Document) -> str | None:
    """Returns the estimated duration of an emulated step, which takes longer than on the real machine."""
    seconds = (host.get("step") or {}).get("seconds")
    if seconds is None:
        return None
    about = f"{seconds:.2g} s" if seconds < 10 else times.duration(seconds)
    return f"about {about} (an estimate)"


def _epoch(epoch: Document) -> str | None:
    if not epoch:
        return None
    return f"{epoch['samples']:,} samples, {epoch['tokens']:,} tokens, {epoch['steps']:,.1f} steps"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
