"""Which appliance and which token are meant, and what is kept in the contexts file."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from millrace.config import Config
from millrace.endpoint import normal_url, resolve
from millrace.errors import ConfigError


@pytest.fixture(autouse=True)
def contexts() -> Config:
    config = Config()
    config.set("lab", url="https://lab.example.org", token="lab-token", namespace="nlp", ca="/lab.pem")
    config.set("home", url="http://localhost:8080")
    config.current = "lab"
    config.save()
    return config


def test_where_it_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_named_context_without_an_address_is_no_other_appliance(
    contexts: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts.set("empty", namespace="nlp")
    contexts.save()
    monkeypatch.setenv("MILLRACE_URL", "https://other.example.org")
    with pytest.raises(ConfigError, match="set-context empty --url URL"):
        resolve(context="empty")
    assert resolve(url="https://lab.example.org", context="empty").namespace == "nlp"


def test_a_token_goes_to_its_own_appliance_and_never_in_the_clear() -> None:
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
    assert normal_url(given) == meant


@pytest.mark.parametrize(
    "given", ["", "ftp://a", "https://", "https://u:p@a", "https://a:b", "https://a?b=c"]
)
def test_no_addresses(given: str) -> None:
    with pytest.raises(ConfigError) as caught:
        normal_url(given)
    assert "u:p" not in str(caught.value)


def test_the_file_is_private_and_keeps_what_it_does_not_know(contexts: Config) -> None:
    assert stat.S_IMODE(contexts.path.stat().st_mode) == 0o600
    with contexts.path.open("a") as file:
        file.write("later: {kept: true}\n")
    config = Config()
    config.delete("lab")
    config.save()
    assert (config.current, list(config.contexts)) == (None, ["home"])
    assert "later" in contexts.path.read_text()
    assert [path.name for path in contexts.path.parent.iterdir()] == ["config.yaml"]


def test_a_damaged_file_is_told(contexts: Config) -> None:
    for content in ("contexts: [", "- a", "contexts: {lab: }"):
        Path(contexts.path).write_text(content)
        with pytest.raises(ConfigError):
            resolve(context="lab")
