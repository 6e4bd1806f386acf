"""suspend, resume, scale, cancel and download."""

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
    """Has a job save its state and give its systems back."""
    with settings.appliance() as appliance:
        _print_result(appliance.job(name, uid).suspend(), output, "saves its state and pauses")


@click.command(cls=base.Command)
@base.job_argument
@base.output_option()
@base.pass_settings
def resume(settings: Settings, name: str, uid: str | None, output: str) -> None:
    """Has a suspended job go on from where it was."""
    with settings.appliance() as appliance:
        job = appliance.job(name, uid)
        if job.spec.get("suspend") or job.is_finished:
            _print_result(job.resume(), output, "goes on as soon as there are systems for it")
        else:
            _print_result(job, output, "is not suspended")


@click.command(cls=base.Command)
@base.job_argument
@click.option("--num_csx", type=click.IntRange(1), required=True, metavar="N", help="Systems to go on with.")
@base.output_option()
@base.pass_settings
def scale(settings: Settings, name: str, uid: str | None, num_csx: int, output: str) -> None:
    """Has a job go on with another number of systems, from the same step and to the same result."""
    with settings.appliance() as appliance:
        _print_result(appliance.job(name, uid).scale(num_csx), output, f"goes on with {num_csx}")


@click.command(cls=base.Command)
@base.job_argument
@click.option("-y", "--yes", is_flag=True, help="Don't ask.")
@base.output_option()
@base.pass_settings
def cancel(settings: Settings, name: str, uid: str | None, yes: bool, output: str) -> int:
    """Ends a job and deletes it; its checkpoints and history stay as long as the appliance keeps them."""
    with settings.appliance() as appliance:
        job = appliance.job(name, uid)
        if not yes:
            if not sys.stdin.isatty():
                raise click.UsageError(f"Without a terminal, cancelling {name} needs the flag --yes.")
            if not click.confirm(f"Cancel {name} ({job.summary})?", err=True):
                return Exit.FAILED
        was_over = job.is_finished
        job.cancel()
        over = was_over or job.state not in (state.DELETING, state.CANCELLED)
        where = "it is out of the list now, see `millrace get jobs --deleted`"
        if over:
            what = f"had already ended as {job.state}; {where}"
        elif job.state == state.DELETING:
            what = "is being deleted: its agents save its state and end"
        else:
            what = "is cancelled"
        _print_result(job, output, what)
    return Exit.OK


@click.command(cls=base.Command)
@base.job_argument
@click.option("--step", type=click.IntRange(0), metavar="N", help="Checkpoint of this step; else the newest.")
@click.option(
    "--to",
    type=click.Path(),
    metavar="DIR",
    help="Directory to make; else NAME-checkpoint_STEP, or NAME-artifacts.",
)
@click.option(
    "--format",
    type=click.Choice(["native", "hf"]),
    help="As the appliance has it, which is the default, or as `transformers` loads it.",
)
@click.option(
    "--artifacts",
    multiple=True,
    metavar="PATTERN",
    help="Instead of a checkpoint, files that fit this: metrics.jsonl, 'logs/*'; '*' is all. Repeatable.",
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
    """Fetches a checkpoint and prints its directory. Begun again, it goes on where it was interrupted."""
    if artifacts and (step is not None or format is not None):
        raise click.UsageError("--step and --format are for checkpoints, --artifacts for all else.")
    with settings.appliance() as appliance:
        job = appliance.job(name, uid)
        if artifacts:
            format, path = "artifacts", job.download_artifacts(*artifacts, to=to)
        else:
            format = format or "native"
            with base.interrupt_message("Interrupted: the same command goes on where this one was."):
                path = job.download(step, to, format)
    render.emit(output, {"path": str(path), "format": format}, lambda: str(path), str(path))


COMMANDS = (suspend, resume, scale, cancel, download)


def _print_result(job: Job, output: str, what: str) -> None:
    render.emit(output, job.document, lambda: f"{job.name} {what}", job.name)
