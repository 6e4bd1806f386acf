"""The commands get, attach, logs, events and metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from millrace import state, units
from millrace.cli import base, render
from millrace.cli.base import Settings

if TYPE_CHECKING:
    from datetime import datetime

    from millrace.job import Job
    from millrace.metrics import MetricPoint
    from millrace.records import Document

_ROLE = click.Choice(["coordinator", "memoryx", "swarmx", "activation", "cs2"], case_sensitive=False)
_MODE = click.Choice(["all", "train", "eval"])


class _State(click.Choice[str]):
    """The choice of a state, ignoring case."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """Returns an error message with all states in their spelling."""
        return f"unknown state {value!r}: choose from {', '.join(self.choices)}"


_FOLLOW = click.option("-f", "--follow", is_flag=True, help="Wait for new items until the job finishes.")


@click.group(cls=base.Group)
def get() -> None:
    """Shows jobs, a job and its files, the cluster or its volumes."""


@get.command("jobs")
@click.option("-A", "--all_namespaces", is_flag=True, help="List jobs of all namespaces that you can read.")
@click.option(
    "--state",
    type=_State(state.NAMES, case_sensitive=False),
    metavar="STATE",
    help="Only jobs in this state, such as Training; Failed stands for all failures.",
)
@click.option("--mine", "submitted_by", flag_value="", default=None, help="Only your own jobs.")
@click.option("--submitted_by", metavar="USER", help="Only jobs of this user.")
@click.option("--finished/--unfinished", default=None, help="Only finished, or only unfinished jobs.")
@click.option(
    "--deleted",
    is_flag=True,
    help="Include deleted jobs, whose history is still stored; see one with --uid.",
)
@click.option(
    "--limit", type=click.IntRange(1), default=50, show_default=True, help="Maximum number of jobs."
)
@base.output_option()
@base.pass_settings
def get_jobs(settings: Settings, /, limit: int, output: str, all_namespaces: bool, **query: Any) -> None:
    """Lists jobs, newest first."""
    with settings.appliance() as appliance:
        if query["submitted_by"] == "":
            query["submitted_by"] = appliance.whoami().name
        found = list(islice(appliance.jobs(all_namespaces=all_namespaces, **query), limit + 1))
    jobs = found[:limit]
    names = "\n".join(job.name for job in jobs)
    render.emit(
        output,
        {"items": [job.document for job in jobs]},
        lambda: _jobs_table(jobs, all_namespaces, query["deleted"]),
        names,
    )
    if not jobs:
        click.echo("no jobs found", err=True)
    elif len(found) > limit:
        click.echo(f"more jobs exist: use a higher limit, such as --limit {limit * 10}", err=True)


@get.command("job")
@base.job_argument
@base.output_option()
@base.pass_settings
def get_job(settings: Settings, name: str, uid: str | None, output: str) -> None:
    """Shows the state of a job, and why it is waiting or has failed."""
    with settings.appliance() as appliance:
        job = appliance.job(name, uid)
    render.emit(output, job.document, lambda: _job_fields(job), job.name)


@get.command("checkpoints")
@base.job_argument
@base.output_option()
@base.pass_settings
def get_checkpoints(settings: Settings, name: str, uid: str | None, output: str) -> None:
    """Lists the checkpoints of a job, oldest first."""
    with settings.appliance() as appliance:
        found = appliance.job(name, uid).checkpoints()
    rows = [(each.step, units.size(each.bytes), _time(each.time), each.digest) for each in found]
    _emit_list(output, [each.document for each in found], ("STEP", "SIZE", "TIME", "DIGEST"), rows)


@get.command("evaluations")
@base.job_argument
@base.output_option("table", "json", "yaml", "csv")
@base.pass_settings
def get_evaluations(settings: Settings, name: str, uid: str | None, output: str) -> None:
    """Lists the evaluations of a job: step, loss and further results."""
    with settings.appliance() as appliance:
        points = appliance.job(name, uid).metrics("eval")
    if output == "csv":
        render.csv_table([point.as_dict() for point in points])
        return
    keys = list({key: None for point in points for key in point.metrics})
    headers = ("STEP", "LOSS", *(key.removeprefix("eval/").upper() for key in keys), "TIME")
    rows = [
        (
            point.step,
            f"{point.loss:.7g}",
            *(f"{point.metrics[key]:.5g}" if key in point.metrics else None for key in keys),
            _time(point.time),
        )
        for point in points
    ]
    _emit_list(output, [_plain(point) for point in points], headers, rows)
    if not points:
        click.echo("no evaluations yet", err=True)


@get.command("artifacts")
@base.job_argument
@base.output_option()
@base.pass_settings
def get_artifacts(settings: Settings, name: str, uid: str | None, output: str) -> None:
    """Lists the other files of a job: metrics, logs, TensorBoard events."""
    with settings.appliance() as appliance:
        found = appliance.job(name, uid).artifacts()
    rows = [(each.path, units.size(each.bytes), _time(each.time)) for each in found]
    _emit_list(output, [each.document for each in found], ("PATH", "SIZE", "TIME"), rows)


@get.command("cluster")
@click.option(
    "--appliance", "name", metavar="NAME", help="Name of the Appliance resource, if there are several."
)
@base.output_option("table", "json", "yaml")
@base.pass_settings
def get_cluster(settings: Settings, name: str | None, output: str) -> None:
    """Shows the systems, the running jobs and the queue."""
    with settings.appliance() as appliance:
        cluster = appliance.cluster(name)
    render.emit(output, cluster, lambda: _cluster_table(cluster))


@get.command("volumes")
@base.output_option()
@base.pass_settings
def get_volumes(settings: Settings, output: str) -> None:
    """Lists the volumes that --mount_dirs can name."""
    with settings.appliance() as appliance:
        volumes = appliance.volumes()
    rows = [(volume.name, volume.message) for volume in volumes]
    if volumes or output != "table":
        _emit_list(output, [vars(volume) for volume in volumes], ("NAME", "MESSAGE"), rows)
    if not volumes:
        click.echo("no volumes found: the appliance offers none to this namespace", err=True)


@click.command(cls=base.Command)
@base.job_argument
@click.option("--logs", is_flag=True, help="Also show the log lines of all agents.")
@click.option(
    "--every", type=click.FloatRange(0), default=10.0, show_default=True, metavar="SECONDS", hidden=True
)
@base.output_option()
@base.pass_settings
def attach(settings: Settings, name: str, uid: str | None, output: str, logs: bool, every: float) -> int:
    """Follows a job to its end."""
    from millrace.cli import follow_command

    with settings.appliance() as appliance:
        return follow_command.follow_to_end(appliance.job(name, uid), output, logs=logs, every=every)


@click.command(cls=base.Command)
@base.job_argument
@_FOLLOW
@click.option(
    "--role",
    type=_ROLE,
    metavar="ROLE",
    help="Only lines of this role: coordinator, memoryx, swarmx, activation or cs2.",
)
@click.option("--agent", metavar="AGENT", help="Only lines of this agent, such as cs2-0.")
@click.option("--attempt", type=click.IntRange(1), metavar="N", help="Only lines of this attempt.")
@click.option("--level", metavar="LEVEL", help="Only lines of this level or above, such as WARNING.")
@base.output_option("table", "json", "yaml")
@base.pass_settings
def logs(settings: Settings, /, name: str, uid: str | None, follow: bool, output: str, **query: Any) -> None:
    """Prints the log lines of a job's agents."""
    with settings.appliance() as appliance:
        job = appliance.job(name, uid)
        lines = job.logs(follow, **query)
        _stream(job, ((line.raw, str(line)) for line in lines), output, live=follow)


