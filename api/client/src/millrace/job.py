"""A job: its state, its metrics, logs and files, and the operations on it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from millrace import notebook, retry_budget, state, times
from millrace.endpoint import segment
from millrace.errors import DownloadError, Gone, JobFailed, MissingDependency, NotFound, WaitTimeout
from millrace.metrics import MetricPoint, Metrics, new_axes
from millrace.records import Checkpoint, Document, Event, Generation, LogLine, RemoteFile
from millrace.sse import ServerSentEvent
from millrace.transport import Transport

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch.nn import Module
    from transformers import PreTrainedModel

Item = TypeVar("Item")

_VARIABLES_ANNOTATION = "client.millrace.dev/variables"
"""Annotation of a job that trains a Keras model or a `tf.function`, see `millrace.keras.restore`."""

# Limits a page of metrics or logs to a few hundred KiB.
_PAGE = 1000


class ItemIterator(Iterator[Item]):
    """Iterates over items that are requested on the way. Its `repr` says what they are."""

    def __init__(self, items: Iterator[Item], description: str) -> None:
        self._items = items
        self._description = description

    def __next__(self) -> Item:
        return next(self._items)

    def __repr__(self) -> str:
        return f"<{self._description}: read them with a loop or list(...)>"


def collection(namespace: str) -> str:
    """Returns the path of a namespace's jobs."""
    return f"/v1/namespaces/{segment(namespace)}/trainjobs"


