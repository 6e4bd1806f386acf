"""Following a job: the appliance's one stream of everything, told to a reporter.

What is journalled (metrics, checkpoints, log lines) and what happened to the job come numbered and once. How
it stands comes as the whole document, and again after every loss of the connection: only changes are told.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING

from millrace import state
from millrace.errors import Gone, NotFound
from millrace.metrics import MetricPoint
from millrace.records import Document, Event, LogLine
from millrace.reporters import Reporter
from millrace.sse import ServerSentEvent

if TYPE_CHECKING:
    from millrace.job import Job


def follow(job: Job, reporter: Reporter, *, logs: bool = False) -> None:
    """Until the job is over, or suspended on purpose; `job` is then as it is.

    That it failed is left to whoever called: `Job.check` has the sentence.
    """
    follower = Follower(job, reporter, logs=logs)
    try:
        for event in job.stream():
            follower.handle(event)
            # Only by a document of the stream: a job that was found suspended has points to tell before it.
            if event.event == "job" and _is_suspended(job):
                break
        else:
            if not job.is_finished:
                # The stream may have ended a moment before the last word about the job.
                job.refresh()
    except (NotFound, Gone):
        if not job.poll_finished():
            raise
    except (KeyboardInterrupt, SystemExit):
        # Of a terminal that is gone nothing can be said.
        with suppress(OSError):
            reporter.message(continues_message(job))
        raise
    finally:
        # How it ended stands below all else, a bar, too.
        reporter.close()
    follower.report_state()


def continues_message(job: Job) -> str:
    """What whoever stops watching should know."""
    return f"{job.name} goes on; come back to it with: millrace attach {job.name}"


def _is_suspended(job: Job) -> bool:
    """Suspended on purpose: the stream of such a job has no end."""
    return state.is_idle(job.document) and not job.is_finished


class Follower:
    """Takes events, tells the reporter. No I/O of its own."""

    def __init__(self, job: Job, reporter: Reporter, *, logs: bool) -> None:
        self._job = job
        self._reporter = reporter
        self._logs = logs
        self._reported: tuple[object, ...] = ()
        self._attempt: object = None
        self._point: MetricPoint | None = None
        self._saved: Document = {}

    def handle(self, event: ServerSentEvent) -> None:
        """One event of the stream; kinds of another version are passed over."""
        take = {
            "job": self._document,
            "state": self._state,
            "metric": self._metric,
            "checkpoint": self._checkpoint,
            "log": self._log,
            "event": self._event,
        }.get(event.event)
        if take is not None:
            take(json.loads(event.data))

    def report_state(self) -> None:
        """Tell how the job stands, where that is news."""
        self._refresh_if_behind()
        if self._job.is_finished and not state.succeeded(self._job.document):
            return
        sentence = self._job.summary
        waits = self._job.state in ("Queued", "Preempted")
        news = (self._job.state, sentence if waits else self._job.status.get("attempt"))
        if news != self._reported and self._job.state != state.PENDING:
            self._reported = news
            self._reporter.message(sentence)

    def _document(self, document: Document) -> None:
        self._job.document = document
        # How it ended is told after all that came before. That it works is told where the journal says so: a
        # document may be older or newer than the points around it.
        if not self._job.is_finished and self._job.state not in state.RUNNING:
            self.report_state()
        self._reporter.progress(self._job.status.get("progress") or {})

    def _state(self, entry: Document) -> None:
        name, total = entry.get("state"), entry.get("total_steps")
        if total:
            self._reporter.progress({"totalSteps": total})
        if note := entry.get("note"):
            # Nothing has happened for a while, and the run tells what it is doing.
            self._reporter.message(str(note))
            return
        if name in state.RUNNING and entry.get("attempt") != self._attempt:
            # Once an attempt: where evaluations come between steps, their lines tell of them.
            self._attempt = entry.get("attempt")
            self._reporter.message(state.at_step(str(name), entry.get("step"), total))

    def _refresh_if_behind(self) -> None:
        """What is said of the job is not behind what was shown of it."""
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
        self._reporter.message(f"Saved a checkpoint at step {entry.get('step')}.")

    def _log(self, entry: Document) -> None:
        if self._logs:
            self._reporter.message(str(LogLine.read(entry)))

    def _event(self, entry: Document) -> None:
        event = Event.read(entry)
        # How it failed is told once, at its end.
        if event.type != "Normal" and event.reason not in state.FAILURES:
            self._reporter.message(f"{event.type}: {event.reason}: {event.message}")
