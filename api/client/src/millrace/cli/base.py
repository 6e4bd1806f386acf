"""What all commands share: how flags are spelt, which appliance is meant, how results and errors are shown.

Whatever takes long to import is imported where it is used: help and completion must be quick.
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

CONTEXT_SETTINGS: dict[str, Any] = {
    "help_option_names": ["-h", "--help"],
    # --num_csx and --num-csx are the same flag.
    "token_normalize_func": lambda token: token.replace("-", "_"),
    "max_content_width": 110,
}


@dataclass
class Settings:
    """Which appliance, as the global flags say; given before the command or after it."""

    context: str | None = None
    url: str | None = None
    namespace: str | None = None
    token_file: str | None = None
    ca: str | None = None
    insecure: bool | None = None

    def token(self) -> str | None:
        """The token of --token-file."""
        if self.token_file is None:
            return None
        if self.token_file == "-":
            return sys.stdin.readline().strip()
        return Path(self.token_file).read_text(encoding="utf-8").strip()

    def appliance(self, url: str | None = None, token: str | None = None, **more: Any) -> Appliance:
        """The appliance that is meant."""
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
    """Into the settings; what is said nearer to the command wins."""
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
            help="Context of the contexts file; else the current one.",
        ),
        option("--url", metavar="URL", help="Address of the appliance. [MILLRACE_URL]"),
        option("-N", "--namespace", metavar="NAME", help="Namespace of the jobs. [MILLRACE_NAMESPACE]"),
        option(
            "--token_file",
            metavar="FILE",
            help="File with the token, - for standard input. [MILLRACE_TOKEN: itself]",
        ),
        option(
            "--ca", metavar="FILE", help="Authority that signed the appliance's certificate. [MILLRACE_CA]"
        ),
        option(
            "--insecure",
            is_flag=True,
            default=None,
            help="Accept any certificate, and a token sent unencrypted. [MILLRACE_INSECURE]",
        ),
    ]


class _Spelling(click.Command):
    """Completes flags as they are begun: with underscores or with dashes."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """What may come next."""
        if not re.match("--.*-", incomplete):
            return super().shell_complete(ctx, incomplete)
        found = super().shell_complete(ctx, "--" + incomplete[2:].replace("-", "_"))
        for item in found:
            item.value = item.value.replace("_", "-")
        return found


class Command(_Spelling):
    """A command that takes the global flags, too."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("epilog", "Takes the global flags, as --context, too: see millrace --help.")
        super().__init__(*args, **kwargs)
        self.params += _global_options(hidden=True)


class BrokenPipe(Exception):
    """Whoever read standard output has stopped. Click would end with 1, which means something else here."""


class Group(_Spelling, click.Group):
    """A group whose commands take the global flags, too."""

    command_class = Command
    group_class = type

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += _global_options(hidden=False)

    def invoke(self, ctx: click.Context) -> Any:
        """The command; tells a closed pipe from a failure."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise BrokenPipe from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which they are needed, not in that of the alphabet."""
        return list(self.commands)


class Output(click.Choice[str]):
    """The choice of a form; who means the local run's `-o model_dir` is told."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The form."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            hint = (
                "The files of a job stay with the appliance: `millrace download NAME --to DIR` fetches them."
            )
            raise click.BadParameter(f"{error.message} {hint}", ctx, param) from error


def output_option(*forms: str) -> Callable[[Function], Function]:
    """`-o`; the first form is the default."""
    forms = forms or ("table", "json", "yaml", "name")
    return click.option(
        "-o",
        "--output",
        type=Output(forms),
        default=forms[0],
        show_default=True,
        help="Form of the result on standard output.",
    )


def complete_contexts(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Names of contexts, for the shell; none where the file can't be read."""
    from millrace.config import Config

    try:
        return [name for name in Config().contexts if name.startswith(incomplete)]
    except errors.MillraceError:
        return []


def complete_jobs(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Names of jobs, for the shell; none where the appliance can't be asked."""
    from itertools import islice

    # Whoever has pressed a key waits for it.
    logging.getLogger("millrace").handlers = [logging.NullHandler()]
    settings = context.find_root().ensure_object(Settings)
    try:
        with _time_limit(_COMPLETION_SECONDS), settings.appliance(retry_seconds=0) as appliance:
            names = {job.name: None for job in islice(appliance.jobs(), 50)}
    except (errors.MillraceError, OSError):
        return []
    return [name for name in names if name.startswith(incomplete)]


def job_argument(function: Function) -> Function:
    """NAME, and --uid for one that is not the newest of its name."""
    function = click.option(
        "--uid", metavar="UID", help="The job with this uid, where several had the name."
    )(function)
    return click.argument("name", metavar="NAME", shell_complete=complete_jobs)(function)


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raises TimeoutError in what takes longer, where the system can."""

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
    """Standard streams that whoever began this has closed lead nowhere, and are not taken by a connection."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


@contextmanager
def interrupt_message(text: str | None) -> Iterator[None]:
    """Says this on standard error where what is under way is interrupted, by Ctrl-C or a signal."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        # Of a terminal that is gone nothing can be said.
        with suppress(OSError):
            if text:
                click.echo(text, err=True)
        raise


def handle_signals() -> None:
    """Has SIGTERM and SIGHUP end the command as Ctrl-C does: what is under way is told, the job goes on."""

    def stop(number: int, _frame: object) -> None:
        sys.exit(128 + number)

    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        # nohup has the command ignore it.
        if number is not None and signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, stop)


class _NoteHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        note = f"note: {record.getMessage()}"
        if "tqdm" in sys.modules:
            from tqdm import tqdm

            tqdm.write(note, file=sys.stderr)  # above the bar, where there is one
        else:
            click.echo(note, err=True)


def show_notes() -> None:
    """What the client has to say by the way goes to standard error."""
    logging.getLogger("millrace").handlers = [_NoteHandler()]


def print_error(error: Exception, hint: str | None = None) -> int:
    """Print an expected error as one sentence, and return its exit code.

    Any other one is a fault of this client, and is raised.
    """
    if isinstance(error, errors.JobFailed):
        lines, code = [*(f"  {line}" for line in error.log_tail)], Exit.FAILED
    elif isinstance(error, errors.ApplianceError):
        # The sentence may have them, too, but one after the other.
        several = len(error.errors) > 1
        faults = [each for each in error.errors if several or each.message not in str(error)]
        lines, code = [f"  {each.field}: {each.message}" for each in faults], _code_of(error)
        hint = hint or _hint_for(error)
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


def _error_message(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}."
    return str(error)


def _code_of(error: errors.ApplianceError) -> Exit:
    not_ours = error.status >= 500 or error.status in (401, 403, 429)
    return Exit.UNREACHABLE if not_ours else Exit.BAD_INPUT


def _hint_for(error: errors.ApplianceError) -> str | None:
    if isinstance(error, errors.Unauthorized):
        return "`millrace login URL` asks for a token and keeps it"
    if isinstance(error, errors.NotFound) and "deleted=true" in error.detail:
        return "`millrace get jobs --deleted` lists the uids of all jobs there are and were"
    if error.status >= 500 and error.request_id:
        return f"the appliance's log has it as request {error.request_id}"
    return None
