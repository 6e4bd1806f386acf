"""Tests of jobs of a cluster whose model_dirs are kept in an S3-compatible bucket."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from harness import KubernetesServer, Reference, trainjob, until, until_job, until_step
from harness.bucket import BUCKET, PREFIX, Bucket
from harness.kubernetes import get, kubectl

pytestmark = pytest.mark.needs("cluster")

STEPS = 300


def address_for_pods() -> str:
    """Returns the address of this machine at which the nodes of the cluster reach it."""
    addresses = get("nodes")["items"][0]["status"]["addresses"]
    node = next(each["address"] for each in addresses if each["type"] == "InternalIP")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unsent:
        unsent.connect((node, 1))
        return str(unsent.getsockname()[0])


@pytest.fixture
def stored(shared: KubernetesServer) -> Iterator[Bucket]:
    """A bucket, an Appliance of the name of the namespace that keeps model_dirs there, and the Secret for it."""
    bucket = Bucket(address_for_pods())
    spec = get("appliance", "default")["spec"]
    names = {"url": f"s3://{BUCKET}/{PREFIX}", "secretName": "runs-bucket"}
    spec["storage"]["bucket"] = {**names, "endpoint": bucket.url, "region": "us-east-1"}
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    metadata = {"name": "runs-bucket", "namespace": shared.namespace}
    appliance = {"apiVersion": "millrace.dev/v1alpha1", "kind": "Appliance"}
    shared.apply(
        {**appliance, "metadata": {"name": shared.namespace}, "spec": spec},
        {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": keys},
    )
    yield bucket
    kubectl("delete", "appliance", shared.namespace, "--wait=false")
    bucket.close()


def submit(server: KubernetesServer, name: str, steps: int) -> Any:
    """Applies a job. Until the server has its UID, an earlier job of this name is the newest one there."""
    document = trainjob(name, steps, numCsx=2, appliance=server.namespace)
    uid = server.kubectl("apply", "--filename=-", "--output=jsonpath={.metadata.uid}", document=document)
    return until_job(server.user, name, uid)


def complete(server: KubernetesServer, bucket: Bucket) -> list[int]:
    """Returns the steps of the complete checkpoints of the job in the bucket."""
    below = f"{PREFIX}/{server.namespace}/kept/checkpoint_"
    names = [name for name in bucket.names(below) if name.endswith("/manifest.json")]
    return sorted(int(name.split("checkpoint_")[1].split("/")[0]) for name in names)


def test_job_continues_from_a_bucket(
    shared: KubernetesServer, stored: Bucket, reference: Callable[[int], Reference]
) -> None:
    """A complete job is in the bucket with all that it wrote, although its coordinator was lost. The next job of this
    name, without the claim of the first, continues from there. Both have the bits of a local run.
    """
    job = submit(shared, "kept", STEPS)
    until_step(job, 20)
    coordinator = f"--selector=millrace.dev/job-uid={job.uid},millrace.dev/role=coordinator"
    shared.kubectl("delete", "pod", coordinator, "--grace-period=0", "--force")
    assert shared.user.millrace("attach", "kept").code == 0
    reference(STEPS).assert_same(shared.user, job)
    assert complete(shared, stored)[-1] == STEPS

    def has_outcome() -> bool:
        journal = stored.names(f"{shared.namespace}/kept/journal")
        return any('"Succeeded"' in stored.read(name).decode() for name in journal)

    until("the end of the job is in the bucket", has_outcome, 20)
    assert stored.names("/kept/metrics.jsonl") and not stored.names(".millrace-bucket")

    shared.kubectl("delete", "trainjob", "kept", "--timeout=60s")
    shared.kubectl("delete", "persistentvolumeclaim", "kept-model-dir", "--timeout=60s")
    again = submit(shared, "kept", STEPS + 50)
    assert shared.user.millrace("attach", "kept").code == 0
    assert again.refresh().status["checkpoint"]["digest"] == reference(STEPS + 50).digest
    assert shared.user.curve(again)[0][0] == STEPS + 1
    assert complete(shared, stored)[-1] == STEPS + 50
    log = shared.user.millrace("logs", "kept").out
    assert f"Uploaded checkpoint_{STEPS + 50} to {stored_address(shared)}" in log, log


def stored_address(server: KubernetesServer) -> str:
    return f"s3://{BUCKET}/{PREFIX}/{server.namespace}/kept"


def test_missing_secret_is_named(shared: KubernetesServer, stored: Bucket) -> None:
    """A job whose namespace lacks the Secret says so instead of running without the bucket."""
    shared.kubectl("delete", "secret", "runs-bucket")
    job = submit(shared, "without-secret", 10)
    message = 'secret "runs-bucket" not found'

    def names_secret() -> bool:
        return any(message in each["message"] for each in job.refresh().status.get("conditions", []))

    until("the job names the Secret", names_secret)
    job.cancel()
