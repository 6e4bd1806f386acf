"""HTTP as this client needs it: requests and streams that outlive bad connections, and typed errors.

    request   one request and its whole answer; repeated where that is harmless
    download  the body of an answer in pieces, from an offset
    events    server-sent events, resumed by Last-Event-ID: each numbered event once, whatever is cut

Knows nothing of jobs.
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
"""How far a stream was heard: a number for each kind of thing that it counts."""

# What may pass by itself. Another 5xx is a fault that the same request would meet again.
_RETRIED = frozenset({408, 429, 502, 503, 504})
_TIMEOUT = httpx.Timeout(60.0, connect=10.0, pool=10.0)
# Where there is nothing to tell, the appliance sends comments: a silent connection is a dead one.
_STREAM_TIMEOUT = httpx.Timeout(60.0, connect=10.0, pool=10.0)


class Transport:
    """The connection to one appliance. Safe to share between threads."""

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
                # A proxy of the environment is not for this machine itself.
                trust_env=not endpoint.is_loopback,
            )
        except ImportError as error:
            raise errors.MissingDependency("socksio", "The SOCKS proxy of the environment") from error

    def close(self) -> None:
        """Give up the kept connections."""
        self._client.close()

    def _open_client(self) -> httpx.Client:
        if self._client.is_closed:
            raise errors.ConfigError(
                f"The connection to {self.endpoint.url} was closed: use jobs before their Appliance's `with` "
                f"block ends, or an Appliance without one."
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
        """The answer, if it is a success; `seconds` are for one that takes long to make.

        Every request may be repeated: those that create carry an idempotency key in `headers`, all others say
        how things shall be.
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
        """The answer of a request, as JSON."""
        response = self.request(method, path, **request)
        try:
            return response.json()
        except ValueError as error:
            what = response.headers.get("content-type", "something unnamed")
            raise errors.Unreachable(
                f"{self.endpoint.url} sent {what} where JSON was expected: is it a Millrace appliance?"
            ) from error

    @contextmanager
    def download(
        self, path: str, *, params: Params | None, offset: int, etag: str | None
    ) -> Iterator[httpx.Response]:
        """A file from an offset on, its body unread; all of it (200) where it is not that of `etag`."""
        # Lengths and offsets are those of the file itself.
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
        """For what is tried by its caller in several requests, as a download in ranges."""
        return RetryLoop(self, RetryBudget(self._retry_seconds))

    def events(self, path: str, *, params: Params | None = None, after: int = 0) -> Iterator[ServerSentEvent]:
        """The events of a stream until its `end`, numbered ones each once and in order."""
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
                raise httpx.RemoteProtocolError("the stream was cut")
            except (httpx.HTTPError, errors.ApplianceError) as error:
                if not self._wait_for_retry(budget, error, at_least=decoder.retry or 0.0):
                    self._raise(error)

    def _stream(self, path: str, params: Params | None, last: Position) -> Generator[bytes, None, None]:
        """The bytes of one connection to a stream."""
        headers = _stream_headers(last)
        with self._open_client().stream(
            "GET", path, params=_given(params), headers=headers, timeout=_STREAM_TIMEOUT
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
                f"{self.endpoint.url} sent {kind or 'something unnamed'} where live events were expected: "
                f"does a proxy in between know server-sent events?"
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
            log.warning("%s; trying again", self._description(error))
        return budget.wait(at_least)

    def _raise(self, error: httpx.HTTPError | errors.ApplianceError) -> NoReturn:
        """Raise what the caller shall see of it."""
        if isinstance(error, errors.ApplianceError):
            raise error
        if said := _other_scheme(self.endpoint.url, error):
            raise errors.Unreachable(said) from error
        remedy = "is the appliance up, and is this its address?"
        if _certificate_trouble(error):
            remedy = "name the authority that signed its certificate with --ca FILE (ca= in Python)."
        raise errors.Unreachable(f"{self._description(error)}: {remedy}") from error

    def _description(self, error: httpx.HTTPError | errors.ApplianceError) -> str:
        if isinstance(error, errors.ApplianceError):
            return str(error)
        if isinstance(error, httpx.TimeoutException):
            return f"{self.endpoint.url} did not answer in time"
        did = "Cannot reach" if isinstance(error, httpx.ConnectError) else "Lost the connection to"
        return f"{did} {self.endpoint.url} ({_root_cause(error)})"


class RetryLoop:
    """Decides for a caller's own loop whether a failed try is worth another one."""

    def __init__(self, transport: Transport, budget: RetryBudget) -> None:
        self._transport = transport
        self._budget = budget

    def succeeded(self) -> None:
        """The last try got somewhere."""
        self._budget.succeeded()

    def wait_or_raise(self, error: httpx.HTTPError | errors.ApplianceError) -> None:
        """Sleep before the next try; raise where there should be none."""
        if not self._transport._wait_for_retry(self._budget, error):
            self._transport._raise(error)


def _given(params: Params | None) -> dict[str, str]:
    """Query parameters without those that were not given, truth values as the appliance spells them."""
    spelt = {True: "true", False: "false"}
    return {
        key: spelt[value] if isinstance(value, bool) else str(value)
        for key, value in (params or {}).items()
        if value is not None
    }


def _position(event_id: str) -> Position:
    """Where a stream stands after an event, by its id; nothing of one that has no place in its order."""
    parts = event_id.split(".")
    return tuple(int(part) for part in parts) if all(part.isdecimal() for part in parts) else ()


def _is_beyond(position: Position, last: Position) -> bool:
    return any(new > old for new, old in zip_longest(position, last, fillvalue=0))


def _stream_headers(last: Position) -> dict[str, str]:
    # A compressing proxy would hold events back until it has a block of them.
    headers = {"Accept": "text/event-stream", "Cache-Control": "no-store", "Accept-Encoding": "identity"}
    if last:
        headers["Last-Event-ID"] = ".".join(map(str, last))
    return headers


def _verification(endpoint: Endpoint) -> ssl.SSLContext | bool:
    if endpoint.url.startswith("http://"):
        # Nothing to verify, and reading all the authorities takes longer than a request.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if endpoint.insecure:
        return False
    if endpoint.ca is None:
        return True
    try:
        return ssl.create_default_context(cafile=endpoint.ca)
    except (OSError, ssl.SSLError) as error:
        raise errors.ConfigError(f"{endpoint.ca} has no certificates that can be read ({error}).") from error


def _error(response: httpx.Response) -> errors.ApplianceError:
    """An answer other than success as its exception, whoever in between has sent it."""
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
        detail = f"The appliance sends on to {response.headers.get('location')}: use that address."
    if not detail:
        detail = f"The appliance, or a proxy before it, answered {named} to {response.request.url.path}."
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


def _retry_after(value: str | None) -> float | None:
    """Seconds from now, from seconds or a date."""
    if not value:
        return None
    if value.isdecimal():
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time())
    except ValueError:
        return None


