"""Exit codes of the command."""

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of the command, for scripts."""

    OK = 0
    FAILED = 1
    """The job failed, or was suspended or cancelled while it was followed; or a plan does not fit."""
    BAD_INPUT = 2
    """Invalid flags or files, or the appliance rejected the request."""
    UNREACHABLE = 3
    """The appliance can't be reached, failed, or denied access."""
    INTERRUPTED = 130
    """Ctrl-C; a followed job continues. SIGTERM and SIGHUP exit with 143 and 129."""
    BROKEN_PIPE = 141
    """Standard output was closed by its reader, as in `| head`."""
