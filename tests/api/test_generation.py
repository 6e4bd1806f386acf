"""Tests of texts that the model of a checkpoint continues."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from harness import Reference, Server, path
from harness.common import PROGRAMS
from millrace import Job, errors
from millrace.sse import Decoder

RANDOM = ("--temperature", "0.9", "--top_k", "20", "--seed", "5", "-n", "40")


def test_text_equals_that_of_a_local_run(
    shared: Server, finished: Job, reference: Callable[[int], Reference]
) -> None:
    """`millrace generate` prints what `millrace-agent generate` prints for the checkpoint of a local run."""
    flags = ("--prompt", "In the beginning", *RANDOM)
    local = [PROGRAMS / "millrace-agent", "generate", "-c", reference(200).model_dir, *flags]
    expected = subprocess.run(local, check=True, capture_output=True, text=True, timeout=60).stdout
    assert len(expected) > len("In the beginning") + 20
    assert shared.user.millrace("generate", finished.name, *flags).out == expected
    made = finished.generate("In the beginning", temperature=0.9, top_k=20, seed=5, max_tokens=40)
    assert f"{made}\n" == expected
    assert (len(made.tokens), made.finish_reason, made.step) == (40, "MaxTokens", 200)
    assert finished.generate("In the", step=100).step == 100


def test_events_are_parts_of_the_document(shared: Server, finished: Job) -> None:
    """Without an event stream, the response is one document with the same text."""
    url, body = path(finished, "generate"), {"prompt": "And", "maxTokens": 99}
    whole: dict[str, Any] = shared.user.http.post(url, json=body).raise_for_status().json()
    assert whole["finishReason"] == "MaxPositions" and len(whole["tokens"]) == 64 - 3, whole
    answer = shared.user.http.post(url, json=body, headers={"Accept": "text/event-stream"})
    events = [(event.event, json.loads(event.data)) for event in Decoder().feed(answer.content)]
    assert [name for name, _ in events] == ["start", *["token"] * 61, "end"]
    assert events[0][1] == {"checkpoint": 200, "promptTokens": 3}
    assert "".join(data.get("text", "") for _, data in events) == whole["text"]
    assert [data["id"] for name, data in events if name == "token"] == whole["tokens"]


def test_requests_that_cannot_be_fulfilled(shared: Server, finished: Job) -> None:
    """Fields out of range, a missing checkpoint and a prompt that is too long are rejected with their reason."""
    for field, value, message in [
        ("temperature", -1, "must be at least 0"),
        ("topK", 0, "must be at least 1"),
        ("topP", 1.5, "at most 1"),
        ("maxTokens", 0, "must be at least 1"),
        ("promptTokens", [], "at least one token"),
        ("top_k", 3, "unknown field"),
    ]:
        answer = shared.user.http.post(path(finished, "generate"), json={field: value})
        assert answer.status_code == 422, answer.text
        (fault,) = answer.json()["errors"]
        assert fault["field"] == field and message in fault["message"], fault
    with pytest.raises(errors.NotFound, match="checkpoint 7 not found"):
        finished.generate(step=7)
    with pytest.raises(errors.BadRequest, match="65 tokens are more than the model's 64 positions"):
        finished.generate("a" * 65)
    with pytest.raises(errors.BadRequest, match="token 256 is not in the model's vocabulary of 256"):
        finished.generate([256])
