"""Tests of the queue, on an appliance of two systems with one job that uses both."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from harness import PARAMS, Serve, User, serving, until, until_state, until_step
from millrace import Job, times

pytestmark = pytest.mark.needs("own appliance")


def crowd(serve: Serve, home: Path) -> tuple[User, Job, Job]:
    """Returns a user, the job that has all systems, and one that requests more than exist."""
    spec = home / "appliance.yaml"
    spec.write_text("systems: 2\n")
    user = serve("--appliance", spec).user
    first = user.submit("first", 5000, "--num_csx", 2)
    too_large = user.submit("too-large", 200, "--num_csx", 3)
    until_step(first, 20)
    return user, first, too_large


def test_next_job_in_queue_starts(serve: Serve, tmp_path: Path) -> None:
    """A job queues behind the running one, not behind one that can never run; it starts when the first is cancelled."""
    user, _, too_large = crowd(serve, tmp_path)
    second = user.submit("second", 200, "--num_csx", 2)
    place = until("its position is reported", lambda: second.refresh().status.get("queue"))
    assert (second.state, place["position"], place["reason"]) == ("Queued", 1, "Waiting")
    following = user.begin("attach", "second")
    following.wait_for_output("Queued: .*; position 1")
    third = user.submit("third", 200)
    place = until("its position is reported", lambda: third.refresh().status.get("queue"))
    assert place["position"] == 2
    assert [job["name"] for job in user.appliance.cluster()["queue"]] == ["second", "third", "too-large"]

    following_first = user.begin("attach", "first")
    following_first.wait_for_output("Training: ")
    user.millrace("cancel", "third", "--yes")
    user.millrace("cancel", "first", "--yes")
    assert following.end().code == 0
    assert second.refresh().state == "Succeeded" and too_large.refresh().state == "Queued"
    until("all systems are free", lambda: not user.appliance.cluster()["jobs"], 15)
    # A follower of a job that another user cancels exits with 1.
    done = following_first.end()
    assert done.code == 1 and "Cancelled" in done.err
    assert {job.name for job in user.appliance.jobs()} == {"second", "too-large"}


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[User, Job, Job]]:
    home = tmp_path_factory.mktemp("crowded")
    with serving(home) as serve:
        yield crowd(serve, home)


def test_too_large_job_has_a_reason(crowded: tuple[User, Job, Job]) -> None:
    """A job that requests more systems than exist has a reason and no position."""
    user, _, too_large = crowded
    until_state(too_large, "Queued")
    queue = until("the reason is reported", lambda: too_large.refresh().status.get("queue"))
    assert queue["reason"] == "ExceedsAppliance" and "position" not in queue
    assert "3 systems" in queue["message"] and "2" in queue["message"]
    planned = user.millrace("plan", "-p", PARAMS, "--num_csx", 3, "-o", "json", code=1).json
    assert (planned["fits"], planned["reason"], planned["systems"]) == (False, "ExceedsAppliance", [])


def test_plan_estimates_the_start(crowded: tuple[User, Job, Job]) -> None:
    """A planned job would start when the running one is expected to end. Nothing is created."""
    user, first, _ = crowded

    def expected_end() -> datetime | None:
        return times.parse_rfc3339(first.refresh().status.get("progress", {}).get("estimatedFinishTime"))

    def plan_between_estimates() -> dict[str, Any] | None:
        """A plan whose start lies between the ends expected before and after it: each step changes the estimate."""
        before = expected_end()
        planned: dict[str, Any] = user.millrace("plan", "-p", PARAMS, "-o", "json").json
        start, after = times.parse_rfc3339(planned["estimatedStart"]), expected_end()
        if not (before and start and after):
            return None
        rounding = timedelta(seconds=1)
        is_between = min(before, after) - rounding <= start <= max(before, after) + rounding
        return planned if is_between else None

    planned = until("a plan begins at the expected end of the running job", plan_between_estimates)
    assert (planned["fits"], planned["systems"]) == (True, [])
    assert {job.name for job in user.appliance.jobs()} == {"first", "too-large"}
    assert "Start:" in user.millrace("plan", "-p", PARAMS).out


def test_plan_has_the_queue_position(crowded: tuple[User, Job, Job]) -> None:
    """The plan has the position in the queue, and the client prints it."""
    user, _, _ = crowded
    assert user.appliance.plan(PARAMS).queue_position == 1
    assert "position 1" in user.millrace("plan", "-p", PARAMS).out


def test_cluster_shows_systems_and_queue(crowded: tuple[User, Job, Job]) -> None:
    """`get cluster` shows the job that has the systems, and the queue with positions."""
    user, first, _ = crowded
    cluster = user.millrace("get", "cluster", "-o", "json").json
    assert [(job["name"], job["uid"], job["systems"]) for job in cluster["jobs"]] == [
        ("first", first.uid, ["csx-0", "csx-1"])
    ]
    assert [(job["name"], job["position"], job["systems"]) for job in cluster["queue"]] == [("too-large", None, 3)]
    table = user.millrace("get", "cluster").out
    assert "2 of 2 systems in use" in table and "first" in table and "too-large" in table


def test_cluster_shows_states_of_jobs(crowded: tuple[User, Job, Job]) -> None:
    """Each running job is listed with its state."""
    user, _, _ = crowded
    assert [job.get("state") for job in user.appliance.cluster()["jobs"]] == ["Training"]
