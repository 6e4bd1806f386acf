"""Tests of states and descriptions, and of the formats of times."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from conftest import job
from millrace import state, times

PROGRESS = {"step": 5, "totalSteps": 9, "loss": "2.5"}


@pytest.mark.parametrize(
    ("document", "sentence", "finished"),
    [
        (job(None), "Pending", False),
        (job("Queued", queue={"position": 3}), "Queued: position 3", False),
        (job("Starting", systems=["csx-0"], attempt=2), "Starting: csx-0, attempt 2", False),
        (job("Starting", systems=["csx"] * 16), "Starting: 16 systems", False),
        (job("Training", progress=PROGRESS), "Training: step 5 of 9, loss 2.5", False),
        (job("Restarting", failure={"message": "lost cs2-0"}), "Restarting: lost cs2-0", False),
        (job("Succeeded", failure={"message": "of old"}), "Succeeded", True),
        (job("Succeeded", checkpoint={"step": 9}), "Succeeded: checkpoint at step 9", True),
        (
            job("Succeeded", progress=PROGRESS, checkpoint={"step": 9}),
            "Succeeded: step 5 of 9, loss 2.5, checkpoint at step 9",
            True,
        ),
        (
            job("BadParams", failure={"message": "No.", "pod": "p", "node": "n"}),
            "BadParams: No. (p on n)",
            True,
        ),
        (
            job("BadParams", failure={"message": "No.\nhint: yes", "pod": "p"}),
            "BadParams: No. (p)\nhint: yes",
            True,
        ),
        (job("Succeeded", systems=["csx-0"], progress={"loss": "2.5"}), "Succeeded: loss 2.5", True),
        (job("Succeeded", systems=["csx-0"]), "Succeeded", True),
        (job("OfAnotherVersion"), "OfAnotherVersion", False),
        ({}, "Pending", False),
    ],
)
def test_descriptions(document: Any, sentence: str, finished: bool) -> None:
    assert (state.describe(document), state.is_finished(document)) == (sentence, finished)


def test_deleted_job_is_cancelled_unless_finished() -> None:
    running, over = job("Training", progress=PROGRESS), job("Succeeded")
    for document in (running, over):
        state.mark_deleted(document)
    assert state.describe(running) == "Cancelled: step 5 of 9, loss 2.5"
    assert state.describe(over) == "Succeeded"


def test_deleted_job_is_deleting_while_held() -> None:
    held = job("Training", progress=PROGRESS)
    held["metadata"] |= {"finalizers": ["millrace.dev/archive"]}
    assert state.state(held) == "Training"
    state.mark_deleted(held)
    assert state.describe(held) == "Deleting: step 5 of 9, loss 2.5"
    assert state.deletion(held) is None, "its state says so"
    assert (
        state.is_finished(held)
        and state.matches(held, state.DELETING)
        and not state.matches(held, state.CANCELLED)
    )
    state.mark_gone(held)
    assert state.state(held) == "Cancelled"


def test_finished_job_names_what_holds_it_after_deletion() -> None:
    held = job("Succeeded")
    assert state.deletion(held) is None
    state.mark_deleted(held)
    assert state.deletion(held) is None, "nothing but the archive holds it"
    held["status"]["conditions"] += [
        {
            "type": "Progressing",
            "status": "False",
            "reason": "Deleting",
            "message": "held by example.org/billing",
        }
    ]
    assert state.state(held) == "Succeeded"
    assert state.deletion(held) == "held by example.org/billing"


def test_summary_includes_the_newest_point() -> None:
    document = job("Suspending", progress={**PROGRESS, "attempt": 2})
    state.mark_point(document, 1, 8, 1.5)
    state.mark_point(document, 2, 4, 1.5)
    assert state.describe(document) == "Suspending: step 5 of 9, loss 2.5", "older, or of a lost attempt"
    state.mark_point(document, 2, 7, 1.25)
    assert state.describe(document) == "Suspending: step 7 of 9, loss 1.25"
    saved = job("Suspended")
    state.mark_checkpoint(saved, 0, "abc")
    assert state.describe(saved) == "Suspended: state saved, checkpoint at step 0"
    assert state.describe(job("Suspended")) == "Suspended: not started yet"


def test_times() -> None:
    parsed = times.parse_rfc3339("2026-01-02T03:04:05.123456789Z")
    assert parsed is not None
    assert parsed.isoformat() == "2026-01-02T03:04:05.123456+00:00"
    assert times.parse_rfc3339("2026-01-02t03:04:05+02:00") is not None
    assert [times.parse_rfc3339(text) for text in (None, "", "soon", "2026-13-01T00:00:00Z")] == [None] * 4
    ages = {
        59: "59s",
        119: "119s",
        120: "2m",
        185: "3m5s",
        3600: "60m",
        20000: "5h33m",
        200000: "2d7h",
        10**7: "115d",
    }
    assert {seconds: times.age(seconds) for seconds in ages} == ages
    assert [times.duration(seconds) for seconds in (4685, 86409.4, 172809)] == [
        "1:18:05",
        "1 day, 0:00:09",
        "2 days, 0:00:09",
    ]


def test_stale_status_is_reported() -> None:
    def aged(seconds: int, **status: Any) -> str | None:
        observed = times.format_rfc3339(datetime.now(timezone.utc) - timedelta(seconds=seconds))
        return state.stale_message(job("Training", lastObservedTime=observed, **status))

    stale = aged(192, systems=["csx-0"])
    assert stale is not None
    assert stale.startswith("3m12s ago: no server or operator")
    assert aged(40, systems=["csx-0"]) is None
    assert aged(192) is None, "the status of a queued job is written when it changes"
    assert state.stale_message(job("Training", systems=["csx-0"])) is None, "written by an older server"


def test_next_attempt_has_time_and_reason() -> None:
    retry = {"nextAttemptTime": "2026-01-01T00:00:10Z", "message": "exceeded quota: small"}
    message = state.next_attempt(job("Queued", retry=retry))
    assert message is not None
    assert message.endswith(" at the earliest: exceeded quota: small")
    assert state.next_attempt(job("Training", retry={"restarts": 2})) is None
    assert state.next_attempt(job("Training")) is None
