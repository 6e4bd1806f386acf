"""Tests of a Python dataset on a cluster, which a sidecar of each activation server reads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from harness import ROOT, Reference, Server
from millrace.loader import PythonDataset, pack
from test_uploaded_models import SAMPLES, STEPS, write_model

DATASET = f'''
import os
import socket

import numpy as np


class Rows:
    """The samples of write_model. With `isolated`, reading one fails unless everything forbidden fails."""

    def __init__(self, isolated):
        self.isolated = isolated

    def __len__(self):
        return {SAMPLES}

    def __getitem__(self, index):
        if self.isolated and index == 0:
            self.check_isolation()
        features = [(at * 37 % 101) / 101 for at in range(3 * index, 3 * index + 3)]
        return {{"x": np.array(features, np.float32), "labels": index * 7 % 4}}

    def check_isolation(self):
        api_server = (os.environ["KUBERNETES_SERVICE_HOST"], int(os.environ["KUBERNETES_SERVICE_PORT"])) \\
            if "KUBERNETES_SERVICE_HOST" in os.environ else ("10.96.0.1", 443)
        forbidden = {{
            "connect to the API server": lambda: socket.create_connection(api_server, timeout=2),
            "resolve a name": lambda: socket.getaddrinfo("kubernetes.default.svc", 443),
            "send a datagram": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
            "read a token": lambda: os.listdir("/var/run/secrets/kubernetes.io/serviceaccount"),
            "read a certificate": lambda: os.listdir("/etc/millrace"),
            "write to the uploads": lambda: open("/var/lib/millrace/files/x", "w"),
            "replace the program": lambda: os.rename("/run/millrace/loader/loader.py", "/run/millrace/loader/x"),
            "write to the image": lambda: open("/etc/passwd", "a"),
        }}
        for what, attempt in forbidden.items():
            try:
                attempt()
            except OSError:
                continue
            raise AssertionError(f"the dataset could {{what}}")
'''


@pytest.fixture(scope="module")
def loader_image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image with this interpreter and NumPy, on every node."""
    archive = tmp_path_factory.mktemp("image") / "loader.tar"
    command = [ROOT / "image/loader", archive, sys.executable]
    built = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    subprocess.run([ROOT / "tests/cluster/load", archive], check=True, capture_output=True)
    return built.stdout.strip()


@pytest.mark.needs("cluster")
def test_dataset_in_a_sidecar_trains_as_arrays(
    shared: Server, loader_image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dataset that tries to reach the network, a token and other files, and cannot, trains as the same arrays."""
    here = Reference.train(tmp_path / "here", STEPS, write_model(tmp_path, 0.5), cwd=tmp_path)
    (tmp_path / "rows.py").write_text(DATASET)
    monkeypatch.syspath_prepend(str(tmp_path))
    example = {"x": [[0.0, 0.0, 0.0]] * 2, "labels": [0, 1]}
    dataset = PythonDataset("rows:Rows", {"isolated": True}, samples=SAMPLES, example=example)
    pack(dataset, tmp_path / "dataset")
    params = tmp_path / "dataset.yaml"
    arrays = (tmp_path / "params.yaml").read_text()
    params.write_text(arrays.replace("ArrayDataProcessor, data_dir: train", "PythonDataProcessor, data_dir: dataset"))
    appliance = shared.user.appliance
    with pytest.raises(Exception, match="no image is named that reads it"):
        appliance.train(str(params), num_csx=2)
    job = appliance.train(str(params), num_csx=2, name="dataset", max_steps=STEPS, spec={"loaderImage": loader_image})
    job.wait(180)
    here.assert_same(shared.user, job)
    faulty = (tmp_path / "rows.py").read_text().replace("index * 7 % 4", "index * 7 % 4 if index != 9 else 1 / 0")
    (tmp_path / "rows.py").write_text(faulty)
    pack(dataset, tmp_path / "faulty")
    params.write_text(params.read_text().replace("data_dir: dataset", "data_dir: faulty"))
    job = appliance.train(str(params), num_csx=2, name="faulty", spec={"loaderImage": loader_image})
    job.wait(180, check=False)
    assert job.status["conditions"], job.summary
    assert "failed at sample 9: ZeroDivisionError: division by zero" in job.summary, job.summary
