"""Measures the latency of other users during floods; see tests/bench/floods."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from floods import FLOODS, LIMIT_SECONDS, OtherUser, Latency, flooded, make_changed
from harness import BACKEND, Server, User, until

TICKS = os.sysconf("SC_CLK_TCK")


def server_seconds(server: Server) -> float:
    """Returns the CPU time of the server so far."""
    pids = server.processes()  # type: ignore[attr-defined]
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(field[11]) + int(field[12]) for field in fields) / TICKS


def print_latencies(what: str, latencies: dict[str, Latency], rest: str) -> None:
    cells = [f"{name} {1000 * each.median:6.1f} {1000 * each.p95:6.1f}" for name, each in latencies.items()]
    print(f"{what:14}" + "   ".join(cells) + f"   {rest}, load {os.getloadavg()[0]:.1f}")


def measure(server: Server, other: OtherUser, busy: list[User], name: str, tries: int) -> float:
    """Measures during one flood; returns the largest median."""
    flood = FLOODS[name]()
    with flooded(busy, flood) as statuses:
        until("the burst of the flood is over", lambda over=time.monotonic() + 3: time.monotonic() > over)
        began, spent, answers = time.monotonic(), server_seconds(server), statuses.qsize()
        latencies = other.latencies(tries)
        took, spent, answers = time.monotonic() - began, server_seconds(server) - spent, statuses.qsize() - answers
    print_latencies(name, latencies, f"{answers / took:.0f} answers/s to the flood, server takes {spent / took:.2f} cores")
    return max(each.median for each in latencies.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=60)
    parser.add_argument("--flood", choices=FLOODS, action="append")
    arguments = parser.parse_args()
    print(f"{os.cpu_count()} cores; milliseconds: median, 95th percentile")
    with tempfile.TemporaryDirectory() as home, closing(BACKEND(Path(home) / "server", "--require-token")) as server:
        other = OtherUser(server.user_with(server.token("calm", "editor", server.namespace)))
        token = server.token("busy", "editor", server.namespace)
        # One token, several connections.
        busy = [server.user_with(token) for _ in range(4)]
        make_changed(busy[0])
        other.latencies(3)
        print_latencies("idle", other.latencies(arguments.tries), "no flood")
        worst = max(measure(server, other, busy, name, arguments.tries) for name in arguments.flood or FLOODS)
    sys.exit(worst > LIMIT_SECONDS)


if __name__ == "__main__":
    main()
