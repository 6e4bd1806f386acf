"""Resolves the appliance's address and token from arguments, the environment and the contexts file."""

from __future__ import annotations

import functools
import ipaddress
import os
import re
import sys
from dataclasses import dataclass, field
from urllib.parse import quote, urlsplit

from millrace.config import Config, Context
from millrace.errors import ConfigError

LOCAL_URL = "http://127.0.0.1:8080"
"""The default address of `millrace-api serve`."""
_LOCAL_SECONDS = 2.0
_START_FROM_SOURCES = "`cargo run --release -p millrace-api -- serve --input-dir .`"


@dataclass(frozen=True)
class Endpoint:
    """The parameters of a connection."""

    url: str
    namespace: str = "default"
    token: str | None = field(default=None, repr=False)
    ca: str | None = None
    insecure: bool = False

    @property
    def is_loopback(self) -> bool:
        """Whether the address is one of this machine."""
        return _is_loopback(urlsplit(self.url).hostname or "")


def resolve(
    url: str | None = None,
    token: str | None = None,
    namespace: str | None = None,
    context: str | None = None,
    ca: str | None = None,
    insecure: bool | None = None,
) -> Endpoint:
    """Returns the endpoint. Precedence: arguments, the named context, the environment, the current context.

    If none of them has an address, the endpoint is the server on this machine, if one runs at `LOCAL_URL`.
    Only a token that is an argument is sent to it: on a shared machine, the program that listens there may be
    another user's, and the token of the environment may belong to another server.

    The token and certificate authority of a context are used for that context's address only. Raises
    ConfigError if no appliance is found, or if the token would be sent unencrypted.
    """
    environment = os.environ.get
    config = Config()
    named = config.context(context) if context else None
    if named is not None and not (named.url or url):
        # Falling back to another address would reach an appliance that the caller did not name.
        raise ConfigError(
            f"context {context} has no address: set it with `millrace config set-context {context} --url URL`"
        )
    current = config.contexts.get(config.current or "", Context())

    address = url or (named and named.url) or environment("MILLRACE_URL") or current.url
    if not address:
        if not _is_local_server_there():
            raise ConfigError(
                f"no appliance is selected, and no server runs on this machine at {LOCAL_URL}: start one "
                f"with `millrace-api serve --input-dir .` (from the sources: {_START_FROM_SOURCES}), log in "
                f"with `millrace login URL`, set MILLRACE_URL, or use --url (url= in Python)"
            )
        return Endpoint(LOCAL_URL, namespace or environment("MILLRACE_NAMESPACE") or "default", _clean(token))
    address = normalize_url(address)
    using = named or current
    if using.url is None or normalize_url(using.url) != address:
        using = Context()

    # A named context includes its token: the one of the environment may belong to another appliance.
    from_environment = environment("MILLRACE_TOKEN") if named is None else None
    if insecure is None:
        insecure = environment("MILLRACE_INSECURE", "") not in ("", "0", "false")
    endpoint = Endpoint(
        url=address,
        namespace=namespace
        or (named and named.namespace)
        or environment("MILLRACE_NAMESPACE")
        or using.namespace
        or "default",
        token=_clean(_first_set(token, from_environment, using.token)),
        ca=ca or environment("MILLRACE_CA") or using.ca,
        insecure=insecure,
    )
    _check_token_is_encrypted(endpoint)
    return endpoint


@functools.cache
def _is_local_server_there() -> bool:
    """Whether a Millrace server responds on this machine. If so, prints its address once on stderr."""
    import httpx

    try:
        answer = httpx.get(f"{LOCAL_URL}/v1/version", timeout=_LOCAL_SECONDS, trust_env=False)
        found = answer.status_code == httpx.codes.OK and "backend" in answer.json()
    except (httpx.HTTPError, ValueError, TypeError):
        return False
    if found:
        print(f"using the server on this machine, {LOCAL_URL}", file=sys.stderr)
        if os.environ.get("MILLRACE_TOKEN"):
            print(f"MILLRACE_TOKEN is not sent to it: set MILLRACE_URL={LOCAL_URL} as well", file=sys.stderr)
    return found


def normalize_url(url: str) -> str:
    """Returns the address with a scheme and without a trailing slash.

    The default scheme is http for this machine and https for others. Raises ConfigError for an invalid
    address.
    """
    url = url.strip()
    if "://" not in url:
        host = urlsplit(f"//{url}").hostname or ""
        url = f"{'http' if _is_loopback(host) else 'https'}://{url}"
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port or True)
    except ValueError:
        usable = False
    if not usable or parts.query or parts.fragment:
        raise ConfigError(f"{url} is not a valid address: use the form https://millrace.example.org")
    if parts.username is not None:
        raise ConfigError(
            "user and password in an address are not supported: log in with a token, `millrace login URL`"
        )
    return url.rstrip("/")


def _check_token_is_encrypted(endpoint: Endpoint) -> None:
    """Raises ConfigError if the token would be sent unencrypted over a network."""
    if (
        endpoint.token
        and endpoint.url.startswith("http://")
        and not (endpoint.is_loopback or endpoint.insecure)
    ):
        raise ConfigError(
            f"{endpoint.url} would send the token unencrypted: use https://, or allow it with --insecure "
            f"(insecure=True in Python, MILLRACE_INSECURE=1)"
        )


def _clean(token: str | None) -> str | None:
    if token is None:
        return None
    token = token.strip()
    # A token must fit in a header. The message does not quote it, because most of it may be correct.
    if token and not re.fullmatch(r"[\x21-\x7e]+", token):
        raise ConfigError("the token contains invalid characters: copy it again")
    return token or None


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def segment(text: str) -> str:
    """Quotes a name as one segment of a URL's path. Raises ConfigError if it is empty or a relative path."""
    if not isinstance(text, str) or text in ("", ".", ".."):
        # These would address another path.
        raise ConfigError(f"invalid name {text!r}: list the names of jobs with `millrace get jobs`")
    return quote(text, safe="")


def _first_set(*given: str | None) -> str | None:
    """Returns the first argument that is not None. An empty string counts: it means no token."""
    return next((each for each in given if each is not None), None)
