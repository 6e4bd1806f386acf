"""Tests of retries, of streams over unreliable connections, and of errors."""

from __future__ import annotations

import json
import threading
from email.utils import formatdate
from pathlib import Path
from time import time

import httpx
import pytest

from conftest import JOBS, Handler, Server, dropped, event, job, point, problem, stream
from millrace import Appliance, errors


def test_retried_submission_has_the_same_bytes(
    server: Server, appliance: Appliance, fake_clock: list[float], tmp_path: Path
) -> None:
    (tmp_path / "params.yaml").write_text("model: {}")
    busy = problem(429, "TooManyRequests", "Slow down.", Retry_After="7")
    down = problem(503, "Unavailable", "Restarting.", Retry_After=formatdate(time() + 3, usegmt=True))
    server.on("POST", JOBS, dropped, busy, down, lambda h: h.send_json(201, job(None)))

    made = appliance.train("params.yaml", num_csx=4)

    assert (made.name, made.state) == ("kjv", "Pending")
    tries = server.asked("POST", JOBS)
    assert len(tries) == 4
    assert len({each.headers["Idempotency-Key"] for each in tries}) == 1
    assert len({(each.headers["Content-Type"], each.body) for each in tries}) == 1
    assert 0.25 <= fake_clock[0] <= 0.5
    assert fake_clock[1] == 7
    appliance.train("params.yaml", num_csx=4)
    assert server.requests[-1].headers["Idempotency-Key"] != tries[0].headers["Idempotency-Key"]


def test_retries_stop_after_the_budget(server: Server, appliance: Appliance, fake_clock: list[float]) -> None:
    server.on("GET", "/v1/whoami", problem(503, "Unavailable", "Restarting."))
    with pytest.raises(errors.Unavailable, match=r"^Restarting\.$"):
        appliance.whoami()
    assert 15 < sum(fake_clock) <= 30

    fake_clock.clear()
    server.on("GET", "/v1/whoami", problem(429, "TooManyRequests", "Tomorrow.", Retry_After="86400"))
    with pytest.raises(errors.TooManyRequests):
        appliance.whoami()
    assert fake_clock == []


def test_unreachable_server() -> None:
    with pytest.raises(errors.Unreachable, match=r"Connection refused\): check that the appliance runs"):
        Appliance("http://127.0.0.1:9", retry_seconds=0).whoami()


def test_wrong_scheme_fails_immediately(server: Server, fake_clock: list[float]) -> None:
    https = server.url.replace("http://", "https://")
    with pytest.raises(errors.Unreachable, match=f"^{https} does not support HTTPS: use {server.url}"):
        Appliance(https).whoami()
    alert = b"\x15\x03\x03\x00\x02\x02\x32"  # the response of a TLS server
    server.on("GET", "/v1/whoami", lambda h: h.wfile.write(alert) and h.drop())
    with pytest.raises(errors.Unreachable, match=f"requires HTTPS: use {https}"):
        Appliance(server.url).whoami()
    assert fake_clock == []


def test_job_of_a_closed_appliance_raises(server: Server) -> None:
    server.on("GET", f"{JOBS}/kjv", job())
    with Appliance(server.url) as appliance:
        found = appliance.job("kjv")
    for use in (found.refresh, found.follow, found.download):
        with pytest.raises(errors.ConfigError, match="is closed: use jobs inside"):
            use()


@pytest.mark.parametrize(
    ("status", "reason", "kind"),
    [
        (400, "BadRequest", errors.BadRequest),
        (401, "Unauthorized", errors.Unauthorized),
        (403, "Forbidden", errors.Forbidden),
        (404, "NotFound", errors.NotFound),
        (409, "AlreadyExists", errors.Conflict),
        (410, "Gone", errors.Gone),
        (422, "BadParams", errors.BadParams),
        (422, "Invalid", errors.Invalid),
        (422, "IdempotencyKeyReused", errors.IdempotencyKeyReused),
        (422, "OfAnotherVersion", errors.Invalid),
        (500, "Internal", errors.Internal),
    ],
)
def test_error_message_comes_from_the_appliance(
    server: Server, appliance: Appliance, status: int, reason: str, kind: type[errors.ApplianceError]
) -> None:
    server.on("GET", "/v1/whoami", problem(status, reason, "What to do.", X_Request_Id="r-1"))
    with pytest.raises(kind) as caught:
        appliance.whoami()
    error = caught.value
    assert (str(error), error.status, error.reason) == ("What to do.", status, reason)
    assert error.request_id == "r-1"
    assert [each.field for each in error.errors] == (["spec.numCsx"] if reason == "Invalid" else [])
    assert len(server.requests) == 1, "permanent errors are not retried"


