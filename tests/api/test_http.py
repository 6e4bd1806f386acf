"""Tests of HTTP itself: error responses, pages, filters and history."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field

import httpx
import pytest
from harness import Server, User, path, until_state
from millrace import Job

JOBS = "/v1/namespaces/{ns}/trainjobs"
JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Request:
    """A request and its expected error."""

    status: int
    reason: str
    method: str
    path: str
    headers: dict[str, str] = field(default_factory=dict)
    content: bytes = b""

    def ask(self, user: User) -> httpx.Response:
        """Returns the response for a user."""
        path = self.path.replace("{ns}", user.namespace)
        return user.http.request(self.method, path, headers=self.headers, content=self.content or None)


REFUSED = [
    Request(404, "NotFound", "GET", "/v1/nothing"),
    Request(404, "NotFound", "GET", JOBS + "/nobody"),
    Request(404, "NotFound", "GET", "/v1/appliance?name=another"),
    Request(405, "MethodNotAllowed", "PUT", JOBS),
    Request(405, "MethodNotAllowed", "POST", "/healthz"),
    Request(400, "BadRequest", "GET", JOBS + "?limit=many"),
    Request(400, "BadRequest", "GET", JOBS + "?finished=perhaps"),
    Request(400, "BadRequest", "POST", JOBS + "?dryrun=All", JSON, b"{}"),
    Request(400, "BadRequest", "GET", JOBS + "/finished/metrics?mode=other"),
    Request(400, "BadRequest", "GET", JOBS + "/finished/metrics?after=-1"),
    Request(400, "BadRequest", "GET", JOBS + "/finished/metrics?maxPoints=9&attempt=1"),
    Request(400, "BadRequest", "GET", JOBS + "/finished/events?attempt=1"),
    Request(400, "BadRequest", "GET", JOBS + "/finished/follow?limit=9"),
    Request(400, "BadRequest", "GET", JOBS + "/finished/logs?level=LOUD"),
    Request(400, "BadRequest", "GET", JOBS + "/finished/checkpoints/200?format=hf"),
    Request(400, "BadRequest", "GET", JOBS + "?state=training"),
    Request(415, "UnsupportedMediaType", "POST", JOBS, {"Content-Type": "text/plain"}, b"{}"),
    Request(415, "UnsupportedMediaType", "POST", JOBS, {**JSON, "Content-Encoding": "gzip"}, b"\x1f\x8b"),
    Request(400, "BadRequest", "POST", JOBS, JSON, b"{"),
    Request(400, "BadRequest", "POST", JOBS, JSON, b"[]"),
    Request(400, "BadRequest", "POST", JOBS, JSON, b"\xff"),
    Request(400, "BadRequest", "POST", JOBS, JSON, b"[" * 100_000),
    Request(400, "BadRequest", "POST", JOBS, {"Content-Type": "application/yaml"}, b"a: &a [*a]"),
    Request(400, "BadRequest", "POST", JOBS, {"Content-Type": "multipart/form-data"}, b""),
    Request(400, "BadRequest", "POST", JOBS, {"Content-Type": "multipart/form-data; boundary=x"}, b"--x--\r\n"),
    Request(400, "BadRequest", "POST", JOBS, {**JSON, "Idempotency-Key": ""}, b"{}"),
    Request(400, "BadRequest", "POST", JOBS, {**JSON, "Idempotency-Key": "k" * 256}, b"{}"),
    Request(422, "Invalid", "POST", JOBS, JSON, b"{}"),
    Request(422, "Invalid", "POST", JOBS, JSON, b'{"kind": "Pod", "spec": {}}'),
    Request(422, "Invalid", "POST", JOBS, JSON, b'{"metadata": {"labels": {"a b": "c"}}, "spec": {}}'),
    Request(422, "Invalid", "POST", JOBS, JSON, b'{"metadata": {"annotations": {"a": 1}}, "spec": {}}'),
    Request(422, "Invalid", "POST", JOBS, JSON, b'{"metadata": {"generateName": 1}, "spec": {}}'),
    Request(400, "BadRequest", "POST", JOBS + "/finished/scale", JSON, b"{"),
    Request(422, "Invalid", "POST", JOBS + "/finished/scale", JSON, b'{"numCsx": "two"}'),
    Request(422, "Invalid", "POST", JOBS + "/finished/scale", JSON, b'{"numCsx": 0}'),
    Request(413, "PayloadTooLarge", "POST", JOBS, JSON, b" " * (9 << 20)),
    Request(413, "PayloadTooLarge", "POST", JOBS + "/finished/scale", JSON, b" " * (9 << 20)),
]


@pytest.fixture(scope="module")
def refusals(shared: Server, finished: Job) -> list[tuple[Request, httpx.Response]]:
    assert finished.name == "finished"
    return [(request, request.ask(shared.user)) for request in REFUSED]


def test_errors_are_problem_documents(refusals: list[tuple[Request, httpx.Response]]) -> None:
    """Every error is a problem document of RFC 9457, with a reason for programs and a message for people."""
    others = [
        (request.method, request.path, request.headers, request.content[:20], answer.status_code, answer.text)
        for request, answer in refusals
        if answer.headers["content-type"] != "application/problem+json"
        or (answer.status_code, answer.json()["reason"]) != (request.status, request.reason)
    ]
    assert others == []
    for request, answer in refusals:
        problem = answer.json()
        assert (problem["type"], problem["status"]) == ("about:blank", request.status)
        assert problem["title"] and problem["detail"]
        assert all(fault["message"] for fault in problem.get("errors", []))


MALFORMED_REQUESTS = {
    # error.rs > From<millrace_store::Error>
    "a cursor that is none": Request(400, "BadRequest", "GET", JOBS + "?cursor=none"),
    "an attempt beyond all": Request(400, "BadRequest", "GET", JOBS + f"/finished/logs?attempt={2**64 - 1}"),
    # files.rs > LocalFiles::open
    "a name too long": Request(404, "NotFound", "GET", JOBS + f"/finished/artifacts/{'a' * 300}"),
    "a NUL in a name": Request(404, "NotFound", "GET", JOBS + "/finished/checkpoints/200/manifest.json%00"),
}


@pytest.mark.parametrize("fault", MALFORMED_REQUESTS)
def test_malformed_requests_are_client_errors(shared: Server, finished: Job, fault: str) -> None:
    """Malformed requests get 4xx: a 500 would send an administrator to the log without cause."""
    request = MALFORMED_REQUESTS[fault]
    answer = request.ask(shared.user)
    assert (answer.status_code, answer.json()["reason"]) == (request.status, request.reason)


@pytest.mark.parametrize("namespace", ["..%2F..%2Fescaped", "-", "Not_A_Name", "%2E%2E"])
def test_invalid_namespaces_are_rejected(server: Server, finished: Job, namespace: str) -> None:
    """An invalid namespace gets 4xx, and nothing is created outside of the server's data."""
    body = {"metadata": {"name": "anywhere"}, "spec": finished.spec}
    answer = server.user.http.post(f"/v1/namespaces/{namespace}/trainjobs", json=body)
    if answer.status_code == 201:
        time.sleep(1)
    assert not (server.home / "escaped").exists()
    assert 400 <= answer.status_code < 500


