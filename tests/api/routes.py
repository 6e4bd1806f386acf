"""All routes of the server with the roles they need, and a server with tokens of all kinds."""

from __future__ import annotations

from dataclasses import dataclass

import httpx
from harness import Server
from millrace import Job

JOB = "/v1/namespaces/{ns}/trainjobs/{name}"
ROLES = ("viewer", "editor", "admin")
PUBLIC = None


@dataclass(frozen=True)
class Route:
    """A route and the lowest role that may use it."""

    method: str
    path: str
    role: str | None
    """PUBLIC if no token is needed."""

    @property
    def is_of_a_namespace(self) -> bool:
        return "{ns}" in self.path


ROUTES = [
    Route("GET", "/v1/namespaces/{ns}/trainjobs", "viewer"),
    Route("POST", "/v1/namespaces/{ns}/trainjobs", "editor"),
    Route("POST", "/v1/namespaces/{ns}/trainjobs:plan", "viewer"),
    Route("GET", JOB, "viewer"),
    Route("DELETE", JOB, "editor"),
    Route("POST", f"{JOB}/suspend", "editor"),
    Route("POST", f"{JOB}/resume", "editor"),
    Route("POST", f"{JOB}/scale", "editor"),
    Route("GET", f"{JOB}/events", "viewer"),
    Route("GET", f"{JOB}/metrics", "viewer"),
    Route("GET", f"{JOB}/logs", "viewer"),
    Route("GET", f"{JOB}/follow", "viewer"),
    Route("GET", f"{JOB}/checkpoints", "viewer"),
    Route("GET", f"{JOB}/checkpoints/{{shelf}}", "editor"),
    Route("GET", f"{JOB}/checkpoints/{{shelf}}/{{*path}}", "editor"),
    Route("GET", f"{JOB}/artifacts", "viewer"),
    Route("GET", f"{JOB}/artifacts/{{*path}}", "editor"),
    Route("GET", "/v1/namespaces/{ns}/volumes", "viewer"),
    Route("GET", "/v1/appliance", "viewer"),
    Route("GET", "/v1/whoami", "viewer"),
    Route("GET", "/v1/version", PUBLIC),
    Route("POST", "/v1/session", "viewer"),
    Route("DELETE", "/v1/session", "viewer"),
    Route("GET", "/", PUBLIC),
    Route("GET", "/openapi.json", PUBLIC),
    Route("GET", "/docs", PUBLIC),
    Route("GET", "/v1/tokens", "admin"),
    Route("POST", "/v1/tokens", "admin"),
    Route("DELETE", "/v1/tokens/{id}", "admin"),
    Route("GET", "/healthz", PUBLIC),
    Route("GET", "/readyz", PUBLIC),
]
GUARDED = [route for route in ROUTES if route.role is not PUBLIC]


@dataclass(frozen=True)
class Guarded:
    """A server that requires tokens, with a finished job and tokens of several kinds."""

    server: Server
    job: Job
    tokens: dict[str, str]
    http: httpx.Client
    """A client without a token."""

    def ask(self, route: Route, authorization: str | bytes | None, **query: str) -> httpx.Response:
        """Returns the response to a valid request; the body of a stream is not read."""
        path = route.path.format(
            ns=self.server.namespace, name=self.job.name, shelf=100, id="0", **{"*path": "job.json"}
        )
        # A request that is rejected before its body is read leaves a connection that can't be reused.
        headers = [(b"Connection", b"close")]
        if authorization is not None:
            value = authorization if isinstance(authorization, bytes) else authorization.encode()
            headers.append((b"Authorization", value))
        body = {"numCsx": 1} if path.endswith("scale") else None
        return self.http.request(route.method, path, headers=headers, json=body, params=query)
