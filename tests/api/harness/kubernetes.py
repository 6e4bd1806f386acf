"""The Kubernetes backend: the chart as installed on the cluster of KUBECONFIG."""

from __future__ import annotations

import atexit
import base64
import json
import os
import socket
import ssl
import subprocess
import tempfile
import threading
import uuid
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import httpx

from .common import until
from .relay import Relay
from .server import Server
from .user import User

SYSTEM = os.environ.get("MILLRACE_NAMESPACE", "millrace-system")
API = "deployment/millrace-api"
API_SELECTOR = "--selector=app.kubernetes.io/component=api"


def kubectl(*words: object, document: Any = None, check: bool = True, seconds: float = 120) -> str:
    """Runs kubectl with `document` as JSON on its standard input; returns its output, or "" if it failed."""
    done = subprocess.run(
        ["kubectl", *map(str, words)],
        input=None if document is None else json.dumps(document),
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )
    assert not check or done.returncode == 0, f"kubectl {words}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout.strip() if done.returncode == 0 else ""


def get(kind: str, *words: object) -> Any:
    """Returns an object of the cluster, or a list of objects; None if it does not exist."""
    found = kubectl("get", kind, *words, "--output=json", check=False)
    return json.loads(found) if found else None


class PortForward:
    """Forwards a local port to the REST server with `kubectl port-forward`, which is restarted whenever it ends.

    kubectl ends when a connection to the server is reset, as when the server is killed. Connections that are opened
    until kubectl runs again wait in a relay.
    """

    def __init__(self) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="millrace-api-"))
        secret = get("secret", "--namespace", SYSTEM, "millrace-api-tls")
        assert secret, f"the REST server is not installed in {SYSTEM}"
        self.ca = self._home / "ca.crt"
        self.ca.write_bytes(base64.b64decode(secret["data"]["ca.crt"]))
        self._trusted = ssl.create_default_context(cafile=self.ca)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self.url = f"https://127.0.0.1:{Relay(self._port).port}"
        self._closed = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        threading.Thread(target=self._keep, daemon=True).start()
        atexit.register(self._close)
        self.until_open()

    def _keep(self) -> None:
        command = ["kubectl", "--namespace", SYSTEM, "port-forward", "service/millrace-api", f"{self._port}:443"]
        with (self._home / "port-forward.log").open("ab") as log:
            while not self._closed.is_set():
                self._process = subprocess.Popen(command, stdout=log, stderr=log)
                self._process.wait()
                self._closed.wait(0.2)

    def reopen(self) -> None:
        """Reconnects after the server's pod was replaced, which kubectl notices only when data are sent."""
        if self._process:
            self._process.terminate()
        self.until_open()

    def until_open(self) -> None:
        """Waits until the server is ready."""

        def look() -> bool:
            with suppress(httpx.TransportError):
                return httpx.get(f"{self.url}/readyz", verify=self._trusted, trust_env=False).status_code == 200
            return False

        until("the REST server answers", look, 120)

    def _close(self) -> None:
        self._closed.set()
        if self._process:
            self._process.terminate()


@cache
def port_forward() -> PortForward:
    """Returns the port forward, one for each test run."""
    return PortForward()


