"""Follows a job from the command line: selects a reporter, and turns the job's end into an exit code."""

from __future__ import annotations

import sys

import click

from millrace import errors, state
from millrace.cli import base, render
from millrace.cli.exit_codes import Exit
from millrace.follow import continues_message, follow
from millrace.job import Job
from millrace.reporters import BarReporter, LineReporter, Reporter


def follow_to_end(job: Job, output: str, *, logs: bool, every: float) -> int:
    """Follows a job until it finishes or is suspended, and returns the exit code."""
    try:
        follow(job, _select_reporter(job, output, every), logs=logs)
    except (errors.Unreachable, errors.ApplianceError) as error:
        return base.print_error(error, continues_message(job))
    if output != "table":
        render.emit(output, job.document, str, job.name)
    return _ended(job)


def _select_reporter(job: Job, output: str, every: float) -> Reporter:
    """Selects the reporter. With an output format other than table, standard output is reserved for the
    result.
    """
    if sys.stderr.isatty() and (output != "table" or sys.stdout.isatty()):
        return BarReporter(job.name)
    return LineReporter(sys.stdout if output == "table" else sys.stderr, every)


def _ended(job: Job) -> int:
    if job.state == state.SUSPENDED:
        click.echo(f"hint: resume it with: millrace resume {job.name}", err=True)
        return Exit.FAILED
    if not job.is_finished:
        click.echo(
            f"error: the event stream of job {job.name} ended before the job: {job.summary}",
            err=True,
        )
        return Exit.FAILED
    try:
        job.check()
    except errors.JobFailed as error:
        return base.print_error(error, f"see the logs of its agents with: millrace logs {job.name}")
    if "checkpoint" in job.status:
        click.echo(f"hint: download its checkpoint with: millrace download {job.name}", err=True)
    return Exit.OK
