"""Tests of uploads that are stored in an S3-compatible bucket, against moto's server."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
from blake3 import blake3
from harness import Reference, Serve, until
from harness.bucket import BUCKET, PREFIX, Bucket
from harness.common import PROGRAMS
from harness.process import ProcessServer
from test_uploaded_models import STEPS, write_model

pytestmark = pytest.mark.needs("local paths")

MIB = 1 << 20


@pytest.fixture
def server(bucket: Bucket, serve: Serve) -> ProcessServer:
    """A server whose uploads are in the bucket."""
    started = serve("--blob-store", f"s3://{BUCKET}/{PREFIX}")
    assert isinstance(started, ProcessServer)
    return started


def address(content: bytes) -> str:
    return f"blake3:{blake3(content).hexdigest()}"


def pattern(length: int) -> bytes:
    return (bytes(range(251)) * (length // 251 + 1))[:length]


class Upload:
    """An upload by HTTP requests."""

    def __init__(self, server: ProcessServer, content: bytes) -> None:
        self.http, self.content = server.user.http, content
        self.blobs = f"/v1/namespaces/{server.namespace}/blobs"

    def announce(self) -> int:
        body = {"digest": address(self.content), "bytes": len(self.content)}
        return int(self.http.post(self.blobs, json=body).raise_for_status().json()["received"])

    def append(self, begin: int, end: int) -> httpx.Response:
        path = f"{self.blobs}/{address(self.content)}"
        return self.http.patch(path, params={"offset": begin}, content=self.content[begin:end])


def test_job_trains_from_uploads_in_a_bucket(bucket: Bucket, server: ProcessServer, tmp_path: Path) -> None:
    """Graph, weights and data are stored in the bucket and fetched for the agents, again when they are gone."""
    params = write_model(tmp_path, 0.5)
    here = Reference.train(tmp_path / "here", STEPS, params, cwd=tmp_path)
    assert server.user.appliance.plan(str(params)).fits
    job = server.user.submit("first", STEPS, "--num_csx", "2", params=params)
    job.wait(120)
    here.assert_same(server.user, job)
    contents = [tmp_path / name for name in ("net.json", "weights.safetensors", "train/x.npy", "train/labels.npy")]
    for content in map(Path.read_bytes, contents):
        # One window, and its hash; what the upload needed besides is removed.
        [complete, window] = bucket.names(address(content).removeprefix("blake3:") + "/")
        assert bucket.read(window) == content and complete.endswith(f"/complete/{len(content)}")
    server.kill()
    for directory in ("blobs", "files"):
        shutil.rmtree(server.data / directory)
    server.start()
    job = server.user.submit("second", STEPS, "--num_csx", "2", params=params)
    job.wait(120)
    here.assert_same(server.user, job)


def test_upload_continues_after_bucket_and_server_were_down(bucket: Bucket, server: ProcessServer) -> None:
    """An upload continues at the byte where it was interrupted, and is stored once."""
    upload = Upload(server, pattern(20 * MIB + 5))
    assert upload.announce() == 0
    assert upload.append(0, 3).json()["received"] == 3
    assert upload.append(3, 9 * MIB).json()["received"] == 9 * MIB
    bucket.stop()
    answer = upload.append(9 * MIB, 20 * MIB)
    assert answer.status_code == 503, answer.text
    assert f"the bucket {BUCKET} of --blob-store does not respond" in answer.json()["detail"]
    bucket.start()
    assert upload.announce() == 9 * MIB
    server.kill()
    server.start()
    assert upload.append(9 * MIB, 20 * MIB).status_code == 404, "it has to be announced again"
    assert upload.announce() == 9 * MIB
    assert upload.append(8 * MIB, 19 * MIB).json()["received"] == 19 * MIB, "what is there is skipped"
    assert upload.append(19 * MIB, len(upload.content)).json()["received"] == len(upload.content)
    windows = bucket.names("/windows/")
    assert b"".join(map(bucket.read, sorted(windows))) == upload.content
    assert len(bucket.names()) == len(windows) + 1
    assert upload.announce() == len(upload.content), "it is not sent again"
    listed = upload.http.get(upload.blobs).json()
    assert listed["usedBytes"] == len(upload.content)
    assert upload.http.delete(f"{upload.blobs}/{address(upload.content)}").status_code == 204
    assert bucket.names() == []


def test_wrong_content_is_never_complete(bucket: Bucket, server: ProcessServer) -> None:
    """Content with another digest is removed, and the right one can be sent then."""
    upload = Upload(server, pattern(9 * MIB))
    upload.announce()
    path = f"{upload.blobs}/{address(upload.content)}"
    wrong = upload.http.patch(path, params={"offset": 0}, content=b"x" * (9 * MIB))
    assert wrong.status_code == 422 and "send it again from the beginning" in wrong.text
    assert bucket.names("/complete/") == bucket.names("/windows/") == [] and upload.announce() == 0
    assert upload.append(0, 9 * MIB).json()["received"] == 9 * MIB


def test_job_waits_for_objects_that_are_not_what_was_uploaded(
    bucket: Bucket, server: ProcessServer, tmp_path: Path
) -> None:
    """A job whose uploads can't be read is rejected at submission, and waits later, until they can."""
    params = write_model(tmp_path, 0.25)
    job = server.user.appliance.train(str(params), name="waiting", suspend=True)
    data = (tmp_path / "train/x.npy").read_bytes()
    [window] = bucket.names(f"{address(data).removeprefix('blake3:')}/windows/")

    def forget() -> None:
        server.kill()
        for directory in ("blobs", "files"):
            shutil.rmtree(server.data / directory)
        server.start()

    for wrong in (data[:-1], data[:-1] + b"\xff", b""):
        forget()
        bucket.write(window, wrong)
        body = {"metadata": {"name": "rejected"}, "spec": job.spec}
        answer = server.user.http.post(f"/v1/namespaces/{server.namespace}/trainjobs", json=body)
        detail = answer.json()["detail"]
        assert answer.status_code == 409, answer.text
        assert f"the object {window} in the bucket {BUCKET} of --blob-store is missing or was changed" in detail, detail
    forget()
    job.resume()

    def blocked() -> dict[str, Any] | None:
        conditions = job.refresh().status.get("conditions", [])
        return next((each for each in conditions if each["reason"] == "UploadsUnavailable"), None)

    condition = until("the job waits for its uploads", blocked)
    assert "is missing or was changed: delete the upload, and upload the file again" in condition["message"]
    bucket.write(window, data)
    job.wait(60)
    assert job.status["restarts"] == 0


