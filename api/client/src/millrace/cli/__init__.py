"""The `millrace` command.

Standard output has results and nothing else; progress, notes and errors go to standard error. What is
expected to go wrong ends in one sentence and one of these exit codes, never in a traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

import millrace
from millrace.cli import base, context_commands, job_commands, query_commands, submit_commands
from millrace.cli.exit_codes import Exit

_HELP = """Trains models on a Millrace appliance, from wherever you are.

\b
    millrace login https://millrace.example.org
    millrace train -p params.yaml --num_csx 4

A job lives on the appliance. Ctrl-C, a lost connection or a closed laptop end the watching and never the job;
`millrace attach NAME` comes back to it. Flags are spelt with underscores or with dashes.

\b
Exit codes:
    0    done
    1    the job failed, or was suspended or cancelled while it was followed; a planned one does not fit
    2    bad input
    3    the appliance can't be reached, or does not allow it
    130  interrupted (143, 129 by SIGTERM, SIGHUP); a job that was followed goes on
"""


@click.group(cls=base.Group, help=_HELP, context_settings=base.CONTEXT_SETTINGS, no_args_is_help=True)
@click.version_option(millrace.__version__, package_name="millrace", message="millrace %(version)s")
def cli() -> None:
    """See _HELP."""


for command in (
    *submit_commands.COMMANDS,
    *query_commands.COMMANDS,
    *job_commands.COMMANDS,
    *context_commands.COMMANDS,
):
    cli.add_command(command)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command's entry point."""
    base.replace_closed_streams()
    base.handle_signals()
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """The command, and its exit code."""
    base.show_notes()
    try:
        code = cli.main(list(arguments) if arguments is not None else None, "millrace", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help(), err=True)
        return Exit.BAD_INPUT
    except click.ClickException as error:
        error.show()
        return Exit.BAD_INPUT
    except (click.Abort, KeyboardInterrupt):
        return Exit.INTERRUPTED
    except (BrokenPipeError, base.BrokenPipe):
        # Whoever reads the output has enough; the interpreter's last flush must not fail because of that.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.BROKEN_PIPE
    except Exception as error:
        return base.print_error(error)
    return code if isinstance(code, int) else Exit.OK
