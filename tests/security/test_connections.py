"""Unauthenticated clients on the ports of a running job: all are rejected, and the job computes the same bits."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.common import PARAMS, PROGRAMS, ROOT

AGENT = PROGRAMS / "millrace-agent"
STEPS = 300
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""The preface of an HTTP/2 client, with empty settings."""
ALERT = 21
"""First byte of a TLS alert record."""
TIMEOUT = 60.0


def train(out: Path, *flags: str) -> subprocess.Popen[str]:
    """Starts a local run of the params of the tests on two systems."""
    command = [AGENT, "train", "-p", PARAMS, "-o", out, "--num_csx", "2", "--max_steps", str(STEPS), *flags]
    return subprocess.Popen(list(map(str, command)), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def digest(out: Path) -> str:
    """Returns the digest of the run's last checkpoint."""
    command = [AGENT, "checkpoint", "info", out / f"checkpoint_{STEPS}", "--json"]
    output = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout
    return str(json.loads(output)["parameters_blake3"])


def descendants(pid: int) -> Iterator[int]:
    """Yields the children of a process."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            yield int(stat.parent.name)


def listening_ports(pid: int) -> dict[str, set[int]]:
    """Returns the listening ports of a run's agents, by agent."""
    owners: dict[str, str] = {}
    for child in descendants(pid):
        words = Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0")
        index = next(word for word in words if word.startswith("--index="))
        agent = f"{words[2]}-{index.removeprefix('--index=')}"
        for descriptor in Path(f"/proc/{child}/fd").iterdir():
            try:
                owners[descriptor.readlink().name] = agent
            except OSError:
                continue
    found: dict[str, set[int]] = {}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        agent = owners.get(f"socket:[{fields[9]}]")
        if fields[3] == "0A" and agent:
            found.setdefault(agent, set()).add(int(fields[1].split(":")[1], 16))
    return found


def answer(port: int, sent: bytes) -> bytes:
    """Returns what is received until the connection ends."""
    with socket.create_connection(("127.0.0.1", port), TIMEOUT) as stream:
        stream.sendall(sent)
        received = b""
        try:
            while len(received) < 1 << 16 and (part := stream.recv(1 << 12)):
                received += part
        except ConnectionResetError:
            pass
        return received


def serves_metrics(port: int) -> bool:
    """Whether this is the metrics port, which is open to all and accepts no commands."""
    return answer(port, b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").startswith(b"HTTP/1.1 200")


def raw_http2(port: int) -> None:
    """HTTP/2 without TLS is rejected."""
    received = answer(port, PREFACE)
    assert not received or received[0] == ALERT, received


def tls(port: int, certificate: Path | None) -> None:
    """A client that accepts any server certificate, with or without a client certificate, is rejected."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificate:
        context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    for protocols in (["millrace/encrypted"], ["millrace/authenticated"], ["h2"], []):
        if protocols:
            context.set_alpn_protocols(protocols)
        with socket.create_connection(("127.0.0.1", port), TIMEOUT) as plain:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                with context.wrap_socket(plain) as stream:
                    # With TLS 1.3, a client learns only at the first read that its certificate was rejected.
                    received = stream.recv(1)
                    assert received == b"", f"{port} has answered {received!r}"
                    raise ConnectionError("closed")


@pytest.fixture
def forged(tmp_path: Path) -> Path:
    """A self-signed certificate that names a shard of a job."""
    certificate = tmp_path / "forged.crt"
    name = "subjectAltName=URI:spiffe://millrace.dev/job/local/attempt/1/memoryx-0"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-subj", "/CN=millrace member", "-addext", name, "-days", "1"]
    command += ["-out", str(certificate), "-keyout", str(certificate.with_suffix(".key"))]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("there is no openssl to forge a certificate with")
    return certificate


@pytest.mark.needs("local files")
def test_unauthenticated_clients_are_rejected_on_every_port(tmp_path: Path, forged: Path) -> None:
    """Every port of a local run rejects clients without a certificate or with a forged one, while idle connections are
    open.
    """
    undisturbed = train(tmp_path / "undisturbed")
    output, log_output = undisturbed.communicate()
    assert undisturbed.returncode == 0, output + log_output

    run = train(tmp_path / "attacked")
    assert run.stdout is not None
    while "Step=5," not in (line := run.stdout.readline()):
        assert line, "the run ended before its fifth step"
    ports = listening_ports(run.pid)
    assert len(ports["coordinator-0"]) == 3, ports
    guarded = {port for found in ports.values() for port in found if not serves_metrics(port)}
    # Control and journal; a data port of each shard, SwarmX node and activation server.
    assert len(guarded) >= 2 + 2 + 1 + 2, ports
    attacks: list[Callable[[int], None]] = [raw_http2, lambda port: tls(port, None), lambda port: tls(port, forged)]
    idle = [socket.create_connection(("127.0.0.1", port), TIMEOUT) for port in guarded for _ in range(20)]
    for port in sorted(guarded):
        for attack in attacks:
            attack(port)
    assert run.poll() is None, "the run was over before the attacks were"
    output, log_output = run.communicate(timeout=TIMEOUT * 5)
    for stream in idle:
        stream.close()
    assert run.returncode == 0, output + log_output
    assert digest(tmp_path / "attacked") == digest(tmp_path / "undisturbed")
    log = (tmp_path / "attacked" / "logs" / "attempt-1" / "coordinator-0.log").read_text()
    assert "rejected a connection from 127.0.0.1" in log and "control port" in log
    assert 0 < log.count("rejected a connection") <= 60, "the log is bounded"
