"""Tests of a model whose graph document, weights and data a client uploads, on one machine and on a cluster."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from blake3 import blake3
from harness import Reference, Server

STEPS = 20
SAMPLES = 64
# A linear classifier of three features and four classes.
GRAPH = {
    "version": 2,
    "inputs": [0, 1],
    "tensors": [{"name": "weight", "shape": [4, 3], "role": "weight", "init": {"kind": "normal", "mean": 0, "std": 1}}],
    "values": [
        {"name": "x", "dtype": "f32", "shape": [3]},
        {"name": "labels", "dtype": "i32", "shape": []},
        {"name": "logits", "dtype": "f32", "shape": [4]},
    ],
    "nodes": [
        {"op": {"op": "linear"}, "inputs": [0], "params": [0], "output": 2},
        {"op": {"op": "logits_cross_entropy", "factor": 1.0}, "inputs": [2, 1], "params": [], "output": None},
    ],
    "layers": [{"name": "all", "nodes": {"start": 0, "end": 2}, "block": None}],
}
PARAMS = """
train_input: {data_processor: ArrayDataProcessor, data_dir: train, batch_size: 16, micro_batch_size: 4}
model: {graph: net.json}
optimizer: {optimizer_type: SGD, learning_rate: 0.1}
runconfig: {max_steps: 20, num_csx: 2, seed: 1, checkpoint_path: weights.safetensors, load_checkpoint_states: model}
"""


def weights_file(values: list[float]) -> bytes:
    """Returns a safetensors file with the weights of the model."""
    data = struct.pack(f"<{len(values)}f", *values)
    header = json.dumps({"weight": {"dtype": "F32", "shape": [4, 3], "data_offsets": [0, len(data)]}}).encode()
    return struct.pack("<Q", len(header)) + header + data


def array_file(dtype: str, shape: str, data: bytes) -> bytes:
    """Returns a file of NumPy."""
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({shape}), }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


def write_model(folder: Path, seed: float) -> Path:
    """Writes a model, its weights, its data and the params of their training; returns the params."""
    (folder / "train").mkdir()
    (folder / "net.json").write_text(json.dumps(GRAPH))
    (folder / "weights.safetensors").write_bytes(weights_file([seed + at / 12 for at in range(12)]))
    features = [(at * 37 % 101) / 101 for at in range(3 * SAMPLES)]
    labels = [at * 7 % 4 for at in range(SAMPLES)]
    x = array_file("<f4", f"{SAMPLES}, 3", struct.pack(f"<{len(features)}f", *features))
    (folder / "train/x.npy").write_bytes(x)
    y = array_file("<i4", f"{SAMPLES},", struct.pack(f"<{SAMPLES}i", *labels))
    (folder / "train/labels.npy").write_bytes(y)
    (folder / "params.yaml").write_text(PARAMS)
    return folder / "params.yaml"


def test_uploaded_model_trains_as_on_this_machine(shared: Server, tmp_path: Path) -> None:
    """A model is planned, and trained from its weights on two systems with the bits of a local run; its weights can be
    downloaded.
    """
    params = write_model(tmp_path, 0.5)
    here = Reference.train(tmp_path / "here", STEPS, params, cwd=tmp_path)
    weights = (tmp_path / "weights.safetensors").read_bytes()
    plan = shared.user.appliance.plan(str(params))
    assert plan.fits, plan
    job = shared.user.submit("uploaded-model", STEPS, "--num_csx", "2", params=params)
    assert job.spec["model"]["weights"] == f"blake3:{blake3(weights).hexdigest()}"
    assert [file["path"] for file in job.spec["files"]] == ["0/labels.npy", "0/x.npy"]
    job.wait(120)
    here.assert_same(shared.user, job)
    shared.user.millrace("download", "uploaded-model", "--to", tmp_path / "back", "--step", STEPS)
    name = "parameters/00000-all.safetensors"
    there = (here.model_dir / f"checkpoint_{STEPS}" / name).read_bytes()
    assert (tmp_path / "back" / name).read_bytes() == there
