"""Reporters of a followed job: a bar on a terminal or in a notebook, lines for a pipe, or nothing."""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol, TextIO

from millrace import notebook, retry_budget, times
from millrace.metrics import MetricPoint

# Interval of progress lines: short enough to follow a run live, long enough for a readable log file.
LINE_INTERVAL_SECONDS = 10.0
# Interval in which a notebook's display is updated: each update is a message to the browser.
DISPLAY_INTERVAL_SECONDS = 0.5
MAX_DISPLAYED_MESSAGES = 20
"""Maximum messages below the bar in a notebook: the newest ones. A long run has thousands."""
_MIN_BAR_WIDTH = 5


class Reporter(Protocol):
    """Receives what happens to a followed job."""

    def message(self, text: str) -> None:
        """Shows a sentence about the job, or a log line."""

    def progress(self, progress: Mapping[str, Any]) -> None:
        """Updates total steps and expected end from `status.progress`, or from a part of it."""

    def point(self, point: MetricPoint) -> None:
        """Shows a committed step, or a finished evaluation."""

    def close(self) -> None:
        """Finishes the output. Later messages appear below it."""


def default_reporter(name: str, *, logs: bool = False) -> Reporter:
    """Returns a progress bar on a terminal or in a notebook, otherwise lines on standard output.

    With `logs`, all messages stay visible.
    """
    if notebook.is_notebook():
        return NotebookReporter(name, None if logs else MAX_DISPLAYED_MESSAGES)
    return BarReporter(name) if sys.stderr.isatty() else LineReporter(sys.stdout)


class SilentReporter:
    """Shows nothing."""

    def message(self, text: str) -> None:
        """Ignores the message."""

    def progress(self, progress: Mapping[str, Any]) -> None:
        """Ignores the progress."""

    def point(self, point: MetricPoint) -> None:
        """Ignores the point."""

    def close(self) -> None:
        """Does nothing."""


class MessageReporter(SilentReporter):
    """Shows messages and log lines, but no progress."""

    def message(self, text: str) -> None:
        """Prints the message on standard output."""
        print(text, flush=True)


class OverallRate:
    """Samples per second since the attempt began, as in the agents' GlobalRate: measured over the time of its
    steps.

    A point does not contain the batch size. It is computed from the attempt's first rate, which is that of
    its own step and not smoothed.
    """

    def __init__(self) -> None:
        self._attempt: int | None = None
        self._batch = 0
        self._steps = 0
        self._seconds = 0.0

    @property
    def step_seconds(self) -> float | None:
        """Mean duration of a step of the attempt, in seconds; None before the first step."""
        return self._seconds / self._steps if self._steps else None

    def update(self, point: MetricPoint) -> float | None:
        """Adds a point and returns the rate; None if the batch size is unknown."""
        if point.attempt != self._attempt:
            self._attempt, self._batch, self._steps, self._seconds = point.attempt, 0, 0, 0.0
        seconds = point.seconds or 0.0
        self._batch = self._batch or round((point.rate or 0.0) * seconds)
        if not self._batch:
            return None
        self._steps += 1
        self._seconds += seconds
        return self._batch * self._steps / self._seconds


class LineReporter(SilentReporter):
    """Prints progress lines in the format of a local run. Messages go to standard error."""

    def __init__(self, out: TextIO, every: float = LINE_INTERVAL_SECONDS) -> None:
        self._out = out
        self._every = every
        self._pending: tuple[MetricPoint, float | None] | None = None
        self._printed_at = -math.inf
        self._overall = OverallRate()

    def message(self, text: str) -> None:
        """Prints the message on standard error, after the line of the last point."""
        self._flush()
        print(text, file=sys.stderr, flush=True)

    def point(self, point: MetricPoint) -> None:
        """Prints a line at most once per interval; a point within the interval is kept until a later one
        replaces it.
        """
        if point.mode != "train":
            self._flush()
            # The rate of an evaluation covers all of it.
            self._print(point, point.rate)
            return
        self._pending = point, self._overall.update(point)
        if retry_budget.clock() - self._printed_at >= self._every:
            self._flush()

    def close(self) -> None:
        """Prints the last point if it is pending."""
        self._flush()

    def _flush(self) -> None:
        if self._pending is not None:
            (point, overall), self._pending = self._pending, None
            self._printed_at = retry_budget.clock()
            self._print(point, overall)

    def _print(self, point: MetricPoint, overall: float | None) -> None:
        print(progress_line(point, overall), file=self._out, flush=True)


