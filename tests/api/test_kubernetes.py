"""Tests of jobs that are managed with kubectl and over REST, and of what the REST server creates in the cluster."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import PARAMS, KubernetesServer, Reference, User, path, trainjob, until, until_job, until_state, until_step
from millrace import Job

pytestmark = pytest.mark.needs("cluster")

STEPS = 300
ARCHIVE = "millrace.dev/archive"


def condition(server: KubernetesServer, name: str) -> str | None:
    """Returns a job's state from kubectl."""
    conditions = server.get("trainjob", name)["status"].get("conditions", [])
    return next((each["reason"] for each in conditions if each["type"] == "Succeeded"), None)


def history(user: User, job: Job) -> dict[str, list[Any]]:
    """Returns the whole history of a job, read by UID."""
    return {what: list(user.pages(job, what)) for what in ("metrics", "logs", "events")}


@pytest.fixture(scope="module")
def applied(shared: KubernetesServer) -> Job:
    """A finished job that kubectl applied, a client suspended and kubectl resumed."""
    user = shared.user
    shared.kubectl("apply", "--filename=-", document=trainjob("applied", STEPS, numCsx=2))
    job = until_job(user, "applied")
    assert "applied" in user.millrace("get", "jobs", "-o", "name").out.split()
    until_step(job, 50)
    user.millrace("suspend", "applied")
    until("kubectl sees it suspended", lambda: condition(shared, "applied") == "Suspended")
    shared.kubectl("patch", "trainjob", "applied", "--type=merge", "--patch", json.dumps({"spec": {"suspend": False}}))
    assert user.millrace("attach", "applied").code == 0
    return job


def test_job_created_by_kubectl_is_visible_to_clients(
    shared: KubernetesServer, applied: Job, reference: Callable[[int], Reference]
) -> None:
    """Both clients list, follow, suspend and resume the job, and its result has the bits of a local run."""
    reference(STEPS).assert_same(shared.user, applied)
    assert (applied.status["attempt"], applied.status["restarts"]) == (2, 0)

    def same() -> bool:
        # The status may still change after the end, for example when the systems are released.
        there = shared.get("trainjob", "applied")
        assert there["metadata"]["uid"] == applied.uid
        applied.refresh()
        return bool((there["spec"], there["status"]) == (applied.spec, applied.status))

    until("both clients have the same job", same, 10)
    events = shared.get("events", "--field-selector=involvedObject.name=applied")["items"]
    assert {event.reason for event in applied.events()} <= {event["reason"] for event in events}


def test_history_of_a_job_deleted_by_kubectl_is_readable(shared: KubernetesServer, applied: Job) -> None:
    """A job deleted with kubectl is gone when its history is archived; clients then read the same history by UID."""
    user = shared.user
    before = history(user, applied)
    assert ARCHIVE in shared.get("trainjob", "applied")["metadata"]["finalizers"]
    shared.kubectl("delete", "trainjob", "applied", "--timeout=30s")
    until("it is not listed", lambda: "applied" not in user.millrace("get", "jobs", "-o", "name").out.split(), 10)
    after = history(user, applied)
    assert after["metrics"] == before["metrics"] and after["logs"] == before["logs"]
    assert after["events"][: len(before["events"])] == before["events"]
    gone = user.http.post(f"{path(applied)}/suspend", params={"uid": applied.uid})
    assert (gone.status_code, gone.json()["reason"]) == (410, "Gone")


def test_job_created_by_a_client_is_visible_to_kubectl(shared: KubernetesServer) -> None:
    """The job names its submitter; each side sees the changes and the deletion of the other."""
    user = shared.user
    made = user.http.post(path_of_jobs(user), json=trainjob("by-rest", suspend=True)).raise_for_status().json()
    job = user.appliance.job("by-rest")
    metadata = shared.get("trainjob", "by-rest")["metadata"]
    assert metadata["uid"] == job.uid == made["metadata"]["uid"]
    account = f"system:serviceaccount:{shared.namespace}:user"
    assert metadata["annotations"]["millrace.dev/submitted-by"] == account
    until_state(job, "Suspended")
    shared.kubectl("scale", "trainjob/by-rest", "--replicas=3")
    until("the client sees what kubectl changed", lambda: job.refresh().spec["numCsx"] == 3, 5)
    user.millrace("cancel", "by-rest", "--yes")
    until("it is gone for kubectl", lambda: shared.get("trainjob", "by-rest") is None, 10)
    assert user.millrace("get", "job", "by-rest", "--uid", job.uid, "-o", "json").json["metadata"]["uid"] == job.uid


def path_of_jobs(user: User) -> str:
    return f"/v1/namespaces/{user.namespace}/trainjobs"


