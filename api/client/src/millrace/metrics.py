"""Points of a loss curve, as a sequence, a DataFrame or a plot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, overload

from millrace import times
from millrace.errors import MissingDependency

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_KNOWN = frozenset({"number", "time", "attempt", "mode", "step", "loss", "metrics"}) | {
    "learning_rate",
    "grad_norm",
    "tokens",
    "seconds",
    "rate",
}


@dataclass(frozen=True)
class MetricPoint:
    """The measurements of one training step, or of one evaluation."""

    step: int
    loss: float
    mode: str = "train"
    """`train` or `eval`."""
    learning_rate: float | None = None
    grad_norm: float | None = None
    """Global norm of the gradient before clipping."""
    tokens: int | None = None
    seconds: float | None = None
    rate: float | None = None
    """Samples per second."""
    attempt: int | None = None
    number: int | None = None
    """Number of the entry in the job's journal."""
    time: datetime | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Further results by name, such as `eval/lm_perplexity`."""

    @classmethod
    def read(cls, item: Mapping[str, Any]) -> MetricPoint:
        """Reads an item of `metrics`, or the data of a `metric` event."""
        further = {key: value for key, value in item.items() if key not in _KNOWN}
        further.update(item.get("metrics") or {})
        return cls(
            step=int(item["step"]),
            loss=_number(item.get("loss")),
            mode=str(item.get("mode") or "train"),
            learning_rate=_optional_number(item.get("learning_rate")),
            grad_norm=_optional_number(item.get("grad_norm")),
            tokens=item.get("tokens"),
            seconds=_optional_number(item.get("seconds")),
            rate=_optional_number(item.get("rate")),
            attempt=item.get("attempt"),
            number=item.get("number"),
            time=times.parse_rfc3339(item.get("time")),
            metrics={key: _number(value) for key, value in further.items() if _is_number(value)},
        )

    def as_dict(self) -> dict[str, Any]:
        """Returns the point as a row of a table. Each further result is a column."""
        row = {key: value for key, value in vars(self).items() if key != "metrics"}
        return row | dict(self.metrics)


class Metrics(Sequence[MetricPoint]):
    """Points in order of their steps.

    metrics = job.metrics()
    metrics.losses[-1]
    metrics.to_pandas()
    metrics.plot()
    """

    def __init__(self, points: Iterable[MetricPoint], *, title: str = "") -> None:
        self._points = tuple(points)
        self.title = title

    @overload
    def __getitem__(self, index: int) -> MetricPoint: ...
    @overload
    def __getitem__(self, index: slice) -> Metrics: ...
    def __getitem__(self, index: int | slice) -> MetricPoint | Metrics:
        if isinstance(index, slice):
            return Metrics(self._points[index], title=self.title)
        return self._points[index]

    def __len__(self) -> int:
        return len(self._points)

    def __repr__(self) -> str:
        if not self._points:
            return f"<Metrics of {self.title or 'a job'}: none yet>"
        first, last = self._points[0], self._points[-1]
        span = f"steps {first.step} to {last.step}, loss {first.loss:.5g} to {last.loss:.5g}"
        return f"<Metrics of {self.title or 'a job'}: {len(self)} points, {span}>"

    @property
    def steps(self) -> list[int]:
        """The step of each point."""
        return [point.step for point in self._points]

    @property
    def losses(self) -> list[float]:
        """The loss of each point."""
        return [point.loss for point in self._points]

    def to_pandas(self) -> pd.DataFrame:
        """Returns a DataFrame indexed by step, without columns that have no values. Needs pandas."""
        try:
            import pandas as pd
        except ImportError as error:
            raise MissingDependency("pandas", "a DataFrame") from error
        frame = pd.DataFrame([point.as_dict() for point in self._points], columns=self._columns())
        unused = [name for name in frame if name not in ("step", "loss") and frame[name].isna().all()]
        return frame.drop(columns=unused).set_index("step")

    def _columns(self) -> list[str]:
        """Returns the columns of all points, in the order of their first use."""
        names = {name: None for point in self._points for name in point.as_dict()}
        return list(names) or ["step", "loss"]

    def plot(self, ax: Axes | None = None, **style: Any) -> Axes:
        """Plots the loss over the steps, on `ax` or a new figure. Needs matplotlib."""
        axes = ax or new_axes(self.title)
        style.setdefault("label", self._points[0].mode if self._points else "train")
        axes.plot(self.steps, self.losses, **style)
        axes.legend()
        return axes


def new_axes(title: str) -> Axes:
    """Returns new axes for a loss curve."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise MissingDependency("matplotlib", "a plot") from error
    axes: Axes = plt.subplots()[1]
    axes.set(title=title, xlabel="step", ylabel="loss")
    return axes


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _number(value: float | str | None) -> float:
    """Parses a loss. JSON has no NaN, so a non-finite loss is null or a string."""
    try:
        return float("nan" if value is None else value)
    except ValueError:
        return float("nan")


def _optional_number(value: float | str | None) -> float | None:
    return None if value is None else _number(value)
