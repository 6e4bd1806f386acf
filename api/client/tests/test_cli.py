"""Tests of the command: its output on both streams and its exit codes."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.shell_completion import ShellComplete

from conftest import JOBS, Handler, Server, event, job, point, problem, stream
from millrace import cli, state
from millrace.cli import submit_commands

Millrace = Callable[..., int]

PROGRESS = {"step": 3, "totalSteps": 4, "loss": "2.5", "rate": "37.11"}
QUEUE = {"position": 1, "reason": "Waiting", "message": "waits for 2 systems"}


@pytest.fixture
def millrace(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Millrace:
    """Runs the command against the test's appliance."""
    monkeypatch.setenv("MILLRACE_URL", server.url)
    (tmp_path / "params.yaml").write_text("model: {}")
    return lambda *arguments: cli.run(arguments)


def followed(*events: str, last: str = "Succeeded", **status: Any) -> Callable[[Server], None]:
    """Scripts a submission, and the stream of its job."""

    def script(server: Server) -> None:
        server.on("POST", JOBS, lambda h: h.send_json(201, job(None)))
        server.on("GET", f"{JOBS}/kjv", job(last, **status))
        server.on("GET", f"{JOBS}/kjv/follow", stream("".join(events)))

    return script


WHOLE_RUN = (
    event("job", job("Queued", queue=QUEUE)),
    event("state", {"state": "Training", "attempt": 1, "step": 0, "total_steps": 4}),
    *(event("metric", point(step, seconds=step / 2), step) for step in (1, 2, 3)),
    event("job", job("Training", progress=PROGRESS, attempt=1)),
    event(
        "log", {"agent": "coordinator-0", "level": "INFO", "message": "hello", "fields": {"epoch": "1.1"}}, 4
    ),
    event("event", {"number": 1, "type": "Warning", "reason": "FailedMount", "message": "no such volume"}),
    event("checkpoint", {"step": 4, "digest": "abc"}, 5),
    event("metric", point(4), 6),
    event("metric", point(4, mode="eval", loss=1.5, rate=None, metrics={"eval/lm_perplexity": 4.48}), 7),
    event("job", job("Succeeded", progress={**PROGRESS, "step": 4}, checkpoint={"step": 4}, attempt=1)),
    event("end", {}),
)


def test_pipe_gets_progress_lines(
    server: Server, millrace: Millrace, capsys: pytest.CaptureFixture[str]
) -> None:
    followed(*WHOLE_RUN)(server)
    assert millrace("train", "-p", "params.yaml", "--num_csx", "2") == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "| Train Device=CSX, Step=1, Loss=8.00000, Rate=64.00 samples/sec, GlobalRate=64.00 samples/sec",
        "| Train Device=CSX, Step=3, Loss=2.66667, Rate=64.00 samples/sec, GlobalRate=32.00 samples/sec",
        "| Train Device=CSX, Step=4, Loss=2.00000, Rate=64.00 samples/sec, GlobalRate=36.57 samples/sec",
        "| Eval Device=CSX, GlobalStep=4, Loss=1.50000, eval/lm_perplexity=4.48",
    ], "a point every 10 s, the one before each message, and the last"
    assert err.splitlines() == [
        "submitted job kjv",
        "Queued: waits for 2 systems; position 1",
        "Training: step 0 of 4",
        "Warning: FailedMount: no such volume",
        "saved a checkpoint at step 4",
        "Succeeded: step 4 of 4, loss 2.5, checkpoint at step 4",
        "hint: download its checkpoint with: millrace download kjv",
    ]


def test_logs_flag_shows_log_lines(
    server: Server, millrace: Millrace, capsys: pytest.CaptureFixture[str]
) -> None:
    followed(*WHOLE_RUN)(server)
    assert millrace("train", "-p", "params.yaml", "--logs", "-o", "json") == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["metadata"]["name"] == "kjv"
    assert "coordinator-0 INFO    hello epoch=1.1" in err
    assert "| Train Device=CSX, Step=4" in err


def test_failed_job_exits_with_1(
    server: Server, millrace: Millrace, capsys: pytest.CaptureFixture[str]
) -> None:
    failure = {"message": "The pod was killed.", "pod": "kjv-memoryx-0", "logTail": ["last words"]}
    warning = {"number": 1, "type": "Warning", "reason": "OutOfMemory", "message": "The pod was killed."}
    over = event("job", job("OutOfMemory", failure=failure))
    followed(event("event", warning), over, event("end", {}))(server)
    assert millrace("train", "-p", "params.yaml") == 1
    err = capsys.readouterr().err
    assert "error: job kjv ended as OutOfMemory: The pod was killed. (kjv-memoryx-0)\n  last words\n" in err
    assert err.count("The pod was killed.") == 1


