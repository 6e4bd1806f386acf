"""Tests of the command `generate`: its output, its request and its errors."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from conftest import JOBS, Server, event, job, problem, stream
from millrace import cli

Millrace = Callable[..., int]


@pytest.fixture
def millrace(server: Server, monkeypatch: pytest.MonkeyPatch) -> Millrace:
    """Runs the command against the test's appliance."""
    monkeypatch.setenv("MILLRACE_URL", server.url)
    return lambda *arguments: cli.run(arguments)


GENERATED = (
    event("start", {"checkpoint": 7, "promptTokens": 2}),
    event("token", {"id": 617, "text": ""}),
    event("token", {"id": 5, "text": " é"}),
    event("end", {"text": "\ufffd", "finishReason": "MaxTokens"}),
)


def test_generated_text_follows_the_prompt(
    server: Server, millrace: Millrace, capsys: pytest.CaptureFixture[str]
) -> None:
    server.on("GET", f"{JOBS}/kjv", job())
    server.on("POST", f"{JOBS}/kjv/generate", stream("".join(GENERATED)))
    assert millrace("generate", "kjv", "--prompt", "In the", "--top_k", "3", "--step", "7") == 0
    assert capsys.readouterr().out == "In the é\ufffd\n"
    sent = {"prompt": "In the", "checkpoint": 7, "maxTokens": 100, "temperature": 0.0, "topK": 3}
    sent |= {"topP": 1.0, "seed": 0, "ignoreEnd": False}
    assert json.loads(server.asked("POST", f"{JOBS}/kjv/generate")[-1].body) == sent
    assert millrace("generate", "kjv", "--prompt", "In the", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "prompt": "In the",
        "text": " é\ufffd",
        "tokens": [617, 5],
        "finishReason": "MaxTokens",
        "step": 7,
    }
    assert millrace("generate", "kjv", "--prompt_tokens", "3, 4") == 0
    assert capsys.readouterr().out == "617 5\n"
    assert json.loads(server.asked("POST", f"{JOBS}/kjv/generate")[-1].body)["promptTokens"] == [3, 4]


def test_text_that_cannot_be_generated(
    server: Server, millrace: Millrace, capsys: pytest.CaptureFixture[str]
) -> None:
    server.on("GET", f"{JOBS}/kjv", job())
    assert millrace("generate", "kjv", "--prompt_tokens", "3,x") == 2
    assert "must be token ids separated by commas" in capsys.readouterr().err
    server.on("POST", f"{JOBS}/kjv/generate", problem(400, "BadRequest", "The model is not a decoder."))
    assert millrace("generate", "kjv") == 2
    failed = event("error", {"status": 400, "reason": "BadRequest", "detail": "The training has diverged."})
    server.on("POST", f"{JOBS}/kjv/generate", stream("".join(GENERATED[:3]) + failed))
    assert millrace("generate", "kjv", "--prompt", "In") == 2
    out, err = capsys.readouterr()
    assert out == "In é", "what was generated before the error"
    assert "error: The model is not a decoder." in err and "error: The training has diverged." in err
    server.on("POST", f"{JOBS}/kjv/generate", stream("".join(GENERATED[:3]), cut=True))
    assert millrace("generate", "kjv") == 3, "a text that is cut is not repeated"
    assert len(server.asked("POST", f"{JOBS}/kjv/generate")) == 3
