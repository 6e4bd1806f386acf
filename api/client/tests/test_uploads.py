"""Tests of uploads as blobs, with a store in the scripted appliance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

import millrace.appliance
from conftest import JOBS, Handler, Server, dropped, job, problem
from millrace import Appliance, errors, uploads
from millrace.errors import UploadError
from millrace.progress import ByteProgress

BLOBS = "/v1/namespaces/default/blobs"
PARAMS = {"model": {"graph": "net.json"}, "train_input": {"data_dir": "data"}}


class Store:
    """Blobs as an appliance stores them, by their digest."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.received: dict[str, bytes] = {}
        self.sizes: dict[str, int] = {}
        self.announced: list[str] = []
        server.on("POST", BLOBS, self.announce)

    def announce(self, handler: Handler) -> None:
        asked = json.loads(handler.request_read.body)
        digest, self.sizes[asked["digest"]] = asked["digest"], asked["bytes"]
        self.announced.append(digest)
        self.received.setdefault(digest, b"")
        self.server.on("PATCH", f"{BLOBS}/{digest}", self.append)
        self.answer(handler, digest)

    def append(self, handler: Handler) -> None:
        digest = handler.request_read.path.rsplit("/", 1)[1]
        if int(handler.request_read.query["offset"]) != len(self.received[digest]):
            return problem(409, "Conflict", "the part begins elsewhere")(handler)
        self.received[digest] += handler.request_read.body
        if len(self.received[digest]) == self.sizes[digest] and address(self.received[digest]) != digest:
            return problem(422, "Invalid", "the content has another digest")(handler)
        return self.answer(handler, digest)

    def answer(self, handler: Handler, digest: str) -> None:
        size, received = self.sizes[digest], len(self.received[digest])
        handler.send_json(200, {"digest": digest, "bytes": size, "received": received})


def address(content: bytes) -> str:
    return f"blake3:{blake3(content).hexdigest()}"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Files that PARAMS name, in the working directory. A part has four bytes."""
    monkeypatch.setattr(uploads, "_PART_BYTES", 4)
    contents = {"net.json": b"{}", "data/x.npy": b"\xff" * 10, "data/more/y.npy": b"\xfe" * 3}
    for name, content in {**contents, "data/.secret": b"\xff"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    return contents


def named(server: Server) -> Any:
    """Returns the uploads that the last request names."""
    parts = server.requests[-1].parts()
    [options] = [json.loads(content) for kind, _, _, content in parts if kind == "job"]
    return {each["path"]: each["digest"] for each in options["uploads"]}


def test_files_that_params_name_are_uploaded_once(
    server: Server, appliance: Appliance, files: dict[str, bytes]
) -> None:
    store = Store(server)
    server.on("POST", JOBS, job(None))
    digests = {name: address(content) for name, content in files.items()}
    for parts in (5, 0):
        before = len(server.requests)
        appliance.train(PARAMS)
        assert named(server) == digests
        assert store.received == {address(content): content for content in files.values()}
        sent = [request for request in server.requests[before:] if request.method == "PATCH"]
        assert len(sent) == parts


def test_plan_of_much_data_uploads_only_the_graph(
    server: Server, appliance: Appliance, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(server)
    monkeypatch.setattr(millrace.appliance, "_MAX_CHECKED_BYTES", 14)
    server.on("POST", f"{JOBS}:plan", {"fits": True})
    server.on("POST", JOBS, job(None))
    appliance.plan(PARAMS)
    appliance.validate(PARAMS)
    assert set(store.announced) == {address(files["net.json"])}
    monkeypatch.setattr(millrace.appliance, "_MAX_CHECKED_BYTES", 15)
    appliance.plan(PARAMS)
    assert set(store.announced) == {address(content) for content in files.values()}


def test_interrupted_part_continues_within_it(
    server: Server, appliance: Appliance, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part that is interrupted, or longer than a proxy permits, continues at the byte that has arrived."""
    monkeypatch.setattr(uploads, "_PART_BYTES", 100)
    monkeypatch.setattr(uploads, "_SMALL_PART_BYTES", 5)
    store, digest = Store(server), address(files["data/x.npy"])
    server.on("POST", JOBS, job(None))
    lengths = []

    def answer(handler: Handler) -> None:
        body = handler.request_read.body
        lengths.append((int(handler.request_read.query["offset"]), len(body)))
        if len(body) > 5:
            problem(413, "PayloadTooLarge", "limit of 5 bytes")(handler)
        elif lengths.count((0, 5)) == len(lengths) - 1:
            # Three bytes arrive, then the connection breaks.
            store.received[digest] += body[:3]
            dropped(handler)
        else:
            store.append(handler)

    announce = store.announce

    def announce_part(handler: Handler) -> None:
        announce(handler)
        server.on("PATCH", f"{BLOBS}/{digest}", answer)

    server.on("POST", BLOBS, announce_part)
    shown: list[int] = []
    monkeypatch.setattr(ByteProgress, "_advance", lambda _, by: shown.append(by))
    appliance.train(PARAMS)
    assert store.received[digest] == files["data/x.npy"]
    assert lengths == [(0, 10), (0, 5), (3, 5), (8, 2)]
    assert sum(shown) == sum(len(content) for content in files.values())


