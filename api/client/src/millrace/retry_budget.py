"""Delays between retries, and the time after which retries stop."""

from __future__ import annotations

import random
import time

# Looked up in this module by all callers, so that tests can replace them by a fake clock.
sleep = time.sleep
clock = time.monotonic

INITIAL_DELAY_SECONDS = 0.5
MAX_DELAY_SECONDS = 15.0


class RetryBudget:
    """Retries of one operation: delays them, and ends them `max_seconds` after the first failure.

    Delays are random, between half and all of 0.5 s, 1 s, 2 s, ... up to 15 s, so that many clients that lose
    the same server do not return at the same moment.
    """

    def __init__(self, max_seconds: float) -> None:
        self._max_seconds = max_seconds
        self._failures = 0
        self._since = 0.0

    @property
    def has_not_failed(self) -> bool:
        """Whether nothing has failed since the start or the last success."""
        return self._failures == 0

    def succeeded(self) -> None:
        """Resets the budget: the next failure is the first one of a new series."""
        self._failures = 0

    def wait(self, at_least: float = 0.0) -> bool:
        """Sleeps before the next try, for at least `at_least` seconds.

        Returns False, without sleeping, if the delay would exceed the budget.
        """
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