@click.command(cls=base.Command)
@base.job_argument
@_FOLLOW
@base.output_option("table", "json", "yaml")
@base.pass_settings
def events(settings: Settings, name: str, uid: str | None, follow: bool, output: str) -> None:
    """Prints the events of a job."""
    from millrace import times

    with settings.appliance() as appliance:
        job = appliance.job(name, uid)
        found = job.events(follow)
        shown = (
            (
                each.raw,
                f"{times.local(each.raw.get('time'))}   {each.type:<7}   {each.reason:<16}   {each.message}",
            )
            for each in found
        )
        _stream(job, shown, output, live=follow)


@click.command(cls=base.Command)
@base.job_argument
@_FOLLOW
@click.option(
    "--mode",
    type=_MODE,
    default="all",
    show_default=True,
    help="Points of training, of evaluations, or both.",
)
@click.option(
    "--max_points", type=click.IntRange(2), metavar="N", help="Maximum number of points, evenly thinned."
)
@base.output_option("table", "json", "yaml", "csv")
@base.pass_settings
def metrics(
    settings: Settings,
    name: str,
    uid: str | None,
    follow: bool,
    mode: Any,
    max_points: int | None,
    output: str,
) -> None:
    """Prints the points of a job's loss curve, including evaluations.

    With -f and -o csv, the columns are those of training, or of evaluations with --mode eval.
    """
    if mode == "all":
        mode = "train" if follow and output == "csv" else None
    with settings.appliance() as appliance:
        job = appliance.job(name, uid)
        points: Iterable[MetricPoint] = job.stream_metrics(mode) if follow else _points(job, mode, max_points)
        if output == "csv" and follow:
            render.csv_lines(point.as_dict() for point in points)
        elif output == "csv":
            render.csv_table([point.as_dict() for point in points])
        else:
            _stream(job, _metric_lines(points, thinned=max_points is not None), output, live=follow)


