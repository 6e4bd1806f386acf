"""Tests of authentication and authorization, on every route with every kind of token."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import BACKEND, ProcessServer, Server, path, serving
from routes import GUARDED, JOB, PUBLIC, ROLES, ROUTES, Guarded, Route


@pytest.fixture(scope="module")
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with serving(tmp_path_factory.mktemp("guarded")) as serve:
        is_open = "open" in BACKEND.can
        server: Server = serve("--require-token") if is_open else request.getfixturevalue("shared")
        tokens = {role: server.token(f"{role} here", role, server.namespace) for role in ("viewer", "editor")}
        tokens["admin"] = server.token("the admin", "admin", "*")
        tokens["abroad"] = server.token("editor abroad", "editor", "elsewhere", "another")
        tokens["expired"] = server.token("expired", "admin", "*", seconds=1)
        tokens["revoked"] = server.token("revoked", "admin", "*")
        admin = server.user_with(tokens["admin"])
        known = {
            token["name"]: token["id"] for token in admin.http.get("/v1/tokens").raise_for_status().json()["items"]
        }
        assert admin.http.delete(f"/v1/tokens/{known['revoked']}").status_code == 200
        if is_open:
            job = admin.submit("guarded", 100)
            job.wait(60)
        else:
            job = request.getfixturevalue("finished")
        time.sleep(1)  # until the short-lived token has expired
        yield Guarded(server, job, tokens, server.user_with(None).http)


@pytest.mark.parametrize("kind", ["none", "malformed", "unknown", "expired", "revoked"])
def test_routes_reject_invalid_tokens(guarded: Guarded, kind: str) -> None:
    """Missing, malformed, unknown, expired and revoked tokens get 401 on every route, with `WWW-Authenticate`."""
    admin = guarded.tokens["admin"]
    values: dict[str, list[str | bytes | None]] = {
        "none": [None],
        "malformed": [
            "",
            "Bearer",
            "Basic dXNlcjpwYXNz",
            admin,
            f"Token {admin}",
            b"Bearer \xff",
            "Bearer " + "x" * 9000,
        ],
        "unknown": ["Bearer mrt_" + "0" * 64, f"Bearer {admin}0", f"Bearer {admin[:-1]}", f"Bearer {admin.upper()}"],
        "expired": [f"Bearer {guarded.tokens['expired']}"],
        "revoked": [f"Bearer {guarded.tokens['revoked']}"],
    }
    for route in GUARDED:
        for value in values[kind]:
            answer = guarded.ask(route, value)
            assert answer.status_code == 401, (route, value)
            assert answer.headers["content-type"] == "application/problem+json"
            assert (answer.json()["reason"], answer.headers["www-authenticate"]) == ("Unauthorized", "Bearer")


@pytest.mark.parametrize("role", ROLES)
def test_role_permissions(guarded: Guarded, role: str) -> None:
    """A viewer reads jobs but no files; an editor also changes jobs and reads files; only an admin manages tokens."""
    for route in GUARDED:
        allowed = ROLES.index(role) >= ROLES.index(str(route.role))
        # The job is still needed, so the request names another UID.
        which = {"uid": "0"} if (route.method, route.path) == ("DELETE", JOB) else {}
        answer = guarded.ask(route, f"Bearer {guarded.tokens[role]}", **which)
        assert (answer.status_code != 403) == allowed, (route, answer.text)
        assert answer.status_code < 500 and answer.status_code != 401, (route, answer.text)
        if not allowed:
            assert answer.json()["reason"] == "Forbidden"


def test_permission_is_checked_before_the_request_is_read(guarded: Guarded) -> None:
    """A client without permission gets 403 for every object, existing or not, and whatever its query and body are."""
    viewer = f"Bearer {guarded.tokens['viewer']}"
    job = f"/v1/namespaces/{guarded.server.namespace}/trainjobs/{guarded.job.name}"
    for method, target in (
        ("DELETE", f"{job}-missing"),
        ("POST", f"{job}-missing/suspend"),
        ("POST", f"{job}/scale"),
        ("GET", f"{job}/checkpoints/no-step"),
        ("GET", f"{job}/checkpoints/100?format=unknown"),
        ("GET", f"{job}/artifacts/job.json?unknown=1"),
        ("POST", "/v1/tokens"),
    ):
        answer = guarded.http.request(method, target, headers={"Authorization": viewer}, content=b"{")
        assert (answer.status_code, answer.json()["reason"]) == (403, "Forbidden"), (target, answer.text)
    assert guarded.http.head(job).status_code == 401
    assert guarded.http.head(job, headers={"Authorization": viewer}).status_code == 200


def test_token_is_limited_to_its_namespaces(guarded: Guarded) -> None:
    """A token of other namespaces gets 403 here, and sees no job of this namespace in shared resources."""
    abroad = f"Bearer {guarded.tokens['abroad']}"
    for route in GUARDED:
        answer = guarded.ask(route, abroad)
        if route.is_of_a_namespace or route.role == "admin":
            assert (answer.status_code, answer.json()["reason"]) == (403, "Forbidden"), route
        else:
            assert answer.status_code == 200 and guarded.job.name not in answer.text, route
    user = guarded.server.user_with(guarded.tokens["abroad"])
    assert user.http.get("/v1/namespaces/-/trainjobs").json()["items"] == []
    assert user.http.get("/v1/whoami").json() == {
        "name": "editor abroad",
        "role": "editor",
        "namespaces": ["elsewhere", "another"],
    }
    ours = guarded.server.user_with(guarded.tokens["viewer"]).http.get("/v1/namespaces/-/trainjobs").json()["items"]
    assert {job["metadata"]["namespace"] for job in ours} == {guarded.server.namespace}
    assert guarded.job.name in {job["metadata"]["name"] for job in ours}


def test_token_in_a_url_is_rejected(guarded: Guarded) -> None:
    """Proxies and histories store URLs, so a token in a query is rejected even if the header has a valid one."""
    good = guarded.tokens["admin"]
    for route in GUARDED:
        for name in ("token", "access_token"):
            for header in (None, f"Bearer {good}"):
                answer = guarded.ask(route, header, **{name: good})
                assert answer.status_code == 400, (route, name)
                assert good not in answer.text


def test_public_routes(guarded: Guarded) -> None:
    """Version, health and documentation need no token."""
    for route in set(ROUTES) - set(GUARDED):
        assert guarded.ask(route, None).status_code == 200, route
    assert guarded.ask(Route("GET", "/v1/nothing", PUBLIC), None).status_code == 404


def test_submitter_is_recorded(guarded: Guarded) -> None:
    """The annotation names the token that submitted a job, whatever the submission contains."""
    user = guarded.server.user_with(guarded.tokens["editor"])
    body: dict[str, Any] = {"metadata": {"name": "mine", "annotations": {"millrace.dev/submitted-by": "another user"}}}
    body["spec"] = {**guarded.job.spec, "suspend": True}
    made = user.http.post(f"/v1/namespaces/{user.namespace}/trainjobs", json=body).raise_for_status().json()
    assert made["metadata"]["annotations"]["millrace.dev/submitted-by"] == "editor here"
    assert user.millrace("get", "jobs", "--mine", "-o", "name").out.split() == ["mine"]
    user.millrace("cancel", "mine", "--yes")


def test_log_names_the_principal(guarded: Guarded) -> None:
    """Every request that may change something is logged with its request ID; metrics contain no names of jobs."""
    user = guarded.server.user_with(guarded.tokens["editor"])
    body = {"metadata": {"name": "named-job"}, "spec": {**guarded.job.spec, "suspend": True}}
    made = user.http.post(f"/v1/namespaces/{user.namespace}/trainjobs", json=body).raise_for_status()
    user.millrace("cancel", "named-job", "--yes")
    unauthorized = guarded.ask(Route("POST", f"{JOB}/suspend", "editor"), None)
    place = f"/v1/namespaces/{user.namespace}/trainjobs"
    logged = ((made, f'201 Created POST {place}/named-job by "editor here"'), (unauthorized, "401 Unauthorized POST"))
    for answer, said in logged:
        lines = [line for line in guarded.server.log.splitlines() if answer.headers["x-request-id"] in line]
        assert len(lines) == 1 and said in lines[0], lines
    assert user.http.get("/metrics").status_code == 404, "metrics are not served on the API port"
    numbers = guarded.server.metrics()
    labels = 'code="201",method="POST",route="/v1/namespaces/{namespace}/trainjobs"'
    assert f"millrace_api_request_duration_seconds_count{{{labels}}}" in numbers and "named-job" not in numbers


def test_tokens_are_created_and_revoked_over_http(guarded: Guarded) -> None:
    """The secret of a new token is returned once, and works until the token is revoked."""
    admin = guarded.server.user_with(guarded.tokens["admin"]).http
    made = admin.post(
        "/v1/tokens", json={"name": "new", "role": "viewer", "namespaces": [guarded.server.namespace]}
    ).json()
    secret = made.pop("token")
    user = guarded.server.user_with(secret)
    user.millrace("get", "jobs")
    listed = admin.get("/v1/tokens")
    assert made["id"] in {token["id"] for token in listed.json()["items"]}
    assert secret not in listed.text and "hash" not in listed.text
    assert admin.delete(f"/v1/tokens/{made['id']}").status_code == 200
    assert user.http.get("/v1/whoami").status_code == 401
    done = user.millrace("get", "jobs", code=3)
    assert "unknown, expired or revoked" in done.error and "millrace login" in done.err


@pytest.mark.needs("open")
def test_stream_ends_with_its_token(guarded: Guarded) -> None:
    """A stream ends soon after its token is revoked."""
    admin = guarded.server.user_with(guarded.tokens["admin"])
    made = admin.http.post("/v1/tokens", json={"name": "short", "role": "viewer", "namespaces": ["*"]}).json()
    job = admin.submit("streamed", 1_000_000)
    listener = guarded.server.user_with(made["token"]).http
    with listener.stream("GET", f"{path(job)}/follow", timeout=30) as answer:
        lines = answer.iter_lines()
        next(lines)
        assert admin.http.delete(f"/v1/tokens/{made['id']}").status_code == 200
        revoked = time.monotonic()
        assert "event: end" not in list(lines)
    assert time.monotonic() - revoked < 20
    admin.millrace("cancel", "streamed", "--yes")


def stored_files(folder: Path) -> dict[str, bytes]:
    """The content of all files below a folder, except those that are removed meanwhile, as jobs write checkpoints."""
    contents = {}
    for parent, _, names in os.walk(folder):
        for file in (Path(parent, name) for name in names):
            with contextlib.suppress(FileNotFoundError):
                if file.is_file():
                    contents[str(file)] = file.read_bytes()
    return contents


def test_secrets_are_never_stored(guarded: Guarded) -> None:
    """No token is in the server's log or, if its files are local, in any file of its data."""
    kept = {"log": guarded.server.log.encode()}
    if isinstance(guarded.server, ProcessServer):
        kept |= stored_files(guarded.server.data)
        assert len(kept) > 10
    for where, content in kept.items():
        assert not any(secret.encode() in content for secret in guarded.tokens.values()), where


@pytest.mark.needs("open")
def test_server_without_tokens_accepts_local_clients_only(shared: Server) -> None:
    """Requests with another Origin or Host are rejected, so that web sites can't use a local browser."""
    for headers in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}, {"Origin": "null"}):
        answer = shared.user.http.get("/v1/whoami", headers=headers)
        assert (answer.status_code, answer.json()["reason"]) == (403, "Forbidden"), headers
    assert shared.user.http.get("/v1/whoami").json()["role"] == "admin"
    assert shared.user.http.get("/v1/whoami", headers={"Authorization": "Bearer mrt_0"}).status_code == 401
