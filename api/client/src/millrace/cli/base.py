"""What all commands share: spelling of flags, selection of the appliance, output of results and errors.

Slow imports are local to functions, so that help and completion stay fast.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from millrace import errors
from millrace.cli.exit_codes import Exit

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from millrace.appliance import Appliance

Function = TypeVar("Function", bound=Callable[..., Any])

_COMPLETION_SECONDS = 3.0
_HEADER_ADVICE = re.compile(r"^send a token in the header `[^`]*`")

CONTEXT_SETTINGS: dict[str, Any] = {
    "help_option_names": ["-h", "--help"],
    # --num_csx and --num-csx are the same flag.
    "token_normalize_func": lambda token: token.replace("-", "_"),
    "max_content_width": 110,
}


@dataclass
class Settings:
    """The values of the global flags, which may be given before or after the command."""

    context: str | None = None
    url: str | None = None
    namespace: str | None = None
    token_file: str | None = None
    ca: str | None = None
    insecure: bool | None = None

    def token(self) -> str | None:
        """Returns the token of --token_file; None without the flag."""
        if self.token_file is None:
            return None
        if self.token_file == "-":
            return sys.stdin.readline().strip()
        return Path(self.token_file).read_text(encoding="utf-8").strip()

    def appliance(self, url: str | None = None, token: str | None = None, **more: Any) -> Appliance:
        """Returns a client for the selected appliance."""
        from millrace.appliance import Appliance

        return Appliance(
            url or self.url,
            self.token() if token is None else token,
            self.namespace,
            self.context,
            ca=self.ca,
            insecure=self.insecure,
            **more,
        )


pass_settings = click.make_pass_decorator(Settings, ensure=True)


def _keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Stores a global flag. One after the command overrides one before it."""
    if value is not None and parameter.name is not None:
        setattr(context.find_root().ensure_object(Settings), parameter.name, value)


def _global_options(hidden: bool) -> list[click.Parameter]:
    def option(*names: str, **about: Any) -> click.Option:
        return click.Option(list(names), expose_value=False, callback=_keep, hidden=hidden, **about)

    return [
        option(
            "--context",
            metavar="NAME",
            shell_complete=complete_contexts,
            help="Context of the contexts file. Default: the current one.",
        ),
        option("--url", metavar="URL", help="Address of the appliance. [MILLRACE_URL]"),
        option("-N", "--namespace", metavar="NAME", help="Namespace of the jobs. [MILLRACE_NAMESPACE]"),
        option(
            "--token_file",
            metavar="FILE",
            help="File with the token, or - for standard input. [MILLRACE_TOKEN: the token]",
        ),
        option("--ca", metavar="FILE", help="Certificate authority of the appliance. [MILLRACE_CA]"),
        option(
            "--insecure",
            is_flag=True,
            default=None,
            help="Accept any certificate, and send the token unencrypted. [MILLRACE_INSECURE]",
        ),
    ]


class _Spelling(click.Command):
    """Completes flags in the spelling that was begun, with underscores or with dashes."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Returns the possible completions."""
        if not re.match("--.*-", incomplete):
            return super().shell_complete(ctx, incomplete)
        found = super().shell_complete(ctx, "--" + incomplete[2:].replace("-", "_"))
        for item in found:
            item.value = item.value.replace("_", "-")
        return found


class Command(_Spelling):
    """A command that accepts the global flags."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("epilog", "Also accepts the global flags, such as --context: see millrace --help.")
        super().__init__(*args, **kwargs)
        self.params += _global_options(hidden=True)


class BrokenPipe(Exception):
    """Standard output was closed by its reader. Click would exit with 1, which means a failed job here."""


class Group(_Spelling, click.Group):
    """A group whose commands accept the global flags."""

    command_class = Command
    group_class = type

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += _global_options(hidden=False)

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command; raises BrokenPipe if standard output was closed."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise BrokenPipe from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the commands in order of definition, which is that of their use."""
        return list(self.commands)


_FORMATS_ELSEWHERE = ("table", "json", "yaml", "name", "csv", "wide", "text")
"""Formats that another command accepts, or another program: no names of directories."""


class Output(click.Choice[str]):
    """The choice of an output format. The error message has a hint for users of the local `-o model_dir`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Returns the format."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            if value in _FORMATS_ELSEWHERE:
                raise
            hint = "Files of a job stay on the appliance: `millrace download NAME --to DIR` downloads them."
            raise click.BadParameter(f"{error.message} {hint}", ctx, param) from error


def output_option(*forms: str) -> Callable[[Function], Function]:
    """Adds `-o`. The first format is the default."""
    forms = forms or ("table", "json", "yaml", "name")
    return click.option(
        "-o",
        "--output",
        type=Output(forms),
        default=forms[0],
        show_default=True,
        help="Format of the result on standard output.",
    )


def complete_contexts(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Completes names of contexts; returns none if the file can't be read."""
    from millrace.config import Config

    try:
        return [name for name in Config().contexts if name.startswith(incomplete)]
    except errors.MillraceError:
        return []