COMMANDS = (get, attach, logs, events, metrics)


def _stream(job: Job, items: Iterable[tuple[Any, str]], output: str, *, live: bool) -> None:
    """Prints results as lines, as they arrive, for tables and live streams; otherwise as one document."""
    if output != "table" and not live:
        render.emit(output, [value for value, _ in items if value is not None], str)
        return
    from millrace.follow import continues_message

    with base.interrupt_message(continues_message(job) if live else None):
        for value, text in items:
            if value is not None or output == "table":
                render.emit_line(output, value, text)


def _points(job: Job, mode: Any, max_points: int | None) -> Iterable[MetricPoint]:
    """Returns the points so far. If both modes are requested, only those of training are thinned."""
    if mode is not None or max_points is None:
        return job.metrics(mode, max_points=max_points)
    both = [*job.metrics("train", max_points=max_points), *job.metrics("eval")]
    return sorted(both, key=lambda point: (point.attempt or 0, point.step, point.mode == "eval"))


def _metric_lines(points: Iterable[MetricPoint], *, thinned: bool) -> Iterator[tuple[Any, str]]:
    """Yields rows, and for tables also the header and a line at the beginning of each attempt."""
    yield None, f"{'STEP':>8}  {'LOSS':>12}  {'LEARNING RATE':>13}  {'GRAD NORM':>10}  {'SAMPLES/S':>9}"
    attempt: int | None = None
    for point in points:
        if attempt not in (None, point.attempt):
            # The first thinned point of an attempt is not its first step.
            where = "" if thinned else f" begins with step {point.step}"
            yield None, f"attempt {point.attempt}{where}"
        attempt = point.attempt
        numbers = (
            f"{point.step:>8}  {point.loss:>12.7g}  {_number(point.learning_rate, 13)}  "
            f"{_number(point.grad_norm, 10)}  {_number(point.rate, 9)}"
        )
        further = "".join(f"  {key}={value:.5g}" for key, value in point.metrics.items())
        mark = "" if point.mode == "train" else f"  {point.mode}:"
        yield _plain(point), (numbers + mark + further).rstrip()


def _plain(point: MetricPoint) -> Document:
    """Returns a point as JSON, without missing values and with NaN as null."""
    row = point.as_dict()
    row["time"] = point.time.isoformat() if point.time else None
    row = {key: None if value != value else value for key, value in row.items()}
    return {key: value for key, value in row.items() if value is not None or key == "loss"}


def _number(value: float | None, width: int) -> str:
    return f"{'-':>{width}}" if value is None else f"{value:>{width}.5g}"


def _emit_list(
    output: str, items: list[Document], headers: Sequence[str], rows: Sequence[Sequence[object]]
) -> None:
    """Prints a short list at once. The first column of a row is its name."""
    names = "\n".join(str(row[0]) for row in rows)
    render.emit(output, {"items": items}, lambda: render.table(headers, rows), names)


def _time(time: datetime | None) -> str:
    from millrace import times

    return times.local(times.format_rfc3339(time))


