"""Cases of what tokens and certificates allow."""

import base64
import contextlib
import json
import pathlib
import socket
import ssl
import subprocess
import tempfile

from cases.cluster import (
    SPACE,
    SYSTEM,
    apply,
    expect,
    get,
    job,
    kubectl,
    pods,
    resume,
    same_bits_suspended,
    sh,
    status,
    step,
    steps,
    suspend,
    until_state,
    until_step,
)


def case_rights():
    """The REST server's token can't create pods, read Secrets of others, or change their ConfigMaps."""
    config = json.loads(sh("kubectl", "config", "view", "--raw", "--minify", "-o", "json").stdout)
    token = sh("kubectl", "-n", SYSTEM, "create", "token", "millrace-api").stdout.strip()
    config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(config, file)
        file.flush()

        def may(verb, resource, namespace=SPACE, name=None):
            resource, _, part = resource.partition("/")
            what = [f"{resource}/{name}" if name else resource, f"--subresource={part}"]
            asked = sh("kubectl", "--kubeconfig", file.name, "-n", namespace, "auth", "can-i", verb, *what, check=False)
            return asked.stdout.strip() == "yes"

        for verb, resource in [
            ("create", "pods"), ("delete", "pods"), ("create", "pods/exec"), ("get", "secrets"), ("list", "secrets"),
            ("create", "secrets"), ("delete", "secrets"), ("get", "configmaps"), ("delete", "configmaps"),
            ("create", "networkpolicies.networking.k8s.io"), ("patch", "trainjobs.millrace.dev/status"),
            ("patch", "filereaders.millrace.dev/status"), ("create", "serviceaccounts/token"), ("impersonate", "users"),
        ]:  # fmt: skip
            for namespace in (SPACE, SYSTEM, "kube-system"):
                expect(not may(verb, resource, namespace), f"the REST server may {verb} {resource} in {namespace}")
        expect(may("create", "filereaders.millrace.dev"), "it may create a FileReader")
        expect(may("get", "secrets", SYSTEM, "millrace-api-identity"), "it reads its own certificate")
        made = sh(
            "kubectl", "--kubeconfig", file.name, "-n", SPACE, "create", "configmap", "of-an-intruder", check=False
        )
        expect(made.returncode != 0 and "no ConfigMaps but the texts of jobs" in made.stderr, made.stderr)


@contextlib.contextmanager
def forwarded(pod, port):
    """Forwards a local port to the pod's port, bypassing every NetworkPolicy."""
    command = ["kubectl", "--namespace", SPACE, "port-forward", f"pod/{pod}", f":{port}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            told = process.stdout.readline()
            expect("->" in told, f"can't reach {pod}:{port}: {told!r}")
            yield int(told.split(" -> ")[0].rsplit(":", 1)[1])
        finally:
            process.terminate()


def rejection(pod, port, secret=None, agent=None):
    """Returns why a port rejects a client with the identity of `agent` in `secret`, or without one; or None."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["millrace/encrypted"])
    if secret:
        with tempfile.TemporaryDirectory() as directory:
            files = [pathlib.Path(directory) / end for end in ("crt", "key")]
            for file in files:
                file.write_bytes(base64.b64decode(secret["data"][f"{agent}.{file.name}"]))
            context.load_cert_chain(*files)
    with forwarded(pod, port) as local, socket.create_connection(("127.0.0.1", local), 30) as plain:
        try:
            with context.wrap_socket(plain) as stream:
                taken = stream.recv(1)
                if taken == b"\0":
                    return None
                return stream.recv(1024)[2:].decode() if taken else "closed"
        except OSError as error:
            return str(error)


def case_unauthorized():
    """Every port of a running job rejects clients without a certificate, or with that of another job or an old attempt,
    and logs the reason; the job computes the same bits."""
    apply(job("guarded", 2, steps(1_000_000)))
    apply(job("stranger", 2, steps(1_000_000)))
    until_step("guarded", 20)
    until_step("stranger", 1)

    def of(name, role):
        return next(it for it in pods(name) if it["metadata"]["labels"]["millrace.dev/role"] == role)["metadata"][
            "name"
        ]

    def identities(name, attempt):
        uid, ends = get("trainjob", name)["metadata"]["uid"], f"-identity-{attempt}-2"
        found = json.loads(kubectl("get", "secrets", "-l", f"millrace.dev/job-uid={uid}", "-o", "json").stdout)["items"]
        return next(it for it in found if it["metadata"]["name"].endswith(ends))

    old, other = identities("guarded", 1), identities("stranger", 1)
    # Its certificates remain valid; its pods would only slow the other job down.
    kubectl("delete", "trainjob", "stranger", "--wait=false")
    for change, wanted in ((suspend, "Suspended"), (resume, "Training")):
        change("guarded")
        until_state("guarded", wanted)
    expect(status("guarded")["attempt"] == 2, f"{status('guarded')}")
    began = step("guarded")
    until_step("guarded", began + 1)
    ports = [("coordinator", 7000), ("memoryx", 7100), ("swarmx", 7100), ("activation", 7100)]
    for role, port in ports:
        pod = of("guarded", role)
        for secret, agent, reason in [
            (other, "memoryx-0", "its certificate is of job"),
            (old, "memoryx-0", "its certificate is of attempt 1, this is attempt 2"),
        ]:
            said = rejection(pod, port, secret, agent)
            expect(said and reason in said, f"{role}: {said!r} with {reason}")
        said = rejection(pod, port)
        expect(said and "certificate required" in said.lower(), f"{role} without a certificate: {said!r}")
    coordinator, current = of("guarded", "coordinator"), identities("guarded", 2)
    said = rejection(coordinator, 7001, current, "cs2-0")
    expect(
        said and "is not authorized for this port" in said, f"the journal's port, with an agent's certificate: {said!r}"
    )
    expect(rejection(coordinator, 7000, current, "cs2-0") is None, "a member's certificate is accepted")
    log = kubectl("logs", coordinator).stderr + kubectl("logs", coordinator).stdout
    expect("its certificate is of attempt 1, this is attempt 2" in log, f"the reason is not in the log: {log[-2000:]}")
    same_bits_suspended("guarded")
