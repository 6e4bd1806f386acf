"""Hostile names and paths of users: none leads out of its directory."""

from __future__ import annotations

import copy
import json
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from blake3 import blake3
from fields import NAME_FIELDS, OTHER_FIELDS, PATH_FIELDS
from harness import PARAMS, ROOT, ProcessServer, Serve, Server, User, path, raw, trainjob, until_state
from hostile import NAMES, PATHS, put, strings
from millrace import Job

CODE = b"import os\n"
"""Code that an attacker would want to place on the server."""


def upload(user: User, name: str, files: dict[str, bytes], **spec: Any) -> httpx.Response:
    """Submits the params of the tests with uploaded files and this spec, as `millrace train` does."""
    data = ", ".join(json.dumps(file) for file in files)
    params = PARAMS.read_text().replace("data_files: examples/data/kjv.txt", f"data_files: [{data}]")
    parts = [
        ("params", ("params.yaml", params.encode())),
        ("job", (None, json.dumps({"metadata": {"name": name}, "spec": {"numCsx": 1, **spec}}).encode())),
        *(("file", (file, content)) for file, content in files.items()),
    ]
    return user.http.post(f"/v1/namespaces/{user.namespace}/trainjobs", files=parts)


def own_volume(config_map: str, name: str = "mine", path: str = "/mine") -> dict[str, Any]:
    """Returns the part of a spec that mounts a ConfigMap as a volume."""
    return {
        "volumes": [{"name": name, "configMap": {"name": config_map}}],
        "mountDirs": [{"path": path, "volume": name}],
    }


def tree(root: Path) -> set[str]:
    """Returns every file and directory below a directory."""
    return {str(path.relative_to(root)) for path in root.rglob("*")}


@pytest.mark.needs("local files")
@pytest.mark.parametrize("where", ["{out}", "../../../{up}", "../../model_dirs/team/job", "x/../../../../{up}"])
def test_config_map_names_cannot_redirect_uploads(server: Server, where: str) -> None:
    """A ConfigMap name that is a path is rejected, and nothing is written there."""
    out = server.home / "out"
    name = where.format(out=out, up="out")
    answer = upload(server.user, "evil", {"x.pth": CODE}, **own_volume(name))
    assert not out.exists() and not list(server.home.rglob("*x.pth"))
    assert answer.status_code == 422, answer.text
    (fault,) = answer.json()["errors"]
    assert fault["field"] == "spec.volumes.0.configMap.name" and "is not a valid name: write" in fault["message"]


@pytest.mark.needs("local files")
def test_uploads_have_a_volume_of_their_own(server: Server) -> None:
    """The uploads of a job with a ConfigMap volume get a directory of their own."""
    answer = upload(server.user, "both", {"x.txt": CODE * 20_000}, **own_volume("shared-settings"))
    assert answer.status_code == 201, answer.text
    volumes = {volume["name"]: volume for volume in answer.json()["spec"]["volumes"]}
    own = volumes["texts"]["configMap"]["name"]
    assert isinstance(server, ProcessServer)
    assert volumes["mine"]["configMap"]["name"] == "shared-settings" != own
    assert tree(server.data / "texts/default") == {own, f"{own}/0-0000-x.txt"}


@pytest.mark.parametrize(
    "spec", [own_volume("other", name="texts"), own_volume("other", path="/var/lib/millrace/texts")]
)
def test_volume_of_uploads_is_reserved(shared: Server, spec: dict[str, Any]) -> None:
    """A user's volume can't have the name or the path of the uploads' volume."""
    answer = upload(shared.user, "reserved", {"x.txt": CODE}, **spec)
    assert answer.status_code == 422 and "reserved for the uploaded files" in answer.text, answer.text


JOBS = "/v1/namespaces/{namespace}/trainjobs"
SECRET = "-----BEGIN OPENSSH PRIVATE KEY-----"


