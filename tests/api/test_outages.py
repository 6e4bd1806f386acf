"""Tests of a REST server that is killed, stopped, or loses its database, while jobs run in the cluster."""

from __future__ import annotations

import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from harness import CommandResult, KubernetesServer, Reference, User, serving, trainjob, until, until_job, until_step
from millrace import Job
from test_uploaded_models import write_model

# No other test can use the server at the same time.
pytestmark = [pytest.mark.needs("cluster"), pytest.mark.last]

STEPS = 600


def create(http: httpx.Client, namespace: str, key: str, seed: int = 1) -> httpx.Response:
    """Submits a suspended job."""
    body = trainjob(None, seed=seed, suspend=True)
    return http.post(f"/v1/namespaces/{namespace}/trainjobs", json=body, headers={"Idempotency-Key": key})


class Submissions:
    """Four clients that submit jobs, and repeat each submission with its key until it is answered."""

    def __init__(self, user: User) -> None:
        self._user, self._enough = user, threading.Event()
        self.tries: dict[str, list[int]] = defaultdict(list)
        """Statuses for each key; 0 means no response."""
        self.uids: dict[str, str] = {}
        """UID of the job of each key."""
        self._workers = [threading.Thread(target=self._submit, args=(worker,), daemon=True) for worker in range(4)]
        for worker in self._workers:
            worker.start()

    def _submit(self, worker: int) -> None:
        http, number = self._user.connection(), 0
        while not self._enough.is_set():
            key = f"{worker}-{number}"
            try:
                answer = create(http, self._user.namespace, key)
            except httpx.TransportError:
                self.tries[key].append(0)
                self._enough.wait(0.2)
                continue
            self.tries[key].append(answer.status_code)
            if answer.is_success:
                self.uids[key] = answer.json()["metadata"]["uid"]
                number += 1

    def until(self, more: int) -> None:
        """Waits until this many more submissions are answered."""
        enough = len(self.uids) + more
        until(f"{enough} submissions are answered", lambda: len(self.uids) >= enough)

    def end(self) -> None:
        """Stops the clients."""
        self._enough.set()
        for worker in self._workers:
            worker.join(60)


@dataclass(frozen=True)
class Survivor:
    """A job during which the REST server was killed, its follower's output, and the submissions."""

    server: KubernetesServer
    job: Job
    seen: CommandResult
    submissions: Submissions


@pytest.fixture(scope="module")
def survivor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Survivor]:
    with serving(tmp_path_factory.mktemp("outages")) as serve:
        server = serve()
        assert isinstance(server, KubernetesServer)
        user = server.user
        command, job = user.watch("survivor", STEPS, 50, "--num_csx", 2)
        submissions = Submissions(user)
        submissions.until(8)
        server.kill_api()
        server.until_back()
        submissions.until(8)
        submissions.end()
        yield Survivor(server, job, command.end(), submissions)


def test_job_continues_while_its_server_is_killed(survivor: Survivor, reference: Callable[[int], Reference]) -> None:
    """The job continues while its server is killed, and missed history is caught up with, each point once."""
    reference(STEPS).assert_same(survivor.server.user, survivor.job)
    assert (survivor.job.status["attempt"], survivor.job.status["restarts"]) == (1, 0)


def test_follower_reconnects_after_a_kill(survivor: Survivor, reference: Callable[[int], Reference]) -> None:
    """The follower reconnects and prints every point once."""
    seen = survivor.seen
    assert seen.code == 0 and "retrying" in seen.err, seen.err
    printed = [(int(step), loss) for step, loss in re.findall(r"Step=(\d+), Loss=([\d.]+)", seen.out)]
    assert printed == [(step, f"{float(loss):.5f}") for step, loss in reference(STEPS).curve]


def test_submissions_around_a_kill_create_one_job_each(survivor: Survivor) -> None:
    """Each submission around the kill creates exactly one job, also if it was repeated."""
    tries, uids = survivor.submissions.tries, survivor.submissions.uids
    assert any(0 in statuses for statuses in tries.values()), "no submission failed while the server was down"
    assert {status for statuses in tries.values() for status in statuses} <= {0, 200, 201, 503}
    there = {each["metadata"]["uid"] for each in survivor.server.get("trainjobs")["items"]}
    # The last submissions may have created jobs without a response.
    assert there >= {*uids.values(), survivor.job.uid} and len(set(uids.values())) == len(uids)
    assert len(there) <= 1 + len(tries)


@dataclass(frozen=True)
class Outage:
    """A time without a REST server, with a job that finished in it, one that was deleted, and one with uploads."""

    ended: Job
    deleted: Job
    held_seconds: float
    """Time until the deleted job was gone."""
    accepted: dict[str, Any]
    """Condition of the job with uploads, which could not be planned."""


