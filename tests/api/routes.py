"""All routes of the OpenAPI document with the roles they need, and a server with tokens of all kinds."""

from __future__ import annotations

import json
from dataclasses import dataclass

import httpx
from harness import ROOT, Server
from millrace import Job

JOB = "/v1/namespaces/{namespace}/trainjobs/{name}"
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
        return "{namespace}" in self.path


def all_routes() -> list[Route]:
    """Returns the routes of the OpenAPI document, with the access that the router requires."""
    document = json.loads((ROOT / "api/openapi.json").read_text())
    found = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            access = operation["x-millrace-access"]
            kind = access["kind"]
            assert kind in ("public", "authenticated", "bearer", "permission"), (path, kind)
            # Routes that only authenticate are open to every role.
            role = PUBLIC if kind == "public" else access.get("role", ROLES[0])
            found.append(Route(method.upper(), path, role))
    return found


BODIES = {
    "scale": {"numCsx": 1},
    "generate": {"maxTokens": 1},
    "blobs": {"digest": f"blake3:{'0' * 64}", "bytes": 1},
}
"""Valid bodies by the last part of the path."""

ROUTES = all_routes()
GUARDED = [route for route in ROUTES if route.role is not PUBLIC]
assert len(GUARDED) > 20 and {route.role for route in GUARDED} == set(ROLES)


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
            namespace=self.server.namespace,
            name=self.job.name,
            checkpoint=100,
            id="0",
            path="job.json",
            digest=f"blake3:{'0' * 64}",
        )
        headers: list[tuple[bytes, bytes]] = []
        if authorization is not None:
            value = authorization if isinstance(authorization, bytes) else authorization.encode()
            headers.append((b"Authorization", value))
        body = BODIES.get(path.rpartition("/")[2])
        answer = self.http.request(route.method, path, headers=headers, json=body, params=query)
        # A session that this request began must not authenticate later ones.
        self.http.cookies.clear()
        return answer
