"""Tests of uploads, volumes and data paths of jobs."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from harness import PARAMS, ROOT, Reference, Serve, Server

KJV = ROOT / "examples/data/kjv.txt"
STEPS = 60


def write(path: Path, data: str, **runconfig: str) -> Path:
    """Writes the params of the tests with other data."""
    text = PARAMS.read_text().replace("data_files: examples/data/kjv.txt", f"data_files: {data}")
    text += "".join(f"    {key}: {value}\n" for key, value in runconfig.items())
    assert yaml.safe_load(text)["train_input"]["data_files"]
    path.write_text(text)
    return path


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A directory with two small text files that no server has."""
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/a first.txt").write_text(KJV.read_text()[:60_000])
    (tmp_path / "texts/zweiter-Teil.txt").write_text("Im Anfang schuf Gott Himmel und Erde – äöü\n" * 40)
    return tmp_path


@pytest.mark.needs("quick jobs")
def test_small_text_files_are_uploaded(shared: Server, texts: Path) -> None:
    """Uploaded files are used in the order of the params, with the same bits as in a local run."""
    params = write(texts / "params.yaml", "[texts/zweiter-Teil.txt, texts/a first.txt]")
    here = Reference.train(texts / "here", STEPS, params, cwd=texts)
    job = shared.user.submit("travelling", STEPS, params=params)
    job.wait(120)
    here.assert_same(shared.user, job)


@pytest.mark.needs("quick jobs")
def test_files_of_a_glob_are_uploaded(shared: Server, texts: Path) -> None:
    """A glob uploads the files that match next to the params."""
    params = write(texts / "params.yaml", "texts/*.txt")
    here = Reference.train(texts / "here", STEPS, params, cwd=texts)
    job = shared.user.submit("of-a-glob", STEPS, params=params)
    job.wait(60)
    here.assert_same(shared.user, job)


@pytest.mark.needs("quick jobs")
def test_single_text_file_is_uploaded(shared: Server, tmp_path: Path) -> None:
    """A single file is uploaded; a job without a name is named after its params."""
    (tmp_path / "text.txt").write_text(KJV.read_text()[:60_000])
    params = write(tmp_path / "my-params.yaml", "text.txt")
    here = Reference.train(tmp_path / "here", STEPS, params, cwd=tmp_path)
    done = shared.user.millrace("train", "-p", params, "--max_steps", STEPS, "-o", "name")
    name = done.out.split()[-1]
    assert name.startswith("my-params-")
    here.assert_same(shared.user, shared.user.appliance.job(name))


def test_model_is_continued_from_other_params(shared: Server, tmp_path: Path) -> None:
    """The params file that `model.pretrain_params_path` names is sent with the params, and its model is trained."""
    whole = yaml.safe_load(PARAMS.read_text())
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/own.txt").write_text(KJV.read_text()[:60_000])
    whole["train_input"]["data_files"] = "texts/own.txt"
    (tmp_path / "base.yaml").write_text(yaml.safe_dump({"model": whole["model"] | {"dropout_rate": 0.5}}))
    own = {"pretrain_params_path": "base.yaml", "dropout_rate": whole["model"].get("dropout_rate", 0.0)}
    (tmp_path / "configs").mkdir()
    params = tmp_path / "configs/continued.yaml"
    params.write_text(yaml.safe_dump(whole | {"model": own}))
    (tmp_path / "whole.yaml").write_text(yaml.safe_dump(whole))
    here = Reference.train(tmp_path / "here", STEPS, tmp_path / "whole.yaml", cwd=tmp_path)
    (tmp_path / "texts").rename(tmp_path / "configs/texts")
    job = shared.user.submit("continued", STEPS, params=params)
    job.wait(120)
    here.assert_same(shared.user, job)

    def refused() -> str:
        return shared.user.millrace("plan", "-p", params, code=2).error

    key = "model.pretrain_params_path names base.yaml, but"
    for content, says in {
        "[": f"{key} there line 1",
        "train_input: {}": f"{key} that file has no section model",
        "model: {num_heads: 3, hiden_size: 4}": "model.hiden_size is not a known key",
    }.items():
        (tmp_path / "base.yaml").write_text(content)
        assert says in refused()
    (tmp_path / "base.yaml").unlink()
    assert f"{key} it can't be read: no file of this name was sent with the params" in refused()
    (tmp_path / "configs/base.yaml").write_bytes(b"\xff")
    assert "which is no UTF-8 text" in refused()
    # Only a form has files.
    spec = {"numCsx": 1, "params": whole | {"model": own}}
    body = {"metadata": {"name": "continued-2"}, "spec": spec}
    answer = shared.user.http.post(f"/v1/namespaces/{shared.namespace}/trainjobs", json=body)
    assert "model.pretrain_params_path is not supported" in answer.json()["detail"], answer.text