@pytest.fixture(scope="module")
def outage(survivor: Survivor, tmp_path_factory: pytest.TempPathFactory) -> Outage:
    server = survivor.server
    model = write_model(tmp_path_factory.mktemp("model"), 0.25)
    uploading = server.user.appliance.train(str(model), name="uploading", suspend=True)
    # It has steps: a job without steps has no history to archive and is deleted at once.
    deleted = server.user.submit("deleted", 1_000_000)
    until_step(deleted, 1)
    server.scale_api(0)
    began = time.monotonic()
    server.kubectl("delete", "trainjob", deleted.name, "--wait=false")
    server.kubectl("apply", "--filename=-", document=trainjob("ended", 60))
    spec = {**uploading.spec, "suspend": False}
    spec["params"]["runconfig"]["seed"] = 2
    server.kubectl("apply", "--filename=-", document={**trainjob("waiting"), "spec": spec})

    def accepted() -> dict[str, Any] | None:
        conditions = server.get("trainjob", "waiting").get("status", {}).get("conditions", [])
        # It is unknown while the job is being planned.
        known = (each for each in conditions if each["type"] == "Accepted" and each["status"] != "Unknown")
        return next(known, None)

    condition = until("the job with uploads has a condition", accepted)
    server.kubectl("wait", "trainjob/ended", "--for=condition=Finished", "--timeout=50s")
    until("the operator lets go", lambda: server.get("trainjob", deleted.name) is None, 90)
    held_seconds = time.monotonic() - began
    server.scale_api(1)
    return Outage(until_job(server.user, "ended"), deleted, held_seconds, condition)


def test_deleted_job_is_held_for_a_minute_without_server(survivor: Survivor, outage: Outage) -> None:
    """The operator releases a deleted job after a minute without a server. When the server is back, the job is deleted
    for it, too, and its history stays.
    """
    assert 55 < outage.held_seconds < 75
    user = survivor.server.user
    assert outage.deleted.name not in {job.name for job in user.appliance.jobs()}
    found = user.appliance.job(outage.deleted.name, outage.deleted.uid)
    assert found.document["metadata"]["deletionTimestamp"]


def test_job_with_uploads_waits_for_the_server(survivor: Survivor, outage: Outage) -> None:
    """A job whose graph document can't be read waits, and trains when the server is back."""
    assert (outage.accepted["status"], outage.accepted["reason"]) == ("False", "UploadsUnavailable")
    assert "the job is planned when it can" in outage.accepted["message"], outage.accepted
    job = until_job(survivor.server.user, "waiting")
    until("it has trained", lambda: job.refresh().state == "Succeeded", 100)


def test_missed_history_is_read_from_files(
    survivor: Survivor, outage: Outage, reference: Callable[[int], Reference]
) -> None:
    """A job that began and finished without a server has its whole curve, from the files of its journal."""
    user = survivor.server.user
    until("its curve is there", lambda: len(user.curve(outage.ended)) == 60)
    reference(60).assert_same(user, outage.ended)
    assert {line["agent"].split("-")[0] for line in user.pages(outage.ended, "logs")} > {"coordinator", "cs2"}


@pytest.fixture(scope="module")
def forgetful(survivor: Survivor, outage: Outage) -> Iterator[KubernetesServer]:
    """The server with an empty database."""
    survivor.server.set_api_database("sqlite:/tmp/empty.db")
    try:
        yield survivor.server
    finally:
        survivor.server.set_api_database(None)


def test_idempotency_survives_the_loss_of_the_database(
    survivor: Survivor, forgetful: KubernetesServer
) -> None:
    """An existing job is found by key and body in its annotations; another body is an error."""
    user = forgetful.user
    key, uid = next(iter(survivor.submissions.uids.items()))
    again = create(user.http, user.namespace, key)
    assert (again.status_code, again.headers["idempotent-replay"]) == (200, "true")
    assert again.json()["metadata"]["uid"] == uid
    other = create(user.http, user.namespace, key, seed=2)
    assert (other.status_code, other.json()["reason"]) == (422, "IdempotencyKeyReused")


def test_jobs_and_curves_survive_the_loss_of_the_database(
    survivor: Survivor, outage: Outage, forgetful: KubernetesServer, reference: Callable[[int], Reference]
) -> None:
    """Existing jobs are listed again, and the curve of a finished one is read from its files."""
    user = forgetful.user
    there = {each["metadata"]["uid"] for each in forgetful.get("trainjobs")["items"]}
    assert {job.uid for job in user.appliance.jobs()} == there
    assert there >= {survivor.job.uid, outage.ended.uid, *survivor.submissions.uids.values()}
    until("the curve is there", lambda: len(user.curve(survivor.job, maxPoints=10_000)) == STEPS)
    reference(STEPS).assert_same(user, survivor.job)
    assert user.http.get(f"/v1/namespaces/{user.namespace}/trainjobs/{outage.deleted.name}").status_code == 404
