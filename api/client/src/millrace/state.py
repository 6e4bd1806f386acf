"""The state of a job, in one word and in one line, computed from its TrainJob document.

All functions are pure, except that ages depend on the current time.
"""

from __future__ import annotations

from typing import Any

from millrace import times
from millrace.records import Document

PENDING = "Pending"
CANCELLED = "Cancelled"
DELETING = "Deleting"
SUSPENDED = "Suspended"
RUNNING = ("Training", "Evaluating")
"""States in which steps are computed."""
FAILURES = (
    "BadParams",
    "BadData",
    "OutOfMemory",
    "NonFiniteLoss",
    "LossSpike",
    "DeadlineExceeded",
    "RetriesExhausted",
)
"""Final states of a failed job."""
FAILED = "Failed"
"""Selects jobs of all failure states. Not the state of a job itself."""

NAMES = (
    "Queued",
    "Starting",
    *RUNNING,
    "Suspending",
    SUSPENDED,
    "Restarting",
    "Resizing",
    "Succeeded",
    *FAILURES,
    DELETING,
    CANCELLED,
    FAILED,
)
"""The states by which jobs can be selected."""


def state(job: Document) -> str:
    """Returns the state: the reason of the condition Succeeded.

    Pending if there is no such condition yet. A job that was deleted before it finished is Deleting while
    finalizers hold it, because its agents end and its history is copied; afterwards it is Cancelled.
    """
    condition = _condition(job, "Succeeded")
    if is_deleted(job) and not _is_over(job):
        return DELETING if _is_held(job) else CANCELLED
    return str(condition.get("reason") or PENDING)


def is_finished(job: Document) -> bool:
    """Whether the job has finished or was deleted."""
    return _is_over(job) or is_deleted(job)


def succeeded(job: Document) -> bool:
    """Whether the job finished successfully."""
    return _condition(job, "Succeeded").get("status") == "True"


def matches(job: Document, wanted: str) -> bool:
    """Whether the job is in the state `wanted`, one of `NAMES`."""
    if wanted == FAILED:
        return _is_over(job) and not succeeded(job)
    return state(job) == wanted


def parse_name(given: str) -> str | None:
    """Returns the state with this name, ignoring case; None if there is none."""
    return next((name for name in NAMES if name.lower() == given.lower()), None)


def is_deleted(job: Document) -> bool:
    """Whether the deletion of the job was requested."""
    return "deletionTimestamp" in (job.get("metadata") or {})


def is_idle(job: Document) -> bool:
    """Whether the job changes no more by itself: it has finished, or is suspended on purpose."""
    return is_finished(job) or (state(job) == SUSPENDED and bool((job.get("spec") or {}).get("suspend")))


def mark_deleted(job: Document) -> None:
    """Records in the document that the job's deletion was requested."""
    job.setdefault("metadata", {}).setdefault("deletionTimestamp", "")


def mark_gone(job: Document) -> None:
    """Records in the document that the job no longer exists."""
    mark_deleted(job)
    job["metadata"].pop("finalizers", None)


def mark_point(job: Document, attempt: int | None, step: int, loss: float) -> None:
    """Records a step that is newer than the document. Points arrive earlier than documents."""
    progress = job.setdefault("status", {}).setdefault("progress", {})
    # Steps of an earlier attempt after its last checkpoint are lost.
    is_old = (attempt or 0) < (progress.get("attempt") or 0)
    if not is_old and _is_beyond(step, progress):
        progress.update(step=step, loss=str(loss))


def mark_checkpoint(job: Document, step: int, digest: str | None) -> None:
    """Records a checkpoint that is newer than the document."""
    checkpoint = job.setdefault("status", {}).setdefault("checkpoint", {})
    if _is_beyond(step, checkpoint):
        checkpoint.update(step=step, digest=digest)


def describe(job: Document) -> str:
    """Returns the state with its main details, such as `Queued: waits for 2 systems; position 1`."""
    details = _DETAILS.get(state(job), _cause)(job)
    return f"{state(job)}: {details}" if details else state(job)


STALE_AFTER_SECONDS = 90
"""Three times the interval in which a running server updates the status of jobs that hold systems (30 s)."""