def test_following_ends_when_a_job_is_suspended_or_cancelled(
    server: Server, millrace: Millrace, capsys: pytest.CaptureFixture[str]
) -> None:
    suspended = job("Suspended", checkpoint={"step": 2})
    followed(event("job", job("Training")), event("job", suspended))(server)
    assert millrace("train", "-p", "params.yaml") == 1
    assert "Suspended: state saved, checkpoint at step 2" in capsys.readouterr().err
    followed(event("job", job("Training")))(server)
    server.on("GET", f"{JOBS}/kjv/follow", stream(event("job", job())), problem(404, "NotFound", "Gone."))
    server.on("GET", f"{JOBS}/kjv", problem(404, "NotFound", "Gone."))
    assert millrace("train", "-p", "params.yaml") == 1
    assert "error: job kjv ended as Cancelled" in capsys.readouterr().err


def test_points_of_a_suspended_job_are_shown(
    server: Server, millrace: Millrace, capsys: pytest.CaptureFixture[str]
) -> None:
    suspended = job("Suspended", progress={"step": 1})
    server.on("GET", f"{JOBS}/kjv", suspended)
    history = (event("metric", point(2), 1), event("checkpoint", {"step": 2}, 2), event("job", suspended))
    server.on("GET", f"{JOBS}/kjv/follow", stream("".join(history), whole=False))
    assert millrace("attach", "kjv") == 1
    out, err = capsys.readouterr()
    assert "Step=2, Loss=4.00000" in out
    assert "Suspended: state saved, checkpoint at step 2\n" in err


