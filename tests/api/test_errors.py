"""Tests of users' mistakes: one error message, exit code 2, and no job is created."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from harness import PARAMS, CommandResult, Server, User, until_job, until_state
from millrace import Job, JobFailed


@dataclass(frozen=True)
class BadParamsCase:
    """A mistake in the params, as a text and its replacement, or in the flags."""

    name: str
    message: str
    """Part of the expected message."""
    text: str = ""
    instead: str = ""
    flags: tuple[object, ...] = field(default=())
    needs: str | None = None
    """The capability of the backend without which it is no mistake."""

    @property
    def parameter(self) -> ParameterSet:
        """The case as a parameter of pytest."""
        return pytest.param(self, id=self.name, marks=[pytest.mark.needs(self.needs)] if self.needs else [])


BAD_PARAMS_CASES = [
    BadParamsCase("an unknown key", "line 11: train_input.batch_sise is not a known key", "batch_size", "batch_sise"),
    BadParamsCase("a word for a number", "optimizer.learning_rate must be a finite number, not fast", "1e-3", "fast"),
    BadParamsCase("no systems", "spec.numCsx: 0 is less than the minimum", "num_csx: 1", "num_csx: 0"),
    BadParamsCase(
        "a bucket", "s3://runs/x is the address of a bucket", "checkpoint_steps: 100", "model_dir: s3://runs/x"
    ),
    BadParamsCase("no systems by flag", "0 is not in the range", flags=("--num_csx", 0)),
    BadParamsCase(
        "more systems than leaves", "more systems than the batch of train_input has leaves (4)", flags=("--num_csx", 5)
    ),
    BadParamsCase("heads that do not divide", "does not divide model.hidden_size 32", "num_heads: 2", "num_heads: 3"),
    BadParamsCase("no params at all", "model is missing", PARAMS.read_text(), "{}"),
    BadParamsCase("broken YAML", "this is not valid YAML", "model:", "model: ["),
    BadParamsCase("two documents", "a second document begins here", "model:", "---\nmodel:"),
    BadParamsCase(
        "a path of the server's",
        "/etc/passwd is in none of spec.mountDirs",
        "examples/data/kjv.txt",
        "/etc/passwd",
        needs="local paths",
    ),
    BadParamsCase("a path upwards", "leaves its directory by `..`", "examples/data", "../data", needs="local paths"),
    BadParamsCase(
        "a model_dir of the server's",
        "runconfig.model_dir",
        "runconfig:",
        "runconfig:\n    model_dir: /srv",
        needs="local paths",
    ),
    BadParamsCase(
        "a checkpoint of the server's",
        "is in none of spec.mountDirs",
        flags=("--checkpoint_path", "/srv/c"),
        needs="local paths",
    ),
    BadParamsCase("an unknown priority", "unknown PriorityClass: choose one of", flags=("--priority", "urgent")),
    BadParamsCase("a name that is none", "at most 63 lower-case letters", flags=("-n", "Not_A_Name")),
    BadParamsCase("a name that is taken", "job finished already exists in namespace {ns}", flags=("-n", "finished")),
    BadParamsCase("a label that is none", "a label's key is a name", flags=("--job_labels", "a b=c")),
    BadParamsCase("a file that is not there", "No such file or directory", flags=("-p", "nowhere.yaml")),
]


def params(home: Path, text: str, instead: str) -> Path:
    """Writes the params of the tests with a text replaced."""
    changed = home / "params.yaml"
    assert text in PARAMS.read_text()
    changed.write_text(PARAMS.read_text().replace(text, instead, 1))
    return changed


def names(user: User) -> list[str]:
    return [job.name for job in user.appliance.jobs()]


@pytest.mark.parametrize("case", [case.parameter for case in BAD_PARAMS_CASES])
def test_bad_input(shared: Server, finished: Job, tmp_path: Path, case: BadParamsCase) -> None:
    """Each mistake gets one message and exit code 2, and creates no job."""
    user = shared.user
    before = names(user)
    bad = params(tmp_path, case.text, case.instead)
    done = user.millrace("train", "-p", bad, "--detach", *case.flags, code=2)
    assert case.message.replace("{ns}", user.namespace) in done.error
    assert done.out == "" and names(user) == before


def test_unknown_key_has_a_suggestion(shared: Server, tmp_path: Path) -> None:
    """The message suggests the similar key, on submission as on validation."""
    bad = params(tmp_path, "batch_size", "batch_sise")
    for how in ("--detach", "--validate_only", "--compile_only"):
        assert "did you mean batch_size?" in shared.user.millrace("train", "-p", bad, how, code=2).err


def test_validation_and_plan_create_nothing(shared: Server) -> None:
    """--validate_only, --compile_only and `plan` create no job."""
    user = shared.user
    before = names(user)
    assert "is valid" in user.millrace("train", "-p", PARAMS, "--validate_only").out
    for words in (["train", "--compile_only"], ["plan"]):
        planned = user.millrace(*words, "-p", PARAMS, "--num_csx", 4, "-o", "json").json
        assert planned["fits"] and len(set(planned["systems"])) == 4
        assert planned["projected"]["seconds"] > 0
    assert names(user) == before


def test_too_large_model_is_planned_and_rejected(shared: Server, tmp_path: Path) -> None:
    """A plan returns that the model does not fit; a submission is rejected with the same message."""
    wide = params(tmp_path, "hidden_size: 32", "hidden_size: 50000")
    text = wide.read_text()
    for key in ("max_sequence_length", "max_position_embeddings"):
        text = text.replace(f"{key}: 64", f"{key}: 65536")
    # One sample exceeds the wafer. Weights never do, because they are streamed.
    large = tmp_path / "large.yaml"
    large.write_text(text)
    planned = shared.user.millrace("plan", "-p", large, "-o", "json", code=1).json
    assert (planned["fits"], planned["reason"]) == (False, "ExceedsAppliance")
    assert "choose a smaller hidden_size" in planned["message"]
    assert planned["message"] in shared.user.millrace("train", "-p", large, code=2).error


@dataclass(frozen=True)
class Failure:
    """A job that failed at once, and how long its follower ran after that."""

    job: Job
    seen: CommandResult
    kept_seconds: float


@pytest.fixture(scope="module")
def failure(shared: Server, tmp_path_factory: pytest.TempPathFactory) -> Failure:
    path = "examples/nowhere/checkpoint_3"
    bad = params(tmp_path_factory.mktemp("failure"), "num_csx: 1", f"num_csx: 1\n    checkpoint_path: {path}")
    command = shared.user.begin("train", "-p", bad, "-n", "no-checkpoint")
    job = until_job(shared.user, "no-checkpoint")
    until_state(job, "BadParams")
    failed = time.monotonic()
    return Failure(job, command.end(), time.monotonic() - failed)


def test_missing_checkpoint_fails_the_job(failure: Failure) -> None:
    """The checkpoint may appear while the job waits, so only the run itself can fail, with a message that names it."""
    assert failure.seen.code == 1
    assert "no-checkpoint ended as BadParams" in failure.seen.error
    assert "examples/nowhere/checkpoint_3" in failure.seen.error
    job = failure.job.refresh()
    assert (job.state, job.status["restarts"]) == ("BadParams", 0), "another try would fail the same way"


@pytest.mark.needs("quick jobs")
def test_non_finite_loss_is_not_retried(shared: Server, tmp_path: Path) -> None:
    """The next attempt would compute the same bits, so there is none."""
    diverging = params(tmp_path, "learning_rate: 1e-3", "learning_rate: 1e30")
    done = shared.user.millrace("train", "-p", diverging, "-n", "diverging", code=1)
    assert "diverging ended as NonFiniteLoss: the loss of step 2 is not finite" in done.error
    job = shared.user.appliance.job("diverging")
    assert (job.status["restarts"], job.status["attempt"]) == (0, 1)


@pytest.mark.needs("quick jobs")
def test_loss_spike_ends_the_job(shared: Server) -> None:
    """A job with a bound on jumps ends at the first one. The message names step and layer."""
    spike = {"factor": 1.01, "windowSteps": 2}
    spec = {"failurePolicy": {"lossSpike": spike}}
    job = shared.user.appliance.train(PARAMS, name="spiking", num_csx=1, max_steps=50, spec=spec)
    with pytest.raises(JobFailed, match="ended as LossSpike"):
        job.wait(60)
    message = r"the gradient norm of step \d+ is [\d.]+, more than 1.01 times .*; the largest gradient is that of .*"
    assert re.search(message, job.summary), job.summary
    assert job.status["restarts"] == 0


def test_follow_returns_at_once_for_a_failed_job(failure: Failure) -> None:
    """Following ends within 5 s after the failure."""
    assert failure.kept_seconds < 5


def test_finished_job_cannot_be_changed(shared: Server, finished: Job) -> None:
    """Suspending, resuming and scaling a finished job is an error."""
    for command in ("suspend", "resume", "scale --num_csx 2"):
        done = shared.user.millrace(*command.split(), finished.name, code=2)
        assert f"job {finished.name} has finished (Succeeded)" in done.error, command


def test_commands_report_a_missing_job(shared: Server, finished: Job) -> None:
    """Every command that names a job reports that it, or its UID, does not exist."""
    user = shared.user
    for command in ("get job", "attach", "logs -f", "suspend", "scale --num_csx 2", "cancel --yes", "download"):
        done = user.millrace(*command.split(), "nobody", code=2)
        assert f"job nobody not found in namespace {user.namespace}" in done.error, command
    assert "with uid 0 not found" in user.millrace("get", "job", finished.name, "--uid", "0", code=2).error
