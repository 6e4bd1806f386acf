"""Measures uploads and their way to pods over a link of a limited rate; see tests/bench/uploads."""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millrace import Appliance
from millrace.uploads import Blob, upload

CLIENT, SERVER = "10.213.77.1", "10.213.77.2"
BLOCK_BYTES = 1 << 20
RECEIVER = f"""
import socket
with socket.create_server(("{SERVER}", 7777)) as listener:
    print("listening", flush=True)
    connection, _ = listener.accept()
    while connection.recv(1 << 20):
        pass
    connection.sendall(b"!")
"""


def run(*words: object) -> None:
    """Runs a command; its error ends the program."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}: {done.stderr.strip()}")


@contextmanager
def link(mbit: int) -> Iterator[str]:
    """Creates a network namespace and a link to it; yields its name."""
    name, (near, far) = f"millrace-{os.getpid()}", (f"mr{os.getpid()}a", f"mr{os.getpid()}b")
    run("ip", "netns", "add", name)
    try:
        run("ip", "link", "add", near, "type", "veth", "peer", "name", far, "netns", name)
        inside = ["ip", "netns", "exec", name]
        for prefix, device, address in ([], near, CLIENT), (inside, far, SERVER):
            run(*prefix, "ip", "address", "add", f"{address}/24", "dev", device)
            run(*prefix, "ip", "link", "set", device, "up")
            bucket = ["tbf", "rate", f"{mbit}mbit", "burst", "512kb", "latency", "50ms"]
            run(*prefix, "tc", "qdisc", "add", "dev", device, "root", *bucket)
        run(*inside, "ip", "link", "set", "lo", "up")
        yield name
    finally:
        run("ip", "netns", "delete", name)


@contextmanager
def started(
    namespace: str, *command: object, begins: str = "listening", variables: dict[str, str] | None = None
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Starts a program in a namespace; yields it and its first line that begins with `begins`."""
    words = ["ip", "netns", "exec", namespace, *map(str, command)]
    environment = os.environ | (variables or {})
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            yield process, next(line.strip() for line in process.stdout if line.startswith(begins))
        finally:
            process.terminate()


def plain_rate(namespace: str, file: Path) -> float:
    """Returns the bytes per second of one TCP connection without a protocol."""
    with started(namespace, sys.executable, "-c", RECEIVER), socket.create_connection((SERVER, 7777)) as connection:
        began = time.monotonic()
        with file.open("rb") as content:
            connection.sendfile(content)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
        return file.stat().st_size / (time.monotonic() - began)


def peak_memory(process: subprocess.Popen[str]) -> float:
    """Returns the largest resident memory of a program so far, in MiB."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def fetch(namespace: str, store: Path, digest: str, directory: Path) -> tuple[float, float]:
    """Fetches a blob as a pod does; returns the seconds, and the peak memory of the server in MiB."""
    identity, into = directory / "identity", directory / "fetched"
    identity.mkdir()
    address = f"{SERVER}:7781"
    variables = {"STORE": store, "DIGEST": digest, "IDENTITY": identity, "LISTEN": address}
    # Real code of the server, which otherwise serves blobs in a cluster only.
    test = [os.environ["MILLRACE_BLOB_SERVER"], "--exact", "--ignored", "--nocapture"]
    test.append("kubernetes::blobs::tests::serve_upload_for_benchmark")
    named = {f"MILLRACE_BENCH_{name}": str(value) for name, value in variables.items()}
    with started(namespace, *test, begins="serving ", variables=named) as (server, line):
        document = directory / "document.json"
        files = [{"path": str(into / "weights"), "digest": digest}]
        document.write_text(json.dumps({"version": 2, "job_uid": line.split()[1], "files": files}))
        began = time.monotonic()
        program = Path(os.environ["MILLRACE_PROGRAMS"], "millrace-agent")
        flags = ["--server", address, "--identity", identity, "--document", document, "--into", into]
        run(program, "fetch_uploads", *flags)
        return time.monotonic() - began, peak_memory(server)


def main() -> None:
    """Prints the rates."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=2048)
    parser.add_argument("--mbit", type=int, default=1000)
    arguments = parser.parse_args()
    program = Path(os.environ["MILLRACE_PROGRAMS"], "millrace-api")
    with tempfile.TemporaryDirectory() as directory, link(arguments.mbit) as namespace:
        file = Path(directory, "weights")
        with file.open("wb") as content:
            for _ in range(arguments.mib):
                content.write(os.urandom(BLOCK_BYTES))
        plain = plain_rate(namespace, file)
        data = Path(directory, "data")
        flags = ["--data", data, "--listen", f"{SERVER}:7780", "--tls-self-signed-name", SERVER]
        with started(namespace, program, "serve", *flags, "--log", "warn") as (process, line):
            create = [program, "token", "--data", data, "--name", "bench"]
            token = subprocess.run(create, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
            url, ca = line.removeprefix("listening on "), str(data / "tls/certificate.pem")
            with Appliance(url, token, ca=ca) as appliance:
                before = peak_memory(process)
                began = time.monotonic()
                blob = Blob.of_file(file)
                hashed = time.monotonic()
                upload(appliance._transport, "default", [blob], progress=False)
                ended = time.monotonic()
            memory = peak_memory(process)
        fetched, fetch_memory = fetch(namespace, data / "blobs", blob.digest, Path(directory))
    print(f"plain TCP   {plain / 1e6:8.1f} MB/s")
    for name, seconds in ("upload", ended - hashed), ("with digest", ended - began), ("fetch", fetched):
        rate = blob.size / seconds
        print(f"{name:11} {rate / 1e6:8.1f} MB/s   ratio {rate / plain:.2f}")
    print(f"memory of the server {memory:.0f} MiB, before the upload {before:.0f} MiB, during the fetch "
          f"{fetch_memory:.0f} MiB")


if __name__ == "__main__":
    main()