class KubernetesServer(Server):
    """A namespace of the cluster. The REST server is the installed one, shared with all other namespaces."""

    can = frozenset({"cluster"})

    def __init__(self, home: Path, *flags: object) -> None:
        assert not flags, f"the server is as it is installed: {flags}"
        super().__init__(home)
        self._port_forward, self.url, self.ca = port_forward(), port_forward().url, port_forward().ca
        self._namespaces: list[str] = []
        self._outside: list[str] = []
        self.namespace = self.another_namespace()
        # The Appliance is cluster-scoped: reading it needs a permission of its own.
        self._user_token = self.account("user", "millrace-editor", sees_appliances=True)

    def metrics(self) -> str:
        """Returns the server's Prometheus metrics through the API server, which its NetworkPolicy does not block."""
        pod = get("pods", "--namespace", SYSTEM, API_SELECTOR)["items"][0]["metadata"]["name"]
        return kubectl("get", "--raw", f"/api/v1/namespaces/{SYSTEM}/pods/{pod}:8080/proxy/metrics")

    def another_namespace(self) -> str:
        """Creates an empty namespace and returns its name."""
        name = f"millrace-test-{uuid.uuid4().hex[:8]}"
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
        self._namespaces.append(name)
        return name

    def apply(self, *documents: Any) -> None:
        """Applies the documents like `kubectl apply`."""
        kubectl("apply", "--filename=-", document={"apiVersion": "v1", "kind": "List", "items": documents})

    def account(
        self, name: str, role: str | None, namespace: str | None = None, *, sees_appliances: bool = False
    ) -> str:
        """Creates a ServiceAccount with an optional role in `namespace`, by default this server's; returns a token."""
        namespace = namespace or self.namespace
        subjects = [{"kind": "ServiceAccount", "name": name, "namespace": namespace}]
        documents: list[dict[str, Any]] = [
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}}
        ]
        if role:
            documents.append(binding("RoleBinding", {"name": name, "namespace": namespace}, role, subjects))
        if sees_appliances:
            outside = f"{namespace}-{name}"
            rules = [{"apiGroups": ["millrace.dev"], "resources": ["appliances"], "verbs": ["get", "list", "watch"]}]
            documents.append({**rbac("ClusterRole", {"name": outside}), "rules": rules})
            documents.append(binding("ClusterRoleBinding", {"name": outside}, outside, subjects))
            self._outside.append(outside)
        self.apply(*documents)
        return kubectl("--namespace", namespace, "create", "token", name, "--duration=1h")

    def another_user(self) -> User:
        """Returns another client with the role millrace-editor."""
        return self.user_with(self._user_token)

    def kubectl(self, *words: object, document: Any = None, check: bool = True, seconds: float = 120) -> str:
        """Runs kubectl as cluster administrator in the server's namespace."""
        return kubectl("--namespace", self.namespace, *words, document=document, check=check, seconds=seconds)

    def get(self, kind: str, *words: object) -> Any:
        """Returns an object of the server's namespace, or a list of objects; None if it does not exist."""
        return get(kind, "--namespace", self.namespace, *words)

    def kill_api(self) -> None:
        """Kills the REST server's pod, which is then replaced; `until_back` waits for that."""
        kubectl("--namespace", SYSTEM, "delete", "pod", API_SELECTOR, "--grace-period=0", "--force", "--wait=false")

    def scale_api(self, replicas: int) -> None:
        """Sets the number of REST servers. Returns when none is left, or when they are ready."""
        kubectl("--namespace", SYSTEM, "scale", API, f"--replicas={replicas}")
        if replicas:
            self.until_back()
        else:
            until("the REST server is gone", lambda: not get("pods", "--namespace", SYSTEM, API_SELECTOR)["items"])

    def set_api_database(self, url: str | None) -> None:
        """Sets the URL of the REST server's database; None restores the installed one."""
        kubectl("--namespace", SYSTEM, "set", "env", API, f"MILLRACE_DATABASE={url}" if url else "MILLRACE_DATABASE-")
        self.until_back()

    def until_back(self) -> None:
        """Waits until the REST server is rolled out and reachable."""
        kubectl("--namespace", SYSTEM, "rollout", "status", API, "--timeout=120s", seconds=130)
        self._port_forward.reopen()

    def token(self, name: str, role: str, *namespaces: str, seconds: int | None = None) -> str:
        """Creates an API token as an administrator of the cluster."""
        words = ["--name", name, "--role", role, *(word for each in namespaces for word in ("--namespace", each))]
        if seconds is not None:
            words += ["--expires-in-seconds", str(seconds)]
        return kubectl("--namespace", SYSTEM, "exec", API, "--", "millrace-api", "token", *words)

    @property
    def log(self) -> str:
        """The log of the REST server's pod, with the requests of all users."""
        return kubectl("--namespace", SYSTEM, "logs", API, check=False)

    def close(self) -> None:
        """Deletes the namespaces without waiting for it."""
        kubectl("delete", "namespace", *self._namespaces, "--wait=false", "--ignore-not-found")
        for kind in ("clusterrolebinding", "clusterrole") if self._outside else ():
            kubectl("delete", kind, *self._outside, "--wait=false", "--ignore-not-found")


def rbac(kind: str, metadata: dict[str, str]) -> dict[str, Any]:
    """Returns an RBAC document without rules."""
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": metadata}


def binding(kind: str, metadata: dict[str, str], role: str, subjects: list[dict[str, str]]) -> dict[str, Any]:
    """Returns a binding of a ClusterRole to accounts."""
    role_ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
    return {**rbac(kind, metadata), "roleRef": role_ref, "subjects": subjects}