def run_server(*flags: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Runs a server that can't start; returns its result."""
    command: list[str | Path] = [PROGRAMS / "millrace-api", "serve", "--listen", "127.0.0.1:0", *flags]
    env = {**os.environ, "MILLRACE_DATA": str(home)}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_unusable_buckets_are_reported_at_the_start(
    bucket: Bucket, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server does not start with a bucket that does not exist or rejects its credentials."""
    for blob_store, says in {
        "uploads": '"uploads" is not the address of a bucket: write s3://BUCKET or s3://BUCKET/PREFIX',
        "s3://nowhere": "the bucket nowhere of --blob-store does not exist: create it, or name another",
    }.items():
        done = run_server("--blob-store", blob_store, home=tmp_path / "one")
        assert done.returncode != 0 and says in done.stderr, done.stderr
    right = bucket.require_credentials()
    done = run_server("--blob-store", f"s3://{BUCKET}", home=tmp_path / "two")
    assert done.returncode != 0 and "rejects the credentials" in done.stderr, done.stderr
    assert "secret" not in done.stderr
    for name, value in right.items():
        monkeypatch.setenv(name, value)
    server = serve("--blob-store", f"s3://{BUCKET}/{PREFIX}")
    assert isinstance(server, ProcessServer)
    upload = Upload(server, b"content")
    upload.announce()
    assert upload.append(0, 7).json()["received"] == 7
