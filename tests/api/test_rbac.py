"""Tests of Kubernetes accounts: over REST they may do what they may do with kubectl."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from harness import KubernetesServer, until
from millrace import Job
from routes import GUARDED, JOB, Guarded

pytestmark = pytest.mark.needs("cluster")

# Roles in a namespace grant nothing that is cluster-scoped.
OUTSIDE = {"/v1/appliance", "/v1/tokens", "/v1/tokens/{id}"}
ROLES = ("viewer", "editor")


@pytest.fixture(scope="module")
def accounts(shared: KubernetesServer, finished: Job) -> Iterator[Guarded]:
    elsewhere = shared.another_namespace()
    tokens = {
        "viewer": shared.account("viewer", "millrace-viewer"),
        "editor": shared.account("editor", "millrace-editor"),
        "unbound": shared.account("unbound", None),
        "abroad": shared.account("abroad", "millrace-admin", elsewhere),
    }
    yield Guarded(shared, finished, tokens, shared.user_with(None).http)


def test_routes_reject_unknown_tokens(accounts: Guarded) -> None:
    """Unknown and modified tokens get 401 on every route."""
    header, payload, signature = accounts.tokens["editor"].split(".")
    for route in GUARDED:
        for token in ("made-up", f"{header}.{payload}.{signature[::-1]}", f"{header}.{payload}.", "x." * 9000):
            answer = accounts.ask(route, f"Bearer {token}")
            assert (answer.status_code, answer.json()["reason"]) == (401, "Unauthorized"), (route, token[:20])
            assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("role", ROLES)
def test_role_permissions(accounts: Guarded, role: str) -> None:
    """A viewer reads jobs, logs and lists of checkpoints but no files; an editor reads files, too; neither gets
    cluster-scoped resources.
    """
    token = accounts.tokens[role]
    for route in GUARDED:
        allowed = route.role != "admin" and ROLES.index(role) >= ROLES.index(str(route.role))
        # The job is still needed, so the request names another UID.
        which = {"uid": "0"} if (route.method, route.path) == ("DELETE", JOB) else {}
        answer = accounts.ask(route, f"Bearer {token}", **which)
        assert (answer.status_code != 403) == (allowed and route.path not in OUTSIDE), (route, answer.text)
        assert answer.status_code < 500 and answer.status_code != 401, (route, answer.text)
    user = accounts.server.user_with(token)
    assert [found.step for found in user.appliance.job("finished").checkpoints()] == [100, 200]
    assert user.millrace("logs", "finished").out
    done = user.millrace("download", "finished", code=0 if role == "editor" else 3)
    if role == "viewer":
        assert "may not get trainjobs.millrace.dev/files" in done.error


@pytest.mark.parametrize("kind", ["unbound", "abroad"])
def test_unbound_account_sees_nothing(accounts: Guarded, kind: str) -> None:
    """An account without a role, or with one in another namespace, gets 403 for the namespace, the appliance and
    tokens, and sees no job.
    """
    for route in GUARDED:
        answer = accounts.ask(route, f"Bearer {accounts.tokens[kind]}")
        if route.is_of_a_namespace or route.path in OUTSIDE:
            assert (answer.status_code, answer.json()["reason"]) == (403, "Forbidden"), route
        else:
            assert answer.status_code == 200, route
        assert accounts.job.uid not in answer.text, route
    user = accounts.server.user_with(accounts.tokens[kind])
    assert user.http.get("/v1/namespaces/-/trainjobs").status_code == 403
    # A missing namespace gets the same message, so that existing ones can't be found out.
    names = (accounts.server.namespace, "no-such-namespace")
    here, nowhere = (user.http.get(f"/v1/namespaces/{name}/trainjobs") for name in names)
    assert here.status_code == nowhere.status_code == 403
    assert here.json()["detail"].replace(f" in {names[0]}:", f" in {names[1]}:") == nowhere.json()["detail"]


def test_revoked_rights_take_effect_soon(accounts: Guarded) -> None:
    """A deleted account gets 401 and one that lost its role 403 within seconds; one that gets a role gets access. The
    deleted account's unexpired token is rejected on every route.
    """
    shared = accounts.server
    assert isinstance(shared, KubernetesServer)
    tokens = {name: shared.account(name, "millrace-editor") for name in ("fired", "moved")}
    tokens["hired"] = shared.account("hired", None)
    users = {name: shared.user_with(token) for name, token in tokens.items()}

    def answers() -> dict[str, int]:
        path = f"/v1/namespaces/{shared.namespace}/trainjobs"
        return {name: user.http.get(path).status_code for name, user in users.items()}

    assert answers() == {"fired": 200, "moved": 200, "hired": 403}
    shared.kubectl("delete", "serviceaccount", "fired")
    shared.kubectl("delete", "rolebinding", "moved")
    shared.account("hired", "millrace-editor")
    began = time.monotonic()
    until("rights are what they are", lambda: answers() == {"fired": 401, "moved": 403, "hired": 200}, 30)
    assert time.monotonic() - began < 25
    for route in GUARDED:
        assert accounts.ask(route, f"Bearer {tokens['fired']}").status_code == 401, route
