"""How long to wait before trying again, and when to stop."""

from __future__ import annotations

import random
import time

# Here by name, so that tests need not wait.
sleep = time.sleep
clock = time.monotonic

INITIAL_DELAY_SECONDS = 0.5
MAX_DELAY_SECONDS = 15.0


class RetryBudget:
    """One thing that is tried until it works or patience is over.

    Waits are drawn between half and all of 0.5 s, 1 s, 2 s, ... 15 s: many clients that lose one server must
    not come back at the same moment.
    """

    def __init__(self, max_seconds: float) -> None:
        self._max_seconds = max_seconds
        self._failures = 0
        self._since = 0.0

    @property
    def has_not_failed(self) -> bool:
        """Whether nothing has gone wrong yet, or nothing since it last worked."""
        return self._failures == 0

    def succeeded(self) -> None:
        """What comes now is a new trouble, with all patience."""
        self._failures = 0

    def wait(self, at_least: float = 0.0) -> bool:
        """Sleep before the next try, no less than was asked for; False where that is past all patience."""
        now = clock()
        if self._failures == 0:
            self._since = now
        longest = min(INITIAL_DELAY_SECONDS * 2.0**self._failures, MAX_DELAY_SECONDS)
        seconds = max(longest * random.uniform(0.5, 1.0), at_least)
        if now + seconds > self._since + self._max_seconds:
            return False
        self._failures += 1
        sleep(seconds)
        return True
