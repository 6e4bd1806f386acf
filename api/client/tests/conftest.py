"""A scripted appliance in the test's process, with real HTTP over a real socket.

A test sets the responses: `server.on("GET", "/v1/whoami", answer, answer, ...)`. An answer is a function that
takes the handler, or JSON; the last one is repeated. All requests are in `server.requests`.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.message import Message
from email.parser import BytesParser
from email.policy import HTTP
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from millrace import Appliance, retry_budget

Answer = Callable[["Handler"], None]
JOBS = "/v1/namespaces/default/trainjobs"


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: Message
    body: bytes

    def parts(self) -> list[tuple[str, str | None, str, bytes]]:
        """Returns name, file name, type and content of each part of a multipart body."""
        head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
        found = []
        for part in BytesParser(policy=HTTP).parsebytes(head + self.body).iter_parts():
            name, content = (
                part.get_param("name", header="content-disposition"),
                part.get_payload(decode=True),
            )
            assert isinstance(name, str)
            assert isinstance(content, bytes)
            found.append((name, part.get_filename(), part.get_content_type(), content))
        return found


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        self.request_read = Request(self.command, parts.path, query, self.headers, body)
        self.server.requests.append(self.request_read)
        answers = self.server.answers.get((self.command, parts.path))
        if not answers:
            problem(404, "NotFound", f"There is no {parts.path}.")(self)
            return
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        answer(self) if callable(answer) else self.send_json(200, answer)

    do_GET = do_POST = do_PATCH = do_DELETE = _serve  # noqa: N815

    def send_json(self, status: int, document: Any, **headers: str) -> None:
        self.send_whole(
            status, json.dumps(document).encode(), **{"Content-Type": "application/json", **headers}
        )

    def send_whole(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def drop(self) -> None:
        """Breaks the connection without finishing the response."""
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        pass


@dataclass
class Server(ThreadingHTTPServer):
    requests: list[Request] = field(default_factory=list)
    answers: dict[tuple[str, str], list[Any]] = field(default_factory=dict)

    daemon_threads = True

    def __post_init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def on(self, method: str, path: str, *answers: Any) -> None:
        self.answers[method, path] = list(answers)

    def asked(self, method: str, path: str) -> list[Request]:
        return [each for each in self.requests if (each.method, each.path) == (method, path)]


def dropped(handler: Handler) -> None:
    """Sends no response."""
    handler.drop()


def problem(status: int, reason: str, detail: str, **headers: str) -> Answer:
    document: dict[str, Any] = {"type": "about:blank", "status": status, "reason": reason, "detail": detail}
    if reason == "Invalid":
        document["errors"] = [{"field": "spec.numCsx", "message": "must be at least 1"}]
    kind = {"Content-Type": "application/problem+json"}
    return lambda handler: handler.send_json(status, document, **kind, **headers)


def stream(text: str | bytes, *, cut: bool = False, whole: bool = True) -> Answer:
    """Sends an event stream, then breaks the connection, leaves it open, or ends the response."""

    def answer(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        body = text if isinstance(text, bytes) else text.encode()
        handler.wfile.write(b"%x\r\n%s\r\n" % (len(body), body))
        if cut:
            handler.drop()
        elif whole:
            handler.wfile.write(b"0\r\n\r\n")

    return answer


def job(state: str | None = "Training", name: str = "kjv", **status: Any) -> dict[str, Any]:
    """Returns a TrainJob as the appliance sends it."""
    over = state in ("Succeeded", "OutOfMemory", "BadParams")
    well = {"Succeeded": "True"}.get(state or "", "False" if over else "Unknown")
    conditions = [
        {"type": "Succeeded", "status": well, "reason": state},
        {"type": "Finished", "status": "True" if over else "False", "reason": state},
    ]
    return {
        "apiVersion": "millrace.dev/v1alpha1",
        "kind": "TrainJob",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-of-{name}",
            "creationTimestamp": "2026-01-01T00:00:00.5Z",
            "annotations": {"millrace.dev/submitted-by": "ada"},
        },
        "spec": {"numCsx": 2, "suspend": state == "Suspended"},
        "status": {"conditions": conditions if state else [], **status},
    }


def event(kind: str, data: Any, number: int | str | None = None) -> str:
    head = f"id: {number}\n" if number is not None else ""
    return f"{head}event: {kind}\ndata: {json.dumps(data)}\n\n"


def point(step: int, **more: Any) -> dict[str, Any]:
    return {
        "number": step,
        "attempt": 1,
        "step": step,
        "loss": 8 / step,
        "seconds": 0.5,
        "rate": 64.0,
        **more,
    }


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def appliance(server: Server) -> Iterator[Appliance]:
    with Appliance(server.url, token="secret") as appliance:
        yield appliance


@pytest.fixture(autouse=True)
def isolated_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Isolates the test from the user's environment, contexts and working directory."""
    for name in ("URL", "TOKEN", "NAMESPACE", "CA", "INSECURE"):
        monkeypatch.delenv(f"MILLRACE_{name}", raising=False)
    monkeypatch.setenv("MILLRACE_CONFIG", str(tmp_path / "millrace" / "config.yaml"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def fake_clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Replaces sleeping by a clock that moves on; returns the durations that were slept."""
    slept: list[float] = []
    monkeypatch.setattr(retry_budget, "sleep", slept.append)
    monkeypatch.setattr(retry_budget, "clock", lambda: sum(slept))
    return slept