def _jobs_table(jobs: list[Job], namespaces: bool, uids: bool) -> str:
    from millrace import times

    headers = [
        "NAME",
        "STATE",
        "STEP",
        "OF",
        "LOSS",
        "RATE",
        "CSX",
        "RESTARTS",
        "AGE",
        *(["UID"] if uids else []),
    ]
    rows = []
    for job in jobs:
        progress = job.status.get("progress") or {}
        seconds = times.seconds_since(job.document.get("metadata", {}).get("creationTimestamp"))
        row = [
            job.name,
            job.state,
            *(progress.get(key) for key in ("step", "totalSteps", "loss", "rate")),
            job.status.get("displayedCsx") or job.spec.get("numCsx"),
            job.status.get("restarts", 0),
            None if seconds is None else times.age(seconds),
            *([job.uid] if uids else []),
        ]
        rows.append([job.namespace, *row] if namespaces else row)
    return render.table(["NAMESPACE", *headers] if namespaces else headers, rows) if rows else ""


def _job_fields(job: Job) -> str:
    from millrace import times

    status = job.status
    progress, failure = status.get("progress") or {}, status.get("failure") or {}
    checkpoint, resolved = status.get("checkpoint") or {}, status.get("resolved") or {}
    submitted = times.local(job.document.get("metadata", {}).get("creationTimestamp"))
    works = job.state in ("Starting", *state.RUNNING)
    end = times.parse_rfc3339(progress.get("estimatedFinishTime")) if works else None
    shown = render.fields(
        {
            "Name": job.name,
            "Namespace": job.namespace,
            "Uid": job.uid,
            "State": job.summary,
            "Deletion": state.deletion(job.document),
            "Status as of": state.stale_message(job.document),
            "Next attempt": state.next_attempt(job.document),
            "Submitted": f"{submitted} by {job.submitted_by}" if job.submitted_by else submitted,
            "Started": times.local(status["startTime"]) if status.get("startTime") else None,
            "Finished": times.local(status["finishTime"]) if status.get("finishTime") else None,
            "Expected end": end.astimezone().strftime("%Y-%m-%d %H:%M:%S") if end else None,
            "Systems": ", ".join(status.get("systems") or ()) or f"{job.spec.get('numCsx', '-')} requested",
            "Rate": f"{progress['rate']} samples/s" if progress.get("rate") else None,
            "Attempt": status.get("attempt"),
            "Restarts": status.get("restarts"),
            "Checkpoint": f"step {checkpoint.get('step')}, {checkpoint.get('digest')}"
            if checkpoint
            else None,
            "Model dir": resolved.get("modelDir"),
            "Last failure": failure.get("message"),
        }
    )
    notes = [f"  {note}" for note in resolved.get("notes") or ()]
    tail = [f"  {line}" for line in failure.get("logTail") or ()]
    return "\n".join(
        [shown, *(["Notes:", *notes] if notes else []), *(["Last log lines:", *tail] if tail else [])]
    )


def _cluster_table(cluster: Document) -> str:
    from millrace import times

    jobs, queue = cluster.get("jobs") or [], cluster.get("queue") or []
    total = ((cluster.get("status") or {}).get("capacity") or {}).get("systems")
    used = sum(len(job.get("systems") or ()) for job in jobs)
    parts = [f"{cluster.get('name')}: {used}{f' of {total}' if total is not None else ''} systems in use"]
    if jobs:
        rows = []
        for job in jobs:
            seconds = times.seconds_since(job.get("since"))
            systems = ",".join(job.get("systems") or ())
            age = None if seconds is None else times.age(seconds)
            rows.append((job.get("namespace"), job.get("name"), job.get("state"), systems, age))
        parts.append(render.table(("NAMESPACE", "JOB", "STATE", "SYSTEMS", "SINCE"), rows))
    if queue:
        waiting = [
            (
                each.get("position"),
                each.get("namespace"),
                each.get("name"),
                _systems(each),
                each.get("message"),
            )
            for each in queue
        ]
        parts.append(render.table(("POSITION", "NAMESPACE", "JOB", "SYSTEMS", "MESSAGE"), waiting))
    return "\n\n".join(parts)


def _systems(waiting: Document) -> object:
    """Returns the number of systems that a queued job requests."""
    asked = waiting.get("systems")
    return len(asked) if isinstance(asked, list) else asked
