"""HTTP requests, downloads and event streams that survive unreliable connections. Knows nothing of jobs.

    request   one request and its whole response; retried
    send      one request with a body in pieces; not retried
    download  a response body in pieces, from an offset
    events    server-sent events, resumed by Last-Event-ID
    results   server-sent events with the parts of one result, which can't be resumed

* Every request can be retried: those that create something have an idempotency key, all others are
  idempotent.
* Each numbered event is delivered once and in order, wherever the connection breaks.
* Errors of the appliance are raised as `errors.ApplianceError`, network errors as `errors.Unreachable`.
"""

from __future__ import annotations

import json
import logging
import platform
import ssl
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from email.utils import parsedate_to_datetime
from itertools import zip_longest
from time import time
from typing import Any, NoReturn

import httpx

import millrace
from millrace import errors
from millrace.endpoint import Endpoint
from millrace.retry_budget import RetryBudget
from millrace.sse import Decoder, ServerSentEvent

log = logging.getLogger("millrace")

Params = Mapping[str, str | int | bool | None]
Position = tuple[int, ...]
"""Position in a stream: the last number of each of its series."""

# Temporary errors. Any other 5xx would occur again for the same request.
_RETRIED = frozenset({408, 429, 502, 503, 504})
_TIMEOUT = httpx.Timeout(60.0, connect=10.0, pool=10.0)
# The appliance sends keep-alive comments, so a silent connection is broken.
_STREAM_TIMEOUT = httpx.Timeout(60.0, connect=10.0, pool=10.0)