def test_every_field_is_classified(shared: Server) -> None:
    """Every field of a job is in one of the tables of `fields`, so that each new field is classified."""
    document = shared.user.http.get("/openapi.json").json()
    body = document["paths"][JOBS]["post"]["requestBody"]["content"]["application/json"]["schema"]
    found = {at for at in strings(body, document) if not at.startswith("status.")}
    assert found == NAME_FIELDS.keys() | PATH_FIELDS | OTHER_FIELDS


def job(name: str = "hostile") -> dict[str, Any]:
    """Returns a suspended job with a value in every field that names something.

    Its volumes are ConfigMaps: a claim would have to exist on the server.
    """
    document = trainjob(name, suspend=True)
    document["spec"]["volumes"] = [
        {"name": "one", "configMap": {"name": "settings"}},
        {"name": "two", "configMap": {"name": "other-settings"}},
    ]
    document["spec"]["mountDirs"] = [{"path": "/one", "volume": "one"}, {"path": "/two", "volume": "two"}]
    return document


@pytest.fixture(scope="module")
def unchanged_filesystem(tmp_path_factory: pytest.TempPathFactory, shared: Server) -> Iterator[Callable[[], None]]:
    """Returns a check that nothing around the server's directory has changed."""
    homes = [shared.home, Path("/tmp")]

    def seen() -> set[str]:
        own = {each.name for each in shared.home.glob("user-*")} | {"data", "server.log"}
        at_home = {str(each) for each in homes[0].iterdir() if each.name not in own}
        return at_home | {str(each) for each in homes[1].glob("millrace-x*")}

    before = seen()

    def check() -> None:
        assert seen() == before

    yield check
    check()


BLOB = b"content of an upload"
DIGEST = f"blake3:{blake3(BLOB).hexdigest()}"


def upload_blob(server: Server) -> None:
    """Uploads BLOB, unless it is there."""
    http, blobs = server.user.http, f"/v1/namespaces/{server.namespace}/blobs"
    http.post(blobs, json={"digest": DIGEST, "bytes": len(BLOB)}).raise_for_status()
    http.patch(f"{blobs}/{DIGEST}", params={"offset": 0}, content=BLOB).raise_for_status()


def post_patiently(server: Server, body: dict[str, Any]) -> httpx.Response:
    """Submits a job, again and again while the limit on requests is exceeded."""
    while True:
        answer = server.user.http.post(JOBS.format(namespace=server.namespace), json=body)
        if answer.status_code != httpx.codes.TOO_MANY_REQUESTS:
            return answer
        time.sleep(float(answer.headers["Retry-After"]))


@pytest.mark.parametrize("field", NAME_FIELDS)
def test_invalid_names_are_rejected(shared: Server, unchanged_filesystem: Callable[[], None], field: str) -> None:
    """Invalid values of every field with a name are rejected, and nothing is created."""
    jobs = JOBS.format(namespace=shared.namespace)
    if field.startswith("spec.files"):
        upload_blob(shared)
    taken = {}
    for trick, text in NAMES.items():
        if field == "metadata.generateName" and trick == "empty":
            # Then the whole name is generated, and may begin with a letter or not.
            continue
        body = job()
        if field.endswith("claimName"):
            body["spec"]["volumes"].reverse()
            body["spec"]["volumes"][0] = {"name": "two", "persistentVolumeClaim": {"claimName": "data"}}
        if field.startswith("spec.files"):
            body["spec"]["files"] = [{"path": "x", "digest": DIGEST}]
        if field == "metadata.generateName":
            del body["metadata"]["name"]
        put(body, field, text)
        answer = post_patiently(shared, body)
        if answer.status_code == 201:
            taken[trick] = answer.json()["metadata"]["name"]
            shared.user.http.delete(f"{jobs}/{taken[trick]}").raise_for_status()
        else:
            assert answer.status_code in (400, 413, 422), (trick, answer.text[:500])
    assert taken.keys() == NAME_FIELDS[field]
    unchanged_filesystem()