def test_ctrl_c_leaves_the_job(
    server: Server, millrace: Millrace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    followed(event("job", job("Training")), event("metric", point(1), 1))(server)
    monkeypatch.setattr("millrace.follow.Follower._metric", interrupt)
    assert millrace("train", "-p", "params.yaml") == 130
    assert "job kjv continues; follow it again with: millrace attach kjv" in capsys.readouterr().err
    assert not [each for each in server.requests if each.method == "DELETE"]


def test_interrupted_download_has_a_hint(
    server: Server, millrace: Millrace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def terminated(*_: object) -> None:
        raise SystemExit(143)

    server.on("GET", f"{JOBS}/kjv", job())
    monkeypatch.setattr("millrace.job.Job.download", terminated)
    with pytest.raises(SystemExit):
        millrace("download", "kjv")
    assert capsys.readouterr().err == "interrupted: repeat the command to resume the download\n"


@pytest.mark.parametrize("command", [("attach", "kjv"), ("logs", "kjv", "-f")])
def test_sigterm_leaves_the_job(server: Server, command: tuple[str, ...]) -> None:
    begun = threading.Event()

    def silent(handler: Handler) -> None:
        stream(": here\n\n", whole=False)(handler)
        begun.set()

    server.on("GET", f"{JOBS}/kjv", job())
    for kind in ("follow", "logs"):
        server.on("GET", f"{JOBS}/kjv/{kind}", silent)
    words = [sys.executable, "-m", "millrace", "--url", server.url, *command]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert begun.wait(30)
    process.terminate()
    said = process.communicate(timeout=30)[1]
    assert (process.returncode, said) == (
        143,
        "job kjv continues; follow it again with: millrace attach kjv\n",
    )


def test_both_spellings_and_several_values(
    server: Server, millrace: Millrace, capsys: pytest.CaptureFixture[str]
) -> None:
    server.on("POST", JOBS, job(None))
    spelt = ["--num_csx=4", "--max_steps", "10", "--job_labels", "a=b", "c=d", "--mount_dirs", "x=/x", "y=/y"]
    told = []
    for dash in (False, True):
        flags = [flag.replace("_", "-") if dash else flag for flag in spelt]
        assert millrace("train", "-p", "params.yaml", *flags, "--detach", "--idempotency-key", "k") == 0
        assert server.requests[-1].headers["Idempotency-Key"] == "k"
        told.append(next(content for name, _, _, content in server.requests[-1].parts() if name == "job"))
    assert told[0] == told[1]
    assert json.loads(told[0])["spec"]["labels"] == {"a": "b", "c": "d"}
    assert json.loads(told[0])["overrides"] == {"max_steps": 10}
    assert capsys.readouterr().out == "kjv\nkjv\n", "the name, for $(...)"


def test_flags_without_effect_print_a_note(
    server: Server, millrace: Millrace, capsys: pytest.CaptureFixture[str]
) -> None:
    server.on("POST", JOBS, job(None))
    flags = (
        "csx --num_workers_per_csx 1 -c dir --python_paths a b --disable_version_check --target_device CSX "
        "--model_dir d --mgmt_address a:9000 --mgmt-namespace n --credentials_path c --cbcore_image i "
        "--wsc_log_level a=b c=d --debug_args a.b=v c=d --debug_args_path p --ini a=b c=d "
        "-p params.yaml --detach"
    )
    assert millrace("train", *flags.split()) == 0
    notes = capsys.readouterr().err.splitlines()[:-1]
    assert [note.partition(":")[2].partition(":")[0] for note in notes] == [
        f" --{flag} has no effect here" for flag in submit_commands._WITHOUT_EFFECT
    ]
    assert not [name for name, *_ in server.requests[-1].parts() if name == "job"]


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        (
            problem(422, "BadParams", "Line 3: no key hiden_size."),
            2,
            "Line 3: no key hiden_size.",
        ),
        (
            problem(422, "Invalid", "No good."),
            2,
            "No good.\n  spec.numCsx: must be at least 1\n",
        ),
        (
            problem(401, "Unauthorized", "Who is there?"),
            3,
            "Who is there?\nhint: log in with `millrace login URL`",
        ),
        (
            problem(
                401, "Unauthorized", "send a token in the header `Authorization: Bearer TOKEN`; make one"
            ),
            3,
            "error: the appliance requires a token; make one\nhint: log in with",
        ),
        (
            problem(422, "BadParams", "Line 3: no a.\n  hint: b\nmodel is missing\n  hint: c"),
            2,
            "error: params.yaml: Line 3: no a.\n  hint: b\nerror: model is missing\n  hint: c\n",
        ),
        (
            lambda handler: handler.send_json(
                422,
                {
                    "reason": "Invalid",
                    "detail": "spec.a: too small; spec.b: missing",
                    "errors": [
                        {"field": "spec.a", "message": "too small"},
                        {"field": "spec.b", "message": "missing"},
                    ],
                },
                **{"Content-Type": "application/problem+json"},
            ),
            2,
            "error: spec.a: too small\nerror: spec.b: missing\n",
        ),
        (problem(403, "Forbidden", "You may not."), 3, "You may not."),
        (
            problem(500, "Internal", "Oh.", X_Request_Id="r-1"),
            3,
            "Oh.\nhint: repeat the command with",
        ),
        (problem(503, "Unavailable", "Later."), 3, "note: Later.; retrying\nerror: Later."),
    ],
)
def test_errors_of_the_appliance(
    server: Server, millrace: Millrace, capsys: pytest.CaptureFixture[str], answer: Any, code: int, said: str
) -> None:
    server.on("POST", JOBS, answer)
    assert millrace("train", "-p", "params.yaml") == code
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("too small") <= 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train"], "\nerror: Missing option '-p'"),
        (["get", "jobs", "-o", "csv"], "'csv' is not one of 'table', 'json', 'yaml', 'name'.\n"),
        (["train", "CPU", "-p", "params.yaml"], "unexpected extra argument (CPU)"),
        (["logs", "kjv", "--role", "worker"], "'worker' is not one of 'coordinator', 'memoryx'"),
        (["train", "-p", "nowhere.yaml"], "error: nowhere.yaml: No such file or directory"),
        (["train", "-p", "params.yaml", "--num_csx", "0"], "0 is not in the range"),
        (
            ["train", "-p", "params.yaml", "-o", "model_dir"],
            "`millrace download NAME --to DIR` downloads them",
        ),
        (["train", "-p", "params.yaml", "--job_labels", "a"], "a does not have the form KEY=VALUE"),
        (["cancel", "kjv"], "use --yes"),
        (["train", "-p", "params.yaml", "--idempotency_key", "ünï"], "invalid idempotency key"),
        (["download", "kjv", "--step", "4", "--artifacts", "*"], "--artifacts can't be combined with --step"),
        (["--context", "nowhere", "get", "jobs"], "context nowhere not found"),
        (["config", "current-context"], "no current context: create one with `millrace login URL`"),
        (["get", "jobs", "--state", "fine"], "unknown state 'fine': choose from Queued, Starting, Training"),
        (["get", "job", ""], "error: invalid name ''"),
        (["login", "localhost", "--token", "secret"], "a token on the command line"),
        ([], "Usage: millrace"),
        (["get"], "Usage: millrace get"),
        (["fly"], "No such command"),
    ],
)
def test_bad_input(
    server: Server, millrace: Millrace, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    server.on("GET", f"{JOBS}/kjv", job())
    assert millrace(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert "secret" not in err


def test_standard_output_has_results_only(
    server: Server, millrace: Millrace, capsys: pytest.CaptureFixture[str]
) -> None:
    server.on("GET", JOBS, {"items": [job(progress=PROGRESS), job(name="b")], "next": "more"})
    server.on("GET", f"{JOBS}/kjv", job(progress=PROGRESS))
    server.on("GET", f"{JOBS}/kjv/metrics", {"items": [point(1), point(2, loss=None)], "next": None})
    server.on("GET", f"{JOBS}/kjv/logs", {"items": [{"number": 1, "message": "é"}], "next": None})
    server.on("GET", f"{JOBS}/kjv/events", {"items": [{"number": 1, "reason": "Admitted"}], "next": None})
    server.on("GET", "/v1/appliance", {"name": "default", "jobs": [], "queue": []})
    server.on("GET", "/v1/namespaces/default/volumes", {"items": [{"name": "corpus", "message": "ok"}]})
    server.on("POST", f"{JOBS}:plan", {"fits": True, "message": "It fits.", "plan": {}})
    for command in (
        ["get", "jobs", "--limit", "1"],
        ["get", "job", "kjv"],
        ["get", "cluster"],
        ["get", "volumes"],
        ["metrics", "kjv"],
        ["logs", "kjv"],
        ["events", "kjv"],
        ["plan", "-p", "params.yaml"],
        ["config", "get-contexts"],
    ):
        assert millrace(*command) == 0
        assert capsys.readouterr().out.endswith("\n")
        assert millrace(*command, "-o", "json") == 0
        document = json.loads(capsys.readouterr().out)
        assert millrace(*command, "-o", "yaml") == 0
        assert yaml.safe_load(capsys.readouterr().out) == document
    assert millrace("get", "jobs", "-o", "name") == 0
    assert capsys.readouterr().out.splitlines()[0] == "kjv"
    server.on("POST", f"{JOBS}:plan", {"fits": False, "message": "It has no room."})
    assert millrace("plan", "-p", "params.yaml") == 1
    assert capsys.readouterr().out == "Fits: no: It has no room.\n"


def test_a_table_of_jobs(server: Server, millrace: Millrace, capsys: pytest.CaptureFixture[str]) -> None:
    server.on("GET", JOBS, {"items": [job(progress=PROGRESS), job(None, name="b")], "next": None})
    assert millrace("get", "jobs") == 0
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["NAME", "STATE", "STEP", "OF", "LOSS", "RATE", "CSX", "RESTARTS", "AGE"]
    assert first.split()[:8] == ["kjv", "Training", "3", "4", "2.5", "37.11", "2", "0"]
    assert second.split()[:8] == ["b", "Pending", "-", "-", "-", "-", "2", "0"]


def test_jobs_of_a_state(server: Server, millrace: Millrace, capsys: pytest.CaptureFixture[str]) -> None:
    def listed(*words: str) -> tuple[list[str], dict[str, str]]:
        assert millrace("get", "jobs", "-o", "name", "--state", *words) == 0
        asked = server.requests[-1].query
        del asked["limit"]
        return capsys.readouterr().out.split(), asked

    cancelled = job(name="c")
    state.mark_deleted(cancelled)
    server.on("GET", JOBS, {"items": [job("OutOfMemory"), job("Succeeded", name="b"), cancelled]})
    assert listed("succeeded") == (["b"], {"state": "Succeeded"})
    assert listed("FAILED") == (["kjv"], {"finished": "true"})
    assert listed("cancelled") == (["c"], {"deleted": "true", "finished": "true"})
    for over in ("failed", "cancelled"):
        assert millrace("get", "jobs", "-o", "name", "--state", over, "--unfinished") == 0
        assert capsys.readouterr().out == ""


def test_finished_job_is_not_cancelled(
    server: Server, millrace: Millrace, capsys: pytest.CaptureFixture[str]
) -> None:
    for before, said in (
        (job(), "job kjv is cancelled"),
        (job("Succeeded"), "job kjv had already finished (Succeeded) and is deleted; see"),
    ):
        server.on("GET", f"{JOBS}/kjv", before)
        server.on("DELETE", f"{JOBS}/kjv", before)
        assert millrace("cancel", "kjv", "--yes") == 0
        assert capsys.readouterr().out.startswith(said)


def test_cancelled_job_keeps_its_checkpoints(
    server: Server, millrace: Millrace, capsys: pytest.CaptureFixture[str]
) -> None:
    server.on("GET", f"{JOBS}/kjv", job(attempt=1))
    server.on("DELETE", f"{JOBS}/kjv", job(attempt=1))
    assert millrace("cancel", "kjv", "--yes") == 0
    assert "a new job named kjv with the same model_dir resumes from its newest" in capsys.readouterr().err


def test_suspended_job_is_scaled_when_it_resumes(
    server: Server, millrace: Millrace, capsys: pytest.CaptureFixture[str]
) -> None:
    for before, said in (
        (job(), "job kjv continues with 3 systems"),
        (job("Suspended"), "job kjv is suspended and will have 3 systems when it is resumed"),
    ):
        server.on("GET", f"{JOBS}/kjv", before)
        server.on("POST", f"{JOBS}/kjv/scale", before)
        assert millrace("scale", "kjv", "--num_csx", "3") == 0
        assert capsys.readouterr().out.startswith(said)


def test_no_volumes(server: Server, millrace: Millrace, capsys: pytest.CaptureFixture[str]) -> None:
    server.on("GET", "/v1/namespaces/default/volumes", {"items": []})
    assert millrace("get", "volumes") == 0
    out, err = capsys.readouterr()
    assert (out, err.startswith("no volumes found")) == ("", True)


def test_resuming_from_an_earlier_job_is_reported(
    server: Server, millrace: Millrace, capsys: pytest.CaptureFixture[str]
) -> None:
    resumes = {
        "number": 1,
        "type": "Normal",
        "reason": "ResumesEarlierJob",
        "message": "resumes from checkpoint_79",
    }
    followed(event("event", resumes), *WHOLE_RUN)(server)
    assert millrace("train", "-p", "params.yaml") == 0
    assert "\nresumes from checkpoint_79\n" in capsys.readouterr().err


def test_stalled_storage_is_reported_until_it_responds(
    server: Server, millrace: Millrace, capsys: pytest.CaptureFixture[str]
) -> None:
    stalled = {
        "number": 1,
        "type": "Warning",
        "reason": "StorageStalled",
        "message": "no response since 12:00",
    }
    responds = {
        "number": 2,
        "type": "Normal",
        "reason": "StorageResponds",
        "message": "it responds again",
    }
    followed(event("event", stalled), event("event", responds), *WHOLE_RUN)(server)
    assert millrace("train", "-p", "params.yaml") == 0
    reported = capsys.readouterr().err
    assert "\nWarning: StorageStalled: no response since 12:00\nit responds again\n" in reported


def test_points_of_attempts_are_separated(
    server: Server, millrace: Millrace, capsys: pytest.CaptureFixture[str]
) -> None:
    points = [point(1), point(2), point(2, attempt=2)]
    server.on("GET", f"{JOBS}/kjv", job())
    server.on("GET", f"{JOBS}/kjv/metrics", {"items": points, "next": None})
    assert millrace("metrics", "kjv") == 0
    assert capsys.readouterr().out.splitlines()[3] == "attempt 2 begins with step 2"
    assert millrace("metrics", "kjv", "--mode", "train", "--max_points", "3") == 0
    assert capsys.readouterr().out.splitlines()[3] == "attempt 2"


def test_evaluations_are_listed(
    server: Server, millrace: Millrace, capsys: pytest.CaptureFixture[str]
) -> None:
    train = [point(1), point(2), point(3)]
    evals = [
        point(at, mode="eval", loss=1.5, metrics={"eval/lm_perplexity": 4.48, "eval/accuracy": 0.25})
        for at in (2, 3)
    ]
    server.on("GET", f"{JOBS}/kjv", job())

    def printed(*words: str, answers: tuple[list[Any], ...]) -> list[str]:
        server.on("GET", f"{JOBS}/kjv/metrics", *({"items": items, "next": None} for items in answers))
        assert millrace(*words) == 0
        return capsys.readouterr().out.splitlines()

    in_order = [*train[:2], evals[0], train[2], evals[1]]
    lines = printed("metrics", "kjv", answers=(in_order,))
    assert [line.split()[0] for line in lines] == ["STEP", "1", "2", "2", "3", "3"]
    assert lines[3].endswith("  eval:  eval/lm_perplexity=4.48  eval/accuracy=0.25")
    assert "mode" not in server.requests[-1].query
    assert printed("metrics", "kjv", "--max_points", "9", answers=(train, evals)) == lines
    rows = list(csv.DictReader(printed("metrics", "kjv", "-o", "csv", answers=(in_order,))))
    assert [(row["step"], row["mode"], row["eval/accuracy"]) for row in rows[1:3]] == [
        ("2", "train", ""),
        ("2", "eval", "0.25"),
    ]
    table = printed("get", "evaluations", "kjv", answers=(evals,))
    assert server.requests[-1].query["mode"] == "eval"
    assert table[0].split() == ["STEP", "LOSS", "LM_PERPLEXITY", "ACCURACY", "TIME"]
    assert table[1].split()[:4] == ["2", "1.5", "4.48", "0.25"]
    rows = list(csv.DictReader(printed("get", "evaluations", "kjv", "-o", "csv", answers=(evals,))))
    assert [(row["step"], row["eval/lm_perplexity"]) for row in rows] == [("2", "4.48"), ("3", "4.48")]


def test_login_and_logout(
    server: Server,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    def whoami(handler: Handler) -> None:
        if handler.headers["Authorization"] == "Bearer the-token":
            handler.send_json(200, {"name": "ada", "role": "editor", "namespaces": ["nlp"]})
        else:
            problem(401, "Unauthorized", "The token is not known.")(handler)

    server.on("GET", "/v1/whoami", whoami)
    (tmp_path / "token").write_text("wrong\n")
    assert cli.run(["login", server.url, "--token_file", "token"]) == 3
    (tmp_path / "token").write_text("the-token\n")
    assert cli.run(["login", server.url, "--token_file", "token", "--name", "lab"]) == 0
    assert "logged in to http://127.0.0.1" in capsys.readouterr().err
    server.on("GET", "/v1/namespaces/nlp/trainjobs", {"items": [], "next": None})
    assert cli.run(["get", "jobs"]) == 0
    assert server.requests[-1].headers["Authorization"] == "Bearer the-token"

    assert cli.run(["config", "set-context", "other", "--url", "https://other.example.org"]) == 0
    assert cli.run(["config", "use-context", "other"]) == 0
    assert cli.run(["config", "get-contexts"]) == 0
    assert cli.run(["config", "view"]) == 0
    assert cli.run(["config", "delete-context", "other"]) == 0
    assert cli.run(["--context", "lab", "logout"]) == 0
    out, err = capsys.readouterr()
    assert "*         other" in out
    assert "the-token" not in out + err + (tmp_path / "millrace" / "config.yaml").read_text()


def test_completion(server: Server, millrace: Millrace, capsys: pytest.CaptureFixture[str]) -> None:
    for shell in ("bash", "zsh", "fish"):
        assert millrace("completion", shell) == 0
        assert "_MILLRACE_COMPLETE" in capsys.readouterr().out
    server.on("GET", JOBS, {"items": [job(), job(name="other"), job()], "next": None})
    assert millrace("config", "set-context", "lab", "--url", "localhost") == 0
    complete = ShellComplete(cli.cli, {}, "millrace", "_MILLRACE_COMPLETE").get_completions
    for line, completed in {
        "attach k": ["kjv"],
        "--url http://127.0.0.1:0 attach k": [],
        "get jobs --context l": ["lab"],
        "train --num-c": ["--num-csx"],
        "train --num_c": ["--num_csx"],
    }.items():
        *before, begun = line.split()
        assert [item.value for item in complete(before, begun)] == completed
    assert capsys.readouterr().err == "saved context lab in " + os.environ["MILLRACE_CONFIG"] + "\n"


def test_closed_standard_streams_are_tolerated(server: Server) -> None:
    server.on("GET", JOBS, {"items": [job()]})
    code = "import os, sys; os.closerange(0, 3); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    words = ["-m", "millrace", "--url", server.url, "get", "jobs"]
    done = subprocess.run([sys.executable, "-c", code, *words], check=False)
    assert done.returncode == 0


def test_help_imports_no_slow_modules() -> None:
    """Slow imports are left to the commands that need them."""
    code = "import sys, millrace.cli; print(*{'httpx', 'yaml', 'tqdm', 'asyncio'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