def test_error_from_a_proxy(server: Server, appliance: Appliance) -> None:
    server.on(
        "GET", "/v1/whoami", lambda h: h.send_whole(404, b"<html>nginx</html>", Content_Type="text/html")
    )
    with pytest.raises(errors.NotFound, match="responded 404 Not Found to /v1/whoami"):
        appliance.whoami()
    server.on(
        "GET", "/v1/whoami", lambda h: h.send_whole(200, b"<html>hello</html>", Content_Type="text/html")
    )
    with pytest.raises(errors.Unreachable, match="sent text/html instead of JSON"):
        appliance.whoami()


def test_interrupted_stream_loses_and_repeats_nothing(server: Server, appliance: Appliance) -> None:
    server.on("GET", f"{JOBS}/kjv", job())
    whole = "".join(event("metric", point(step), step) for step in range(1, 9))
    third = whole.index("id: 4") + 20  # in the middle of the fourth event
    sixth = whole.index("id: 7")
    server.on(
        "GET",
        f"{JOBS}/kjv/metrics",
        stream(whole[:third], cut=True),
        dropped,
        problem(503, "Unavailable", "Restarting."),
        # A server that repeats earlier events, and closes the stream without `end`.
        stream(whole[whole.index("id: 3") : sixth]),
        stream(whole[sixth:] + event("end", {}, 8)),
    )
    points = list(appliance.job("kjv").stream_metrics("train"))
    assert [each.step for each in points] == list(range(1, 9))
    asked = server.asked("GET", f"{JOBS}/kjv/metrics")
    assert [each.headers["Last-Event-ID"] for each in asked] == [None, "3", "3", "3", "6"]
    assert asked[0].query == {"uid": "uid-of-kjv", "mode": "train"}


def test_stream_of_two_series_resumes_both(server: Server, appliance: Appliance) -> None:
    server.on("GET", f"{JOBS}/kjv", job())
    told = [("metric", "1.0"), ("event", "1.1"), ("event", "1.2"), ("metric", "2.2")]
    parts = [event(kind, {"id": position}, position) for kind, position in told]
    server.on(
        "GET",
        f"{JOBS}/kjv/follow",
        stream("".join(parts[:2])),
        stream("".join(parts[1:]) + event("end", {})),
    )
    followed = appliance.job("kjv")._events("/follow")
    assert [(each.event, each.id) for each in followed] == told
    assert server.requests[-1].headers["Last-Event-ID"] == "1.1"


