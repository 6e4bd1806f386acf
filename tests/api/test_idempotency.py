"""Tests of repeated submissions, which create one job. Jobs are suspended, so that none runs."""

from __future__ import annotations

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import httpx
import pytest
from harness import PARAMS, ProcessServer, Server, User, trainjob, until


def create(user: User, key: str | None, *, name: str | None = None, seed: int = 1) -> httpx.Response:
    """Submits a suspended job."""
    body = trainjob(name, seed=seed, suspend=True)
    return user.http.post(jobs(user), json=body, headers={"Idempotency-Key": key} if key else {})


def jobs(user: User) -> str:
    return f"/v1/namespaces/{user.namespace}/trainjobs"


def names(user: User) -> list[str]:
    return [job.name for job in user.appliance.jobs()]


def test_repeated_request_creates_one_job(server: Server) -> None:
    """The same key and body get 201, then 200 with the same job; another body is an error."""
    user = server.user
    first = create(user, "once")
    assert first.status_code == 201 and "idempotent-replay" not in first.headers
    assert first.headers["location"] == f"{jobs(user)}/{first.json()['metadata']['name']}"
    again = create(user, "once")
    assert (again.status_code, again.headers["idempotent-replay"]) == (200, "true")
    assert again.json()["metadata"]["uid"] == first.json()["metadata"]["uid"]
    other = create(user, "once", seed=2)
    assert (other.status_code, other.json()["reason"]) == (422, "IdempotencyKeyReused")
    assert other.headers["content-type"] == "application/problem+json"
    assert create(user, "another").status_code == 201
    assert len(names(user)) == 2

    # A dry run reports the conflict, too.
    tried = user.http.post(jobs(user), params={"dryRun": "All"}, json=trainjob(None, seed=2), headers={"Idempotency-Key": "once"})
    assert (tried.status_code, tried.json()["reason"]) == (422, "IdempotencyKeyReused")

    # The command, as in a script that runs twice.
    twice = [user.millrace("train", "-p", PARAMS, "--detach", "--idempotency_key", "script") for _ in range(2)]
    assert twice[0].out == twice[1].out
    assert len(names(user)) == 3

    # A repetition after the deletion of the job creates none, and returns the deleted one.
    assert "deletionTimestamp" not in again.json()["metadata"]
    user.http.delete(first.headers["location"]).raise_for_status()
    late = create(user, "once")
    assert (late.status_code, late.json()["metadata"]["uid"]) == (200, first.json()["metadata"]["uid"])
    assert "deletionTimestamp" in late.json()["metadata"]


@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
def test_concurrent_requests_create_one_job(shared: Server, named: bool) -> None:
    """Eight concurrent requests with one key: one gets 201, the others 200, all the same job."""
    key, name = f"at-once-{named}", "at-once" if named else None
    with ThreadPoolExecutor(8) as pool:
        users = [shared.another_user() for _ in range(8)]
        begin = threading.Barrier(8)
        answers = list(pool.map(lambda user: (begin.wait(), create(user, key, name=name))[1], users))
    assert sorted(answer.status_code for answer in answers) == [200] * 7 + [201]
    assert len({answer.json()["metadata"]["uid"] for answer in answers}) == 1


@pytest.mark.needs("kill")
def test_acknowledged_jobs_survive_a_kill(server: ProcessServer) -> None:
    """A server that is killed right after its response knows the job and the key when it restarts."""
    user = server.user
    for number in range(3):
        made = create(user, f"key-{number}")
        server.kill()
        server.start()
        assert made.status_code == 201
        again = create(user, f"key-{number}")
        assert (again.status_code, again.json()["metadata"]["uid"]) == (200, made.json()["metadata"]["uid"])
    assert len(names(user)) == 3


@pytest.mark.needs("kill")
def test_kill_during_submissions_loses_no_acknowledged_job(server: ProcessServer) -> None:
    """A server that is killed during submissions loses none that it acknowledged, and each unanswered one, repeated, is
    one job.
    """
    acknowledged: dict[str, str] = {}
    unanswered: list[str] = []
    enough = threading.Event()

    def submit(worker: int) -> None:
        user = server.another_user()
        for number in range(10_000):
            key = f"{worker}-{number}"
            try:
                acknowledged[key] = create(user, key).raise_for_status().json()["metadata"]["uid"]
            except httpx.TransportError:
                unanswered.append(key)
                return
            if len(acknowledged) >= 40:
                enough.set()

    workers = [threading.Thread(target=submit, args=(worker,)) for worker in range(4)]
    for worker in workers:
        worker.start()
    assert enough.wait(60)
    server.kill()
    for worker in workers:
        worker.join()
    server.start()

    user = server.user
    there = {job.uid for job in user.appliance.jobs()}
    assert set(acknowledged.values()) <= there
    assert len(unanswered) == 4
    for key in [*acknowledged, *unanswered]:
        answer = create(user, key).raise_for_status().json()
        assert answer["metadata"]["uid"] == acknowledged.get(key, answer["metadata"]["uid"])
    assert len(names(user)) == len(acknowledged) + len(unanswered)


@pytest.mark.needs("open")
def test_disconnected_client_leaves_no_partial_job(server: Server) -> None:
    """A client that disconnects early has created a complete job or none."""
    user, at = server.user, urlsplit(server.url)
    for number in range(60):
        # As httpx writes it: the same request again has the same bytes.
        body = json.dumps(trainjob(None, seed=number, suspend=True), separators=(",", ":")).encode()
        head = f"POST {jobs(user)} HTTP/1.1\r\nHost: {at.netloc}\r\nContent-Type: application/json\r\n"
        head += f"Idempotency-Key: gone-{number}\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection((at.hostname or "", at.port or 80)) as connection:
            connection.sendall(head.encode() + body)
            time.sleep(number % 20 / 1000)  # somewhere between the request and its answer
    assert names(user)
    until("every job is known to what runs it", lambda: {job.state for job in user.appliance.jobs()} == {"Suspended"}, 30)
    for number in range(60):
        assert create(user, f"gone-{number}", seed=number).status_code in (200, 201)
    assert len(set(names(user))) == 60
