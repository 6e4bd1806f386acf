"""The commands suspend, resume, scale, cancel, download and generate."""

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


_STEP = click.option(
    "--step", type=click.IntRange(0), metavar="N", help="Step of the checkpoint. Default: the newest."
)


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
    """Changes the number of systems of a job. It continues without a restart. The result is the same."""
    with settings.appliance() as appliance:
        job = appliance.job(name, uid).scale(num_csx)
        systems = f"{num_csx} system{'s' if num_csx > 1 else ''}"
        result = f"continues with {systems}"
        if job.spec.get("suspend") and not job.is_finished:
            result = (
                f"is suspended and will have {systems} when it is resumed with: millrace resume {job.name}"
            )
        _print_result(job, output, result)


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
            result = f"had already finished ({job.state}) and is deleted; see `millrace get jobs --deleted`"
        elif job.state == state.DELETING:
            result = "is being deleted: its agents save its state and end"
        else:
            result = "is cancelled"
        _print_result(job, output, result)
        if output == "table" and job.status.get("attempt") and not _only_evaluates(job):
            click.echo(
                f"note: its files stay on the appliance: a new job named {job.name} with the same model_dir "
                f"resumes from its newest checkpoint; to train from the beginning, choose another name",
                err=True,
            )
    return Exit.OK


@click.command(cls=base.Command)
@base.job_argument
@_STEP
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


@click.command(cls=base.Command)
@base.job_argument
@_STEP
@click.option("--prompt", metavar="TEXT", help="Text to continue. Default: an empty document.")
@click.option("--prompt_tokens", metavar="IDS", help="Token ids to continue, separated by commas.")
@click.option(
    "-n",
    "--max_tokens",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    metavar="N",
    help="Maximum number of tokens to generate.",
)
@click.option(
    "--temperature",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    metavar="T",
    help="Divisor of the logits; 0 always chooses the most probable token.",
)
@click.option(
    "--top_k", type=click.IntRange(1), metavar="K", help="Choose from the K most probable tokens only."
)
@click.option(
    "--top_p",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    show_default=True,
    metavar="P",
    help="Choose from the most probable tokens that have the probability P together.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="N",
    help="Seed of random choices.",
)
@click.option("--ignore_end", is_flag=True, help="Continue after the end of the document.")
@base.output_option("table", "json", "yaml")
@base.pass_settings
def generate(
    settings: Settings,
    /,
    name: str,
    uid: str | None,
    prompt: str | None,
    prompt_tokens: str | None,
    output: str,
    **options: Any,
) -> None:
    """Continues a text with the model of a job's checkpoint, token by token."""
    if prompt is not None and prompt_tokens is not None:
        raise click.UsageError("--prompt can't be combined with --prompt_tokens")
    given = (prompt or "") if prompt_tokens is None else _token_ids(prompt_tokens)
    is_shown = output == "table" and isinstance(given, str)
    begun = False

    def show(text: str) -> None:
        nonlocal begun
        # The prompt is printed when the appliance has accepted it.
        click.echo(text if begun else f"{given}{text}", nl=False)
        sys.stdout.flush()
        begun = True

    with settings.appliance() as appliance:
        made = appliance.job(name, uid).generate(given, on_text=show if is_shown else None, **options)
    if not is_shown:
        render.emit(output, made.document, lambda: " ".join(map(str, made.tokens)))
    else:
        click.echo("" if begun else given)
        if made.finish_reason == "MaxPositions":
            click.echo("note: the text ends because all positions of the model are used", err=True)


COMMANDS = (suspend, resume, scale, cancel, download, generate)


def _token_ids(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() for part in parts):
        raise click.UsageError("--prompt_tokens must be token ids separated by commas, such as 5,17,3")
    return [int(part) for part in parts]


def _only_evaluates(job: Job) -> bool:
    return (job.status.get("resolved") or {}).get("mode") in ("eval", "eval_all")


def _print_result(job: Job, output: str, result: str) -> None:
    render.emit(output, job.document, lambda: f"job {job.name} {result}", job.name)
