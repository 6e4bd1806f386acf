"""Keras models are traced to graphs with the same loss, or rejected with a reason.

Runs on the backend that KERAS_BACKEND names. Needs Keras, its backend and PyTorch.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest

pytest.importorskip("keras", reason="Keras is not installed")
pytest.importorskip("torch", reason="PyTorch is not installed")

import keras
import numpy as np
import torch
from keras import layers

from keras_models import CASES, CLASSES, numbers
from millrace.keras import UnsupportedModelError
from millrace.keras.data import Structure, read
from millrace.keras.restore import annotation_of, update
from millrace.keras.training import describe, trace_model
from millrace.torch.arrays import UnsupportedDataError
from torch_reference import SAMPLES, in_double, loss_of

BACKEND = keras.backend.backend()
LABELS = np.arange(SAMPLES) % CLASSES


def tensors(data: Any) -> Any:
    return keras.tree.map_structure(keras.ops.convert_to_tensor, data)


def loss_of_keras(model: Any, data: Any) -> float:
    """Returns the loss without dropout."""
    x, y = tensors(data)
    return float(keras.ops.convert_to_numpy(model.compute_loss(None, y, model(x, training=False))))


def traced(model: Any, data: Any) -> tuple[Any, Any, Any]:
    structure, arrays = read(data)
    found, network = trace_model(model, structure, arrays)
    return found, network, arrays


def sequential(*parts: Any, shape: tuple[int, ...] = (8,)) -> Any:
    return keras.Sequential([layers.Input(shape), *parts])


@pytest.mark.parametrize("name", CASES)
def test_graph_has_the_loss_of_keras(name: str) -> None:
    keras.utils.set_random_seed(1)
    model, loss, data_of = CASES[name]()
    data = data_of(SAMPLES)
    model.compile("adam", loss)
    found, network, arrays = traced(model, data)
    expected = loss_of_keras(model, data)
    weights = {key: value.double() for key, value in found.tensors(network).items()}
    loss = loss_of(found.document, in_double(arrays), weights).item()
    assert loss == pytest.approx(expected, rel=2e-6)
    trained = {item["name"] for item in found.document["tensors"] if item.get("trained", True)}
    assert trained == {weight.name for weight in network.weights if weight.is_trained}, (
        "each trained variable is one tensor"
    )
    if name == "transformer":
        # Also kernels of three dimensions are weights of linear operators, not values.
        values = {
            at for node in found.document["nodes"] if node["op"]["op"] == "parameter" for at in node["params"]
        }
        names = {found.document["tensors"][at]["name"].split("/")[-1] for at in values}
        assert "kernel" not in names and "embeddings" not in names
    if name == "two_losses":
        # Keras still trains the model: nothing of the trace is left in it.
        model.train_on_batch(*data)


def test_weights_come_back_into_a_model_with_other_names() -> None:
    """Keras numbers layers, so that the same model has other names in another program."""
    model, loss, data_of = CASES["cnn"]()
    model.compile("adam", loss)
    found, network, _ = traced(model, data_of(2))
    trained = {name: tensor + 1 for name, tensor in found.tensors(network).items()}
    annotations = annotation_of(network.weights)
    transposed = [name for name, is_transposed in found.transposed.items() if is_transposed]
    annotations["client.millrace.dev/transposed"] = str(transposed).replace("'", '"')
    other = CASES["cnn"]()[0]
    update(other, trained, annotations)
    for before, after in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(after, before + 1, rtol=1e-6)
    with pytest.raises(UnsupportedDataError, match="give the model that was trained"):
        update(CASES["mlp"]()[0], trained, annotations)


def test_dropout_and_paths_of_layers_are_in_the_graph() -> None:
    model = sequential(layers.Dense(8, name="first"), layers.Dropout(0.25, seed=3), layers.Dense(CLASSES))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    found, _, _ = traced(model, (numbers(SAMPLES, 8), LABELS))
    nodes = found.document["nodes"]
    assert [node["op"]["rate"] for node in nodes if node["op"]["op"] == "dropout"] == [0.25]
    assert nodes[0]["path"].endswith("first")


def test_mixed_precision_is_a_setting_of_the_job_and_the_policy_is_kept() -> None:
    model = sequential(layers.Dense(8, dtype="mixed_bfloat16"), layers.Dense(CLASSES, dtype="mixed_bfloat16"))
    model.compile("sgd", "mse")
    options: Any = {"data": (numbers(8, 8), numbers(8, CLASSES)), "batch_size": 4}
    described = describe(model, options, 3, None)
    assert described.params["model"]["mixed_precision"] is True
    assert model.layers[0].dtype_policy.name == "mixed_bfloat16"


class Scaled(layers.Layer):
    """Divides by the mean over the batch."""

    def call(self, x: Any) -> Any:
        return x / keras.ops.mean(x, axis=0, keepdims=True)  # the line of the message


class Counting(layers.Layer):
    def build(self, _: Any) -> None:
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x: Any) -> Any:
        self.count.assign(self.count + 1)
        return x


class Noisy(layers.Layer):
    def build(self, _: Any) -> None:
        self.seeds = keras.random.SeedGenerator(1)

    def call(self, x: Any) -> Any:
        return x + keras.random.normal((1,), seed=self.seeds)


class OwnStep(keras.Sequential):
    def train_step(self, *_: Any) -> Any:
        return {}


def line_of(item: Any, text: str) -> str:
    lines, first = inspect.getsourcelines(item)
    return f"{__file__}:{first + next(at for at, line in enumerate(lines) if text in line)}"


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            [layers.BatchNormalization(name="bn")],
            r"bn is a BatchNormalization.*use GroupNormalization or LayerNorm",
        ),
        ([Scaled()], rf"{line_of(Scaled, 'keepdims')}.*(mean|sum) is over the samples of a batch"),
        ([Counting()], "changed|changes the state"),
        ([Noisy()], rf"{line_of(Noisy, 'normal')}.*uses random numbers .keras.random.normal.: use Dropout"),
        ([layers.Dense(4, dtype="float16")], "dtype policy float16: use float32 or mixed_bfloat16"),
        (
            [layers.Dense(4, kernel_constraint="non_neg")],
            "dense.*kernel has a constraint .NonNeg.*leave it out",
        ),
        ([layers.GaussianNoise(0.1)], "the layer .*gaussian_noise.* uses random numbers"),
    ],
    ids=lambda item: type(item[0]).__name__ if isinstance(item, list) else "",
)
def test_layer_that_cannot_be_trained_is_rejected(parts: list[Any], message: str) -> None:
    model = sequential(*parts, layers.Dense(CLASSES))
    model.compile("sgd", "mse")
    with pytest.raises(UnsupportedModelError, match=message):
        traced(model, (numbers(SAMPLES, 8), numbers(SAMPLES, CLASSES)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": (numbers(8, 8), numbers(8, 3), numbers(8))}, "weights of samples"),
        ({"data": None}, "data is missing"),
        ({"data": "/data/train"}, "example is missing"),
        ({"data": (numbers(8, 8), numbers(7, CLASSES))}, "same number of samples"),
        ({"batch_size": None}, "batch_size is missing"),
        ({"scheduler": object()}, "keras.optimizers.schedules"),
        ({"optimizer": torch.optim.SGD([torch.zeros(1)], 0.1)}, "SGD is no optimizer of Keras"),
        ({"eval_data": ([numbers(8, 8)] * 2, numbers(8, CLASSES))}, "other inputs or labels"),
    ],
    ids=lambda item: next(iter(item)) if isinstance(item, dict) else "",
)
def test_options_that_cannot_be_used_are_rejected(change: Any, message: str) -> None:
    model = sequential(layers.Dense(CLASSES))
    model.compile("sgd", "mse")
    options = {"data": (numbers(8, 8), numbers(8, CLASSES)), "batch_size": 4} | change
    with pytest.raises(Exception, match=message):
        describe(model, options, 3, None)


def test_model_without_a_loss_or_with_its_own_step_is_rejected() -> None:
    data = (numbers(SAMPLES, 8), LABELS)
    with pytest.raises(UnsupportedModelError, match="no loss"):
        traced(sequential(layers.Dense(CLASSES)), data)
    model = OwnStep([layers.Input((8,)), layers.Dense(CLASSES)])
    model.compile("sgd", "mse")
    with pytest.raises(UnsupportedModelError, match="its own train_step"):
        traced(model, data)


def test_arrays_have_the_names_of_their_places() -> None:
    structure, arrays = read(({"ids": [[1, 2], [3, 4]]}, [numbers(2, 3), numbers(2).astype(np.float64)]))
    assert structure == Structure({"ids": "ids"}, ["y_0", "y_1"])
    assert {name: str(array.dtype) for name, array in arrays.items()} == {
        "ids": "torch.int64",
        "y_0": "torch.float32",
        "y_1": "torch.float32",
    }
