"""The Python client of the Millrace appliance: submits training jobs, follows them, downloads results.

    import millrace

    job = millrace.Appliance().train("params.yaml", num_csx=4)
    job.follow()
    model = job.load()

`Appliance()` without arguments takes its address and token from the environment (MILLRACE_URL,
MILLRACE_TOKEN, MILLRACE_NAMESPACE), from the current context that `millrace login` has written, or uses the
server on this machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "Appliance",
    "ApplianceError",
    "Checkpoint",
    "Event",
    "Generation",
    "Job",
    "JobFailed",
    "LogLine",
    "MetricPoint",
    "Metrics",
    "MillraceError",
    "Plan",
    "__version__",
]

if TYPE_CHECKING:
    from millrace.appliance import Appliance as Appliance
    from millrace.errors import ApplianceError as ApplianceError
    from millrace.errors import JobFailed as JobFailed
    from millrace.errors import MillraceError as MillraceError
    from millrace.job import Job as Job
    from millrace.metrics import MetricPoint as MetricPoint
    from millrace.metrics import Metrics as Metrics
    from millrace.records import Checkpoint as Checkpoint
    from millrace.records import Event as Event
    from millrace.records import Generation as Generation
    from millrace.records import LogLine as LogLine
    from millrace.records import Plan as Plan

_HOMES = {
    "Appliance": "millrace.appliance",
    "ApplianceError": "millrace.errors",
    "JobFailed": "millrace.errors",
    "MillraceError": "millrace.errors",
    "Job": "millrace.job",
    "MetricPoint": "millrace.metrics",
    "Metrics": "millrace.metrics",
    "Checkpoint": "millrace.records",
    "Event": "millrace.records",
    "Generation": "millrace.records",
    "LogLine": "millrace.records",
    "Plan": "millrace.records",
}


def __getattr__(name: str) -> object:
    """Imports a public name on first use, which keeps `millrace --help` and shell completion fast."""
    if name not in _HOMES:
        raise AttributeError(f"module 'millrace' has no attribute {name!r}")
    import importlib

    value: object = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
