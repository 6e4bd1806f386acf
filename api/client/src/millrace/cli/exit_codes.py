"""Exit codes that a script can use."""

from enum import IntEnum


class Exit(IntEnum):
    """What the command ends with."""

    OK = 0
    FAILED = 1
    """The job failed, or was suspended or cancelled while it was followed; a planned one does not fit."""
    BAD_INPUT = 2
    """A mistake in flags or files, or the appliance refuses what it was sent."""
    UNREACHABLE = 3
    """The appliance can't be reached, fails, or does not allow it."""
    INTERRUPTED = 130
    """Ctrl-C; a job that was followed goes on. SIGTERM and SIGHUP have 143 and 129, as shells count them."""
    BROKEN_PIPE = 141
    """Whoever read the output has stopped, as in `| head`."""