def complete_jobs(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Completes names of jobs; returns none if the appliance does not respond in time."""
    from itertools import islice

    # The user is waiting for the completion: no notes.
    logging.getLogger("millrace").handlers = [logging.NullHandler()]
    settings = context.find_root().ensure_object(Settings)
    try:
        with _time_limit(_COMPLETION_SECONDS), settings.appliance(retry_seconds=0) as appliance:
            names = {job.name: None for job in islice(appliance.jobs(), 50)}
    except (errors.MillraceError, OSError):
        return []
    return [name for name in names if name.startswith(incomplete)]


def job_argument(function: Function) -> Function:
    """Adds the argument NAME, and --uid for a job that is not the newest of its name."""
    function = click.option(
        "--uid", metavar="UID", help="UID of the job. Default: the newest with this name."
    )(function)
    return click.argument("name", metavar="NAME", shell_complete=complete_jobs)(function)


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raises TimeoutError in the block after this time, on systems with timers."""

    def stop(*_: object) -> None:
        raise TimeoutError

    if not hasattr(signal, "setitimer"):
        yield
        return
    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def replace_closed_streams() -> None:
    """Replaces closed standard streams by /dev/null, so that no connection gets their file descriptors."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


@contextmanager
def interrupt_message(text: str | None) -> Iterator[None]:
    """Prints the text on standard error if the block is interrupted by Ctrl-C or a signal."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        # Writing fails if the terminal was closed.
        with suppress(OSError):
            if text:
                click.echo(text, err=True)
        raise


def handle_signals() -> None:
    """Makes SIGTERM and SIGHUP exit like Ctrl-C, with 128 plus the number of the signal. Jobs continue."""

    def stop(number: int, _frame: object) -> None:
        sys.exit(128 + number)

    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        # nohup ignores SIGHUP for the command.
        if number is not None and signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, stop)


class _NoteHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        note = f"note: {record.getMessage()}"
        if "tqdm" in sys.modules:
            from tqdm import tqdm

            tqdm.write(note, file=sys.stderr)  # above the progress bar, if there is one
        else:
            click.echo(note, err=True)


def show_notes() -> None:
    """Prints log messages of the client as notes on standard error."""
    logging.getLogger("millrace").handlers = [_NoteHandler()]


def print_error(error: Exception, hint: str | None = None) -> int:
    """Prints an expected error in one sentence and returns its exit code.

    Raises any other error: it is a bug of this client.
    """
    if isinstance(error, errors.JobFailed):
        lines, code = [*(f"  {line}" for line in error.log_tail)], Exit.FAILED
    elif isinstance(error, errors.ApplianceError):
        click.echo(_appliance_error_text(error), err=True)
        if hint := hint or _hint_for(error):
            click.echo(f"hint: {hint}", err=True)
        return _code_of(error)
    elif isinstance(error, errors.Unreachable):
        lines, code = [], Exit.UNREACHABLE
    elif isinstance(error, (errors.MillraceError, OSError, TimeoutError)):
        lines, code = [], Exit.BAD_INPUT
    else:
        raise error
    click.echo("\n".join([f"error: {_error_message(error)}", *lines]), err=True)
    if hint:
        click.echo(f"hint: {hint}", err=True)
    return code


def _appliance_error_text(error: errors.ApplianceError) -> str:
    """Returns the errors of a response, each on a line that begins with `error:`, above its hints."""
    faults = [f"{each.field}: {each.message}" if each.field else each.message for each in error.errors]
    if len(faults) > 1 and str(error) == "; ".join(faults):
        return "\n".join(f"error: {fault}" for fault in faults)
    message = str(error)
    if isinstance(error, errors.Unauthorized):
        # The appliance describes the HTTP header, for users of other clients.
        message = _HEADER_ADVICE.sub("the appliance requires a token", message)
    # Each error in the params is a line, with indented hints below it.
    lines = [line if line.startswith(" ") else f"error: {line}" for line in message.splitlines() or [""]]
    lines += [
        f"  {fault}" for each, fault in zip(error.errors, faults, strict=True) if each.message not in message
    ]
    return "\n".join(lines)


def _error_message(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def print_usage_error(error: click.ClickException) -> int:
    """Prints an error of the command line below the command's usage, and returns its exit code."""
    if isinstance(error, click.UsageError) and error.ctx is not None:
        names = error.ctx.help_option_names
        click.echo(error.ctx.get_usage(), err=True)
        click.echo(f"Try '{error.ctx.command_path} {names[-1]}' for help.\n", err=True)
    click.echo(f"error: {error.format_message()}", err=True)
    return Exit.BAD_INPUT


def _code_of(error: errors.ApplianceError) -> Exit:
    not_ours = error.status >= 500 or error.status in (401, 403, 429)
    return Exit.UNREACHABLE if not_ours else Exit.BAD_INPUT


def _hint_for(error: errors.ApplianceError) -> str | None:
    if isinstance(error, errors.Unauthorized):
        return "log in with `millrace login URL`, or give a token with --token_file or MILLRACE_TOKEN"
    if isinstance(error, errors.NotFound) and "deleted=true" in error.detail:
        return "list the UIDs of all jobs, also of deleted ones, with `millrace get jobs --deleted`"
    if error.status >= 500 and error.request_id:
        return f"see request {error.request_id} in the appliance's log"
    return None