def test_quota_errors_are_quoted(shared: KubernetesServer) -> None:
    """An error of a quota contains the API server's message."""
    spec = {"hard": {"count/trainjobs.millrace.dev": "0"}}
    namespace = shared.another_namespace()
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none", "namespace": namespace}}
    shared.apply({**quota, "spec": spec})
    user = shared.user_with(shared.account("ann", "millrace-editor", namespace))
    user.namespace = namespace

    def refused() -> bool:
        answer = user.http.post(path_of_jobs(user), params={"dryRun": "All"}, json=trainjob("one", suspend=True))
        # Until the quota's controller has processed it, requests fail with another message.
        return (answer.status_code, answer.json()["reason"]) == (403, "Forbidden") and "quota: none" in answer.text

    until("the quota is reported", refused, 20)


def test_uploaded_files_are_deleted_with_their_job(shared: KubernetesServer, tmp_path: Path) -> None:
    """Uploads are an immutable ConfigMap owned by the job, and are deleted with it."""
    (tmp_path / "text.txt").write_text("In the beginning God created the heaven and the earth.\n" * 400)
    params = tmp_path / "params.yaml"
    params.write_text(PARAMS.read_text().replace("examples/data/kjv.txt", "text.txt"))
    job = shared.user.appliance.train(str(params), name="with-text", suspend=True)
    (volume,) = (each for each in job.spec["volumes"] if "configMap" in each)
    name = volume["configMap"]["name"]
    texts = shared.get("configmap", name)
    assert list(texts["data"].values()) == [(tmp_path / "text.txt").read_text()] and texts["immutable"]
    assert [owner["uid"] for owner in texts["metadata"]["ownerReferences"]] == [job.uid]
    job.cancel()
    until("the texts are gone", lambda: shared.get("configmap", name) is None, 20)


def test_volumes_are_persistent_volume_claims(shared: KubernetesServer, finished: Job) -> None:
    """`millrace get volumes` lists the namespace's claims with size, access mode and phase."""
    volumes = shared.user.millrace("get", "volumes", "-o", "json").json["items"]
    assert {"name": "finished-model-dir", "message": "10Gi, ReadWriteOnce, Bound"} in volumes
    assert {each["name"] for each in volumes} == {
        each["metadata"]["name"] for each in shared.get("persistentvolumeclaims")["items"]
    }


def readers(server: KubernetesServer, job: Job) -> list[dict[str, Any]]:
    """Returns the pods that serve a job's files."""
    items: list[dict[str, Any]] = server.get("pods", f"--selector=millrace.dev/reader={job.uid}")["items"]
    return items


def test_file_reader_has_no_privileges(shared: KubernetesServer, finished: Job) -> None:
    """The files of a finished job are served by one pod with model_dir read-only and no credentials of the cluster. It
    ends when it is idle, and accepts connections of the REST server only.
    """
    finished.checkpoints()
    (reader,) = readers(shared, finished)
    spec = reader["spec"]
    (container,) = spec["containers"]
    assert spec["automountServiceAccountToken"] is False and not any("projected" in each for each in spec["volumes"])
    assert "--idle-seconds=120" in container["args"] and spec["restartPolicy"] == "Never"
    sources = {each["name"]: each for each in spec["volumes"]}
    mounts = {name: mount for mount in container["volumeMounts"] for name in [mount["name"]]}
    (model_dir,) = (name for name, source in sources.items() if "persistentVolumeClaim" in source)
    assert sources[model_dir]["persistentVolumeClaim"]["claimName"] == "finished-model-dir"
    assert mounts[model_dir]["readOnly"] is True
    # Its other volumes are its certificate, deleted with it, and space for an export. The operator created both.
    others = {kind for name, source in sources.items() for kind in source if name != model_dir and kind != "name"}
    assert others == {"secret", "emptyDir"}
    (secret,) = (source["secret"]["secretName"] for source in sources.values() if "secret" in source)
    owners = shared.get("secret", secret)["metadata"]["ownerReferences"]
    assert [owner["kind"] for owner in owners] == ["FileReader"] and owners == reader["metadata"]["ownerReferences"]
    assert reader["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "millrace-operator"
    policy = shared.get("networkpolicy", "millrace-readers")["spec"]
    assert policy["egress"] == [] if "egress" in policy else "Egress" in policy["policyTypes"]
    (allowed,) = policy["ingress"]
    (peer,) = allowed["from"]
    assert peer["podSelector"]["matchLabels"] == {"millrace.dev/follows-journals": "true"}


def test_lost_file_reader_is_replaced(shared: KubernetesServer, finished: Job, tmp_path: Path) -> None:
    """The loss of a reader delays a download by seconds and loses no data."""
    finished.checkpoints()
    before = [reader["metadata"]["name"] for reader in readers(shared, finished)]
    # Waits for its processes: a pod that is removed by force serves a little longer.
    shared.kubectl("delete", "pod", *before)
    shared.user.millrace("download", "finished", "--to", tmp_path / "fetched")
    assert (tmp_path / "fetched/manifest.json").is_file()
    after = {reader["metadata"]["name"] for reader in readers(shared, finished)}
    assert len(after) == 1 and not after & set(before)
