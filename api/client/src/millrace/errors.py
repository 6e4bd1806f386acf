"""Everything that can go wrong in a way that is expected.

`str()` of each is one sentence that says what to do. Those that the appliance sent are an `ApplianceError`,
with a class of its own for each reason; the sentence is the appliance's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class MillraceError(Exception):
    """The root of all errors of this package."""


class ConfigError(MillraceError):
    """The contexts file, the environment or an argument makes no sense."""


class MissingDependency(MillraceError, ImportError):
    """An optional package is needed for this and is not installed."""

    def __init__(self, package: str, what: str) -> None:
        super().__init__(f"{what} needs {package}: pip install {package}")
        self.package = package


class Unreachable(MillraceError):
    """The appliance could not be reached, or stopped answering, for longer than is worth waiting."""


class DownloadError(MillraceError):
    """A download can't be begun, or what arrived is not what was promised."""


class JobFailed(MillraceError):
    """A job that was waited for ended without success; `str()` has the root cause."""

    def __init__(self, message: str, *, name: str, state: str, log_tail: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.name = name
        self.state = state
        self.log_tail = tuple(log_tail)


@dataclass(frozen=True)
class FieldError:
    """One field that is to blame, as `spec.numCsx`, and what is wrong with it."""

    field: str
    message: str


class ApplianceError(MillraceError):
    """An answer other than success."""

    def __init__(
        self,
        detail: str,
        *,
        status: int,
        reason: str,
        errors: Sequence[FieldError] = (),
        request_id: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        """The appliance's sentence."""
        self.status = status
        """The HTTP status."""
        self.reason = reason
        """One word, the same that a job's condition would have: BadParams, NotFound, ..."""
        self.errors = tuple(errors)
        """The single fields to blame, where there are any."""
        self.request_id = request_id
        """What to look for in the appliance's log."""
        self.retry_after = retry_after
        """Seconds the appliance asks to wait before the next try."""


class BadRequest(ApplianceError):
    """The request itself is malformed."""


class Unauthorized(ApplianceError):
    """No token, or one that is not valid (any more)."""


class Forbidden(ApplianceError):
    """The token's owner may not do this."""


class NotFound(ApplianceError):
    """There is no such thing, or none that one may see."""


class Conflict(ApplianceError):
    """The thing is not in a state in which this can be done."""


class AlreadyExists(Conflict):
    """A job of that name exists."""


class Gone(ApplianceError):
    """It existed once, and retention has removed it."""


class PayloadTooLarge(ApplianceError):
    """More was sent than the appliance takes."""


class Invalid(ApplianceError):
    """A field has a value that it can't have."""


class BadParams(Invalid):
    """The params can't be understood; the sentence has line and hint."""


class IdempotencyKeyReused(ApplianceError):
    """The idempotency key belongs to another submission."""


class TooManyRequests(ApplianceError):
    """More requests than the appliance allows; they were retried for a while."""


class Internal(ApplianceError):
    """The appliance failed."""


class Unavailable(ApplianceError):
    """The appliance, or something it needs, can't answer now; it was retried for a while."""


_BY_REASON: dict[str, type[ApplianceError]] = {
    kind.__name__: kind
    for kind in (
        BadRequest,
        Unauthorized,
        Forbidden,
        NotFound,
        Conflict,
        AlreadyExists,
        Gone,
        PayloadTooLarge,
        Invalid,
        BadParams,
        IdempotencyKeyReused,
        TooManyRequests,
        Internal,
        Unavailable,
    )
}

_BY_STATUS: dict[int, type[ApplianceError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    413: PayloadTooLarge,
    422: Invalid,
    429: TooManyRequests,
    500: Internal,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}


def class_for(status: int, reason: str | None) -> type[ApplianceError]:
    """The class of a reason; of the status, for a reason of another version or none."""
    return _BY_REASON.get(reason or "") or _BY_STATUS.get(status, ApplianceError)
