"""Where a job's data come from and its results go to: texts that travel along, and volumes of the server."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from harness import PARAMS, ROOT, Reference, Serve, Server

KJV = ROOT / "examples/data/kjv.txt"
STEPS = 60


def write(path: Path, data: str, **runconfig: str) -> Path:
    """The suite's params over other data; written as a user would, next to what they name."""
    text = PARAMS.read_text().replace("data_files: examples/data/kjv.txt", f"data_files: {data}")
    text += "".join(f"    {key}: {value}\n" for key, value in runconfig.items())
    assert yaml.safe_load(text)["train_input"]["data_files"]
    path.write_text(text)
    return path


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Two small texts that no server has."""
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/a first.txt").write_text(KJV.read_text()[:60_000])
    (tmp_path / "texts/zweiter-Teil.txt").write_text("Im Anfang schuf Gott Himmel und Erde – äöü\n" * 40)
    return tmp_path


def test_small_texts_travel_along(shared: Server, texts: Path) -> None:
    """Texts beside the params are trained on, in the order in which params name them, to the bits of a run that has them."""
    params = write(texts / "params.yaml", "[texts/zweiter-Teil.txt, texts/a first.txt]")
    here = Reference.train(texts / "here", STEPS, params, cwd=texts)
    job = shared.user.submit("travelling", STEPS, params=params)
    job.wait(120)
    here.assert_same(shared.user, job)


@pytest.mark.needs("quick jobs")
def test_texts_of_a_glob_travel_along(shared: Server, texts: Path) -> None:
    """A glob stands for the texts that it finds beside the params."""
    params = write(texts / "params.yaml", "texts/*.txt")
    here = Reference.train(texts / "here", STEPS, params, cwd=texts)
    job = shared.user.submit("of-a-glob", STEPS, params=params)
    job.wait(60)
    here.assert_same(shared.user, job)


@pytest.mark.needs("quick jobs")
def test_a_single_text_travels_along(shared: Server, tmp_path: Path) -> None:
    """One text named as it is; a job without a name is named after its params."""
    (tmp_path / "text.txt").write_text(KJV.read_text()[:60_000])
    params = write(tmp_path / "my-params.yaml", "text.txt")
    here = Reference.train(tmp_path / "here", STEPS, params, cwd=tmp_path)
    done = shared.user.millrace("train", "-p", params, "--max_steps", STEPS, "-o", "name")
    name = done.out.split()[-1]
    assert name.startswith("my-params-")
    here.assert_same(shared.user, shared.user.appliance.job(name))


def test_a_large_text_stays(shared: Server, tmp_path: Path) -> None:
    """A text of a mebibyte or more does not travel, and the user is told."""
    (tmp_path / "large.txt").write_text(KJV.read_text()[: 1 << 20])
    params = write(tmp_path / "large.yaml", "large.txt")
    done = shared.user.millrace("train", "-p", params, "--detach")
    assert "large.txt stays on this machine (1.0 MiB; only texts under 1 MiB travel along)" in done.err


@pytest.mark.needs("own volumes")
def test_volumes(serve: Serve, tmp_path: Path) -> None:
    """Data in a volume, or in a part of one, and a model_dir in another; what is read is not written to."""
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

    # A checkpoint of one job is the beginning of another.
    start = ("--checkpoint_path", f"/results/default/run/checkpoint_{STEPS}")
    further = write(tmp_path / "further.yaml", "/data/kjv.txt", model_dir="/results/default/further")
    user.millrace("train", "-p", further, "-n", "further", "--max_steps", 2 * STEPS, *start, *mounts)
    job = user.appliance.job("further")
    assert job.metrics()[0].step == STEPS + 1
    assert job.status["checkpoint"]["digest"] == Reference.train(tmp_path / "whole", 2 * STEPS, here).digest


@pytest.mark.needs("own volumes")
def test_volumes_that_are_not_there(serve: Serve, tmp_path: Path) -> None:
    """A volume that the server does not offer is named in the refusal, with those that it does."""
    (tmp_path / "corpus").mkdir()
    user = serve("--volume", f"corpus={tmp_path / 'corpus'}").user
    params = write(tmp_path / "params.yaml", "/data/kjv.txt")
    done = user.millrace("train", "-p", params, "--mount_dirs", "nowhere=/data", code=2)
    assert "offers no volume nowhere to namespace default (corpus)" in done.error
    done = user.millrace("train", "-p", params, "--mount_dirs", "corpus/../..=/data", code=2)
    assert "subPath" in done.error
    assert list(user.appliance.jobs()) == []