def test_errors_name_the_path(refusals: list[tuple[Request, httpx.Response]]) -> None:
    """The problem's `instance` is the requested path."""
    for _, answer in refusals:
        assert answer.json().get("instance") == answer.request.url.path


def test_every_response_has_a_request_id(shared: Server, refusals: list[tuple[Request, httpx.Response]]) -> None:
    """Every response has a unique request ID, which users can quote."""
    answers = [shared.user.http.get("/v1/version"), *(answer for _, answer in refusals)]
    ids = {answer.headers.get("x-request-id") for answer in answers}
    assert None not in ids and len(ids) == len(answers)


def test_pages_contain_every_job_once(server: Server, finished: Job) -> None:
    """Pages contain all jobs, newest first and once, even if jobs are created and deleted between pages."""
    user, jobs = server.user, JOBS.replace("{ns}", server.namespace)

    def create(number: int) -> None:
        body = {"metadata": {"name": f"job-{number}"}, "spec": {**finished.spec, "suspend": True}}
        user.http.post(jobs, json=body).raise_for_status()

    for number in range(20):
        create(number)
    seen: list[tuple[str, str]] = []
    cursor: dict[str, str] | None = {}
    while cursor is not None:
        page = user.http.get(jobs, params={"limit": 3, **cursor}).raise_for_status().json()
        seen += [(item["metadata"]["creationTimestamp"], item["metadata"]["name"]) for item in page["items"]]
        cursor = {"cursor": page["next"]} if page["next"] else None
        create(100 + len(seen))
        user.http.delete(f"{jobs}/{seen[0][1]}")
    names = [name for _, name in seen]
    assert len(names) == len(set(names)) and {f"job-{number}" for number in range(20)} <= set(names)
    times = [time for time, _ in seen]
    assert times == sorted(times, reverse=True)
    if "exact times" in server.can:
        assert names == [f"job-{number}" for number in reversed(range(20))]


