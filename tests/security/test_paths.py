"""Names and paths of users: none of them leads out of the place where it belongs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness import PARAMS, Server, User

CODE = b"import os\n"
"""What an attacker would want to have on the server."""


def upload(user: User, name: str, files: dict[str, bytes], **spec: Any) -> httpx.Response:
    """Submit the suite's params over uploaded texts, as the form that `millrace train` sends, with a spec of one's own."""
    data = ", ".join(json.dumps(file) for file in files)
    params = PARAMS.read_text().replace("data_files: examples/data/kjv.txt", f"data_files: [{data}]")
    parts = [
        ("params", ("params.yaml", params.encode())),
        ("job", (None, json.dumps({"metadata": {"name": name}, "spec": {"numCsx": 1, **spec}}).encode())),
        *(("file", (file, content)) for file, content in files.items()),
    ]
    return user.http.post(f"/v1/namespaces/{user.namespace}/trainjobs", files=parts)


def own_volume(config_map: str, name: str = "mine", path: str = "/mine") -> dict[str, Any]:
    """The part of a spec with a ConfigMap as a volume."""
    return {
        "volumes": [{"name": name, "configMap": {"name": config_map}}],
        "mountDirs": [{"path": path, "volume": name}],
    }


def tree(root: Path) -> set[str]:
    """Every file and directory below a directory."""
    return {str(path.relative_to(root)) for path in root.rglob("*")}


@pytest.mark.needs("local files")
@pytest.mark.parametrize("where", ["{out}", "../../../{up}", "../../model_dirs/team/job", "x/../../../../{up}"])
def test_uploaded_texts_do_not_go_where_a_user_says(server: Server, where: str) -> None:
    """A ConfigMap's name that is a path is refused, and nothing is written there."""
    out = server.home / "out"
    name = where.format(out=out, up="out")
    answer = upload(server.user, "evil", {"x.pth": CODE}, **own_volume(name))
    assert not out.exists() and not list(server.home.rglob("*x.pth"))
    assert answer.status_code == 422, answer.text
    (fault,) = answer.json()["errors"]
    assert fault["field"] == "spec.volumes.0.configMap.name" and "is not a valid name: write" in fault["message"]


@pytest.mark.needs("local files")
def test_uploaded_texts_have_a_volume_of_their_own(server: Server) -> None:
    """A job with a ConfigMap of the user's gets its texts beside it, not into it."""
    answer = upload(server.user, "both", {"x.txt": CODE * 20_000}, **own_volume("shared-settings"))
    assert answer.status_code == 201, answer.text
    volumes = {volume["name"]: volume for volume in answer.json()["spec"]["volumes"]}
    own = volumes["texts"]["configMap"]["name"]
    assert volumes["mine"]["configMap"]["name"] == "shared-settings" != own
    assert tree(server.data / "texts/default") == {own, f"{own}/0-0000-x.txt"}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "spec", [own_volume("other", name="texts"), own_volume("other", path="/var/lib/millrace/texts")]
)
def test_the_volume_of_uploaded_texts_is_reserved(shared: Server, spec: dict[str, Any]) -> None:
    """A volume of the user's has neither the name nor the directory of the uploaded texts."""
    answer = upload(shared.user, "reserved", {"x.txt": CODE}, **spec)
    assert answer.status_code == 422 and "reserved for the uploaded texts" in answer.text, answer.text
