"""Tests of a job from submission to end, and of operations on it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import PARAMS, Reference, Server, until, until_state, until_step
from millrace import Job

LINE = re.compile(
    r"\| Train Device=CSX, Step=(\d+), Loss=\d\.\d{5}, Rate=[\d.]+ samples/sec, GlobalRate=[\d.]+ samples/sec"
)


def test_train_end_to_end(server: Server, reference: Callable[[int], Reference]) -> None:
    """`millrace train` follows the job to its end; the result has the bits of a local run."""
    user = server.user
    done = user.millrace("train", "-p", PARAMS, "-n", "main", "--num_csx", 2, "--every", 0.2)
    steps = [int(match[1]) for match in map(LINE.fullmatch, done.out.splitlines()) if match]
    assert len(steps) == len(done.out.splitlines()), done.out
    assert steps == sorted(set(steps)) and steps[-1] == 200
    expected = ["submitted job main", "saved a checkpoint at step 100", "saved a checkpoint at step 200"]
    assert [line for line in done.err.splitlines() if line in expected] == expected, done.err

    document = user.millrace("get", "job", "main", "-o", "json").json
    assert document["kind"] == "TrainJob" and document["spec"]["numCsx"] == 2
    assert document["status"]["progress"]["step"] == document["status"]["progress"]["totalSteps"] == 200
    assert "Succeeded" in user.millrace("get", "job", "main").out
    assert [item["metadata"]["name"] for item in user.millrace("get", "jobs", "-o", "json").json["items"]] == ["main"]
    reasons = [event["reason"] for event in user.millrace("events", "main", "-o", "json").json]
    # The flag and the params have different numbers of systems.
    assert reasons == ["Queued", "ParamsOverruled", "Starting", "Training", "Succeeded"]
    lines = user.millrace("logs", "main", "-o", "json").json
    roles = {line["agent"].split("-")[0] for line in lines}
    assert roles == {"coordinator", "memoryx", "swarmx", "activation", "cs2"}
    assert {line["agent"] for line in user.millrace("logs", "main", "--role", "cs2", "-o", "json").json} == {
        "cs2-0",
        "cs2-1",
    }
    points = user.millrace("metrics", "main", "-o", "json").json
    assert [point["step"] for point in points] == list(range(1, 201))
    # Also in small pages.
    assert user.curve(user.appliance.job("main"), limit=7) == reference(200).curve
    few = user.millrace("metrics", "main", "--max_points", 5, "-o", "json").json
    assert len(few) == 5 and few[0] == points[0] and few[-1] == points[-1]

    reference(200).assert_same(user, user.appliance.job("main"))


@pytest.mark.needs("quick jobs")
def test_suspend_scale_and_resume_keep_the_bits(server: Server, reference: Callable[[int], Reference]) -> None:
    """A job that is suspended, resumed and scaled twice has the same bits and no restart; scaling begins no attempt."""
    user = server.user
    job = user.submit("changed", 500, "--num_csx", 2)
    until_step(job, 50)
    assert "it saves its state" in user.millrace("suspend", "changed").out
    until_state(job, "Suspended")
    paused_at = job.status["checkpoint"]["step"]
    assert 50 <= paused_at < 500 and not job.status.get("systems")
    until("the systems are free", lambda: not user.appliance.cluster()["jobs"], 5)
    # Following a suspended job ends at once, with a hint.
    assert "millrace resume changed" in user.millrace("attach", "changed", code=1).err

    user.millrace("resume", "changed")
    until_step(job, paused_at + 30)
    assert "continues with 4" in user.millrace("scale", "changed", "--num_csx", 4).out
    until("it has four", lambda: job.refresh().status.get("systems") == [f"csx-{at}" for at in range(4)])
    until("it uses four", lambda: "is training on 4 system(s)" in str(job.refresh().status["conditions"]))
    until_step(job, job.status["progress"]["step"] + 20)
    user.millrace("scale", "changed", "--num_csx", 1)
    until("it has one", lambda: job.refresh().status.get("systems") == ["csx-0"])
    counts = {role["name"]: (role["ready"], role["desired"]) for role in job.status["roles"]}
    assert counts["cs2"] == counts["activation"] == (1, 1)
    assert user.millrace("attach", "changed").code == 0
    reference(500).assert_same(user, job)
    assert (job.status["restarts"], job.status["attempt"], job.spec["numCsx"]) == (0, 2, 1)
    reasons = [event.reason for event in job.events()]
    expected = ["Training", "Suspending", "Suspended", "Resized", "Resizing", "Succeeded"]
    assert [reason for reason in reasons if reason in expected] == [
        "Training",
        "Suspending",
        "Suspended",
        "Training",
        "Resized",
        "Resized",
        "Succeeded",
    ]


PHASES = """
trainer:
- trainer:
    init: &init
      model_dir: m
      model: &model {{name: gpt2, vocab_size: 256, hidden_size: 32, num_hidden_layers: 2, num_heads: 2,
        filter_size: 64, max_position_embeddings: 64}}
      optimizer: {{AdamW: {{}}}}
      schedulers: [ConstantLR: {{learning_rate: 0.001}}]
      loop: {{max_steps: 20}}
    fit:
      train_dataloader: &data {{data_processor: GptTextDataProcessor, data_files: text.txt, tokenizer: bytes,
        batch_size: 4, max_sequence_length: 16}}