def read_classes_of_words(params: dict[str, Any], *, from_model: bool) -> None:
    """Makes the inputs those of a classifier of tokens, which reads both vocabularies."""
    files = {"vocab_file": "data/words.txt", "label_vocab_file": "data/classes.json"}
    params["model"] |= {"name": "bert/token_classifier", "num_classes": 3} | (files if from_model else {})
    for source in (params[name] for name in ("train_input", "eval_input") if name in params):
        for key in ("data_files", "tokenizer"):
            source.pop(key, None)
        source |= {"data_processor": "BertTokenClassifierDataProcessor", "data_dir": "data"}
        source |= {} if from_model else files


def read_translations(params: dict[str, Any]) -> None:
    """Makes the model a Transformer, whose inputs read texts with their translations and the vocabularies of both."""
    sizes = {"hidden_size": 64, "num_heads": 4, "encoder_num_hidden_layers": 2, "src_vocab_size": 512}
    params["model"] = {"name": "transformer", **sizes}
    for source in (params[name] for name in ("train_input", "eval_input") if name in params):
        for key in ("data_dir", "data_files", "tokenizer"):
            source.pop(key, None)
        source |= {"data_processor": "TransformerDynamicDataProcessor", "tgt_max_sequence_length": 32}
        source |= {"src_data_dir": "data", "tgt_data_dir": "data"}
        source |= {"src_vocab_file": "data/source.txt", "tgt_vocab_file": "data/target.txt"}


@pytest.mark.needs("local paths")
@pytest.mark.parametrize("field", sorted(PATH_FIELDS))
def test_paths_outside_are_rejected(shared: Server, unchanged_filesystem: Callable[[], None], field: str) -> None:
    """Paths out of the offered directories are rejected; those of results are relative to the job's directory."""
    assert isinstance(shared, ProcessServer)
    own = shared.data.resolve() / "model_dirs" / shared.namespace / "hostile"
    for trick, text in PATHS.items():
        body = job()
        if "eval_input" in field:
            body["spec"]["params"]["eval_input"] = dict(body["spec"]["params"]["train_input"])
        if "mixture" in field:
            # Mixtures are of HDF5 files, and exclude other files.
            source = body["spec"]["params"][field.split(".")[2]]
            for key in ("data_dir", "data_files", "tokenizer"):
                source.pop(key, None)
            source |= {"data_processor": "GptHDF5DataProcessor", "mixture": [{"data_dir": "data", "weight": 1}]}
        if field.endswith("data_file"):
            # Another spelling of `data_files`.
            body["spec"]["params"][field.split(".")[2]].pop("data_files", None)
        if field.endswith("tokenizer_file"):
            # Both inputs have one tokenizer, and only one.
            for name in ("train_input", "eval_input"):
                body["spec"]["params"].get(name, {}).pop("tokenizer", None)
        if "_input.src_" in field or "_input.tgt_" in field:
            read_translations(body["spec"]["params"])
        elif field.endswith("model.graph"):
            # The graph is the whole model.
            body["spec"]["params"]["model"] = {}
        elif field.endswith("vocab_file"):
            read_classes_of_words(body["spec"]["params"], from_model=".model." in field)
        put(body, field, text)
        answer = post_patiently(shared, body)
        if answer.status_code == 201:
            assert field.endswith(("model_dir", "summary_dir")) and not text.startswith("/"), (trick, answer.text[:500])
            created = shared.user.appliance.job("hostile")
            until_state(created, "Suspended")
            shared.user.http.delete(path(created)).raise_for_status()
        else:
            assert answer.status_code == 422, (trick, answer.text[:500])
    assert not own.exists()
    unchanged_filesystem()


