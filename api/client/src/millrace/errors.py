"""Exceptions of this package.

* `str()` of each is one sentence that says what happened and what to do. IPython shows it without a
  traceback.
* Errors of the appliance are subclasses of `ApplianceError`, one for each reason, with the appliance's
  message. Reasons without a class of their own are raised as the class of their status, or as
  `ApplianceError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from millrace.notebook import ShownByMessage


class MillraceError(ShownByMessage, Exception):
    """Base class of all errors of this package."""


class Interrupted(ShownByMessage, KeyboardInterrupt):
    """Waiting for a job was interrupted in IPython. The job continues."""


class ConfigError(MillraceError):
    """The contexts file, the environment or an argument is invalid."""


class MissingDependency(MillraceError, ImportError):
    """An optional package is required for this call and is not installed."""

    def __init__(self, package: str, what: str) -> None:
        super().__init__(f"{what} needs {package}: pip install {package}")
        self.package = package


class UnreadableFile(MillraceError, OSError):
    """A file that an argument names can't be read."""


class WaitTimeout(MillraceError, TimeoutError):
    """A job has not finished within the given time."""


class Unreachable(MillraceError):
    """The appliance could not be reached, or stopped responding, for longer than requests are retried."""


class DownloadError(MillraceError):
    """A download can't start, or the received data are not what the appliance announced."""


class UploadError(MillraceError):
    """An upload is impossible: the file changes, or the upload makes no progress."""


class JobFailed(MillraceError):
    """A job ended without success. `str()` contains the root cause, `log_tail` the last log lines of the
    agent.
    """

    def __init__(self, message: str, *, name: str, state: str, log_tail: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.name = name
        self.state = state
        self.log_tail = tuple(log_tail)


@dataclass(frozen=True)
class FieldError:
    """An invalid field, such as `spec.numCsx`, and what is wrong with it."""

    field: str
    message: str


class ApplianceError(MillraceError):
    """The appliance responded with an error."""

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
        """The appliance's message."""
        self.status = status
        """HTTP status."""
        self.reason = reason
        """Reason for programs, the same as in a job's conditions: BadParams, NotFound, ..."""
        self.errors = tuple(errors)
        """The invalid fields, if the error is about fields."""
        self.request_id = request_id
        """ID of the request in the appliance's log."""
        self.retry_after = retry_after
        """Seconds to wait before the next try, if the appliance asks for it."""


class BadRequest(ApplianceError):
    """The request is malformed."""


class Unauthorized(ApplianceError):
    """The token is missing, unknown, expired or revoked."""


class Forbidden(ApplianceError):
    """The token's owner is not allowed to do this."""


class NotFound(ApplianceError):
    """The object does not exist, or the caller may not see it."""


class Conflict(ApplianceError):
    """The object's state does not allow the operation."""


class AlreadyExists(Conflict):
    """A job with this name exists."""


class Gone(ApplianceError):
    """The object was deleted."""


class PayloadTooLarge(ApplianceError):
    """The request's body is larger than the appliance accepts."""


class Invalid(ApplianceError):
    """A field has an invalid value."""


class BadParams(Invalid):
    """The params are invalid. The message has the line and a hint."""


class IdempotencyKeyReused(ApplianceError):
    """The idempotency key was used for another submission."""


class TooManyRequests(ApplianceError):
    """The appliance's rate limit is exceeded, also after retries."""


class Internal(ApplianceError):
    """An internal error of the appliance."""


class Unavailable(ApplianceError):
    """The appliance, or a service it depends on, is unavailable, also after retries."""


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
    """Returns the class for a reason, or for the status if the reason is unknown or missing."""
    return _BY_REASON.get(reason or "") or _BY_STATUS.get(status, ApplianceError)
