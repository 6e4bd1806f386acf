"""Tests of servers that are killed or stopped while a job runs."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from harness import CommandResult, ProcessServer, Reference, User, serving, until_step
from millrace import Job

pytestmark = pytest.mark.needs("kill")

STEPS = 500


@dataclass(frozen=True)
class RestartedJob:
    """A job whose server was killed and restarted, and the output of a follower."""

    user: User
    job: Job
    seen: CommandResult


@pytest.fixture(scope="module")
def survivor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestartedJob]:
    with serving(tmp_path_factory.mktemp("survivor")) as serve:
        server = serve()
        assert isinstance(server, ProcessServer)
        user = server.user
        command, job = user.watch("survivor", STEPS, 150, "--num_csx", 2)
        assert len(server.processes()) > 5, "a server, and a process for each role"
        server.kill()
        server.until_alone(5)
        server.start()
        yield RestartedJob(user, job, command.end())


def test_job_resumes_after_a_kill(survivor: RestartedJob, reference: Callable[[int], Reference]) -> None:
    """A killed server leaves no agent behind. After its restart the job resumes from the last checkpoint, with the same
    bits, and no restart is counted.
    """
    reference(STEPS).assert_same(survivor.user, survivor.job)
    assert (survivor.job.status["attempt"], survivor.job.status["restarts"]) == (2, 0)


def test_second_server_on_the_same_data_is_rejected(shared: ProcessServer, tmp_path: Path) -> None:
    """A second server on the same data or the same database is rejected, and the first continues."""
    twin = shared.twin()
    assert twin.returncode == 1 and "another server uses the directory" in twin.stderr
    elsewhere = shared.twin(tmp_path)
    assert elsewhere.returncode == 1 and f"have their files in {shared.data}, not in {tmp_path}" in elsewhere.stderr
    assert shared.user.appliance.whoami().name == "local"


def test_follower_reconnects_after_a_kill(survivor: RestartedJob, reference: Callable[[int], Reference]) -> None:
    """The follower reconnects and prints every point of the final curve."""
    seen = survivor.seen
    assert seen.code == 0, seen.err
    assert "retrying" in seen.err and f"Succeeded: step {STEPS} of {STEPS}" in seen.err, seen.err
    # Steps after the last checkpoint were computed twice; the last output is the final curve.
    printed = {int(step): loss for step, loss in re.findall(r"Step=(\d+), Loss=([\d.]+)", seen.out)}
    assert printed == {step: f"{float(loss):.5f}" for step, loss in reference(STEPS).curve}


def test_repeated_steps_are_in_the_curve_once(
    survivor: RestartedJob, reference: Callable[[int], Reference]
) -> None:
    """The curve has each step once, of the newest attempt, also when read in pages."""
    assert survivor.user.curve(survivor.job, limit=50) == reference(STEPS).curve


def test_killed_agents_are_replaced(server: ProcessServer, reference: Callable[[int], Reference]) -> None:
    """The server replaces agents of any role, without another attempt and with the same bits."""
    # The coordinator is killed shortly before the end: its last steps are reported by files only.
    killed = {"cs2-1": 60, "swarmx-0": 120, "activation-0": 180, "memoryx-0": 240, "coordinator-0": 400}
    job = server.user.submit("struck", STEPS, "--num_csx", 2)
    for agent, step in killed.items():
        until_step(job, step)
        os.kill(server.agents()[agent], signal.SIGKILL)
    assert job.wait(120) == "Succeeded"
    assert (job.status["attempt"], job.status["restarts"]) == (1, 0)
    reference(STEPS).assert_same(server.user, job)
    steps = [point["step"] for point in server.user.pages(job, "metrics", mode="train")]
    assert steps == list(range(1, STEPS + 1)), "each step is reported once"
    for agent in killed:
        assert f"{agent} was killed (signal 9); a new {agent} is started" in server.log


def test_graceful_shutdown(server: ProcessServer, reference: Callable[[int], Reference]) -> None:
    """A stopped server first saves the state of its jobs, which lose no step."""
    user = server.user
    job = user.submit("saved", STEPS, "--num_csx", 2)
    reached = until_step(job, 130)
    assert server.stop() < 15
    server.until_alone(1)

    server.start()
    (saved,) = [found.step for found in job.checkpoints() if found.step % 100]
    assert reached <= saved < STEPS
    assert job.wait(60) == "Succeeded"
    reference(STEPS).assert_same(user, job)
    assert (job.status["attempt"], job.status["restarts"]) == (2, 0)
    # Each step was computed once, by one of the two attempts.
    attempts = [(point["attempt"], point["step"]) for point in user.pages(job, "metrics", mode="train")]
    assert attempts == [(1 if step <= saved else 2, step) for step in range(1, STEPS + 1)]