@pytest.mark.needs("local paths")
@pytest.mark.parametrize(
    "key", ["train_input.data_files", "model.graph", *(f"runconfig.{key}" for key in ("model_dir", "checkpoint_path"))]
)
def test_paths_of_later_phases_are_rejected(
    shared: Server, unchanged_filesystem: Callable[[], None], key: str
) -> None:
    """The paths of all phases are checked when the job is created."""
    for trick, text in PATHS.items():
        body = job()
        phase = copy.deepcopy(body["spec"]["params"])
        phase["runconfig"]["max_steps"] += 1
        put(phase, key, text)
        body["spec"]["laterPhases"] = [phase]
        answer = post_patiently(shared, body)
        assert answer.status_code == 422, (trick, answer.text[:500])
    unchanged_filesystem()


@pytest.mark.needs("local files")
@pytest.mark.parametrize("trick", [*NAMES, *(f"path: {trick}" for trick in PATHS)])
def test_names_of_uploads_cannot_escape(server: Server, trick: str) -> None:
    """An upload is written to its own directory under a name of the server's, or not at all, whatever its name."""
    name = PATHS[trick.removeprefix("path: ")] if trick.startswith("path: ") else NAMES[trick]
    assert isinstance(server, ProcessServer)
    texts = server.data / "texts/default"
    with suppress(httpx.RemoteProtocolError):
        answer = upload(server.user, "named", {name: CODE * 20_000})
        assert answer.status_code in (201, 400, 413, 422), answer.text[:500]
    for file in texts.rglob("*") if texts.exists() else ():
        inside = file.relative_to(texts).parts
        assert inside[0].startswith("texts-") and len(inside) <= 2
        assert len(inside) == 1 or inside[1].startswith("0-0000-")
    assert {each.name for each in server.home.iterdir()} <= {"data", "server.log"} | {
        u.name for u in server.home.glob("user-*")
    }


def test_hostile_path_segments_find_nothing(shared: Server, finished: Job) -> None:
    """Invalid or hostile segments of a URL find nothing and cause no server error."""
    routes = {
        JOBS.format(namespace="{x}"): "GET",
        JOBS.format(namespace=shared.namespace) + "/{x}": "GET",
        JOBS.format(namespace=shared.namespace) + "/{x}/suspend": "POST",
        "/v1/namespaces/{x}/volumes": "GET",
        **{f"{path(finished)}/{below}": "GET" for below in ("checkpoints/{x}", "checkpoints/200/{x}", "artifacts/{x}")},
        f"{path(finished)}/checkpoints/200:export/{{x}}?format=hf": "GET",
    }
    wrong = {}
    for route, method in routes.items():
        for trick, text in {**NAMES, **PATHS}.items():
            if len(text) > 10_000 or (trick == "empty" and not route.endswith("{x}")):
                continue
            for written in (quote(text, safe=""), quote(text, safe="/.~$*()")):
                status, body = raw(shared, method, route.replace("{x}", written))
                listed = trick in ("empty", "trailing slash", "dot") and status in (200, 404)
                if not listed and (status < 400 or status >= 500 or b"root:x:" in body):
                    wrong[route, trick] = status, body[:200]
    assert wrong == {}


def test_hostile_query_parameters_are_harmless(shared: Server, finished: Job) -> None:
    """Hostile values of query parameters cause no server error."""
    document = shared.user.http.get("/openapi.json").json()
    wrong = {}
    for route, methods in document["paths"].items():
        operation = methods.get("get", {})
        names = [each["name"] for each in operation.get("parameters", []) if each.get("in") == "query"]
        if "/follow" in route or route.endswith("/events") and "Last-Event-ID" in str(operation):
            names = [name for name in names if name not in ("after",)]
        target = route.format(
            namespace=shared.namespace,
            name=finished.name,
            checkpoint=200,
            path="job.json",
            id="x",
            digest=DIGEST,
        )
        for name in names:
            for trick, text in {**NAMES, **PATHS}.items():
                if len(text) > 10_000:
                    continue
                with shared.user.http.stream("GET", target, params={name: text}) as answer:
                    if answer.status_code >= 500:
                        wrong[target, name, trick] = answer.status_code
    assert wrong == {}