def _cause_chain(error: BaseException) -> Iterator[BaseException]:
    at: BaseException | None = error
    while at is not None:
        yield at
        at = at.__cause__ or at.__context__


def _root_cause(error: BaseException) -> str:
    """The cause in the operating system's words, without its number: `Connection refused`."""
    *_, root = _cause_chain(error)
    return getattr(root, "strerror", None) or str(root) or type(root).__name__


def _certificate_trouble(error: BaseException) -> bool:
    return any(isinstance(each, ssl.SSLCertVerificationError) for each in _cause_chain(error))


def _other_scheme(url: str, error: BaseException) -> str | None:
    """What to do where the server speaks HTTP and was spoken to in HTTPS, or the other way round."""
    scheme, _, rest = url.partition("://")
    if scheme == "https":
        # What a server sends that knows no TLS has no version of it where TLS looks for one. The second is
        # how newer versions of OpenSSL say so.
        reasons = [each.reason for each in _cause_chain(error) if isinstance(each, ssl.SSLError)]
        is_other = {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"}.intersection(reasons)
        if is_other and isinstance(error, httpx.ConnectError):
            return f"{url} does not speak HTTPS: write http://{rest}, if nobody in between can listen."
    elif "illegal request line" in str(error):
        # So the library calls an answer that begins with the bytes of a TLS alert.
        return f"{url} does not speak HTTP without encryption: write https://{rest}."
    return None


def _is_permanent(url: str, error: httpx.TransportError) -> bool:
    """What the same try would meet again: an address that is none, a certificate that is not trusted."""
    if isinstance(error, httpx.UnsupportedProtocol):
        return True
    return _certificate_trouble(error) or _other_scheme(url, error) is not None
