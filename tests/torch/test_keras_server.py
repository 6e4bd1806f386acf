"""Trains Keras models on a real server, beside Keras, on the backend that KERAS_BACKEND names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras.optimizers import SGD, Adam, AdamW
from keras.optimizers.schedules import CosineDecay

from keras_models import CASES, CLASSES, integers, numbers
from millrace import Appliance, Job, errors
from millrace.keras import UnsupportedModelError

STEPS, BATCH, SAMPLES = 20, 16, 64
BACKEND = keras.backend.backend()
OPTIONS: Any = {"batch_size": BATCH, "max_steps": STEPS, "shuffle": False, "num_csx": 2}


def finish(job: Job) -> list[float]:
    """Waits for a job; returns its losses."""
    assert job.wait(timeout=300) == "Succeeded"
    return [point.loss for point in job.metrics() if point.loss is not None]


def batch_of(data: Any, step: int) -> Any:
    first = step * BATCH % SAMPLES
    return keras.tree.map_structure(lambda array: array[first : first + BATCH], data)


def keras_losses(model: Any, data: Any) -> list[float]:
    """Trains with Keras, with the samples in their order."""
    losses = []
    for step in range(STEPS):
        losses.append(float(model.train_on_batch(*batch_of(data, step), return_dict=True)["loss"]))
        model.reset_metrics()
    return losses


def transformer_optimizer() -> Any:
    # On TensorFlow, Keras squares gradients of repeated tokens one by one, also for clipping.
    return SGD(0.1, momentum=0.9) if BACKEND == "tensorflow" else Adam(CosineDecay(3e-3, 30))


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        ("mlp", lambda: AdamW(1e-2, weight_decay=0.1)),
        ("transformer", transformer_optimizer),
        ("cnn", lambda: Adam(1e-2)),
    ],
)
def test_model_trains_as_with_keras(appliance: Appliance, name: str, optimizer: Any) -> None:
    keras.utils.set_random_seed(7)
    model, loss, data_of = CASES[name]()
    data = data_of(SAMPLES)
    model.compile(optimizer(), loss)
    job = appliance.train(model, data=data, **OPTIONS)
    losses = finish(job)
    assert losses == pytest.approx(keras_losses(model, data), rel=1e-4)
    by_keras = model.get_weights()
    job.update(model)
    for ours, theirs in zip(model.get_weights(), by_keras, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3)
    if name == "mlp":
        # A later program finds the job by its name, and has other names of layers.
        again = appliance.job(job.name)
        with pytest.raises(errors.DownloadError, match="give its model"):
            again.update()
        with pytest.raises(errors.DownloadError, match=r"call job.update\(model\)"):
            job.state_dict()
        other = CASES[name]()[0]
        again.update(other)
        for ours, theirs in zip(other.get_weights(), model.get_weights(), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_model_is_rejected_before_anything_is_sent(appliance: Appliance) -> None:
    layers = [keras.layers.Input((8,)), keras.layers.BatchNormalization(), keras.layers.Dense(CLASSES)]
    model = keras.Sequential(layers)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    jobs = len(list(appliance.jobs()))
    with pytest.raises(UnsupportedModelError, match="use GroupNormalization"):
        appliance.train(model, data=(numbers(SAMPLES, 8), integers(CLASSES, SAMPLES)), **OPTIONS)
    assert len(list(appliance.jobs())) == jobs


def test_evaluations_and_mixed_precision_are_parts_of_the_plan(appliance: Appliance) -> None:
    model, loss, data_of = CASES["mlp"]()
    model.compile("adam", loss)
    data = data_of(SAMPLES)
    plan = appliance.plan(model, data=data, eval_data=data, mixed_precision=True, **OPTIONS)
    assert plan.fits


NET = """
import keras
import numpy as np

def build():
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3)])
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model

def data():
    return np.zeros((32, 4), np.float32), np.arange(32) % 3
"""
PARAMS = """
train_input: {batch_size: 16}
optimizer: {optimizer_type: AdamW, learning_rate: 1e-3}
runconfig: {max_steps: 3}
"""


def test_model_is_trained_from_the_command_line(appliance: Appliance, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "params.yaml").write_text(PARAMS)
    command = [sys.executable, "-m", "millrace", "--url", appliance.url, "train", "-p", "params.yaml"]
    command += ["--model", "net:build", "--data", "net:data"]
    trained = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert trained.returncode == 0 and "Succeeded: step 3 of 3" in trained.stdout + trained.stderr


class Rows:
    """The samples of arrays, one by one."""

    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.x[index], self.y[index]


def test_dataset_trains_as_the_same_arrays(appliance: Appliance) -> None:
    model, loss, data_of = CASES["mlp"]()
    x, y = data_of(SAMPLES)
    model.compile(SGD(0.1), loss)
    options = OPTIONS | {"max_steps": 4}
    expected = finish(appliance.train(model, data=(x, y), **options))
    assert finish(appliance.train(model, data=Rows(x, y), num_workers=1, **options)) == expected
