"""Follows a job by one stream of events and passes them to a reporter.

    Job.stream() ── job, state, metric, checkpoint, log, event ──> Follower ──> Reporter

* Journal entries (metrics, checkpoints, log lines) and Kubernetes-style events are numbered and reported
  once.
* The TrainJob document has no number: it is sent again after every reconnect, so only changes of it are
  reported.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from millrace import notebook, state
from millrace.errors import Gone, Interrupted, NotFound
from millrace.metrics import MetricPoint
from millrace.records import Document, Event, LogLine
from millrace.reporters import Reporter
from millrace.sse import ServerSentEvent

if TYPE_CHECKING:
    from millrace.job import Job


_TOLD_EVENTS = {"ResumesEarlierJob", "StorageResponds"}
"""Reasons of events that are no warnings, but reported: the job resumes from checkpoints of an earlier job of
its name; its storage, which the user was warned of, responds again."""


def follow(job: Job, reporter: Reporter, *, logs: bool = False) -> None:
    """Reports a job's progress until it finishes or is suspended on purpose, and updates `job`.

    Does not raise for a failed job: see `Job.check`.
    """
    follower = Follower(job, reporter, logs=logs)
    try:
        with described_interrupt(job):
            _follow(job, follower)
    except (NotFound, Gone):
        if not job.poll_finished():
            raise
    except Interrupted:
        raise  # has the message
    except (KeyboardInterrupt, SystemExit):
        # Writing fails if the terminal was closed.
        with suppress(OSError):
            reporter.message(continues_message(job))
        raise
    finally:
        # The bar is closed first, so that the final state appears below it.
        reporter.close()
    follower.report_state()


def _follow(job: Job, follower: Follower) -> None:
    for event in job.stream():
        follower.handle(event)
        # Decided by a document of the stream only: a job that was suspended from the start has points to
        # report first.
        if event.event == "job" and _is_suspended(job):
            return
    if not job.is_finished:
        # The stream may end before the last version of the document is sent.
        job.refresh()


@contextmanager
def described_interrupt(job: Job) -> Iterator[None]:
    """Replaces KeyboardInterrupt in the block, which waits for a job, by one that says how to go on.

    In IPython only: elsewhere its type decides about the exit code of the program.
    """
    try:
        yield
    except Interrupted:
        raise
    except KeyboardInterrupt as interrupt:
        if notebook.shell() is None:
            raise
        name = json.dumps(job.name)
        raise Interrupted(
            f"job {job.name} continues; follow it again with appliance.job({name}).follow(), or end it with "
            f"appliance.job({name}).cancel()"
        ) from interrupt


def continues_message(job: Job) -> str:
    """Returns the message for a user who stops following a running job."""
    return f"job {job.name} continues; follow it again with: millrace attach {job.name}"


def _is_suspended(job: Job) -> bool:
    """Whether the job is suspended on purpose. The stream of such a job does not end."""
    return state.is_idle(job.document) and not job.is_finished


class Follower:
    """Passes the events of a stream to a reporter. Does no I/O itself."""

    def __init__(self, job: Job, reporter: Reporter, *, logs: bool) -> None:
        self._job = job
        self._reporter = reporter
        self._logs = logs
        self._reported: tuple[object, ...] = ()
        self._attempt: object = None
        self._point: MetricPoint | None = None
        self._saved: Document = {}

    def handle(self, event: ServerSentEvent) -> None:
        """Handles one event. Unknown kinds, such as those of a later version, are ignored."""
        handler = {
            "job": self._document,
            "state": self._state,
            "metric": self._metric,
            "checkpoint": self._checkpoint,
            "log": self._log,
            "event": self._event,
        }.get(event.event)
        if handler is not None:
            handler(json.loads(event.data))

    def report_state(self) -> None:
        """Reports the job's state if it has changed."""
        self._refresh_if_behind()
        if self._job.is_finished and not state.succeeded(self._job.document):
            return
        summary = self._job.summary
        is_waiting = self._job.state in ("Queued", "Preempted")
        news = (self._job.state, summary if is_waiting else self._job.status.get("attempt"))
        if news != self._reported and self._job.state != state.PENDING:
            self._reported = news
            self._reporter.message(summary)

    def _document(self, document: Document) -> None:
        self._job.document = document
        # The end is reported after everything before it, by `follow`. A running state is reported from the
        # journal, because a document may be older or newer than the points around it.
        if not self._job.is_finished and self._job.state not in state.RUNNING:
            self.report_state()
        self._reporter.progress(self._job.status.get("progress") or {})

    def _state(self, entry: Document) -> None:
        name, total = entry.get("state"), entry.get("total_steps")
        if total:
            self._reporter.progress({"totalSteps": total})
        if note := entry.get("note"):
            # A heartbeat of a run in which nothing has finished for a while.
            self._reporter.message(str(note))
            return
        if name in state.RUNNING and entry.get("attempt") != self._attempt:
            # Once for each attempt: evaluations between steps change the state too, and have lines of their
            # own.
            self._attempt = entry.get("attempt")
            self._reporter.message(state.at_step(str(name), entry.get("step"), total))

    def _refresh_if_behind(self) -> None:
        """Brings the document up to date with the reported points and checkpoints."""
        if point := self._point:
            state.mark_point(self._job.document, point.attempt, point.step, point.loss)
        if self._saved:
            state.mark_checkpoint(self._job.document, self._saved["step"], self._saved.get("digest"))

    def _metric(self, entry: Document) -> None:
        point = MetricPoint.read(entry)
        if point.mode == "train":
            self._point = point
        self._reporter.point(point)

    def _checkpoint(self, entry: Document) -> None:
        self._saved = entry
        self._reporter.message(f"saved a checkpoint at step {entry.get('step')}")

    def _log(self, entry: Document) -> None:
        if self._logs:
            self._reporter.message(str(LogLine.read(entry)))

    def _event(self, entry: Document) -> None:
        event = Event.read(entry)
        # Failures are reported once, at the end of the job.
        if event.reason in _TOLD_EVENTS:
            self._reporter.message(event.message)
        elif event.type != "Normal" and event.reason not in state.FAILURES:
            self._reporter.message(f"{event.type}: {event.reason}: {event.message}")
