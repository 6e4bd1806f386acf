"""Tests of uploads as blobs: their routes, and jobs that read them."""

from __future__ import annotations

from pathlib import Path

import pytest
from blake3 import blake3
from harness import PARAMS, ROOT, Reference, Serve, Server
from test_inputs import write

pytestmark = pytest.mark.needs("local paths")

KJV = ROOT / "examples/data/kjv.txt"
STEPS = 20


def address(content: bytes) -> str:
    """Returns the address of a blob."""
    return f"blake3:{blake3(content).hexdigest()}"


def test_large_data_are_uploaded_once(shared: Server, tmp_path: Path) -> None:
    """Text of more than 1 MiB is uploaded with the first job, gives the bits of a local run, and is not sent again."""
    (tmp_path / "large.txt").write_text(KJV.read_text()[: 3 << 20])
    params = write(tmp_path / "params.yaml", "large.txt")
    here = Reference.train(tmp_path / "here", STEPS, params, cwd=tmp_path)
    planned = shared.user.millrace("plan", "-p", params)
    assert "samples" in planned.out and "Not checked" not in planned.out
    job = shared.user.submit("large-data", STEPS, params=params)
    job.wait(120)
    here.assert_same(shared.user, job)
    blobs = f"/v1/namespaces/{shared.namespace}/blobs"
    content = (tmp_path / "large.txt").read_bytes()
    answer = shared.user.http.post(blobs, json={"digest": address(content), "bytes": len(content)})
    assert answer.json()["received"] == len(content), answer.text
    # Of an empty file there is nothing to upload.
    (tmp_path / "large.txt").write_bytes(b"")
    done = shared.user.millrace("train", "-p", params, code=2)
    assert "the uploaded file large.txt is empty" in done.error


def test_parts_of_an_upload(shared: Server) -> None:
    """An upload is announced and sent in parts; what is wrong is said in one sentence."""
    http, blobs = shared.user.http, f"/v1/namespaces/{shared.namespace}/blobs"
    content = b"a part and another part"
    blob = f"{blobs}/{address(content)}"
    assert http.patch(blob, params={"offset": 0}, content=content).status_code == 404
    announcement = {"digest": address(content), "bytes": len(content)}
    assert http.post(blobs, json=announcement).json() == announcement | {"received": 0}
    assert http.patch(blob, params={"offset": 0}, content=content[:7]).json()["received"] == 7
    for params, body, status, says in [
        ({"offset": 9}, content[9:], 409, "the next byte is 7"),
        ({"offset": 7}, content, 422, "the blob was announced with 23 bytes"),
        ({"offset": 7}, b"x" * 16, 422, "send it again from the beginning"),
        ({}, content, 400, "offset"),
        ({"offset": -1}, content, 400, "offset"),
        ({"offset": 0}, b"x" * (9 << 20), 422, "the blob was announced with 23 bytes"),
    ]:
        answer = http.patch(blob, params=params, content=body)
        assert (answer.status_code, says in answer.text) == (status, True), answer.text
    assert http.post(blobs, json=announcement).json()["received"] == 0, "the wrong content is dropped"
    assert http.patch(blob, params={"offset": 0}, content=content).json()["received"] == len(content)
    listed = http.get(blobs).json()
    assert announcement | {"received": len(content)} in listed["items"]
    assert listed["usedBytes"] >= len(content)
    for digest in ("../x", "blake3:0", address(content).upper()):
        assert http.post(blobs, json={"digest": digest, "bytes": 1}).status_code == 422
    assert http.post(blobs, json=announcement | {"bytes": 1 << 60}).status_code == 422
    other = {"digest": address(b"other"), "bytes": 1 << 60}
    answer = http.post(blobs, json=other)
    assert answer.status_code == 413 and "--max-blob-bytes" in answer.text
    assert http.delete(blob).status_code == 204
    assert http.delete(blob).status_code == 404


def test_job_names_only_uploads_of_its_namespace(serve: Serve) -> None:
    """A job that names an upload of another namespace, or none, is rejected with the field."""
    server = serve()
    http, content = server.user.http, b"{}"
    other = {"digest": address(content), "bytes": len(content)}
    assert http.post("/v1/namespaces/other/blobs", json=other).status_code == 200
    path = f"/v1/namespaces/other/blobs/{address(content)}"
    assert http.patch(path, params={"offset": 0}, content=content).json()["received"] == 2
    spec = {"numCsx": 1, "params": {"model": {}}}
    for field, named in {
        "spec.model.graph": {"model": {"graph": address(content)}},
        "spec.model.weights": {"model": {"weights": address(content)}},
        "spec.files[0].digest": {"files": [{"path": "x", "digest": address(content)}]},
    }.items():
        job = {"metadata": {"name": "named"}, "spec": spec | named}
        answer = http.post(f"/v1/namespaces/{server.namespace}/trainjobs", json=job)
        assert answer.status_code == 422, answer.text
        assert answer.json()["errors"][0]["field"] == field
        assert f"has no upload {address(content)}" in answer.text
    job = {"metadata": {"name": "named"}, "spec": spec | {"model": {"graph": address(content)}}}
    answer = http.post("/v1/namespaces/other/trainjobs", json=job)
    # The upload is found; the params are incomplete.
    assert answer.json()["reason"] == "BadParams" and "optimizer is missing" in answer.text, answer.text