- trainer:
    init: {{<<: *init, loop: {{max_steps: {last}}}}}
    fit:
      train_dataloader: {{<<: *data, data_files: other.txt, max_sequence_length: 64}}
"""


def test_phases_are_attempts_of_one_job(server: Server, tmp_path: Path) -> None:
    """Each phase of a job is an attempt on the same systems, with files of its own; an error names its phase."""
    user = server.user
    (tmp_path / "text.txt").write_text("Many are called. " * 100)
    (tmp_path / "other.txt").write_text("Few are chosen. " * 100)
    params = tmp_path / "phases.yaml"
    params.write_text(PHASES.format(last=30))
    user.millrace("train", "-p", params, "-n", "phased", "--num_csx", 2)
    job = user.appliance.job("phased")
    assert [point.step for point in job.metrics()] == list(range(1, 31))
    assert len(job.spec["laterPhases"]) == 1
    status = job.status
    assert (status["attempt"], status["restarts"], status["progress"]["step"]) == (2, 0, 30)
    assert status["completedPhases"] == {"count": 1, "attempt": 1}
    events = {event.reason: event for event in job.events()}
    assert events["Restarting"].message == "phase 1 of 2 is complete, and phase 2 begins"
    assert not [event for event in events.values() if event.type == "Warning"]

    # The last step of the command line is that of the whole job.
    user.millrace("train", "-p", params, "-n", "first", "--max_steps", 8)
    first = user.appliance.job("first")
    assert "laterPhases" not in first.spec and first.status["progress"]["step"] == 8

    params.write_text(PHASES.format(last=10))
    refused = user.millrace("train", "-p", params, "-n", "refused", code=2).err
    assert "is 10, but the phase before trains to step 20 already" in refused, refused


@pytest.mark.needs("local paths")
def test_job_reports_that_it_resumes_an_earlier_one_of_its_name(server: Server) -> None:
    """Before and after its start, a job names the checkpoint of an earlier job of its name from which it resumes."""
    user = server.user
    again = ("train", "-p", PARAMS, "-n", "again")
    user.millrace(*again, "--max_steps", 20)
    assert "a new job named again with the same model_dir resumes" in user.millrace("cancel", "again", "--yes").err
    expected = "the job resumes from checkpoint_20, which an earlier job has left in the same model_dir"
    assert expected in user.millrace(*again, "--max_steps", 30, "--validate_only").out
    assert expected in user.millrace(*again, "--max_steps", 30).err
    nowhere = ("--checkpoint_path", "nowhere/checkpoint_3", "--validate_only")
    assert "runconfig.checkpoint_path nowhere/checkpoint_3" in user.millrace(*again, *nowhere, code=2).error


@pytest.mark.needs("quick jobs")
def test_ctrl_c_stops_following_but_not_the_job(server: Server, reference: Callable[[int], Reference]) -> None:
    """An interrupted `millrace train` prints how to follow the job again, and `millrace attach` does so."""
    user = server.user
    command = user.begin("train", "-p", PARAMS, "-n", "kept", "--max_steps", 500, "--every", 0)
    command.wait_for_output("Step=50,")
    command.interrupt()
    done = command.end(5)
    assert done.code == 130
    assert "job kept continues; follow it again with: millrace attach kept" in done.err and "Traceback" not in done.err
    job = user.appliance.job("kept")
    # The status follows the journal, from which the client prints.
    until_state(job, "Training")
    attached = user.millrace("attach", "kept", "--every", 0)
    steps = [int(found) for found in re.findall("Step=(\\d+),", attached.out)]
    assert steps == list(range(1, 501)), "steps that were missed are printed, too"
    reference(500).assert_same(user, job)


@pytest.mark.needs("quick jobs")
def test_status_of_a_short_job_has_its_last_step(server: Server) -> None:
    """The status of a job of a few steps has its last step and loss."""
    user = server.user
    user.millrace("train", "-p", PARAMS, "-n", "short", "--max_steps", 10)
    progress = user.appliance.job("short").status.get("progress") or {}
    assert (progress.get("step"), progress.get("totalSteps")) == (10, 10)
    assert progress.get("loss") == user.curve(user.appliance.job("short"))[-1][1]


@pytest.mark.needs("local files")
def test_eval_all_evaluates_every_checkpoint(shared: Server, finished: Job, tmp_path: Path) -> None:
    """`eval_all` evaluates all checkpoints of a model_dir; the last loss is that of the job's status."""
    user, text = shared.user, PARAMS.read_text()
    data = text[text.index("train_input:") : text.index("model:")]
    params = tmp_path / "eval.yaml"
    params.write_text(f"{text}\n{data.replace('train_input', 'eval_input')}")
    written = finished.refresh().status["resolved"]["modelDir"]
    flags = ("--mode", "eval_all", "--checkpoint_path", written, "--eval_steps", 2)
    done = user.millrace("eval", "-p", params, "-n", "evaluated", *flags)
    found = re.findall(r"\| Eval Device=CSX, GlobalStep=(\d+), Loss=([\d.]+)", done.out)
    assert [step for step, _ in found] == ["100", "200"]
    progress = user.appliance.job("evaluated").status["progress"]
    assert (str(progress["step"]), f"{float(progress['loss']):.5f}") == found[-1]
