"""Tests of downloads of checkpoints and other files: complete, in ranges, resumed, and of invalid paths."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from harness import Reference, Server, path, raw, until
from millrace import Job


def tree(root: Path) -> dict[str, bytes]:
    """Returns every file below a directory."""
    return {str(file.relative_to(root)): file.read_bytes() for file in sorted(root.rglob("*")) if file.is_file()}


@pytest.fixture
def a_file(shared: Server, finished: Job) -> tuple[str, bytes]:
    """The path of the largest file of a checkpoint, and its content."""
    largest = max(finished.checkpoints()[-1].files, key=lambda file: file.bytes)
    url = path(finished, f"checkpoints/200/{largest.path}")
    content = shared.user.http.get(url).raise_for_status().content
    assert len(content) == largest.bytes > 10_000
    return url, content


def test_downloaded_checkpoint_equals_a_local_run(
    shared: Server, finished: Job, reference: Callable[[int], Reference], tmp_path: Path
) -> None:
    """`millrace download` gets the newest checkpoint or that of a step; tensors equal those of a local run."""
    user = shared.user
    done = user.millrace("download", "finished", "--to", tmp_path / "newest", "-o", "json")
    assert done.json == {"path": str(tmp_path / "newest"), "format": "native"}
    assert user.millrace("download", "finished", "--step", 100, "--to", tmp_path / "older").out.strip() == str(
        tmp_path / "older"
    )
    for fetched, step in (("newest", 200), ("older", 100)):
        tensors = {name: content for name, content in tree(tmp_path / fetched).items() if name.endswith(".safetensors")}
        ours = tree(reference(200).model_dir / f"checkpoint_{step}")
        assert tensors == {name: content for name, content in ours.items() if name.endswith(".safetensors")}
    assert "already exists" in user.millrace("download", "finished", "--to", tmp_path / "newest", code=2).error
    assert "available steps: 100, 200" in user.millrace("download", "finished", "--step", 7, code=2).error


def test_checkpoint_is_downloaded_in_hf_format(shared: Server, finished: Job, tmp_path: Path) -> None:
    """The directory has the layout of Hugging Face."""
    shared.user.millrace("download", "finished", "--format", "hf", "--to", tmp_path / "hf")
    assert {"config.json", "model.safetensors"} <= set(tree(tmp_path / "hf"))
    config = json.loads((tmp_path / "hf/config.json").read_text())
    assert (config["model_type"], config["n_embd"], config["n_layer"], config["vocab_size"]) == ("gpt2", 32, 2, 256)
    header = (tmp_path / "hf/model.safetensors").read_bytes()
    tensors = json.loads(header[8 : 8 + int.from_bytes(header[:8], "little")])
    assert tensors["transformer.wte.weight" if "transformer.wte.weight" in tensors else "wte.weight"]["shape"] == [
        256,
        32,
    ]


def test_transformers_loads_a_checkpoint(shared: Server, finished: Job) -> None:
    """The loss of the model loaded by `Job.load()` is near the last training loss."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    model = finished.load().eval()
    text = b"In the beginning God created the heaven and the earth. And the earth was without form, and void"
    with torch.no_grad():
        tokens = torch.tensor([list(text[:64])])
        loss = model(tokens, labels=tokens).loss.item()
    assert loss < 3.3, "a model that has learnt nothing is at 5.5"


def test_download_over_a_faulty_connection(shared: Server, finished: Job, tmp_path: Path) -> None:
    """A download resumes after each broken connection. An interrupted one keeps its parts, which the next call
    completes.
    """
    user = shared.user
    user.millrace("download", "finished", "--to", tmp_path / "whole")
    whole = tree(tmp_path / "whole")
    with FaultyProxy(shared.url, breaks_after=60_000) as line:
        user.millrace("download", "finished", "--to", tmp_path / "broken", "--url", line.url)
        assert line.connections > 3
    assert tree(tmp_path / "broken") == whole

    with FaultyProxy(shared.url, breaks_after=60_000, silently=True) as line:
        command = user.begin("download", "finished", "--to", tmp_path / "begun", "--url", line.url)
        until("the line is silent", lambda: line.is_broken)
        command.interrupt()
        assert command.end(5).code == 130
    assert not (tmp_path / "begun").exists()
    (left,) = tmp_path.glob("begun.*.part")
    there = tree(left)
    assert there
    user.millrace("download", "finished", "--to", tmp_path / "begun")
    assert tree(tmp_path / "begun") == whole and not left.exists()


def test_range_and_conditional_requests(shared: Server, a_file: tuple[str, bytes]) -> None:
    """Range and conditional requests follow RFC 9110."""
    url, content = a_file
    size = len(content)

    def get(**headers: str) -> httpx.Response:
        return shared.user.http.get(url, headers={name.replace("_", "-"): value for name, value in headers.items()})

    whole = get()
    tag = whole.headers["etag"]
    assert (whole.headers["accept-ranges"], whole.headers["content-length"]) == ("bytes", str(size))
    for asked, first, last in (
        ("bytes=0-0", 0, 0),
        ("bytes=100-199", 100, 199),
        (f"bytes={size - 1}-", size - 1, size - 1),
        (f"bytes=5-{size + 5}", 5, size - 1),
        ("bytes=-10", size - 10, size - 1),
    ):
        part = get(Range=asked, If_Range=tag)
        assert (part.status_code, part.headers["content-range"]) == (206, f"bytes {first}-{last}/{size}"), asked
        assert part.content == content[first : last + 1], asked
    for asked in (f"bytes={size}-", "bytes=-0"):
        beyond = get(Range=asked)
        assert (beyond.status_code, beyond.json()["reason"]) == (416, "RangeNotSatisfiable"), asked
    for headers in ({"Range": "bytes=5-9", "If-Range": '"another"'}, {"Range": "lines=1-2"}, {"Range": "bytes=9-5"}):
        assert (answer := shared.user.http.get(url, headers=headers)).status_code == 200 and answer.content == content
    unchanged = get(If_None_Match=f'"another", {tag}')
    assert (unchanged.status_code, unchanged.content, unchanged.headers["etag"]) == (304, b"", tag)
    assert get(If_None_Match='"another"').status_code == 200
    head = shared.user.http.head(url)
    assert (head.status_code, head.headers["content-length"], head.content) == (200, str(size), b"")