class Job:
    """A job of an appliance, identified by its UID. A later job with the same name is a different job.

        job = appliance.job("gpt2-kjv")
        job.follow()
        job.metrics().plot()

    `document` is the TrainJob as of the last request; `refresh` updates it.
    """

    def __init__(self, transport: Transport, document: Document, module: Module | None = None) -> None:
        self._transport = transport
        self.document = document
        self._module = module

    def __repr__(self) -> str:
        return f"<Job {self.name}: {self.summary}>"

    @property
    def name(self) -> str:
        """The job's name."""
        return str(self._metadata.get("name", ""))

    @property
    def namespace(self) -> str:
        """The job's namespace."""
        return str(self._metadata.get("namespace") or "default")

    @property
    def uid(self) -> str:
        """The job's UID, which is unique for all time."""
        return str(self._metadata.get("uid", ""))

    @property
    def spec(self) -> Document:
        """The TrainJob's `spec`."""
        return self.document.get("spec") or {}

    @property
    def status(self) -> Document:
        """The TrainJob's `status`."""
        return self.document.get("status") or {}

    @property
    def state(self) -> str:
        """The state in one word: Queued, Training, Succeeded, ..., or the cause of the failure, such as
        OutOfMemory.

        Pending until the appliance has processed the job. A job that is deleted before it finished is
        Deleting while its agents end, then Cancelled.
        """
        return state.state(self.document)

    @property
    def summary(self) -> str:
        """The state with its most important details, in one line."""
        return state.describe(self.document)

    @property
    def is_finished(self) -> bool:
        """Whether the job has ended: succeeded, failed or deleted."""
        return state.is_finished(self.document)

    @property
    def is_deleted(self) -> bool:
        """Whether the job's deletion was requested. Its history stays readable."""
        return state.is_deleted(self.document)

    @property
    def submitted_by(self) -> str | None:
        """The user who submitted the job, if known."""
        return (self._metadata.get("annotations") or {}).get("millrace.dev/submitted-by")

    def refresh(self) -> Job:
        """Updates `document` and returns the job."""
        self.document = self._json("GET")
        return self

    def poll_finished(self) -> bool:
        """Updates `document` and returns whether the job has finished. A job that no longer exists counts as
        finished.
        """
        try:
            self.refresh()
        except (NotFound, Gone):
            state.mark_gone(self.document)
        return self.is_finished

    # Operations.

    def suspend(self) -> Job:
        """Suspends the job: it saves its state and releases its systems.

        Returns when the request is accepted, not when it has taken effect. The same holds for `resume` and
        `scale`. Raises `errors.Conflict` if the job has finished.
        """
        return self._command("/suspend")

    def resume(self) -> Job:
        """Resumes a suspended job from its last checkpoint."""
        return self._command("/resume")

    def scale(self, num_csx: int) -> Job:
        """Changes the number of systems. The job continues without a restart; the result has the same bits.

        It keeps the systems that it has while it waits for more.
        """
        return self._command("/scale", json={"numCsx": num_csx})

    def cancel(self) -> Job:
        """Cancels the job and deletes it. Idempotent.

        Its checkpoints, metrics and logs stay readable until the appliance's retention deletes them.
        """
        # Success, too: an earlier try may have deleted the job, and its response was lost.
        try:
            self.document = self._json("DELETE")
            state.mark_deleted(self.document)
        except (NotFound, Gone):
            state.mark_gone(self.document)
        return self

    # Following.

    def follow(self, progress: bool = True, logs: bool = False, check: bool = True) -> str:
        """Reports the job's progress until it finishes or is suspended, and returns its state.

        With `progress`, it shows a bar on a terminal and in Jupyter, otherwise a line every 10 s. With
        `logs`, it also prints every log line of every agent. A lost connection is resumed without gaps.
        Ctrl-C, or interrupting the kernel, stops following; the job continues. Raises JobFailed if the job
        failed, unless `check` is false.
        """
        from millrace import follow, reporters

        reporter = (
            reporters.default_reporter(self.name, logs=logs)
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
        """Waits without output until the job finishes, and returns its state.

        A suspended job has not finished. Raises TimeoutError after `timeout` seconds, and JobFailed if the
        job failed, unless `check` is false.
        """
        from millrace.follow import described_interrupt

        until = None if timeout is None else retry_budget.clock() + timeout
        pause = 0.25
        with described_interrupt(self):
            while not self.poll_finished():
                if until is not None and retry_budget.clock() + pause > until:
                    raise WaitTimeout(f"job {self.name} has not finished after {timeout:g} s: {self.summary}")
                retry_budget.sleep(pause)
                pause = min(pause * 1.5, 5.0)
        if check:
            self.check()
        return self.state

    def check(self) -> None:
        """Raises JobFailed, with the root cause, if the job has finished without success."""
        if self.is_finished and not state.succeeded(self.document):
            tail = (self.status.get("failure") or {}).get("logTail") or ()
            ended = "is" if self.state == state.DELETING else "ended as"
            message = f"job {self.name} {ended} {self.summary}"
            raise JobFailed(message, name=self.name, state=self.state, log_tail=tail)

    def stream(self, after: int = 0) -> Iterator[ServerSentEvent]:
        """Yields the events of the job as the appliance sends them, until the job finishes. `follow` is based
        on it.
        """
        return self._events("/follow", after=after)

    # Metrics, logs and events.

    def metrics(
        self, mode: Literal["train", "eval"] | None = "train", max_points: int | None = None
    ) -> Metrics:
        """Returns the points so far: of every step, or at most `max_points` of them, evenly thinned.

        `mode` selects training or evaluation; None returns both.
        """
        query = {"mode": mode, "maxPoints": max_points}
        return Metrics(self._items("/metrics", MetricPoint.read, query), title=self.name)

    def stream_metrics(
        self, mode: Literal["train", "eval"] | None = None, after: int = 0
    ) -> Iterator[MetricPoint]:
        """Yields the points after journal number `after`, then new ones until the job finishes."""
        return self._follow_items("/metrics", MetricPoint.read, {"mode": mode}, after)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plots the loss of training and evaluations over the steps, up to 2000 points each."""
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
        """Yields the log lines of the agents; with `follow`, also new ones until the job finishes.

        `role`, `agent` and `attempt` filter them; `level` is the lowest level, such as WARNING.
        """
        query = {"role": role, "agent": agent, "attempt": attempt, "level": level}
        lines = (self._follow_items if follow else self._items)("/logs", LogLine.read, query, after)
        return ItemIterator(lines, f"log lines of job {self.name}")

    def events(self, follow: bool = False, *, after: int = 0) -> Iterator[Event]:
        """Yields the job's events; with `follow`, also new ones until the job finishes."""
        events = (self._follow_items if follow else self._items)("/events", Event.read, {}, after)
        return ItemIterator(events, f"events of job {self.name}")

    # Files.

    def checkpoints(self) -> list[Checkpoint]:
        """Returns the complete checkpoints, oldest first."""
        found = [Checkpoint.read(each) for each in self._json("GET", "/checkpoints").get("items") or ()]
        return sorted(found, key=lambda checkpoint: checkpoint.step)

    def artifacts(self) -> list[RemoteFile]:
        """Returns the other files of model_dir: metrics, TensorBoard events, performance.json, ..."""
        return [RemoteFile.read(each) for each in self._json("GET", "/artifacts").get("items") or ()]

    def download(
        self,
        step: int | None = None,
        to: str | PathLike[str] | None = None,
        format: Literal["native", "hf"] = "native",
        *,
        progress: bool = True,
    ) -> Path:
        """Downloads a checkpoint, by default the newest, and returns its directory.

        The directory is `to`, which must be empty or not exist, by default `NAME-checkpoint_STEP` in the
        working directory. It appears when it is complete. An interrupted download resumes when it is called
        again. Format `hf` is what `transformers` loads. Raises DownloadError if there is no such checkpoint
        or the directory is in use.
        """
        from millrace import download

        return download.checkpoint(self, step, to, format, progress=progress)

    def download_artifacts(
        self, *patterns: str, to: str | PathLike[str] | None = None, progress: bool = True
    ) -> Path:
        """Downloads artifacts, all or those that match a pattern such as `logs/*`, and returns their
        directory.

        The directory is `to`, which must be empty or not exist, by default `NAME-artifacts` in the working
        directory. Files of a running job are downloaded as they are now.
        """
        from millrace import download

        return download.artifacts(self, patterns, to, progress=progress)

    def load(self, step: int | None = None) -> PreTrainedModel:
        """Downloads a checkpoint, by default the newest, and loads it as a model of `transformers`.

        Raises MissingDependency if transformers is not installed.
        """
        try:
            import transformers
        except ImportError as error:
            raise MissingDependency("transformers torch", "loading a checkpoint") from error
        with tempfile.TemporaryDirectory(prefix="millrace-") as scratch:
            directory = self.download(step, Path(scratch, "checkpoint"), "hf")
            (architecture,) = transformers.AutoConfig.from_pretrained(directory).architectures
            model: PreTrainedModel = getattr(transformers, architecture).from_pretrained(directory)
            return model

    def state_dict(self, module: Module | None = None, step: int | None = None) -> dict[str, Any]:
        """Downloads the weights of a checkpoint, by default the newest, for `load_state_dict` of a module.

            model.load_state_dict(job.state_dict())

        `module` is the one that the job trains; it is known to the job that `Appliance.train` returns.
        Buffers, which training does not change, are those of the module.

        Raises DownloadError if there is no such checkpoint, or no module is known.
        """
        from millrace import download
        from millrace.torch.training import load_tensors, state_of

        if (module := module or self._module) is None:
            raise DownloadError("this job was not created in this program: give its module as an argument")
        annotations = self._metadata.get("annotations") or {}
        if _VARIABLES_ANNOTATION in annotations:
            raise DownloadError("this job trains a model of Keras or TensorFlow: call job.update(model)")
        with tempfile.TemporaryDirectory(prefix="millrace-") as scratch:
            return state_of(module, load_tensors(download.parameters(self, step, Path(scratch))), annotations)

    def update(self, model: Any = None, step: int | None = None) -> None:
        """Gives a Keras model, or the variables of a `tf.function`, the weights of a checkpoint, by default
        the newest.

        `model` is the one that the job trains; it is known to the job that `Appliance.train` returns.

        Raises DownloadError if there is no such checkpoint, or no model is known, and `UnsupportedDataError`
        if the weights are those of another model; the model then keeps its weights.
        """
        from millrace import download
        from millrace.keras.restore import update
        from millrace.torch.training import load_tensors

        if (model := self._module if model is None else model) is None:
            raise DownloadError("this job was not created in this program: give its model as an argument")
        annotations = self._metadata.get("annotations") or {}
        if _VARIABLES_ANNOTATION not in annotations:
            raise DownloadError("this job trains no model of Keras or TensorFlow: use job.state_dict()")
        with tempfile.TemporaryDirectory(prefix="millrace-") as scratch:
            update(model, load_tensors(download.parameters(self, step, Path(scratch))), annotations)

    # Text.

    def generate(
        self,
        prompt: str | Sequence[int] = "",
        *,
        step: int | None = None,
        max_tokens: int = 100,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        seed: int = 0,
        ignore_end: bool = False,
        on_text: Callable[[str], object] | None = None,
    ) -> Generation:
        """Continues a text, or token ids, with the model of a checkpoint, by default the newest.

        The model is loaded where the job's files are. By default each token is the most probable one;
        `temperature`, `top_k` and `top_p` choose randomly, by `seed`. `on_text` is called with each part of
        the text as it is generated. `str` of the result is the whole text. Raises BadRequest if the model
        does not generate text, or not from this prompt.
        """
        body: Document = {
            "checkpoint": step,
            "maxTokens": max_tokens,
            "temperature": temperature,
            "topK": top_k,
            "topP": top_p,
            "seed": seed,
            "ignoreEnd": ignore_end,
        }
        is_text = isinstance(prompt, str)
        body["prompt" if is_text else "promptTokens"] = prompt if is_text else list(prompt)
        request = {key: value for key, value in body.items() if value is not None}
        checkpoint, parts, tokens, reason = 0, list[str](), list[int](), ""
        for event in self._transport.results(self._path("/generate"), params=self._query(), json=request):
            data = json.loads(event.data)
            if event.event == "start":
                checkpoint = int(data["checkpoint"])
            elif event.event == "token":
                tokens.append(int(data["id"]))
            elif event.event == "end":
                reason = str(data["finishReason"])
            if text := data.get("text"):
                parts.append(text)
                if on_text is not None:
                    on_text(text)
        shown = prompt if isinstance(prompt, str) else tuple(prompt)
        return Generation(shown, "".join(parts), tuple(tokens), reason, checkpoint)

    def _repr_html_(self) -> str:
        """Returns a table for Jupyter."""
        progress = self.status.get("progress") or {}
        submitted = times.local(self._metadata.get("creationTimestamp"))
        rows = {
            "state": self.summary,
            "step": f"{progress.get('step', '-')} of {progress.get('totalSteps', '-')}",
            "loss": progress.get("loss", "-"),
            "samples/s": progress.get("rate", "-"),
            "systems": ", ".join(self.status.get("systems") or ())
            or f"{self.spec.get('numCsx', '-')} requested",
            "submitted": f"{submitted} by {self.submitted_by}" if self.submitted_by else submitted,
        }
        return notebook.table(self.name, rows)

    # Requests.

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

    def _command(self, path: str, **request: Any) -> Job:
        self.document = self._json("POST", path, **request)
        return self

    def _items(
        self, below: str, read: Callable[[Document], Item], query: Document, after: int = 0
    ) -> Iterator[Item]:
        """Yields all items of a collection, page by page."""
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
        """Yields all items of a collection, then new ones as they arrive."""
        for event in self._events(below, query, after=after):
            yield read({"number": int(event.id) if event.id.isdecimal() else None, **json.loads(event.data)})

    def _events(self, below: str, query: Document | None = None, after: int = 0) -> Iterator[ServerSentEvent]:
        from millrace.follow import described_interrupt

        with described_interrupt(self):
            yield from self._transport.events(self._path(below), params=self._query(query), after=after)
