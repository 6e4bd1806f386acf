"""The commands train, eval and plan."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from millrace import errors, plan_text
from millrace.cli import base, render
from millrace.cli.base import Settings
from millrace.cli.exit_codes import Exit

if TYPE_CHECKING:
    from millrace.records import Document, Plan
    from millrace.submission import SubmitOptions, Verb

Function = TypeVar("Function", bound=Callable[..., Any])

_LINE = re.compile(r"^line \d+: ", re.MULTILINE | re.IGNORECASE)

_MODES = click.Choice(["train", "eval", "train_and_eval", "eval_all"])
_LEVELS = click.Choice(["DEBUG", "VERBOSE", "INFO", "WARNING", "ERROR"], case_sensitive=False)
# Flags of the real appliance that have no effect here, with the reason or the alternative.
_WITHOUT_EFFECT = {
    "num_workers_per_csx": "each system gets its data from one activation server",
    "compile_dir": "the appliance compiles quickly and has no compile cache",
    "python_paths": "the appliance does not run Python code",
    "disable_version_check": "versions are not checked: client and appliance may differ",
    "target_device": "every job runs on the appliance's systems",
    "model_dir": "files of a job stay on the appliance: download them with `millrace download NAME`",
    "mgmt_address": "set the appliance's address with --url or a context",
    "mgmt_namespace": "set the namespace with --namespace or a context",
    "credentials_path": "set the certificate authority of the appliance with --ca",
    "cbcore_image": "the appliance runs its own image",
    "wsc_log_level": "set the log level of agents with --logging",
    "debug_args": "the appliance has no such settings",
    "debug_args_path": "the appliance has no such settings",
    "ini": "the appliance has no such settings",
}
_SEVERAL = ("job_labels", "mount_dirs", "python_paths", "wsc_log_level", "debug_args", "ini")


class _Submit(base.Command):
    """Accepts several values after one flag, as in `--job_labels team=nlp stage=dev`.

    Also accepts a leading device name, as scripts for the real appliance have it: `CSX -p params.yaml`.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeats the flag before each further value."""
        if args and args[0].upper() == "CSX":
            args = args[1:]
        repeated: list[str] = []
        flag: str | None = None
        for arg in args:
            if arg.startswith("-"):
                flag = arg if arg.lstrip("-").replace("-", "_") in _SEVERAL else None
            elif flag is not None and repeated[-1] != flag:
                repeated.append(flag)
            repeated.append(arg)
        return super().parse_args(ctx, repeated)


def _without_effect(name: str) -> Callable[[Function], Function]:
    """Returns a hidden flag that is accepted for compatibility and ignored with a note."""
    about: dict[str, Any] = {"multiple": name in _SEVERAL}
    if name == "disable_version_check":
        about = {"is_flag": True, "default": None}
    elif name == "target_device":
        # Any other device would not be what the user gets.
        about = {"type": click.Choice(["CSX"], case_sensitive=False)}
    short = ["-c"] if name == "compile_dir" else []
    return click.option(*short, f"--{name}", hidden=True, **about)


def _run_options(function: Function) -> Function:
    """Adds the flags of a run, named as on the real appliance."""
    for option in reversed(
        [
            click.option(
                "-p",
                "--params",
                required=True,
                type=click.Path(),
                metavar="FILE",
                help="Params file; sent unchanged.",
            ),
            click.option("--num_csx", type=click.IntRange(1), metavar="N", help="Number of systems."),
            click.option(
                "--min_csx",
                type=click.IntRange(1),
                metavar="N",
                help="Continue on so many systems or more while lost ones are replaced. Default: 1.",
            ),
            click.option("-n", "--name", metavar="NAME", help="Name of the job. Default: generated."),
            click.option(
                "--model",
                metavar="NAME",
                help="Family of the model, for params that do not name it; or a PyTorch module, a Keras "
                "model, or a function that returns one, as MODULE:NAME.",
            ),
            click.option(
                "--data",
                metavar="NAME",
                help="Data of such a model: arrays, or a function that returns them, as MODULE:NAME; or "
                "their path on the appliance.",
            ),
            click.option("--eval_data", metavar="NAME", help="Data of evaluations, as --data."),
            click.option(
                "--loss",
                metavar="NAME",
                help="Loss of such a model, as MODULE:NAME. Default: the module returns its loss; a Keras "
                "model is compiled with one.",
            ),
            click.option("-m", "--mode", type=_MODES, help="Mode, if it differs from the command."),
            click.option(
                "--max_steps", type=click.IntRange(0), metavar="N", help="Step at which training ends."
            ),
            click.option("--eval_steps", type=click.IntRange(1), metavar="N", help="Batches per evaluation."),
            click.option(
                "--checkpoint_path", metavar="DIR", help="Checkpoint to start from: a path on the appliance."
            ),
            click.option(
                "--load_checkpoint_states",
                metavar="LIST",
                help="Parts of the checkpoint to load. Default: all.",
            ),
            click.option(
                "--disable_strict_checkpoint_loading",
                is_flag=True,
                default=None,
                help="Accept a checkpoint with missing tensors.",
            ),
            click.option(
                "--num_wgt_servers",
                type=click.IntRange(0),
                metavar="N",
                help="Number of MemoryX shards; 0 for automatic.",
            ),
            click.option(
                "--num_act_servers",
                type=click.IntRange(0),
                metavar="N",
                help="Maximum number of activation servers per system.",
            ),
            click.option(
                "--logging",
                type=_LEVELS,
                metavar="LEVEL",
                help="Log level: DEBUG, VERBOSE, INFO, WARNING or ERROR.",
            ),
            click.option(
                "--job_labels", multiple=True, metavar="KEY=VALUE...", help="Labels of the job's pods."
            ),
            click.option(
                "--job_priority", "--priority", "priority", metavar="CLASS", help="Priority class of the job."
            ),
            click.option(
                "--job_time_sec",
                type=click.IntRange(1),
                metavar="N",
                help="Maximum time with systems, in seconds.",
            ),
            click.option(
                "--mount_dirs",
                multiple=True,
                metavar="NAME=PATH...",
                help="Volumes to mount, and their paths in params.",
            ),
            *map(_without_effect, _WITHOUT_EFFECT),
        ]
    ):
        function = option(function)
    return function


def _submit_options(function: Function) -> Function:
    """Adds the flags for handling the submitted job."""
    for option in reversed(
        [
            click.option(
                "--validate_only",
                is_flag=True,
                help="Let the appliance validate the job, without creating it.",
            ),
            click.option("--compile_only", is_flag=True, help="Print the plan, like `millrace plan`."),
            click.option(
                "--detach", is_flag=True, help="Print the job's name and exit without following it."
            ),
            click.option("--logs", is_flag=True, help="Also show the log lines of all agents."),
            click.option(
                "--every",
                type=click.FloatRange(0),
                default=10.0,
                show_default=True,
                metavar="SECONDS",
                help="Interval of progress lines, if standard output is not a terminal.",
            ),
            click.option(
                "--idempotency_key",
                metavar="KEY",
                help="Submitting again with the same key creates no second job.",
            ),
            base.output_option(),
        ]
    ):
        function = option(function)
    return function


@click.command(cls=_Submit)
@_run_options
@_submit_options
@base.pass_settings
def train(settings: Settings, /, **flags: Any) -> int:
    """Trains a model and follows the job to its end; Ctrl-C leaves it running.

    Shows a progress bar on a terminal, and progress lines on a pipe. Small local text files that params name
    are uploaded; other paths are paths of the appliance, see `millrace get volumes`.
    """
    return _submit(settings, "train", **flags)


@click.command("eval", cls=_Submit)
@_run_options
@_submit_options
@base.pass_settings
def evaluate(settings: Settings, /, **flags: Any) -> int:
    """Evaluates a checkpoint and follows the job to its end.

    `--checkpoint_path` is a path below the `Model dir` that `millrace get job` prints. With `--mode eval_all`
    it is that directory, and every checkpoint in it is evaluated.
    """
    return _submit(settings, "eval", **flags)


@click.command(cls=_Submit)
@_run_options
@base.output_option("table", "json", "yaml")
@base.pass_settings
def plan(settings: Settings, /, params: str, output: str, **flags: Any) -> int:
    """Shows whether a job fits, when it would start and how long it would take. Creates nothing."""
    return _plan(settings, params, output, flags)


COMMANDS = (train, evaluate, plan)


def _submit(
    settings: Settings,
    verb: Verb,
    *,
    params: str,
    output: str,
    validate_only: bool,
    compile_only: bool,
    detach: bool,
    logs: bool,
    every: float,
    idempotency_key: str | None,
    **flags: Any,
) -> int:
    if validate_only and compile_only:
        raise click.UsageError("--validate_only and --compile_only can't be combined")
    if compile_only:
        return _plan(settings, params, output, flags)

    import secrets

    from millrace.cli import follow_command
    from millrace.cli.modules import params_of

    described = params_of(params, flags)
    options = _options(flags)
    key = idempotency_key or secrets.token_urlsafe(24)
    with settings.appliance() as appliance, _errors_name(params):
        if validate_only:
            document = appliance.dry_run(described, options, verb=verb)
            render.emit(output, document, lambda: _checked(params, document), "")
            return Exit.OK
        try:
            with base.interrupt_message(
                "interrupted: check with `millrace get jobs` whether the job was created"
            ):
                job = appliance.submit(described, options, verb=verb, idempotency_key=key)
        except (errors.Unreachable, errors.Unavailable, errors.Internal, errors.TooManyRequests) as error:
            return base.print_error(
                error, f"repeat the command with --idempotency_key {key}, which creates no second job"
            )
        if job.is_deleted:
            raise errors.ConfigError(
                f"an earlier request with this idempotency key created job {job.name}, which is deleted: "
                f"use another --idempotency_key"
            )
        if detach:
            click.echo(f"submitted job {job.name}; follow it with: millrace attach {job.name}", err=True)
            render.emit(output, job.document, lambda: job.name, job.name)
            return Exit.OK
        click.echo(f"submitted job {job.name}", err=True)
        return follow_command.follow_to_end(job, output, logs=logs, every=every)


@contextmanager
def _errors_name(params: str) -> Iterator[None]:
    """Adds the name of the params file to errors that have a line of it."""
    try:
        yield
    except errors.BadParams as error:
        error.args = (_LINE.sub(lambda line: f"{params}: {line[0]}", str(error)),)
        raise


def _options(flags: dict[str, Any]) -> SubmitOptions:
    from millrace import submission

    for name, why in _WITHOUT_EFFECT.items():
        if flags.pop(name) not in (None, ()):
            click.echo(f"note: --{name} has no effect here: {why}", err=True)
    options: SubmitOptions = {
        "labels": submission.labels_from(flags.pop("job_labels")),
        "mount_dirs": submission.mount_dirs_from(flags.pop("mount_dirs")),
        **flags,  # type: ignore[typeddict-item]  # flags have the names of the options
    }
    return options


def _plan(settings: Settings, params: str, output: str, flags: dict[str, Any]) -> int:
    from millrace.cli.modules import params_of

    described = params_of(params, flags)
    options = _options(flags)
    with settings.appliance() as appliance, _errors_name(params):
        found = appliance.plan(described, **options)
    render.emit(output, found.raw, lambda: _plan_table(found), "")
    return Exit.OK if found.fits else Exit.FAILED


def _plan_table(found: Plan) -> str:
    fields = render.fields(plan_text.fields(found))
    rows = plan_text.agents(found)
    return f"{fields}\n\n{render.table(('ROLE', 'AGENTS', 'HOST MEMORY EACH'), rows)}" if rows else fields


def _checked(params: str, document: Document) -> str:
    resolved = (document.get("status") or {}).get("resolved") or {}
    notes = [f"  {note}" for note in resolved.get("notes") or ()]
    differences = [
        f"  {each.get('key')} is {each.get('params')} in the params; spec has {each.get('spec')}, which wins"
        for each in resolved.get("differences") or ()
    ]
    return "\n".join([f"{params} is valid", *notes, *differences])