class _ProgressReporter:
    """Computes the figures beside a bar: loss, rate and remaining time."""

    def __init__(self) -> None:
        self._total: int | None = None
        self._end: str | None = None
        self._overall = OverallRate()

    def progress(self, progress: Mapping[str, Any]) -> None:
        """Stores the total steps and the expected end, if given."""
        if progress.get("totalSteps"):
            self._total = int(progress["totalSteps"])
        self._end = progress.get("estimatedFinishTime") or self._end

    def _figures(self, point: MetricPoint, rate: float | None) -> list[str]:
        shown = [f"loss {point.loss:.4f}"]
        if rate is not None:
            shown.append(f"{_rate(rate)} samples/s")
        remaining = self._seconds_left(point.step)
        if remaining is not None:
            shown.append(f"{times.duration(remaining)} left")
        return shown

    def _seconds_left(self, step: int) -> float | None:
        """Returns the remaining time by the appliance's estimate, or by the mean step if that is missing or
        in the past.
        """
        if self._total is None or self._total <= step:
            return None
        since = times.seconds_since(self._end)
        if since is not None and since < 0:
            return -since
        seconds = self._overall.step_seconds
        return None if seconds is None else seconds * (self._total - step)


class BarReporter(_ProgressReporter):
    """A bar with step, loss, rate and remaining time on a terminal. Messages appear above it."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self._bar: Any = None

    def message(self, text: str) -> None:
        """Prints the message above the bar."""
        from tqdm import tqdm

        tqdm.write(text, file=sys.stderr)

    def point(self, point: MetricPoint) -> None:
        """Moves the bar. An evaluation is printed above it."""
        if point.mode != "train":
            self.message(progress_line(point, point.rate))
            return
        rate = self._overall.update(point)
        bar = self._bar = self._bar or self._new()
        bar.total = self._total
        self._fit(bar, point, rate)
        if point.step >= bar.n:
            bar.update(point.step - bar.n)
        else:
            bar.n = point.step  # the job resumed from its last committed step
            bar.refresh()

    def close(self) -> None:
        """Closes the bar in its current state."""
        if self._bar is not None:
            self._bar.refresh()
            self._bar.close()
            self._bar = None  # later messages appear below the bar

    def _new(self) -> Any:
        from tqdm import tqdm

        layout = "{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}{postfix}"
        # Without miniters, tqdm raises its refresh interval after a burst of steps and then skips later ones.
        return tqdm(total=self._total, desc=self._name, dynamic_ncols=True, bar_format=layout, miniters=1)

    def _fit(self, bar: Any, point: MetricPoint, rate: float | None) -> None:
        """Shortens name and figures to the width of the terminal."""
        name, figures, columns = self._name, self._figures(point, rate), bar.format_dict["ncols"]
        if columns:
            room = columns - len(f" 100%|| {point.step}/{self._total}, ") - _MIN_BAR_WIDTH
            name = _cut(name, columns // 3)
            while len(figures) > 1 and len(name) + len(", ".join(figures)) > room:
                figures.pop(1)  # keeps the loss
            name = _cut(name, room - len(", ".join(figures)))
        bar.set_description_str(name, refresh=False)
        bar.set_postfix_str(", ".join(figures), refresh=False)


class NotebookReporter(_ProgressReporter):
    """A bar with step, loss, rate and remaining time in a notebook, above the newest messages.

    Evaluations are messages, too. Everything is one display, which is updated in place.
    """

    def __init__(self, name: str, max_messages: int | None = MAX_DISPLAYED_MESSAGES) -> None:
        super().__init__()
        self._name = name
        self._display = notebook.ProgressDisplay()
        self._messages: deque[str] = deque(maxlen=max_messages)
        self._step = 0
        self._shown_figures: list[str] = []
        self._updated_at = -math.inf

    def message(self, text: str) -> None:
        """Adds the message."""
        self._messages.append(text)
        self._update()

    def point(self, point: MetricPoint) -> None:
        """Moves the bar. An evaluation is a message."""
        if point.mode != "train":
            self.message(progress_line(point, point.rate))
            return
        self._step = point.step
        self._shown_figures = self._figures(point, self._overall.update(point))
        if retry_budget.clock() - self._updated_at >= DISPLAY_INTERVAL_SECONDS:
            self._update()

    def close(self) -> None:
        """Shows the last point."""
        self._update()

    def _update(self) -> None:
        self._updated_at = retry_budget.clock()
        steps = [f"step {self._step} of {self._total}"] if self._total else []
        text = f"{self._name}: {', '.join([*steps, *self._shown_figures])}".removesuffix(": ")
        self._display.show(self._step, self._total, text, self._messages)


def progress_line(point: MetricPoint, global_rate: float | None) -> str:
    """Formats a line such as `| Train Device=CSX, Step=50, Loss=8.31250, Rate=69.37 samples/sec,
    GlobalRate=...`.
    """
    line = (
        f"| Train Device=CSX, Step={point.step}"
        if point.mode == "train"
        else f"| Eval Device=CSX, GlobalStep={point.step}"
    )
    line += f", Loss={point.loss:.5f}"
    for key, rate in (("Rate", point.rate), ("GlobalRate", global_rate)):
        if rate is not None:
            line += f", {key}={_rate(rate)} samples/sec"
    return line + "".join(f", {key}={value:.5g}" for key, value in point.metrics.items())


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…" if length > 1 else ""


def _rate(rate: float) -> str:
    return f"{rate:.3g}" if rate < 1 else f"{rate:.2f}"