def test_silent_stream_is_reconnected(
    server: Server, appliance: Appliance, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()

    def hangs(handler: Handler) -> None:
        stream(event("metric", point(1), 1), whole=False)(handler)
        released.wait()
        handler.drop()

    monkeypatch.setattr("millrace.transport._STREAM_TIMEOUT", httpx.Timeout(0.2))
    server.on("GET", f"{JOBS}/kjv", job())
    rest = stream(event("metric", point(2), 2) + event("end", {}))
    server.on("GET", f"{JOBS}/kjv/metrics", hangs, rest)
    assert [each.step for each in appliance.job("kjv").stream_metrics()] == [1, 2]
    assert server.requests[-1].headers["Last-Event-ID"] == "1"
    released.set()


def test_stream_ends_when_the_token_expires(server: Server, appliance: Appliance) -> None:
    server.on("GET", f"{JOBS}/kjv", job())
    server.on(
        "GET",
        f"{JOBS}/kjv/events",
        stream(event("event", {"number": 1, "reason": "Admitted"}, 1), cut=True),
        problem(401, "Unauthorized", "The token has expired."),
    )
    events = appliance.job("kjv").events(follow=True)
    assert next(events).reason == "Admitted"
    with pytest.raises(errors.Unauthorized):
        next(events)


def test_pages_are_fetched_lazily(server: Server, appliance: Appliance) -> None:
    server.on(
        "GET",
        JOBS,
        {"items": [job(name="a"), job(name="b")], "next": "c1"},
        {"items": [job(name="c")], "next": None},
    )
    jobs = appliance.jobs(finished=False)
    assert next(jobs).name == "a"
    assert len(server.requests) == 1
    assert [each.name for each in jobs] == ["b", "c"]
    assert server.requests[1].query == {"finished": "false", "limit": "50", "cursor": "c1"}

    server.on("GET", f"{JOBS}/kjv", job())
    server.on(
        "GET",
        f"{JOBS}/kjv/metrics",
        {"items": [point(1), point(2)], "next": 2},
        {
            "items": [point(3, loss=None), point(4, mode="eval", metrics={"eval/lm_perplexity": 7.25})],
            "next": None,
        },
    )
    metrics = appliance.job("kjv").metrics()
    assert metrics.steps == [1, 2, 3, 4]
    assert metrics[:2].losses == [8.0, 4.0]
    assert metrics[2].loss != metrics[2].loss, "NaN"
    assert metrics[3].metrics == {"eval/lm_perplexity": 7.25}
    assert server.requests[-1].query["after"] == "2"


def test_cancel_is_idempotent(server: Server, appliance: Appliance) -> None:
    server.on("GET", f"{JOBS}/kjv", job())
    server.on("DELETE", f"{JOBS}/kjv", dropped, problem(404, "NotFound", "There is no job kjv."))
    cancelled = appliance.job("kjv").cancel()
    assert (cancelled.state, cancelled.is_finished) == ("Cancelled", True)
    with pytest.raises(errors.JobFailed, match="job kjv ended as Cancelled"):
        cancelled.check()


def test_cancelled_job_is_deleting_until_gone(server: Server, appliance: Appliance) -> None:
    held = job()
    held["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:01Z", "finalizers": ["millrace.dev/archive"]}
    server.on("GET", f"{JOBS}/kjv", job(), held, problem(410, "Gone", "The job kjv is deleted."))
    server.on("DELETE", f"{JOBS}/kjv", held)
    cancelled = appliance.job("kjv").cancel()
    assert cancelled.state == "Deleting"
    with pytest.raises(errors.JobFailed, match="job kjv is Deleting"):
        cancelled.check()
    assert cancelled.refresh().state == "Deleting"
    assert cancelled.poll_finished() and cancelled.state == "Cancelled"


def test_wait(server: Server, appliance: Appliance) -> None:
    failure = {
        "role": "memoryx",
        "pod": "kjv-memoryx-0",
        "node": "n1",
        "message": "OOMKilled",
        "logTail": ["x"],
    }
    server.on("GET", f"{JOBS}/kjv", job(), job(), dropped, job("OutOfMemory", failure=failure))
    waited = appliance.job("kjv")
    with pytest.raises(errors.JobFailed, match=r"OutOfMemory: OOMKilled \(kjv-memoryx-0 on n1\)") as caught:
        waited.wait()
    assert caught.value.log_tail == ("x",)
    assert waited.wait(check=False) == "OutOfMemory"
    server.on("GET", f"{JOBS}/kjv", job())
    with pytest.raises(TimeoutError):
        waited.wait(timeout=60)


def test_job_commands(server: Server, appliance: Appliance) -> None:
    server.on("GET", f"{JOBS}/kjv", job())
    for verb in ("suspend", "resume", "scale"):
        server.on("POST", f"{JOBS}/kjv/{verb}", job("Resizing"))
    assert appliance.job("kjv").suspend().resume().scale(4).state == "Resizing"
    assert json.loads(server.requests[-1].body) == {"numCsx": 4}
    assert {each.query["uid"] for each in server.requests[1:]} == {"uid-of-kjv"}
