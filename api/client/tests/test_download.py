"""Tests of downloads: complete or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conftest import JOBS, Answer, Handler, Server, job, problem
from millrace import Appliance, errors

WEIGHTS = bytes(range(256)) * 4096  # 1 MiB
MANIFEST = b'{"step": 10}'
CHECKPOINT = f"{JOBS}/kjv/checkpoints/10"


def ranged(content: bytes, *, etag: str = '"v1"', stop: int | None = None) -> Answer:
    """Serves a file with ranges; each response is cut after `stop` bytes."""

    def answer(handler: Handler) -> None:
        headers, begin = handler.headers, 0
        if "Range" in headers and headers.get("If-Range", etag) == etag:
            begin = int(headers["Range"].removeprefix("bytes=").removesuffix("-"))
        handler.send_response(206 if begin else 200)
        handler.send_header("Content-Length", str(len(content) - begin))
        handler.send_header("ETag", etag)
        handler.end_headers()
        handler.wfile.write(content[begin:][:stop])
        if stop is not None:
            handler.drop()

    return answer


@pytest.fixture(autouse=True)
def checkpoint(server: Server) -> None:
    files = [
        {"path": "model/0.safetensors", "bytes": len(WEIGHTS)},
        {"path": "manifest.json", "bytes": len(MANIFEST)},
    ]
    listed: dict[str, Any] = {
        "step": 10,
        "digest": "abc",
        "bytes": len(WEIGHTS) + len(MANIFEST),
        "files": files,
    }
    server.on("GET", f"{JOBS}/kjv", job("Succeeded"))
    server.on("GET", f"{JOBS}/kjv/checkpoints", {"items": [listed, {**listed, "step": 5}]})
    server.on("GET", f"{CHECKPOINT}/model/0.safetensors", ranged(WEIGHTS))
    server.on("GET", f"{CHECKPOINT}/manifest.json", ranged(MANIFEST))


def whole(directory: Path) -> bool:
    files = {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }
    return files == {"model/0.safetensors": WEIGHTS, "manifest.json": MANIFEST}


def test_cut_download_resumes(server: Server, appliance: Appliance, tmp_path: Path) -> None:
    server.on(
        "GET",
        f"{CHECKPOINT}/model/0.safetensors",
        ranged(WEIGHTS, stop=300_000),
        problem(503, "Unavailable", "Restarting."),
        ranged(WEIGHTS, stop=200_000),
        ranged(WEIGHTS),
    )
    directory = appliance.job("kjv").download(progress=False)
    assert directory == Path("kjv-checkpoint_10")
    assert whole(directory)
    asked = server.asked("GET", f"{CHECKPOINT}/model/0.safetensors")
    assert [each.headers["Range"] for each in asked] == [
        None,
        "bytes=300000-",
        "bytes=300000-",
        "bytes=500000-",
    ]
    assert asked[1].headers["If-Range"] == '"v1"'
    assert [path.name for path in tmp_path.iterdir() if "kjv" in path.name] == ["kjv-checkpoint_10"]


def test_next_call_resumes_an_interrupted_download(
    server: Server, appliance: Appliance, tmp_path: Path
) -> None:
    gone = problem(403, "Forbidden", "The token may not read files any more.")
    server.on(
        "GET", f"{CHECKPOINT}/model/0.safetensors", ranged(WEIGHTS, stop=300_000), gone, ranged(WEIGHTS)
    )
    with pytest.raises(errors.Forbidden):
        appliance.job("kjv").download(to=tmp_path / "mine", progress=False)
    assert not (tmp_path / "mine").exists()
    assert whole(appliance.job("kjv").download(to=tmp_path / "mine", progress=False))
    assert server.asked("GET", f"{CHECKPOINT}/model/0.safetensors")[-1].headers["Range"] == "bytes=300000-"


def test_changed_file_is_downloaded_again(server: Server, appliance: Appliance) -> None:
    server.on(
        "GET",
        f"{CHECKPOINT}/model/0.safetensors",
        ranged(b"x" * len(WEIGHTS), stop=300_000, etag='"v0"'),
        ranged(WEIGHTS),
    )
    assert whole(appliance.job("kjv").download(progress=False))


def test_wrong_size_is_rejected(server: Server, appliance: Appliance, tmp_path: Path) -> None:
    server.on("GET", f"{CHECKPOINT}/manifest.json", ranged(MANIFEST + b"more"))
    with pytest.raises(
        errors.DownloadError, match=r"manifest\.json has 16 bytes, but the appliance announced 12"
    ):
        appliance.job("kjv").download(to="here", progress=False)
    assert not Path("here").exists()


def test_hf_format(server: Server, appliance: Appliance) -> None:
    server.on("GET", f"{CHECKPOINT}:export", {"files": [{"path": "config.json", "bytes": 2}]})
    server.on("GET", f"{CHECKPOINT}:export/config.json", ranged(b"{}"))
    directory = appliance.job("kjv").download(format="hf", progress=False)
    assert (directory.name, (directory / "config.json").read_bytes()) == ("kjv-checkpoint_10-hf", b"{}")
    assert server.requests[-1].query == {"uid": "uid-of-kjv", "format": "hf"}


def test_growing_artifact_has_the_length_of_its_response(server: Server, appliance: Appliance) -> None:
    listed = {"logs/cs2-0.log": 3, "logs/cs2-1.log": 0, "metrics.jsonl": 9}
    items = [{"path": path, "bytes": size} for path, size in listed.items()]
    artifacts = f"{JOBS}/kjv/artifacts"
    server.on("GET", artifacts, {"items": items})
    # The file grows after the listing, is cut, and grows again before the rest is requested.
    server.on(
        "GET",
        f"{artifacts}/logs/cs2-0.log",
        ranged(b"one\ntwo\n", stop=5, etag='"v1"'),
        ranged(b"one\ntwo\nthree\n", etag='"v2"'),
    )
    server.on("GET", f"{artifacts}/logs/cs2-1.log", ranged(b""))
    directory = appliance.job("kjv").download_artifacts("logs/*", progress=False)
    assert directory == Path("kjv-artifacts")
    found = {path.name: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    assert found == {"cs2-0.log": b"one\ntwo\nthree\n", "cs2-1.log": b""}
    assert server.asked("GET", f"{artifacts}/logs/cs2-0.log")[-1].headers["If-Range"] == '"v1"'
    with pytest.raises(errors.DownloadError, match=r"no artifact \*\.txt; available: logs/cs2-0\.log, "):
        appliance.job("kjv").download_artifacts("*.txt", to="elsewhere")
    assert not Path("elsewhere").exists()


def test_invalid_downloads(server: Server, appliance: Appliance, tmp_path: Path) -> None:
    found = appliance.job("kjv")
    with pytest.raises(errors.DownloadError, match=r"no checkpoint of step 7; available steps: 5, 10"):
        found.download(step=7)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine").touch()
    with pytest.raises(errors.DownloadError, match="full already exists"):
        found.download(to="full")
    outside = {"step": 10, "files": [{"path": "../../.ssh/authorized_keys", "bytes": 1}]}
    server.on("GET", f"{JOBS}/kjv/checkpoints", {"items": [outside]})
    with pytest.raises(errors.DownloadError, match="unsafe file name"):
        found.download(progress=False)
    server.on("GET", f"{JOBS}/kjv/checkpoints", {"items": []})
    with pytest.raises(errors.DownloadError, match="no checkpoint yet"):
        found.download()
