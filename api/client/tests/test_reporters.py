"""Tests of rates, and of the bar's width and remaining time."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from conftest import point
from millrace import times
from millrace.metrics import MetricPoint
from millrace.reporters import BarReporter, OverallRate


def test_overall_rate_restarts_with_an_attempt() -> None:
    overall = OverallRate()
    points = [
        point(1, rate=None),
        point(2, rate=8.0),
        point(3, rate=6.0, seconds=1.5),
        point(3, attempt=2, rate=0.0),
        point(4, attempt=2, rate=16.0),
    ]
    assert [overall.update(MetricPoint.read(each)) for each in points] == [None, 8.0, 4.0, None, 16.0]


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (40, ["name-of-a-…  50%|", "| 2/4, loss 4.0000"]),
        (80, ["name-of-a-job  50%|", "| 2/4, loss 4.0000, 64.00 samples/s, 0:00:01 left"]),
    ],
)
def test_bar_fits_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int, shown: list[str]
) -> None:
    monkeypatch.setattr("tqdm.std._screen_shape_wrapper", lambda: lambda _file: (columns, 24))
    bar = BarReporter("name-of-a-job")
    bar.progress({"totalSteps": 4})
    bar.point(MetricPoint.read(point(2)))
    bar.close()
    last = capsys.readouterr().err.rstrip().rpartition("\r")[2]
    assert len(last) <= columns
    assert [part in last for part in shown] == [True, True], last


def test_bar_is_drawn_after_a_replay_with_the_expected_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tqdm.std._screen_shape_wrapper", lambda: lambda _file: (80, 24))
    seconds = iter(range(1000))
    monkeypatch.setattr("tqdm.std.time", lambda: next(seconds))
    bar = BarReporter("kjv")
    hours = datetime.now(timezone.utc) + timedelta(hours=2, seconds=0.5)
    bar.progress({"totalSteps": 2000, "estimatedFinishTime": times.format_rfc3339(hours)})
    for step in (1, 1000, 1001):
        bar.point(MetricPoint.read(point(step)))
    shown = capsys.readouterr().err
    assert "1001/2000, loss 0.0080, 64.00 samples/s, 2:00:00 left" in shown
    bar.progress({"estimatedFinishTime": "2026-01-01T00:00:00Z"})
    bar.point(MetricPoint.read(point(1002)))
    assert "0:08:19 left" in capsys.readouterr().err, "an estimated end in the past is ignored"
