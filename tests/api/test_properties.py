"""Requests generated from the OpenAPI document."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from harness import ROOT, Serve

SCHEMATHESIS = Path(sys.executable).with_name("schemathesis")
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


def test_generated_requests_find_no_server_error(serve: Serve) -> None:
    """A few hundred generated requests of an admin, the same in every run, cause no server error."""
    server = serve()
    token = server.token("fuzz", "admin", "*")
    command: list[str | Path] = [SCHEMATHESIS, "run", ROOT / "api" / "openapi.json", "--url", server.url, "--no-color"]
    command += ["--seed", "7", "--header", f"Authorization: Bearer {token}", "--checks", CHECKS]
    command += ["--phases", "fuzzing,stateful", "--max-examples", "20", "--request-timeout", "30"]
    if server.ca:
        command += ["--tls-verify", server.ca]
    done = subprocess.run(
        command,
        cwd=server.home,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
