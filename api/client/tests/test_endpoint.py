"""Tests of addresses, tokens and the contexts file."""

from __future__ import annotations

import socket
import stat
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from millrace import endpoint
from millrace.config import Config
from millrace.endpoint import normalize_url, resolve
from millrace.errors import ConfigError


@pytest.fixture(autouse=True)
def contexts() -> Config:
    config = Config()
    config.set("lab", url="https://lab.example.org", token="lab-token", namespace="nlp", ca="/lab.pem")
    config.set("home", url="http://localhost:8080")
    config.current = "lab"
    config.save()
    return config


def test_endpoint_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = resolve()
    assert (lab.url, lab.token, lab.namespace, lab.ca) == (
        "https://lab.example.org",
        "lab-token",
        "nlp",
        "/lab.pem",
    )
    assert resolve(context="home").url == "http://localhost:8080"
    assert resolve(url="https://lab.example.org/").token == "lab-token"
    monkeypatch.setenv("MILLRACE_URL", "https://other.example.org")
    monkeypatch.setenv("MILLRACE_NAMESPACE", "vision")
    other = resolve()
    assert (other.url, other.token, other.namespace) == ("https://other.example.org", None, "vision")
    monkeypatch.setenv("MILLRACE_TOKEN", "other-token")
    assert resolve().token == "other-token"
    assert resolve(token="mine").token == "mine"
    named = resolve(context="lab")
    assert (named.url, named.token, named.namespace) == ("https://lab.example.org", "lab-token", "nlp")


def test_named_context_without_address_is_an_error(contexts: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    contexts.set("empty", namespace="nlp")
    contexts.save()
    monkeypatch.setenv("MILLRACE_URL", "https://other.example.org")
    with pytest.raises(ConfigError, match="set-context empty --url URL"):
        resolve(context="empty")
    assert resolve(url="https://lab.example.org", context="empty").namespace == "nlp"


def test_token_is_sent_to_its_appliance_only_and_encrypted() -> None:
    assert resolve(url="https://elsewhere.example.org").token is None
    with pytest.raises(ConfigError, match="would send the token unencrypted"):
        resolve(url="http://elsewhere.example.org", token="secret")
    assert resolve(url="http://elsewhere.example.org", token="secret", insecure=True).token == "secret"
    assert resolve(url="http://127.0.0.1:1", token="secret").token == "secret"
    assert "secret" not in repr(resolve(url="https://elsewhere.example.org", token="secret"))


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("millrace.example.org", "https://millrace.example.org"),
        ("https://example.org/millrace/", "https://example.org/millrace"),
        ("localhost:8080", "http://localhost:8080"),
        ("127.0.0.1", "http://127.0.0.1"),
        ("[::1]:80", "http://[::1]:80"),
    ],
)
def test_addresses(given: str, meant: str) -> None:
    assert normalize_url(given) == meant


@pytest.mark.parametrize(
    "given", ["", "ftp://a", "https://", "https://u:p@a", "https://a:b", "https://a?b=c"]
)
def test_invalid_addresses(given: str) -> None:
    with pytest.raises(ConfigError) as caught:
        normalize_url(given)
    assert "u:p" not in str(caught.value)


def test_contexts_file_is_private_and_keeps_unknown_keys(contexts: Config) -> None:
    assert stat.S_IMODE(contexts.path.stat().st_mode) == 0o600
    with contexts.path.open("a") as file:
        file.write("later: {kept: true}\n")
    config = Config()
    config.delete("lab")
    config.save()
    assert (config.current, list(config.contexts)) == (None, ["home"])
    assert "later" in contexts.path.read_text()
    assert [path.name for path in contexts.path.parent.iterdir()] == ["config.yaml"]


def test_damaged_file_is_reported(contexts: Config) -> None:
    for content in ("contexts: [", "- a", "contexts: {lab: }"):
        Path(contexts.path).write_text(content)
        with pytest.raises(ConfigError):
            resolve(context="lab")


def test_local_server_is_the_default(
    contexts: Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    contexts.current = None
    contexts.save()
    monkeypatch.setenv("MILLRACE_TOKEN", "of-another-server")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setattr(endpoint, "LOCAL_URL", f"http://127.0.0.1:{port}")
    endpoint._is_local_server_there.cache_clear()
    with pytest.raises(
        ConfigError,
        match=f"no server runs on this machine at .*{port}: start one .* -- serve --input-dir .`",
    ):
        resolve()

    class Version(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"version": "0.2.0", "backend": "process"}')

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", port), Version) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint._is_local_server_there.cache_clear()
        found, again = resolve(), resolve(namespace="nlp", token="other")
        server.shutdown()
    endpoint._is_local_server_there.cache_clear()
    assert (found.url, found.token, found.namespace) == (f"http://127.0.0.1:{port}", None, "default")
    assert (again.token, again.namespace) == ("other", "nlp")
    assert capsys.readouterr().err == (
        f"using the server on this machine, http://127.0.0.1:{port}\n"
        f"MILLRACE_TOKEN is not sent to it: set MILLRACE_URL=http://127.0.0.1:{port} as well\n"
    )
