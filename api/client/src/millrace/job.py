"""A job: how it stands, what it has measured and said, and what it can be told."""

from __future__ import annotations

import html
import json
import tempfile
from collections.abc import Callable, Iterator
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from millrace import retry_budget, state, times
from millrace.endpoint import segment
from millrace.errors import Gone, JobFailed, MissingDependency, NotFound
from millrace.metrics import MetricPoint, Metrics, new_axes
from millrace.records import Checkpoint, Document, Event, LogLine, RemoteFile
from millrace.sse import ServerSentEvent
from millrace.transport import Transport

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from transformers import GPT2LMHeadModel

Item = TypeVar("Item")

# A page of metrics or logs is a few hundred KiB at most.
_PAGE = 1000


def collection(namespace: str) -> str:
    """Where the jobs of a namespace are."""
    return f"/v1/namespaces/{segment(namespace)}/trainjobs"


class Job:
    """One job of an appliance, meant by its uid: another one of the same name is another job.

    `document` is the TrainJob as kubectl shows it, as of the last look; `refresh` looks again.
    """

    def __init__(self, transport: Transport, document: Document) -> None:
        self._transport = transport
        self.document = document

    def __repr__(self) -> str:
        return f"<Job {self.name}: {self.summary}>"

    @property
    def name(self) -> str:
        """Its name."""
        return str(self._metadata.get("name", ""))

    @property
    def namespace(self) -> str:
        """Its namespace."""
        return str(self._metadata.get("namespace") or "default")

    @property
    def uid(self) -> str:
        """What tells it from others of its name, before and after."""
        return str(self._metadata.get("uid", ""))

    @property
    def spec(self) -> Document:
        """What was asked for."""
        return self.document.get("spec") or {}

    @property
    def status(self) -> Document:
        """What is true of it."""
        return self.document.get("status") or {}

    @property
    def state(self) -> str:
        """Queued, Training, Succeeded, ..., or the cause of its failure, as OutOfMemory.

        Pending before the appliance has looked at it. A job that was deleted before its end is Deleting while
        its agents end, then Cancelled.
        """
        return state.state(self.document)

    @property
    def summary(self) -> str:
        """State and what matters in it, as one line."""
        return state.describe(self.document)

    @property
    def is_finished(self) -> bool:
        """Whether it is over, well or not."""
        return state.is_finished(self.document)

    @property
    def is_deleted(self) -> bool:
        """Whether its history alone is left, or will be in a moment."""
        return state.is_deleted(self.document)

    @property
    def submitted_by(self) -> str | None:
        """Who submitted it."""
        return (self._metadata.get("annotations") or {}).get("millrace.dev/submitted-by")

    def refresh(self) -> Job:
        """Look again how it stands."""
        self.document = self._json("GET")
        return self

    def poll_finished(self) -> bool:
        """Look again; whether it is over. A job that is not there any more is."""
        try:
            self.refresh()
        except (NotFound, Gone):
            state.mark_gone(self.document)
        return self.is_finished

    # Telling it what to do.

    def suspend(self) -> Job:
        """Have it save its state and give its systems back.

        Returns when that is asked for, not when it is done; so do `resume` and `scale`.
        """
        return self._command("/suspend")

    def resume(self) -> Job:
        """Have it go on from where it was suspended."""
        return self._command("/resume")

    def scale(self, num_csx: int) -> Job:
        """Have it go on with another number of systems, from the same step and to the same result."""
        return self._command("/scale", json={"numCsx": num_csx})

    def cancel(self) -> Job:
        """End it and delete it.

        Its checkpoints, metrics and logs stay readable as long as the appliance keeps them.
        """
        # Gone is what it shall be: an earlier try, whose answer was lost, may have done it.
        try:
            self.document = self._json("DELETE")
            state.mark_deleted(self.document)
        except (NotFound, Gone):
            state.mark_gone(self.document)
        return self

    # Watching it.

    def follow(self, progress: bool = True, logs: bool = False, check: bool = True) -> str:
        """Show how it goes until it ends, or is suspended; returns the state then.

        With `progress`, a bar on a terminal and in Jupyter, and otherwise a line every few seconds. With
        `logs`, every log line of every agent, too. A lost connection is taken up where it was lost. Ctrl-C
        ends the watching, never the job. A job that failed raises JobFailed, unless `check` is false.
        """
        from millrace import follow, reporters

        reporter = (
            reporters.default_reporter(self.name)
            if progress
            else reporters.MessageReporter()
            if logs
            else reporters.SilentReporter()
        )
        follow.follow(self, reporter, logs=logs)
        if check:
            self.check()
        elif self.is_finished and not state.succeeded(self.document):
            reporter.message(self.summary)
        return self.state

    def wait(self, timeout: float | None = None, check: bool = True) -> str:
        """Wait until it is over; returns its state.

        A job that is suspended is not over. Raises TimeoutError after `timeout` seconds, and JobFailed for a
        job that failed, unless `check` is false.
        """
        until = None if timeout is None else retry_budget.clock() + timeout
        pause = 0.25
        while not self.poll_finished():
            if until is not None and retry_budget.clock() + pause > until:
                raise TimeoutError(f"{self.name} is not over after {timeout:g} seconds: {self.summary}")
            retry_budget.sleep(pause)
            pause = min(pause * 1.5, 5.0)
        if check:
            self.check()
        return self.state

    def check(self) -> None:
        """Raise JobFailed, with the root cause, if it is over and did not do what it was asked to do."""
        if self.is_finished and not state.succeeded(self.document):
            tail = (self.status.get("failure") or {}).get("logTail") or ()
            ended = "is" if self.state == state.DELETING else "ended as"
            message = f"{self.name} {ended} {self.summary}"
            raise JobFailed(message, name=self.name, state=self.state, log_tail=tail)

    def stream(self, after: int = 0) -> Iterator[ServerSentEvent]:
        """Everything that happens to it, as the appliance's own events; `follow` is made of this."""
        return self._events("/follow", after=after)

    # What it has measured and said.

    def metrics(
        self, mode: Literal["train", "eval"] | None = "train", max_points: int | None = None
    ) -> Metrics:
        """Its points so far: every step's, or at most `max_points` of them, evenly thinned.

        With `mode` "eval" those of evaluations, with None both.
        """
        query = {"mode": mode, "maxPoints": max_points}
        return Metrics(self._items("/metrics", MetricPoint.read, query), title=self.name)

    def stream_metrics(
        self, mode: Literal["train", "eval"] | None = None, after: int = 0
    ) -> Iterator[MetricPoint]:
        """Its points, first those after journal number `after`, then those that come, until it is over."""
        return self._follow_items("/metrics", MetricPoint.read, {"mode": mode}, after)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Its loss over the steps, training and evaluation, of up to 2000 points."""
        axes = ax or new_axes(self.name)
        self.metrics(max_points=2000).plot(axes, label="train", linewidth=1)
        if evaluations := self.metrics("eval", max_points=2000):
            evaluations.plot(axes, label="eval", marker="o")
        return axes

    def logs(
        self,
        follow: bool = False,
        *,
        role: str | None = None,
        agent: str | None = None,
        attempt: int | None = None,
        level: str | None = None,
        after: int = 0,
    ) -> Iterator[LogLine]:
        """Its agents' log lines so far; with `follow`, then those that come, until it is over."""
        query = {"role": role, "agent": agent, "attempt": attempt, "level": level}
        return (self._follow_items if follow else self._items)("/logs", LogLine.read, query, after)

    def events(self, follow: bool = False, *, after: int = 0) -> Iterator[Event]:
        """What happened to it so far; with `follow`, then what comes, until it is over."""
        return (self._follow_items if follow else self._items)("/events", Event.read, {}, after)

    # What it leaves.

    def checkpoints(self) -> list[Checkpoint]:
        """Its whole checkpoints, the oldest first."""
        found = [Checkpoint.read(each) for each in self._json("GET", "/checkpoints").get("items") or ()]
        return sorted(found, key=lambda checkpoint: checkpoint.step)

    def artifacts(self) -> list[RemoteFile]:
        """The other files of its model_dir: metrics, TensorBoard events, performance.json, ..."""
        return [RemoteFile.read(each) for each in self._json("GET", "/artifacts").get("items") or ()]

    def download(
        self,
        step: int | None = None,
        to: str | PathLike[str] | None = None,
        format: Literal["native", "hf"] = "native",
        *,
        progress: bool = True,
    ) -> Path:
        """Fetch a checkpoint, the newest where no `step` is named, and return the directory it is in.

        That is `to`, which must not exist yet, or `NAME-checkpoint_STEP` in the working directory. It appears
        when all of it is there. What was interrupted goes on where it was when the same download is begun
        again. The format `hf` is what `transformers` loads.
        """
        from millrace import download

        return download.checkpoint(self, step, to, format, progress=progress)

    def download_artifacts(
        self, *patterns: str, to: str | PathLike[str] | None = None, progress: bool = True
    ) -> Path:
        """Fetch its artifacts, all or those that fit a pattern as `logs/*`; return the directory they are in.

        That is `to`, which must not exist yet, or `NAME-artifacts` in the working directory. What a job that
        runs still writes to is there as it is now.
        """
        from millrace import download

        return download.artifacts(self, patterns, to, progress=progress)

    def load(self, step: int | None = None) -> GPT2LMHeadModel:
        """A checkpoint, the newest where no `step` is named, as a model of `transformers`."""
        try:
            from transformers import GPT2LMHeadModel
        except ImportError as error:
            raise MissingDependency("transformers torch", "Loading a checkpoint") from error
        with tempfile.TemporaryDirectory(prefix="millrace-") as scratch:
            directory = self.download(step, Path(scratch, "checkpoint"), "hf")
            return GPT2LMHeadModel.from_pretrained(directory)

    def _repr_html_(self) -> str:
        """A small table, for Jupyter."""
        progress = self.status.get("progress") or {}
        submitted = times.local(self._metadata.get("creationTimestamp"))
        rows = {
            "state": self.summary,
            "step": f"{progress.get('step', '-')} of {progress.get('totalSteps', '-')}",
            "loss": progress.get("loss", "-"),
            "samples/s": progress.get("rate", "-"),
            "systems": ", ".join(self.status.get("systems") or ())
            or f"{self.spec.get('numCsx', '-')} asked for",
            "submitted": f"{submitted} by {self.submitted_by}" if self.submitted_by else submitted,
        }
        left = "style='text-align:left'"
        cells = "".join(
            f"<tr><th {left}>{key}</th><td {left}>{html.escape(str(value))}</td></tr>"
            for key, value in rows.items()
        )
        return f"<table><caption>{html.escape(self.name)}</caption>{cells}</table>"

    # Asking the appliance.

    @property
    def _metadata(self) -> Document:
        return self.document.get("metadata") or {}

    def _path(self, below: str) -> str:
        return f"{collection(self.namespace)}/{segment(self.name)}{below}"

    def _query(self, more: Document | None = None) -> Document:
        return {"uid": self.uid or None, **(more or {})}

    def _json(self, method: str, below: str = "", **request: Any) -> Document:
        query = self._query(request.pop("params", None))
        answer: Document = self._transport.json(method, self._path(below), params=query, **request)
        return answer

    def _command(self, what: str, **request: Any) -> Job:
        self.document = self._json("POST", what, **request)
        return self

    def _items(
        self, below: str, read: Callable[[Document], Item], query: Document, after: int = 0
    ) -> Iterator[Item]:
        """All items there are, page by page."""
        limit = query.get("maxPoints") or _PAGE
        while True:
            page = self._json("GET", below, params={**query, "limit": limit, "after": after or None})
            for item in page.get("items") or ():
                yield read(item)
            following = page.get("next")
            if not following or following == after:
                return
            after = following

    def _follow_items(
        self, below: str, read: Callable[[Document], Item], query: Document, after: int = 0
    ) -> Iterator[Item]:
        """All items there are, then those that come."""
        for event in self._events(below, query, after=after):
            yield read({"number": int(event.id) if event.id.isdecimal() else None, **json.loads(event.data)})

    def _events(self, below: str, query: Document | None = None, after: int = 0) -> Iterator[ServerSentEvent]:
        return self._transport.events(self._path(below), params=self._query(query), after=after)
