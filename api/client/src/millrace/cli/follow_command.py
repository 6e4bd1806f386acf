"""Following a job from the command line: which screen, and what its end means to a script."""

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
    """Follow a job until it ends; the exit code tells how."""
    try:
        follow(job, _select_reporter(job, output, every), logs=logs)
    except (errors.Unreachable, errors.ApplianceError) as error:
        return base.print_error(error, continues_message(job))
    if output != "table":
        render.emit(output, job.document, str, job.name)
    return _ended(job)


def _select_reporter(job: Job, output: str, every: float) -> Reporter:
    """Results of another form than the table have standard output for themselves."""
    if sys.stderr.isatty() and (output != "table" or sys.stdout.isatty()):
        return BarReporter(job.name)
    return LineReporter(sys.stdout if output == "table" else sys.stderr, every)


def _ended(job: Job) -> int:
    if job.state == state.SUSPENDED:
        click.echo(f"hint: millrace resume {job.name} has it go on", err=True)
        return Exit.FAILED
    if not job.is_finished:
        click.echo(
            f"error: The appliance has no more to tell of {job.name}, which is not over: {job.summary}",
            err=True,
        )
        return Exit.FAILED
    try:
        job.check()
    except errors.JobFailed as error:
        return base.print_error(error, f"millrace logs {job.name} has everything its agents said")
    if "checkpoint" in job.status:
        click.echo(f"hint: millrace download {job.name} fetches its checkpoint", err=True)
    return Exit.OK
