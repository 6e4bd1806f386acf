"""What a TrainJob document says about its job, as a word and as a sentence. Pure functions, but for ages."""

from __future__ import annotations

from typing import Any

from millrace import times
from millrace.records import Document

PENDING = "Pending"
CANCELLED = "Cancelled"
DELETING = "Deleting"
SUSPENDED = "Suspended"
RUNNING = ("Training", "Evaluating")
"""Those in which steps come."""
FAILURES = ("BadParams", "OutOfMemory", "NonFiniteLoss", "DeadlineExceeded", "RetriesExhausted")
"""The ways to fail, each the end of a job."""
FAILED = "Failed"
"""Any of the final ones but Succeeded, Deleting and Cancelled: a choice of jobs, and no state of its own."""

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
"""The states that jobs can be asked for by."""


def state(job: Document) -> str:
    """The reason of the condition Succeeded.

    Pending before there is one. A job that was deleted before its end is Deleting while its agents end and
    its history is copied, and Cancelled from then on.
    """
    condition = _condition(job, "Succeeded")
    if is_deleted(job) and not _is_over(job):
        return DELETING if _is_held(job) else CANCELLED
    return str(condition.get("reason") or PENDING)


def is_finished(job: Document) -> bool:
    """Whether nothing more will happen."""
    return _is_over(job) or is_deleted(job)


def succeeded(job: Document) -> bool:
    """Whether it did what it was asked to do."""
    return _condition(job, "Succeeded").get("status") == "True"


def matches(job: Document, wanted: str) -> bool:
    """Whether it is in a state that is asked for."""
    if wanted == FAILED:
        return _is_over(job) and not succeeded(job)
    return state(job) == wanted


def parse_name(given: str) -> str | None:
    """The state that is meant, in any case of letters; None for no state."""
    return next((name for name in NAMES if name.lower() == given.lower()), None)


def is_deleted(job: Document) -> bool:
    """Whether somebody has deleted it."""
    return "deletionTimestamp" in (job.get("metadata") or {})


def is_idle(job: Document) -> bool:
    """Whether nothing more will happen by itself: over, or suspended on purpose."""
    return is_finished(job) or (state(job) == SUSPENDED and bool((job.get("spec") or {}).get("suspend")))


def mark_deleted(job: Document) -> None:
    """Note that its deletion is asked for."""
    job.setdefault("metadata", {}).setdefault("deletionTimestamp", "")


def mark_gone(job: Document) -> None:
    """Note that the appliance does not have it any more."""
    mark_deleted(job)
    job["metadata"].pop("finalizers", None)


def mark_point(job: Document, attempt: int | None, step: int, loss: float) -> None:
    """Note a step that its document is behind of: points are told sooner than documents are written."""
    progress = job.setdefault("status", {}).setdefault("progress", {})
    # What an earlier attempt had done beyond its last checkpoint is lost.
    is_old = (attempt or 0) < (progress.get("attempt") or 0)
    if not is_old and _is_beyond(step, progress):
        progress.update(step=step, loss=str(loss))


def mark_checkpoint(job: Document, step: int, digest: str | None) -> None:
    """Note a checkpoint that its document is behind of."""
    checkpoint = job.setdefault("status", {}).setdefault("checkpoint", {})
    if _is_beyond(step, checkpoint):
        checkpoint.update(step=step, digest=digest)


def describe(job: Document) -> str:
    """State and what matters in it, as `Queued: waits for 2 systems; place 1`."""
    said = _DETAILS.get(state(job), _cause)(job)
    return f"{state(job)}: {said}" if said else state(job)


STALE_AFTER_SECONDS = 90
"""A server that runs looks every 30 s at the jobs that hold systems."""


def stale_message(job: Document) -> str | None:
    """How old the status of a job that holds systems is; None where it is recent, or the job holds none."""
    seconds = times.seconds_since(_status(job).get("lastObservedTime"))
    if (
        seconds is None
        or seconds < STALE_AFTER_SECONDS
        or is_finished(job)
        or not _status(job).get("systems")
    ):
        return None
    return f"{times.age(seconds)} ago: nobody looks after the jobs of the appliance at present"


def deletion(job: Document) -> str | None:
    """Return why a deleted job that had finished still exists; None if nothing holds it."""
    progressing = _condition(job, "Progressing")
    is_held = is_deleted(job) and _is_over(job) and progressing.get("reason") == DELETING
    return str(progressing.get("message") or DELETING) if is_held else None


def next_attempt(job: Document) -> str | None:
    """When the next attempt starts, and why not now; None where nothing keeps it waiting."""
    retry = _status(job).get("retry") or {}
    at = times.parse_rfc3339(retry.get("nextAttemptTime"))
    if at is None or is_finished(job):
        return None
    return f"{at.astimezone().strftime('%Y-%m-%d %H:%M:%S')} at the earliest: {retry.get('message', '')}"


def at_step(name: str, step: Any, total: Any) -> str:
    """The sentence of a job that has this state at this step."""
    progress = {"step": step, "totalSteps": total}
    condition = {"type": "Succeeded", "reason": name}
    return describe({"status": {"conditions": [condition], "progress": progress}})


def _queued(job: Document) -> str:
    queue = _status(job).get("queue") or {}
    place = f"place {queue['position']}" if queue.get("position") else ""
    message = str(queue.get("message") or "").rstrip(".")
    return "; ".join(part for part in (message, place) if part)


def _starting(job: Document) -> str:
    systems = _status(job).get("systems") or ()
    attempt = _status(job).get("attempt")
    again = f", attempt {attempt}" if attempt and attempt > 1 else ""
    return f"{_listed(systems)}{again}" if systems else ""


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
    return _joined("its state is saved", saved) if saved else "it has not begun"


def _succeeded(job: Document) -> str:
    return _joined(_running(job), _at_checkpoint(job))


def _cause(job: Document) -> str:
    """What went wrong, where it did."""
    failure = _status(job).get("failure") or {}
    message = str(failure.get("message") or _condition(job, "Succeeded").get("message") or "").strip()
    where = failure.get("pod") or failure.get("role")
    if where and str(where) not in message:
        node = f" on {failure['node']}" if failure.get("node") else ""
        # Further lines are hints, which stand below all of it.
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


def _is_beyond(step: int, known: Document) -> bool:
    return known.get("step") is None or step > known["step"]


def _status(job: Document) -> Document:
    return job.get("status") or {}


def _condition(job: Document, kind: str) -> Document:
    conditions: list[Document] = _status(job).get("conditions") or []
    return next((each for each in conditions if each.get("type") == kind), {})


def _is_held(job: Document) -> bool:
    """Whether a deleted job is there still: finalizers keep it until all that has to follow is done."""
    return bool((job.get("metadata") or {}).get("finalizers"))


def _is_over(job: Document) -> bool:
    return _condition(job, "Finished").get("status") == "True"
