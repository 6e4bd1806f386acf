"""The `millrace` command.

* Standard output has results only; progress, notes and errors go to standard error.
* Expected errors end with one sentence and an exit code of `Exit`, never with a traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

import millrace
from millrace.cli import base, context_commands, job_commands, query_commands, submit_commands
from millrace.cli.exit_codes import Exit

_HELP = """Trains models on a Millrace appliance.

\b
    millrace login https://millrace.example.org
    millrace train -p params.yaml --num_csx 4

Jobs run on the appliance. Ctrl-C or a lost connection stops following a job, not the job itself;
`millrace attach NAME` follows it again. Flags can be written with underscores or with dashes.

\b
Exit codes:
    0    success
    1    the job failed, or was suspended or cancelled while it was followed; a planned job does not fit
    2    invalid input
    3    the appliance can't be reached, failed, or denied access
    130  interrupted (143 by SIGTERM, 129 by SIGHUP); a followed job continues
"""


@click.group(cls=base.Group, help=_HELP, context_settings=base.CONTEXT_SETTINGS, no_args_is_help=True)
@click.version_option(millrace.__version__, package_name="millrace", message="millrace %(version)s")
def cli() -> None:
    """Defines the command; its help is `_HELP`."""


for command in (
    *submit_commands.COMMANDS,
    *query_commands.COMMANDS,
    *job_commands.COMMANDS,
    *context_commands.COMMANDS,
):
    cli.add_command(command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command and exits; the entry point of the script."""
    base.replace_closed_streams()
    base.handle_signals()
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    base.show_notes()
    try:
        code = cli.main(list(arguments) if arguments is not None else None, "millrace", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help(), err=True)
        return Exit.BAD_INPUT
    except click.ClickException as error:
        return base.print_usage_error(error)
    except (click.Abort, KeyboardInterrupt):
        return Exit.INTERRUPTED
    except (BrokenPipeError, base.BrokenPipe):
        # The reader of the pipe has closed it: the interpreter's flush at exit must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.BROKEN_PIPE
    except Exception as error:
        return base.print_error(error)
    return code if isinstance(code, int) else Exit.OK