class Transport:
    """Connections to one appliance. Safe to share between threads."""

    def __init__(self, endpoint: Endpoint, *, retry_seconds: float, reconnect_seconds: float) -> None:
        self.endpoint = endpoint
        self._retry_seconds = retry_seconds
        self._reconnect_seconds = reconnect_seconds
        headers = {"User-Agent": f"millrace/{millrace.__version__} Python/{platform.python_version()}"}
        if endpoint.token:
            headers["Authorization"] = f"Bearer {endpoint.token}"
        try:
            self._client = httpx.Client(
                base_url=endpoint.url,
                headers=headers,
                timeout=_TIMEOUT,
                verify=_verification(endpoint),
                # A proxy of the environment is not for connections to this machine.
                trust_env=not endpoint.is_loopback,
            )
        except ImportError as error:
            raise errors.MissingDependency("socksio", "a SOCKS proxy") from error

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def _open_client(self) -> httpx.Client:
        if self._client.is_closed:
            raise errors.ConfigError(
                f"the connection to {self.endpoint.url} is closed: use jobs inside the `with` block of their "
                f"Appliance, or an Appliance without one"
            )
        return self._client

    def request(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
        json: object = None,
        seconds: float | None = None,
    ) -> httpx.Response:
        """Sends a request and returns the response if it is a success. `seconds` replaces the timeout of 60
        s.

        Raises ApplianceError or Unreachable when retries are used up.
        """
        budget = RetryBudget(self._retry_seconds)
        timeout = _TIMEOUT if seconds is None else httpx.Timeout(seconds, connect=10.0, pool=10.0)
        while True:
            try:
                response = self._open_client().request(
                    method,
                    path,
                    params=_given(params),
                    headers=headers,
                    content=content,
                    json=json,
                    timeout=timeout,
                )
                if response.is_success:
                    return response
                raise _error(response)
            except (httpx.HTTPError, errors.ApplianceError) as error:
                if not self._wait_for_retry(budget, error):
                    self._raise(error)

    def json(self, method: str, path: str, **request: Any) -> Any:
        """Sends a request and returns the JSON of the response."""
        return self._parse(self.request(method, path, **request))

    def send(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        headers: Mapping[str, str],
        content: Iterator[bytes],
    ) -> Any:
        """Sends a body in pieces, once, and returns the JSON of the response.

        Raises httpx.HTTPError or ApplianceError, for the caller's `retrying` loop.
        """
        response = self._open_client().request(
            method, path, params=_given(params), headers=headers, content=content
        )
        if not response.is_success:
            raise _error(response)
        return self._parse(response)

    def _parse(self, response: httpx.Response) -> Any:
        try:
            return response.json()
        except ValueError as error:
            content_type = response.headers.get("content-type", "no content type")
            raise errors.Unreachable(
                f"{self.endpoint.url} sent {content_type} instead of JSON: check that it is a Millrace "
                "appliance"
            ) from error

    @contextmanager
    def download(
        self, path: str, *, params: Params | None, offset: int, etag: str | None
    ) -> Iterator[httpx.Response]:
        """Requests a file from `offset` on; the body is not read yet. The whole file is sent (200) if its
        ETag has changed.
        """
        # Lengths and offsets must be those of the uncompressed file.
        headers = {"Accept-Encoding": "identity"}
        if offset:
            headers["Range"] = f"bytes={offset}-"
            if etag:
                headers["If-Range"] = etag
        client = self._open_client()
        with client.stream("GET", path, params=_given(params), headers=headers) as response:
            if not response.is_success:
                response.read()
                raise _error(response)
            yield response

    def retrying(self) -> RetryLoop:
        """Returns a retry loop for callers that send several requests, such as a download in ranges."""
        return RetryLoop(self, RetryBudget(self._retry_seconds))

    def events(self, path: str, *, params: Params | None = None, after: int = 0) -> Iterator[ServerSentEvent]:
        """Yields the events of a stream until its `end`, reconnecting as needed."""
        last: Position = (after,) if after else ()
        budget = RetryBudget(self._reconnect_seconds)
        while True:
            decoder = Decoder()
            try:
                with closing(self._stream(path, params, last)) as chunks:
                    for chunk in chunks:
                        budget.succeeded()
                        for event in decoder.feed(chunk):
                            if event.event == "end":
                                return
                            if position := _position(event.id):
                                if not _is_beyond(position, last):
                                    continue
                                last = position
                            yield event
                raise httpx.RemoteProtocolError("the stream was interrupted")
            except (httpx.HTTPError, errors.ApplianceError) as error:
                if not self._wait_for_retry(budget, error, at_least=decoder.retry or 0.0):
                    self._raise(error)

    def results(self, path: str, *, params: Params | None = None, json: object) -> Iterator[ServerSentEvent]:
        """Sends a request and yields the events of its response, the last of which is `end`. The request is
        repeated only until the response begins.

        Raises ApplianceError for an `error` event, and Unreachable if the response ends early.
        """
        budget = RetryBudget(self._retry_seconds)
        decoder = Decoder()
        has_begun = False
        while True:
            try:
                with closing(self._stream(path, params, (), method="POST", json=json)) as chunks:
                    for chunk in chunks:
                        for event in decoder.feed(chunk):
                            has_begun = True
                            if event.event == "error":
                                raise _error_event(event)
                            yield event
                            if event.event == "end":
                                return
                raise httpx.RemoteProtocolError("the response was interrupted")
            except (httpx.HTTPError, errors.ApplianceError) as error:
                if has_begun or not self._wait_for_retry(budget, error):
                    self._raise(error)

    def _stream(
        self,
        path: str,
        params: Params | None,
        last: Position,
        *,
        method: str = "GET",
        json: object = None,
    ) -> Generator[bytes, None, None]:
        """Yields the bytes of one connection to a stream."""
        headers = _stream_headers(last)
        with self._open_client().stream(
            method, path, params=_given(params), headers=headers, json=json, timeout=_STREAM_TIMEOUT
        ) as response:
            if not response.is_success:
                response.read()
                raise _error(response)
            self._check_stream(response)
            yield from response.iter_bytes()

    def _check_stream(self, response: httpx.Response) -> None:
        kind = response.headers.get("content-type", "")
        if not kind.startswith("text/event-stream"):
            raise errors.Unreachable(
                f"{self.endpoint.url} sent {kind or 'no content type'} instead of an event stream: "
                f"check that proxies in between support server-sent events"
            )

    def _wait_for_retry(
        self, budget: RetryBudget, error: httpx.HTTPError | errors.ApplianceError, at_least: float = 0.0
    ) -> bool:
        if isinstance(error, errors.ApplianceError):
            if error.status not in _RETRIED:
                return False
            at_least = max(at_least, error.retry_after or 0.0)
        elif not isinstance(error, httpx.TransportError) or _is_permanent(self.endpoint.url, error):
            return False
        if budget.has_not_failed:
            log.warning("%s; retrying", self._description(error))
        return budget.wait(at_least)

    def _raise(self, error: httpx.HTTPError | errors.ApplianceError) -> NoReturn:
        """Raises the exception for the caller."""
        if isinstance(error, errors.ApplianceError):
            raise error
        if message := _other_scheme(self.endpoint.url, error):
            raise errors.Unreachable(message) from error
        remedy = "check that the appliance runs, and its address"
        if _certificate_trouble(error):
            remedy = "set the authority that signed its certificate with --ca FILE (ca= in Python)"
        raise errors.Unreachable(f"{self._description(error)}: {remedy}") from error

    def _description(self, error: httpx.HTTPError | errors.ApplianceError) -> str:
        if isinstance(error, errors.ApplianceError):
            return str(error)
        if isinstance(error, httpx.TimeoutException):
            return f"{self.endpoint.url} did not respond in time"
        action = "can't reach" if isinstance(error, httpx.ConnectError) else "lost the connection to"
        return f"{action} {self.endpoint.url} ({_root_cause(error)})"


class RetryLoop:
    """Retries for a caller's own loop."""

    def __init__(self, transport: Transport, budget: RetryBudget) -> None:
        self._transport = transport
        self._budget = budget

    def succeeded(self) -> None:
        """Records that the last try made progress."""
        self._budget.succeeded()

    def wait_or_raise(self, error: httpx.HTTPError | errors.ApplianceError) -> None:
        """Sleeps before the next try, or raises the error if it should not be retried."""
        if not self._transport._wait_for_retry(self._budget, error):
            self._transport._raise(error)