@contextmanager
def swap_with_link(place: Path, other: Path) -> Iterator[None]:
    """Swaps a directory with a link to another one, again and again, during the block."""
    over, away = threading.Event(), place.with_name(f"{place.name}-away")

    def swap() -> None:
        while not over.is_set():
            place.rename(away)
            place.symlink_to(other)
            place.unlink()
            while away.exists():
                # Another process may have created it again.
                with suppress(OSError):
                    shutil.rmtree(place, ignore_errors=True)
                    away.rename(place)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """A directory for a volume, with links to a directory outside that contains a secret."""
    volume, outside = tmp_path / "volume", tmp_path / "outside"
    for each in (volume / "default", outside):
        each.mkdir(parents=True)
    (volume / "kjv.txt").write_text((ROOT / "examples/data/kjv.txt").read_text()[:100_000])
    (outside / "secret.txt").write_text(f"{SECRET}\n" * 4000)
    (outside / "metrics.jsonl").write_text(f'{{"{SECRET}": 1}}\n')
    (volume / "secret-link.txt").symlink_to(outside / "secret.txt")
    (volume / "outside").symlink_to(outside)
    (volume / "default/outside").symlink_to("../../outside")
    return volume


def mounted(name: str, data: str, steps: int = 20, **runconfig: str | int) -> dict[str, Any]:
    """Returns a job with the volume `shared` at /v."""
    body = trainjob(name, steps)
    body["spec"]["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": "shared"}}]
    body["spec"]["mountDirs"] = [{"path": "/v", "volume": "v"}]
    body["spec"]["params"]["train_input"]["data_files"] = data
    body["spec"]["params"]["runconfig"] |= runconfig
    # A failure is permanent here: fewer restarts mean less waiting.
    body["spec"]["failurePolicy"] = {"maxRestarts": 3}
    return body


def submit(user: User, body: dict[str, Any], namespace: str | None = None) -> Job:
    """Submits a job that must be accepted."""
    jobs = JOBS.format(namespace=namespace or user.namespace)
    user.http.post(jobs, json=body).raise_for_status()
    return user.appliance.job(body["metadata"]["name"])