def stale_message(job: Document) -> str | None:
    """Returns how old the status is; None if it is recent, or the job holds no systems."""
    seconds = times.seconds_since(_status(job).get("lastObservedTime"))
    if (
        seconds is None
        or seconds < STALE_AFTER_SECONDS
        or is_finished(job)
        or not _status(job).get("systems")
    ):
        return None
    return f"{times.age(seconds)} ago: no server or operator is updating the appliance's jobs"


def deletion(job: Document) -> str | None:
    """Returns why a deleted job that had finished still exists; None if nothing holds it."""
    progressing = _condition(job, "Progressing")
    is_held = is_deleted(job) and _is_over(job) and progressing.get("reason") == DELETING
    return str(progressing.get("message") or DELETING) if is_held else None


def next_attempt(job: Document) -> str | None:
    """Returns when the next attempt starts, and why it waits; None if it does not wait."""
    retry = _status(job).get("retry") or {}
    start = times.parse_rfc3339(retry.get("nextAttemptTime"))
    if start is None or is_finished(job):
        return None
    return f"{start.astimezone().strftime('%Y-%m-%d %H:%M:%S')} at the earliest: {retry.get('message', '')}"


def at_step(name: str, step: Any, total: Any) -> str:
    """Returns the description of a job that is in this state at this step."""
    progress = {"step": step, "totalSteps": total}
    condition = {"type": "Succeeded", "reason": name}
    return describe({"status": {"conditions": [condition], "progress": progress}})


def _queued(job: Document) -> str:
    queue = _status(job).get("queue") or {}
    position = f"position {queue['position']}" if queue.get("position") else ""
    message = str(queue.get("message") or "").rstrip(".")
    return "; ".join(part for part in (message, position) if part)


def _starting(job: Document) -> str:
    systems = _status(job).get("systems") or ()
    attempt = _status(job).get("attempt")
    attempt_text = f", attempt {attempt}" if attempt and attempt > 1 else ""
    return f"{_listed(systems)}{attempt_text}" if systems else ""


def _running(job: Document) -> str:
    progress = _status(job).get("progress") or {}
    step, total = progress.get("step"), progress.get("totalSteps")
    loss = f"loss {progress['loss']}" if progress.get("loss") else ""
    if step is None:
        return loss if is_finished(job) else _starting(job)
    of_total = f" of {total}" if total else ""
    return _joined(f"step {step}{of_total}", loss)


def _suspended(job: Document) -> str:
    saved = _at_checkpoint(job)
    return _joined("state saved", saved) if saved else "not started yet"


def _succeeded(job: Document) -> str:
    return _joined(_running(job), _at_checkpoint(job))


def _cause(job: Document) -> str:
    """Returns the cause of a failure and where it happened."""
    failure = _status(job).get("failure") or {}
    message = str(failure.get("message") or _condition(job, "Succeeded").get("message") or "").strip()
    where = failure.get("pod") or failure.get("role")
    if where and str(where) not in message:
        node = f" on {failure['node']}" if failure.get("node") else ""
        # Further lines are hints; they follow the place.
        first, *hints = message.split("\n", 1)
        message = "\n".join([f"{first} ({where}{node})", *hints])
    return message


def _no_detail(_job: Document) -> str:
    return ""


_DETAILS = {
    PENDING: _no_detail,
    CANCELLED: _running,
    DELETING: _running,
    "Queued": _queued,
    "Preempted": _queued,
    "Starting": _starting,
    "Training": _running,
    "Evaluating": _running,
    "Suspending": _running,
    "Preempting": _running,
    "Resizing": _running,
    SUSPENDED: _suspended,
    "Succeeded": _succeeded,
}


def _at_checkpoint(job: Document) -> str:
    step = (_status(job).get("checkpoint") or {}).get("step")
    return "" if step is None else f"checkpoint at step {step}"


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)


def _listed(systems: Any) -> str:
    return ", ".join(systems) if len(systems) <= 4 else f"{len(systems)} systems"


def _is_beyond(step: int, progress: Document) -> bool:
    return progress.get("step") is None or step > progress["step"]


def _status(job: Document) -> Document:
    return job.get("status") or {}


def _condition(job: Document, kind: str) -> Document:
    conditions: list[Document] = _status(job).get("conditions") or []
    return next((each for each in conditions if each.get("type") == kind), {})


def _is_held(job: Document) -> bool:
    """Whether finalizers hold the job after its deletion."""
    return bool((job.get("metadata") or {}).get("finalizers"))


def _is_over(job: Document) -> bool:
    return _condition(job, "Finished").get("status") == "True"