def test_upload_continues_where_another_one_is(
    server: Server, appliance: Appliance, files: dict[str, bytes]
) -> None:
    store, digest = Store(server), address(files["data/x.npy"])
    server.on("POST", JOBS, job(None))
    store.received[digest] = files["data/x.npy"][:3]

    def conflict(handler: Handler) -> None:
        # Another client has sent the next part meanwhile.
        store.received[digest] = files["data/x.npy"][:7]
        server.on("PATCH", f"{BLOBS}/{digest}", store.append)
        problem(409, "Conflict", "the part begins elsewhere")(handler)

    announce = store.announce

    def announce_once(handler: Handler) -> None:
        announce(handler)
        if json.loads(handler.request_read.body)["digest"] == digest and len(store.received[digest]) == 3:
            server.on("PATCH", f"{BLOBS}/{digest}", conflict)

    server.on("POST", BLOBS, announce_once)
    appliance.train(PARAMS)
    assert store.received[digest] == files["data/x.npy"]


def test_uploads_that_cannot_succeed_are_errors(
    server: Server, appliance: Appliance, files: dict[str, bytes], tmp_path: Path
) -> None:
    store, digest = Store(server), address(files["data/x.npy"])
    server.on("POST", JOBS, job(None))

    def change(handler: Handler) -> None:
        (tmp_path / "data/x.npy").write_bytes(b"\xfd" * 10)
        server.on("POST", BLOBS, store.announce)
        store.announce(handler)

    server.on("POST", BLOBS, change)
    with pytest.raises(UploadError, match=r"x\.npy has changed during the upload"):
        appliance.train(PARAMS)
    (tmp_path / "data/x.npy").write_bytes(files["data/x.npy"])
    store.received[digest] = b""

    def never(handler: Handler) -> None:
        problem(409, "Conflict", "the part begins elsewhere")(handler)

    def announce_stuck(handler: Handler) -> None:
        store.announce(handler)
        server.on("PATCH", f"{BLOBS}/{digest}", never)

    server.on("POST", BLOBS, announce_stuck)
    with pytest.raises(UploadError, match="makes no progress"):
        appliance.train(PARAMS)
    server.on("POST", BLOBS, problem(413, "PayloadTooLarge", "an upload of 2 bytes exceeds the 0 bytes"))
    with pytest.raises(errors.PayloadTooLarge):
        appliance.train(PARAMS)


def test_module_options_need_a_module(appliance: Appliance) -> None:
    with pytest.raises(errors.ConfigError, match="batch_size is an option for a PyTorch module"):
        appliance.train(PARAMS, batch_size=3)
    with pytest.raises(errors.ConfigError, match=r"unknown option batchsize: did you mean batch_size\?"):
        appliance.train(PARAMS, batchsize=3)  # type: ignore[call-arg]
    with pytest.raises(errors.ConfigError, match=r"unknown option log_every: .* runconfig="):
        appliance.train(PARAMS, log_every=3)  # type: ignore[call-arg]