def _given(params: Params | None) -> dict[str, str]:
    """Returns the query parameters that have a value, booleans as `true` and `false`."""
    spelt = {True: "true", False: "false"}
    return {
        key: spelt[value] if isinstance(value, bool) else str(value)
        for key, value in (params or {}).items()
        if value is not None
    }


def _position(event_id: str) -> Position:
    """Parses an event's ID as a position; empty for an event outside of the numbered series."""
    parts = event_id.split(".")
    return tuple(int(part) for part in parts) if all(part.isdecimal() for part in parts) else ()


def _is_beyond(position: Position, last: Position) -> bool:
    return any(new > old for new, old in zip_longest(position, last, fillvalue=0))


def _stream_headers(last: Position) -> dict[str, str]:
    # A compressing proxy would delay events until its buffer is full.
    headers = {"Accept": "text/event-stream", "Cache-Control": "no-store", "Accept-Encoding": "identity"}
    if last:
        headers["Last-Event-ID"] = ".".join(map(str, last))
    return headers


def _verification(endpoint: Endpoint) -> ssl.SSLContext | bool:
    if endpoint.url.startswith("http://"):
        # Not used for http; loading the system's certificate authorities would take longer than a request.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if endpoint.insecure:
        return False
    if endpoint.ca is None:
        return True
    try:
        return ssl.create_default_context(cafile=endpoint.ca)
    except (OSError, ssl.SSLError) as error:
        raise errors.ConfigError(f"can't read certificates from {endpoint.ca}: {error}") from error


def _error(response: httpx.Response) -> errors.ApplianceError:
    """Returns the exception for an error response, from the appliance or from a proxy."""
    try:
        problem = json.loads(response.content)
    except ValueError:
        problem = None
    if not isinstance(problem, dict):
        problem = {}
    status = response.status_code
    named = f"{status} {response.reason_phrase}".strip()
    reason = problem.get("reason")
    detail = problem.get("detail") or problem.get("title")
    if not detail and 300 <= status < 400:
        detail = f"the appliance redirects to {response.headers.get('location')}: use that address"
    if not detail:
        detail = f"the appliance, or a proxy before it, responded {named} to {response.request.url.path}"
    return errors.class_for(status, reason)(
        str(detail),
        status=status,
        reason=str(reason or response.reason_phrase.replace(" ", "") or status),
        errors=[
            errors.FieldError(str(each.get("field", "")), str(each.get("message", "")))
            for each in problem.get("errors") or ()
            if isinstance(each, dict)
        ],
        request_id=response.headers.get("x-request-id"),
        retry_after=_retry_after(response.headers.get("retry-after")),
    )


def _error_event(event: ServerSentEvent) -> errors.ApplianceError:
    """Returns the exception for an error after the response has begun."""
    problem = json.loads(event.data)
    status, reason = int(problem.get("status") or 500), str(problem.get("reason") or "Internal")
    detail = str(problem.get("detail") or "the appliance could not complete the response")
    return errors.class_for(status, reason)(detail, status=status, reason=reason)


def _retry_after(value: str | None) -> float | None:
    """Parses `Retry-After`, a number of seconds or a date, into seconds from now."""
    if not value:
        return None
    if value.isdecimal():
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time())
    except ValueError:
        return None


def _cause_chain(error: BaseException) -> Iterator[BaseException]:
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__ or current.__context__


def _root_cause(error: BaseException) -> str:
    """Returns the message of the root cause without its number: `Connection refused`."""
    *_, root = _cause_chain(error)
    return getattr(root, "strerror", None) or str(root) or type(root).__name__


def _certificate_trouble(error: BaseException) -> bool:
    return any(isinstance(each, ssl.SSLCertVerificationError) for each in _cause_chain(error))


def _other_scheme(url: str, error: BaseException) -> str | None:
    """Returns what to do if the server speaks HTTP and the client HTTPS, or vice versa; else None."""
    scheme, _, rest = url.partition("://")
    if scheme == "https":
        # A response without TLS has no valid TLS version where one is expected. Newer versions of OpenSSL
        # report RECORD_LAYER_FAILURE.
        reasons = [each.reason for each in _cause_chain(error) if isinstance(each, ssl.SSLError)]
        is_other = {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"}.intersection(reasons)
        if is_other and isinstance(error, httpx.ConnectError):
            return f"{url} does not support HTTPS: use http://{rest}, on a trusted network only"
    elif "illegal request line" in str(error):
        # h11's error for a response that begins with the bytes of a TLS alert.
        return f"{url} requires HTTPS: use https://{rest}"
    return None


def _is_permanent(url: str, error: httpx.TransportError) -> bool:
    """Whether a retry would fail in the same way: invalid URL, untrusted certificate, wrong scheme."""
    if isinstance(error, httpx.UnsupportedProtocol):
        return True
    return _certificate_trouble(error) or _other_scheme(url, error) is not None
