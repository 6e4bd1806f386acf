"""Which appliance is meant, and with which token: from arguments, the environment and the contexts file."""

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
"""Where `millrace-api serve` listens if nothing else is said."""
_LOCAL_SECONDS = 2.0


@dataclass(frozen=True)
class Endpoint:
    """All that a connection needs to know."""

    url: str
    namespace: str = "default"
    token: str | None = field(default=None, repr=False)
    ca: str | None = None
    insecure: bool = False

    @property
    def is_loopback(self) -> bool:
        """Whether it is this machine itself."""
        return _is_loopback(urlsplit(self.url).hostname or "")


def resolve(
    url: str | None = None,
    token: str | None = None,
    namespace: str | None = None,
    context: str | None = None,
    ca: str | None = None,
    insecure: bool | None = None,
) -> Endpoint:
    """Arguments come first, then a context that is named, then the environment, then the current context.

    Without any of these it is the server on this machine, if one runs at `LOCAL_URL`. It is sent no token but
    one that is an argument: the token of the environment may be meant for another server.

    A context's token and authority go to that context's address and to no other.
    """
    environment = os.environ.get
    config = Config()
    named = config.context(context) if context else None
    if named is not None and not (named.url or url):
        # Another appliance than the one that was named must not be meant.
        raise ConfigError(
            f"The context {context} has no address: give it one with `millrace config set-context {context} "
            f"--url URL`."
        )
    current = config.contexts.get(config.current or "", Context())

    address = url or (named and named.url) or environment("MILLRACE_URL") or current.url
    if not address:
        if not _is_local_server_there():
            raise ConfigError(
                f"No appliance is named, and no server runs on this machine at {LOCAL_URL}: start one with "
                f"`millrace-api serve`, or log in elsewhere with `millrace login URL`, set MILLRACE_URL, or "
                f"give --url (url= in Python)."
            )
        return Endpoint(LOCAL_URL, namespace or environment("MILLRACE_NAMESPACE") or "default", _clean(token))
    address = normalize_url(address)
    using = named or current
    if using.url is None or normalize_url(using.url) != address:
        using = Context()

    # Who names a context means its token.
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
    """Whether a server of Millrace answers on this machine; if so, says that it is used, once."""
    import httpx

    try:
        answer = httpx.get(f"{LOCAL_URL}/v1/version", timeout=_LOCAL_SECONDS, trust_env=False)
        found = answer.status_code == httpx.codes.OK and "backend" in answer.json()
    except (httpx.HTTPError, ValueError, TypeError):
        return False
    if found:
        print(f"Using the server on this machine, {LOCAL_URL}.", file=sys.stderr)
    return found


def normalize_url(url: str) -> str:
    """An address with its scheme and without a slash at its end.

    The scheme is https where none is said, and http for this machine itself.
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
        raise ConfigError(f"{url} is no appliance's address: write it as https://millrace.example.org.")
    if parts.username is not None:
        raise ConfigError(
            "An address has no user and password in it: log in with a token, by `millrace login URL`."
        )
    return url.rstrip("/")


def _check_token_is_encrypted(endpoint: Endpoint) -> None:
    """A token that travels in the clear is everybody's."""
    if (
        endpoint.token
        and endpoint.url.startswith("http://")
        and not (endpoint.is_loopback or endpoint.insecure)
    ):
        raise ConfigError(
            f"{endpoint.url} would send the token unencrypted: use https://, or accept it by --insecure "
            f"(insecure=True in Python, MILLRACE_INSECURE=1)."
        )


def _clean(token: str | None) -> str | None:
    if token is None:
        return None
    token = token.strip()
    # What a header can't carry is no token; it is not repeated here, for it may be most of one.
    if token and not re.fullmatch(r"[\x21-\x7e]+", token):
        raise ConfigError("The token has characters that no token has: copy it again.")
    return token or None


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def segment(text: str) -> str:
    """A name as one segment of a path."""
    if not isinstance(text, str) or text in ("", ".", ".."):
        # They would mean another path.
        raise ConfigError(f"{text!r} is no name: `millrace get jobs` lists the names of jobs.")
    return quote(text, safe="")


def _first_set(*given: str | None) -> str | None:
    """The first that was given; an empty one says that there is none."""
    return next((each for each in given if each is not None), None)
