"""Tests of the body of a submission."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from conftest import JOBS, Server, job
from millrace import Appliance, MillraceError

# All that PyYAML would change: 1e-8, a float with many digits, on, comments, a duplicate key, CRLF.
RAW = (
    b"optimizer: {eps: 1e-8, weight_decay: 0.10000000000000000555}   # kept\r\n"
    b"train_input:\r\n    shuffle: on\r\n"
    b"    data_dir: [texts/*.txt, more/own.txt, /data/all.txt, nowhere.txt]\r\n"
    b"eval_input: {data_files: ./eval.txt}\r\nmodel: {a: 1, a: 2}\r\n"
)


def submitted(server: Server, appliance: Appliance, params: Any, **options: Any) -> dict[str, Any]:
    server.on("POST", JOBS, job(None))
    appliance.train(params, **options)
    parts = server.requests[-1].parts()
    files = {name: content for kind, name, _, content in parts if kind == "file"}
    told = [
        json.loads(content)
        for kind, _, type_, content in parts
        if (kind, type_) == ("job", "application/json")
    ]
    [(filename, content)] = [(name, content) for kind, name, _, content in parts if kind == "params"]
    return {"filename": filename, "params": content, "job": told[0] if told else None, "files": files}


def test_params_are_sent_unchanged_with_their_files(
    server: Server, appliance: Appliance, tmp_path: Path
) -> None:
    beside = tmp_path / "beside"
    for name, content in {
        "params.yaml": RAW,
        "texts/ä.txt": "ä\r\n".encode(),
        "texts/b.txt": b"b --boundary\r\n",
        "eval.txt": b"",
    }.items():
        (beside / name).parent.mkdir(parents=True, exist_ok=True)
        (beside / name).write_bytes(content)
    (tmp_path / "more").mkdir()
    (tmp_path / "more/own.txt").write_text("in the working directory")

    sent = submitted(server, appliance, beside / "params.yaml")
    assert (sent["filename"], sent["params"], sent["job"]) == ("params.yaml", RAW, None)
    assert sent["files"] == {
        "texts/ä.txt": "ä\r\n".encode(),
        "texts/b.txt": b"b --boundary\r\n",
        "more/own.txt": b"in the working directory",
        "./eval.txt": b"",
    }


def test_params_of_the_pretraining_are_sent_with_the_files_of_their_model(
    server: Server, appliance: Appliance, tmp_path: Path
) -> None:
    base = b"model: {vocab_file: words.txt, label_vocab_file: labels.txt}\n"
    (tmp_path / "configs").mkdir()
    for name, content in {"base.yaml": base, "configs/words.txt": b"a", "labels.txt": b"b"}.items():
        (tmp_path / name).write_bytes(content)
    params = tmp_path / "configs/params.yaml"
    params.write_text("model: {pretrain_params_path: base.yaml, label_vocab_file: own.txt}\n")
    sent = submitted(server, appliance, params)
    assert sent["files"] == {"base.yaml": base, "words.txt": b"a"}, "the model's own keys count"
    # The file beside the params comes first, and no file needs to exist.
    (tmp_path / "configs/base.yaml").write_text("not: a model")
    assert submitted(server, appliance, params)["files"] == {"base.yaml": b"not: a model"}
    sent = submitted(server, appliance, {"model": {"pretrain_params_path": "nowhere.yaml"}})
    assert sent["files"] == {}
    absolute = str(tmp_path / "base.yaml")
    sent = submitted(server, appliance, {"model": {"pretrain_params_path": absolute}})
    assert sent["files"][absolute] == base
    for content, says in [(b"#" * (1 << 20), "has 1 MiB or more"), (b"\xff", "is no UTF-8 text")]:
        (tmp_path / "configs/base.yaml").write_bytes(content)
        with pytest.raises(MillraceError, match=says):
            appliance.train(params)


def test_without_a_store_only_small_texts_are_uploaded(
    server: Server, appliance: Appliance, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.txt").write_text("small")
    (tmp_path / "z.txt").write_text("l" * 1024 * 1024)
    (tmp_path / "tokens.bin").write_bytes(b"\xff\xfe")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/b.bin").write_bytes(b"\xff")
    paths = ["tokens.bin", "texts"]
    sent = submitted(server, appliance, {"train_input": {"data_dir": "*.txt", "data_files": paths}})
    assert (sent["files"], sent["job"]) == ({}, None)
    for name in ("*.txt", "tokens.bin", "texts"):
        assert f"{name} is not uploaded (the appliance stores only text files under 1 MiB)" in caplog.text


def test_vocabularies_and_tokenizers_are_uploaded_by_their_names(
    server: Server, appliance: Appliance, tmp_path: Path
) -> None:
    files = ["a.txt", "source.txt", "tokenizer.json", "words.txt", "classes.json"]
    for name in (*files, "b.txt", "c.txt", "[ab].txt"):
        (tmp_path / name).write_text(name)
    train = {"data_files": "a.txt", "src_data_dir": "source.txt", "tokenizer_file": "tokenizer.json"}
    model = {"vocab_file": "words.txt", "label_vocab_file": "classes.json"}
    phase = {"init": {"model": model}, "fit": {"train_dataloader": train}}
    classic = {"train_input": train, "model": model}
    for params in (classic, {"trainer": phase}, {"trainer": [{"trainer": phase}]}):
        sent = submitted(server, appliance, params)
        assert sent["files"] == {name: name.encode() for name in files}
    sent = submitted(server, appliance, {"train_input": {"data_file": "[bc].txt"}})
    assert list(sent["files"]) == ["b.txt", "c.txt"]
    # A name of one file is not a pattern.
    train = {"vocab_file": "?.txt", "tokenizer_file": "[ab].txt"}
    sent = submitted(server, appliance, {"train_input": train})
    assert list(sent["files"]) == ["[ab].txt"]


def test_params_with_tabs_still_upload_files(
    server: Server, appliance: Appliance, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.txt").write_text("small")
    for comment, files in ((b"\t# a tab", {"a.txt": b"small"}), (b"\nmodel: [", {})):
        (tmp_path / "params.yaml").write_bytes(b"train_input:\n    data_dir: a.txt" + comment)
        assert submitted(server, appliance, tmp_path / "params.yaml")["files"] == files
        assert ("can't parse" in caplog.text) == (not files)


def test_dict_is_sent_as_json_with_exact_floats(server: Server, appliance: Appliance, tmp_path: Path) -> None:
    params = {
        "optimizer": {"eps": 1e-8, "lr": 0.1 + 0.2, "tiny": 5e-324},
        "train_input": {"data_dir": Path("ä")},
    }
    sent = submitted(server, appliance, params)
    assert json.loads(sent["params"]) == {**params, "train_input": {"data_dir": "ä"}}
    with pytest.raises(MillraceError, match="can't serialize the params"):
        appliance.train({"optimizer": {"lr": float("nan")}})


def test_exponents_that_pyyaml_reads_as_strings_are_numbers(server: Server, appliance: Appliance) -> None:
    params = yaml.safe_load(
        "{lr: [1e-3, 1E5, .5e3, 2.5e-4], deep: {eps: -1e-8}, rest: [1e400, e5, 1e, 1e5x]}"
    )
    assert params["lr"][0] == "1e-3"
    labels = {"run": "1e5"}
    sent = submitted(server, appliance, params, labels=labels)
    assert json.loads(sent["params"]) == {
        "lr": [0.001, 100000.0, 500.0, 0.00025],
        "deep": {"eps": -1e-8},
        "rest": ["1e400", "e5", "1e", "1e5x"],
    }
    assert sent["job"]["spec"]["labels"] == labels


def test_options_are_sent_as_documented(server: Server, appliance: Appliance) -> None:
    sent = submitted(
        server,
        appliance,
        {"runconfig": {"mode": "eval"}},
        num_csx=4,
        name="mine",
        max_steps=100,
        checkpoint_path="/ckpt/checkpoint_5",
        priority="high",
        job_time_sec=60,
        labels={"team": "nlp"},
        mount_dirs={"corpus.v1": "/data", "corpus.v1/eval": "/eval"},
        spec={"failurePolicy": {"maxRestarts": 3}},
    )
    claim = {"name": "corpus-v1", "persistentVolumeClaim": {"claimName": "corpus.v1"}}
    assert sent["job"] == {
        "metadata": {"name": "mine"},
        "spec": {
            "numCsx": 4,
            "mode": "train",
            "priorityClassName": "high",
            "deadlines": {"activeSeconds": 60},
            "labels": {"team": "nlp"},
            "volumes": [claim],
            "mountDirs": [
                {"path": "/data", "volume": "corpus-v1"},
                {"path": "/eval", "volume": "corpus-v1", "subPath": "eval"},
            ],
            "failurePolicy": {"maxRestarts": 3},
        },
        "overrides": {"max_steps": 100, "checkpoint_path": "/ckpt/checkpoint_5"},
    }