def contents(root: Path) -> dict[str, bytes]:
    """Returns every file below a directory, without following links."""
    files = (path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


@pytest.mark.needs("own volumes")
@pytest.mark.parametrize("data", ["/v/secret-link.txt", "/v/outside/secret.txt", "/v/outside/*.txt", "/v/outside"])
def test_data_behind_links_are_not_read(serve: Serve, volume: Path, data: str) -> None:
    """Training data behind a link out of the volume are neither planned nor accepted."""
    user = serve("--volume", f"shared={volume}").user
    for ending in ("", ":plan"):
        answer = user.http.post(JOBS.format(namespace="default") + ending, json=mounted("linked", data))
        assert answer.status_code == 422 or not answer.json()["fits"], answer.text
        assert SECRET not in answer.text


@pytest.mark.needs("own volumes")
@pytest.mark.parametrize("model_dir", ["/v/default/outside", "/v/default/outside/run", "/v/default/planted"])
def test_results_behind_links_are_not_written(serve: Serve, volume: Path, model_dir: str) -> None:
    """Links out of a writable volume, or in model_dir itself, lead no checkpoint, log or metric out of it."""
    outside = volume.parent / "outside"
    planted = volume / "default/planted"
    planted.mkdir()
    for name in ("metrics.jsonl", "job.json", "journal", "logs", "checkpoint_20"):
        (planted / name).symlink_to(outside / name)
    before = contents(outside)
    user = serve("--volume", f"shared={volume}").user
    created = submit(user, mounted("linked", "/v/kjv.txt", model_dir=model_dir))
    until_state(created, "BadParams", "Failed", "RetriesExhausted", "Succeeded", seconds=120)
    assert contents(outside) == before and {each.name for each in outside.iterdir()} == {"secret.txt", "metrics.jsonl"}
    for file in created.artifacts() if created.state == "Succeeded" else ():
        assert SECRET not in user.http.get(path(created, f"artifacts/{file.path}")).text


@pytest.mark.needs("own volumes")
def test_directory_swapped_with_a_link_leaks_nothing(serve: Serve, volume: Path) -> None:
    """While model_dir is swapped with a link, nothing behind the link is listed or served."""
    user = serve("--volume", f"shared={volume}").user
    created = submit(user, mounted("swapped", "/v/kjv.txt", model_dir="/v/default/run"))
    created.wait(120)
    own = user.http.get(path(created, "artifacts/metrics.jsonl")).raise_for_status().text
    seen: dict[int, int] = {}
    with swap_with_link(volume / "default/run", volume.parent / "outside"):
        for _ in range(300):
            answer = user.http.get(path(created, "artifacts/metrics.jsonl"))
            seen[answer.status_code] = seen.get(answer.status_code, 0) + 1
            assert SECRET not in answer.text and (answer.status_code != 200 or answer.text == own)
            listed = user.http.get(path(created, "artifacts"))
            assert "secret" not in listed.text
    assert seen.get(200), seen


@pytest.mark.needs("own volumes")
def test_results_are_not_written_through_a_swapped_link(serve: Serve, volume: Path) -> None:
    """A training job whose model_dir is swapped with a link writes nothing behind the link."""
    outside = volume.parent / "outside"
    before = contents(outside)
    user = serve("--volume", f"shared={volume}").user
    (volume / "default/run").mkdir()
    with swap_with_link(volume / "default/run", outside):
        created = submit(user, mounted("swapped", "/v/kjv.txt", 100, model_dir="/v/default/run", checkpoint_steps=10))
        until_state(created, "BadParams", "Failed", "RetriesExhausted", "Succeeded", seconds=120)
    assert contents(outside) == before


@pytest.mark.needs("own volumes")
def test_other_files_of_a_volume_are_not_served(serve: Serve, volume: Path) -> None:
    """If model_dir is a whole volume, only files that jobs write are listed and served."""
    (volume / "id_rsa").write_text(SECRET)
    (volume / "logs").mkdir()
    (volume / "logs/secret.log").write_text(SECRET)
    (volume / "checkpoint_7").mkdir()
    (volume / "checkpoint_7/secret.json").write_text(SECRET)
    user = serve("--volume", f"shared={volume}:rw:default").user
    created = submit(user, mounted("whole", "/v/kjv.txt", model_dir="/v"))
    created.wait(120)
    names = {file.path for file in created.artifacts()}
    assert {"metrics.jsonl", "params.yaml", "job.json"} <= names
    assert not {name for name in names if "secret" in name or "kjv" in name or "id_rsa" in name}
    assert [each.step for each in created.checkpoints()] == [20]
    for below in (
        "artifacts/id_rsa",
        "artifacts/kjv.txt",
        "artifacts/logs/secret.log",
        "checkpoints/7",
        "checkpoints/7/secret.json",
    ):
        assert user.http.get(path(created, below)).status_code == 404, below


@pytest.mark.needs("own volumes")
def test_volumes_are_limited_to_their_namespaces(serve: Serve, volume: Path) -> None:
    """Only offered volumes can be used, listed or planned with; in a shared one each namespace writes to its own
    directory.
    """
    other = volume.parent / "other"
    other.mkdir()
    shutil.copy(volume / "kjv.txt", other)
    server = serve(
        "--volume", f"shared={volume}", "--volume", f"other={other}:rw:default,team", "--volume", f"ro={other}:ro:team"
    )
    user = server.user

    def asked(namespace: str, claim: str, model_dir: str, ending: str = "") -> httpx.Response:
        body = mounted("mine", "/v/kjv.txt", model_dir=model_dir)
        body["spec"] |= {"suspend": True}
        body["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"] = claim
        return user.http.post(JOBS.format(namespace=namespace) + ending, json=body)

    def listed(namespace: str) -> set[str]:
        items = user.http.get(f"/v1/namespaces/{namespace}/volumes").raise_for_status().json()["items"]
        return {item["name"] for item in items}

    assert (listed("default"), listed("team"), listed("others")) == (
        {"shared", "other"},
        {"shared", "other", "ro"},
        {"shared"},
    )
    for namespace, claim, model_dir, message in (
        ("others", "other", "/v/others/run", "offers no volume other to namespace others (shared)"),
        ("others", "ro", "/v/others/run", "offers no volume ro to namespace others"),
        ("team", "ro", "/v/team/run", "the volume ro is read-only"),
        ("team", "other", "/v", "the volume other is shared with other namespaces"),
        ("team", "other", "/v/default/run", "write below its directory team/"),
        ("default", "shared", "/v/run", "write below its directory default/"),
    ):
        for ending in ("", ":plan", "?dryRun=All"):
            answer = asked(namespace, claim, model_dir, ending)
            refused = answer.status_code == 422 or ending == ":plan" and not answer.json().get("fits", True)
            assert refused and message in answer.text, (namespace, claim, model_dir, ending, answer.text)
    for namespace, claim in (("team", "other"), ("default", "shared")):
        assert asked(namespace, claim, f"/v/{namespace}/run").status_code == 201


@pytest.mark.needs("own volumes")
def test_retention_keeps_checkpoints_of_other_jobs(serve: Serve, volume: Path) -> None:
    """A job with max_checkpoints deletes its own checkpoints only."""
    user = serve("--volume", f"shared={volume}").user
    submit(user, mounted("first", "/v/kjv.txt", 40, model_dir="/v/default/run", checkpoint_steps=10)).wait(120)
    kept = {f"checkpoint_{step}": contents(volume / f"default/run/checkpoint_{step}") for step in (10, 20, 30, 40)}
    second = mounted("second", "/v/kjv.txt", 9, model_dir="/v/default/run", checkpoint_steps=3, max_checkpoints=1)
    second["spec"]["params"]["runconfig"]["autoload_last_checkpoint"] = False
    submit(user, second).wait(120)
    there = {each.name for each in (volume / "default/run").glob("checkpoint_*")}
    assert there == kept.keys() | {"checkpoint_9"}
    assert {name: contents(volume / "default/run" / name) for name in kept} == kept


@pytest.mark.needs("local files")
def test_server_files_are_private(tmp_path: Path, volume: Path) -> None:
    """Files of the server and its jobs are readable by their owner only, whatever the umask."""
    before = os.umask(0)
    try:
        server = ProcessServer(tmp_path / "private", "--volume", f"shared={volume}")
        try:
            server.stop()
            server.data.chmod(0o755)
            server.start()
            user = server.user
            submit(user, mounted("kept", "/v/kjv.txt", model_dir="/v/default/run")).wait(120)
            upload(user, "texts", {"x.txt": CODE * 20_000}, suspend=True).raise_for_status()
            until_state(user.submit("own", 20), "Succeeded")
            user.millrace("download", "own", "--format", "hf", "--to", tmp_path / "hf")
            places = [
                server.data,
                *server.data.rglob("*"),
                volume / "default/run",
                *(volume / "default/run").rglob("*"),
            ]
            open_to_others = {
                str(each): oct(stat.S_IMODE(each.stat().st_mode)) for each in places if each.stat().st_mode & 0o077
            }
        finally:
            server.close()
    finally:
        os.umask(before)
    assert open_to_others == {}


@pytest.mark.needs("local paths")
def test_server_without_inputs_reads_no_local_files(tmp_path: Path) -> None:
    """Without --input-dir the server offers no local files, and the error says what to do."""
    server = ProcessServer(tmp_path / "server", inputs=None)
    try:
        (server.home / "id_rsa").write_text(f"{SECRET}\n" * 4000)
        body = trainjob("stolen")
        body["spec"]["params"]["train_input"]["data_files"] = "id_rsa"
        answer = server.user.http.post(JOBS.format(namespace="default"), json=body)
        assert answer.status_code == 422 and "start the server with --input-dir DIR" in answer.text, answer.text
    finally:
        server.close()