def test_range_beyond_the_end_returns_the_length(shared: Server, a_file: tuple[str, bytes]) -> None:
    """The error 416 has the file's length in Content-Range."""
    url, content = a_file
    beyond = shared.user.http.get(url, headers={"Range": f"bytes={len(content)}-"})
    assert beyond.headers.get("content-range") == f"bytes */{len(content)}"


def test_artifacts_are_listed_and_downloaded(shared: Server, finished: Job, tmp_path: Path) -> None:
    """Metrics, logs and TensorBoard events are listed and downloaded; checkpoints are not among them."""
    files = {file.path: file.bytes for file in finished.artifacts()}
    assert {"metrics.jsonl", "performance.json", "params.yaml", "job.json"} <= set(files)
    assert any(name.startswith("events.out.tfevents") for name in files)
    assert not any(name.startswith(("checkpoint_", ".")) for name in files)
    user, to = shared.user, tmp_path / "all"
    user.millrace("download", "finished", "--artifacts", "*", "--to", to)
    assert {name: len(content) for name, content in tree(to).items()} == files
    assert user.millrace("get", "artifacts", "finished", "-o", "name").out.split() == sorted(files)
    assert user.millrace("get", "checkpoints", "finished", "-o", "name").out.split() == ["100", "200"]


ELSEWHERE = [
    "checkpoints/200/../../../../../millrace.db",
    "checkpoints/200/%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e/millrace.db",
    "checkpoints/200/..%2f..%2f..%2f..%2f..%2fmillrace.db",
    "checkpoints/200//etc/passwd",
    "checkpoints/200/%2fetc%2fpasswd",
    "checkpoints/200/manifest.json/../../job.json",
    "checkpoints/200/%2e/%2e%2e/job.json",
    "checkpoints/../job.json",
    "checkpoints/..%2f..%2fmillrace.db",
    "checkpoints/200:export/..%2f..%2fmillrace.db?format=hf",
    "checkpoints/7:export?format=hf",
    "checkpoints/7",
    "checkpoints/-1",
    "checkpoints/7/manifest.json",
    "checkpoints/200/parameters",
    "artifacts/../../../../millrace.db",
    "artifacts/%2e%2e/%2e%2e/%2e%2e/%2e%2e/millrace.db",
    "artifacts/..%2f..%2f..%2f..%2fmillrace.db",
    "artifacts//etc/passwd",
    "artifacts/%2fetc%2fpasswd",
    "artifacts/checkpoint_200/manifest.json",
    "artifacts/./checkpoint_200/manifest.json",
    "artifacts/%2e/checkpoint_200/manifest.json",
    "artifacts/logs/../checkpoint_200/manifest.json",
    "artifacts/logs",
    "artifacts/.lock",
    "artifacts/",
]


def test_paths_outside_the_job_are_not_served(shared: Server, finished: Job) -> None:
    """Paths outside of the job's files get 404. They are sent without normalization."""
    answers = {below: raw(shared, "GET", f"{path(finished)}/{below}") for below in ELSEWHERE}
    assert {below: status for below, (status, _) in answers.items() if status != 404} == {}
    assert {json.loads(body)["reason"] for _, body in answers.values()} == {"NotFound"}


@pytest.mark.needs("local files")
def test_links_are_not_followed(shared: Server, finished: Job) -> None:
    """A link in model_dir is neither listed nor followed."""
    link = Path(finished.status["resolved"]["modelDir"]) / "link.txt"
    link.symlink_to("/etc/hostname")
    try:
        assert link.name not in {file.path for file in finished.artifacts()}
        status, _ = raw(shared, "GET", path(finished, f"artifacts/{link.name}"))
    finally:
        link.unlink()
    assert status == 404


class FaultyProxy:
    """A proxy whose connections break, or fall silent, after a number of response bytes."""

    def __init__(self, url: str, breaks_after: int, silently: bool = False) -> None:
        at = urlsplit(url)
        self._target = (at.hostname or "", at.port or 80)
        self._breaks_after, self._silently = breaks_after, silently
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = [self._listener]
        self.url = f"{at.scheme}://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self.is_broken = False

    def __enter__(self) -> FaultyProxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                self._open += [client, server]
                self.connections += 1
                threading.Thread(target=self._carry, args=(client, server, None), daemon=True).start()
                threading.Thread(target=self._carry, args=(server, client, self._breaks_after), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, most: int | None) -> None:
        with suppress(OSError):
            while data := source.recv(16384 if most is None else min(most, 16384)):
                target.sendall(data)
                if most is not None and (most := most - len(data)) == 0:
                    self.is_broken = True
                    if self._silently:
                        return
                    break
            for each in (source, target):
                each.shutdown(socket.SHUT_RDWR)
