"""A TCP relay to a local port that is sometimes closed for a moment."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

CONNECT_TIMEOUT = 30.0
CONNECT_INTERVAL = 0.05
CHUNK_BYTES = 64 * 1024


class Relay:
    """Accepts connections on `port` of the loopback interface and forwards each to `target_port`.

    While nothing listens on the target port, new connections wait, for up to CONNECT_TIMEOUT seconds. A connection that
    breaks is closed, so that clients see every other fault.
    """

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        with client, suppress(OSError), self._connect() as target:
            answers = threading.Thread(target=copy, args=(target, client), daemon=True)
            answers.start()
            copy(client, target)
            answers.join()

    def _connect(self) -> socket.socket:
        end = time.monotonic() + CONNECT_TIMEOUT
        while time.monotonic() < end:
            with suppress(ConnectionRefusedError):
                return socket.create_connection(("127.0.0.1", self._target_port))
            time.sleep(CONNECT_INTERVAL)
        raise TimeoutError(f"nothing listens on port {self._target_port}")


def copy(source: socket.socket, target: socket.socket) -> None:
    """Copies until the end of `source`, and ends `target`; the other direction continues. If a connection breaks, shuts
    both down.
    """
    try:
        while data := source.recv(CHUNK_BYTES):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