@pytest.mark.needs("own volumes")
def test_volumes_hold_data_and_results(serve: Serve, tmp_path: Path) -> None:
    """Data are read from a volume or a part of one, without changing it, and results are written to another volume."""
    corpus, results = tmp_path / "corpus", tmp_path / "results"
    (corpus / "en").mkdir(parents=True)
    results.mkdir()
    (corpus / "en/kjv.txt").write_text(KJV.read_text()[:200_000])
    before = {path: path.stat().st_mtime_ns for path in corpus.rglob("*")}
    server = serve("--volume", f"corpus={corpus}", "--volume", f"results={results}")
    user = server.user
    listed = user.millrace("get", "volumes", "-o", "json").json["items"]
    assert {volume["name"] for volume in listed} == {"corpus", "results"}

    mounts = ("--mount_dirs", "corpus/en=/data", "results=/results")
    params = write(tmp_path / "params.yaml", "/data/kjv.txt", model_dir="/results/default/run")
    user.millrace("train", "-p", params, "-n", "mounted", "--max_steps", STEPS, *mounts)
    job = user.appliance.job("mounted")
    assert (results / f"default/run/checkpoint_{STEPS}/manifest.json").is_file()
    assert {path: path.stat().st_mtime_ns for path in corpus.rglob("*")} == before
    here = write(tmp_path / "here.yaml", str(corpus / "en/kjv.txt"))
    Reference.train(tmp_path / "here", STEPS, here).assert_same(user, job)
    assert [checkpoint.step for checkpoint in job.checkpoints()] == [STEPS]

    # A checkpoint of one job is the start of another.
    start = ("--checkpoint_path", f"/results/default/run/checkpoint_{STEPS}")
    further = write(tmp_path / "further.yaml", "/data/kjv.txt", model_dir="/results/default/further")
    user.millrace("train", "-p", further, "-n", "further", "--max_steps", 2 * STEPS, *start, *mounts)
    job = user.appliance.job("further")
    assert job.metrics()[0].step == STEPS + 1
    assert job.status["checkpoint"]["digest"] == Reference.train(tmp_path / "whole", 2 * STEPS, here).digest


@pytest.mark.needs("own volumes")
def test_unknown_volume_is_rejected(serve: Serve, tmp_path: Path) -> None:
    """The error names the missing volume and the available ones."""
    (tmp_path / "corpus").mkdir()
    user = serve("--volume", f"corpus={tmp_path / 'corpus'}").user
    params = write(tmp_path / "params.yaml", "/data/kjv.txt")
    done = user.millrace("train", "-p", params, "--mount_dirs", "nowhere=/data", code=2)
    assert "offers no volume nowhere to namespace default (corpus)" in done.error
    done = user.millrace("train", "-p", params, "--mount_dirs", "corpus/../..=/data", code=2)
    assert "subPath" in done.error
    unused = write(tmp_path / "unused.yaml", "examples/data/kjv.txt")
    done = user.millrace("train", "-p", unused, "--mount_dirs", "nowhere=/data", code=2)
    assert "offers no volume nowhere to namespace default (corpus)" in done.error
    assert list(user.appliance.jobs()) == []


@pytest.mark.needs("own volumes", "local paths")
def test_missing_data_are_rejected(serve: Serve, tmp_path: Path) -> None:
    """Missing data, or data of another format, are rejected at submission; the message says what was searched where."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "kjv.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(1000))
    (tmp_path / "secret").write_text("secret")
    for name, target in (("secret.txt", "secret"), ("nothing.txt", "nothing")):
        (corpus / name).symlink_to(tmp_path / target)
    user = serve("--volume", f"corpus={corpus}").user
    refusals = {}
    for data, says in {
        "nowhere.txt": f"file nowhere.txt not found in {ROOT}, the directory that the server's --input-dir names",
        "'*.text'": f"file *.text not found in {ROOT}",
        "/data/nowhere.txt": "file /data/nowhere.txt not found in the volume corpus, which spec.mountDirs has at /data",
        "/data/kjv.h5": "is an HDF5 file; expected UTF-8 text: convert it",
        "/data/secret.txt": "cannot read data file",
        "/data/nothing.txt": "cannot read data file",
    }.items():
        params = write(tmp_path / "params.yaml", data)
        for how in (["plan"], ["train", "--validate_only"], ["train"]):
            done = user.millrace(*how, "-p", params, "--mount_dirs", "corpus=/data", code=2)
            assert f"train_input: {says}" in done.error or says in done.error, how
            refusals[data] = done.error
    (tmp_path / "empty.txt").touch()
    done = user.millrace("train", "-p", write(tmp_path / "params.yaml", "empty.txt"), code=2)
    assert "train_input: the uploaded file empty.txt is empty" in done.error
    # The message does not reveal whether the target of a link exists.
    errors = [refusals[f"/data/{name}.txt"].replace(name, "NAME") for name in ("secret", "nothing")]
    assert errors[0] == errors[1]
    assert list(user.appliance.jobs()) == []

    (corpus / "kjv.txt").write_text(KJV.read_text()[:65_537])
    params = write(tmp_path / "params.yaml", "/data/kjv.txt")
    planned = user.millrace("plan", "-p", params, "--mount_dirs", "corpus=/data")
    assert "1,024 samples, 65,536 tokens, 256.0 steps" in planned.out
    assert "Step on host:" in planned.out and "Host memory:" in planned.out


def test_model_too_large_for_the_host_is_rejected(shared: Server, tmp_path: Path) -> None:
    """A server that runs jobs on its own host rejects a job that exceeds the host's memory."""
    text = PARAMS.read_text()
    for key, value in (("hidden_size", 16384), ("filter_size", 65536), ("num_hidden_layers", 24)):
        line = next(line for line in text.splitlines() if line.strip().startswith(f"{key}:"))
        text = text.replace(line, f"    {key}: {value}")
    large = tmp_path / "large.yaml"
    large.write_text(text)
    if "local paths" not in shared.can:
        assert shared.user.millrace("plan", "-p", large, "-o", "json").json["needs"]["memoryx"]["bytes"] > 1 << 38
        return
    planned = shared.user.millrace("plan", "-p", large, code=1).out
    assert "Fits:" in planned and "no on this host: its processes need" in planned
    refused = shared.user.millrace("train", "-p", large, code=2).error
    assert "the job does not fit on this host: its processes need" in refused