def test_jobs_are_filtered(server: Server, finished: Job) -> None:
    """Jobs are filtered by state, name, submitter and end, in one or all namespaces."""
    here, elsewhere = server.namespace, server.another_namespace()
    user = server.user_with(server.token("somebody", "editor", here, elsewhere))
    for name, namespace in (("one", here), ("two", here), ("one", elsewhere)):
        body = {"metadata": {"name": name}, "spec": {**finished.spec, "suspend": True}}
        user.http.post(f"/v1/namespaces/{namespace}/trainjobs", json=body).raise_for_status()
    for job in user.appliance.jobs():
        until_state(job, "Suspended")

    def names(namespace: str = here, **query: str) -> list[str]:
        items = user.http.get(f"/v1/namespaces/{namespace}/trainjobs", params=query).raise_for_status().json()["items"]
        return sorted(f"{item['metadata']['namespace']}/{item['metadata']['name']}" for item in items)

    both = [f"{here}/one", f"{here}/two"]
    assert names(state="Suspended") == both and names(state="Training") == []
    assert names(name="one") == [f"{here}/one"] and names(finished="true") == []
    assert names("-", name="one") == sorted([f"{here}/one", f"{elsewhere}/one"])
    assert names(submittedBy="somebody", finished="false") == both
    assert names(submittedBy="nobody") == []


@pytest.mark.needs("quick jobs")
def test_history_of_a_deleted_job_is_readable(server: Server) -> None:
    """A name means the newest job; older ones are read by UID, with their curve, and can't be changed."""
    user = server.user
    old = user.submit("twice", 30)
    old.wait(60)
    user.millrace("cancel", "twice", "--yes")
    new = user.submit("twice", 60)
    new.wait(60)
    assert user.appliance.job("twice").uid == new.uid != old.uid
    assert [step for step, _ in user.curve(old)] == list(range(1, 31))
    assert (
        json.loads(user.millrace("get", "job", "twice", "--uid", old.uid, "-o", "json").out)["metadata"]["uid"]
        == old.uid
    )
    gone = user.http.post(f"{path(old)}/suspend", params={"uid": old.uid})
    assert (gone.status_code, gone.json()["reason"]) == (410, "Gone")
    # The newer job uses the same model_dir, so the files of the older one are gone; the list still has both.
    assert user.http.get(f"{path(old)}/checkpoints", params={"uid": old.uid}).status_code == 410
    assert user.http.get(f"{path(new)}/checkpoints", params={"uid": new.uid}).status_code == 200
    assert {job.uid for job in user.appliance.jobs(deleted=True)} == {old.uid, new.uid}
    assert old.uid in user.millrace("get", "jobs", "--deleted").out
