"""The commands suspend, resume, scale, cancel and download."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from millrace import state
from millrace.cli import base, render
from millrace.cli.base import Settings
from millrace.cli.exit_codes import Exit

if TYPE_CHECKING:
    from millrace.job import Job


@click.command(cls=base.Command)
@base.job_argument
@base.output_option()
@base.pass_settings
def suspend(settings: Settings, name: str, uid: str | None, output: str) -> None:
    """Suspends a job: it saves its state and releases its systems."""
    with settings.appliance() as appliance:
        _print_result(
            appliance.job(name, uid).suspend(),
            output,
            "is suspending: it saves its state and releases its systems",
        )


@click.command(cls=base.Command)
@base.job_argument
@base.output_option()
@base.pass_settings
def resume(settings: Settings, name: str, uid: str | None, output: str) -> None:
    """Resumes a suspended job from its last checkpoint."""
    with settings.appliance() as appliance:
        job = appliance.job(name, uid)
        if job.spec.get("suspend") or job.is_finished:
            _print_result(job.resume(), output, "resumes when systems are available")
        else:
            _print_result(job, output, "is not suspended")


@click.command(cls=base.Command)
@base.job_argument
@click.option("--num_csx", type=click.IntRange(1), required=True, metavar="N", help="Number of systems.")
@base.output_option()
@base.pass_settings
def scale(settings: Settings, name: str, uid: str | None, num_csx: int, output: str) -> None:
    """Changes the number of systems of a job. It resumes at the same step; its result has the same bits."""
    with settings.appliance() as appliance:
        job = appliance.job(name, uid).scale(num_csx)
        systems = f"{num_csx} system{'s' if num_csx > 1 else ''}"
        what = f"continues with {systems}"
        if job.spec.get("suspend") and not job.is_finished:
            what = f"is suspended and will have {systems} when it is resumed with: millrace resume {job.name}"
        _print_result(job, output, what)


@click.command(cls=base.Command)
@base.job_argument
@click.option("-y", "--yes", is_flag=True, help="Don't ask for confirmation.")
@base.output_option()
@base.pass_settings
def cancel(settings: Settings, name: str, uid: str | None, yes: bool, output: str) -> int:
    """Cancels and deletes a job. Its files stay, and a later job of this name resumes from its checkpoints.

    Its history stays until the appliance's retention deletes it.
    """
    with settings.appliance() as appliance:
        job = appliance.job(name, uid)
        if not yes:
            if not sys.stdin.isatty():
                raise click.UsageError(f"no terminal to confirm the cancellation of {name}: use --yes")
            if not click.confirm(f"Cancel {name} ({job.summary})?", err=True):
                return Exit.FAILED
        had_finished = job.is_finished
        job.cancel()
        if had_finished or job.state not in (state.DELETING, state.CANCELLED):
            what = f"had already finished ({job.state}) and is deleted; see `millrace get jobs --deleted`"
        elif job.state == state.DELETING:
            what = "is being deleted: its agents save its state and end"
        else:
            what = "is cancelled"
        _print_result(job, output, what)
        if output == "table" and job.status.get("attempt") and not _only_evaluates(job):
            click.echo(
                f"note: its files stay on the appliance: a new job named {job.name} with the same model_dir "
                f"resumes from its newest checkpoint; to train from the beginning, choose another name",
                err=True,
            )
    return Exit.OK


@click.command(cls=base.Command)
@base.job_argument
@click.option(
    "--step", type=click.IntRange(0), metavar="N", help="Step of the checkpoint. Default: the newest."
)
@click.option(
    "--to",
    type=click.Path(),
    metavar="DIR",
    help="Directory to create. Default: NAME-checkpoint_STEP or NAME-artifacts.",
)
@click.option(
    "--format",
    type=click.Choice(["native", "hf"]),
    help="Format of the checkpoint: that of the appliance (default), or that of `transformers`.",
)
@click.option(
    "--artifacts",
    multiple=True,
    metavar="PATTERN",
    help="Download files that match instead of a checkpoint: metrics.jsonl, 'logs/*', '*'. Repeatable.",
)
@base.output_option("table", "json", "yaml", "name")
@base.pass_settings
def download(
    settings: Settings,
    name: str,
    uid: str | None,
    step: int | None,
    to: str | None,
    format: Any,
    artifacts: tuple[str, ...],
    output: str,
) -> None:
    """Downloads a checkpoint and prints its directory. An interrupted download resumes when repeated."""
    if artifacts and (step is not None or format is not None):
        raise click.UsageError("--artifacts can't be combined with --step or --format")
    with settings.appliance() as appliance:
        job = appliance.job(name, uid)
        if artifacts:
            format, path = "artifacts", job.download_artifacts(*artifacts, to=to)
        else:
            format = format or "native"
            with base.interrupt_message("interrupted: repeat the command to resume the download"):
                path = job.download(step, to, format)
    render.emit(output, {"path": str(path), "format": format}, lambda: str(path), str(path))


COMMANDS = (suspend, resume, scale, cancel, download)


def _only_evaluates(job: Job) -> bool:
    return (job.status.get("resolved") or {}).get("mode") in ("eval", "eval_all")


def _print_result(job: Job, output: str, what: str) -> None:
    render.emit(output, job.document, lambda: f"job {job.name} {what}", job.name)
