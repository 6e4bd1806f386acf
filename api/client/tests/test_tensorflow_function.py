"""Functions of TensorFlow with a loss are traced to graphs with the same loss, or rejected with a reason."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
pytest.importorskip("torch", reason="PyTorch is not installed")

import numpy as np
import tensorflow as tf

from keras_models import integers, numbers
from millrace.keras import UnsupportedModelError
from millrace.keras.function import describe_function, trace_function, weights_of_function
from millrace.torch.arrays import UnsupportedDataError, arrays_of
from torch_reference import SAMPLES, in_double, loss_of

kernel = tf.Variable(numbers(3, 3, 2, 4), name="kernel")
table = tf.Variable(numbers(9, 4), name="table")
matrix = tf.Variable(numbers(4, 5), name="matrix")
fixed = tf.Variable(numbers(5), trainable=False, name="fixed")
state = tf.Variable(0.0, name="state")

Loss = Callable[..., Any]


def images(x: Any, labels: Any) -> Any:
    """A convolution, a called function, a frozen variable, and a sum of two losses."""
    rows = tf.reduce_mean(tf.nn.relu(tf.nn.conv2d(x, kernel, 2, "SAME")), [1, 2])
    logits = inner(rows) * fixed
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    return tf.reduce_mean(loss) + 1e-3 * tf.nn.l2_loss(matrix)


def of_matrix(rows: Any) -> Any:
    return tf.matmul(rows, matrix)


inner = tf.function(of_matrix)


def words(x: Any, labels: Any) -> Any:
    """An embedding, causal attention by products, layer norm, parts, shapes, and weights of positions."""
    rows = tf.gather(table, x)
    mean, variance = tf.nn.moments(rows, [-1], keepdims=True)
    rows = (rows - mean) * tf.math.rsqrt(variance + 1e-5)
    length = tf.shape(x)[1]
    scores = tf.einsum("nth,nsh->nts", rows, rows) / 2.0
    mask = tf.linalg.band_part(tf.ones((length, length)), -1, 0)
    mixed = tf.nn.softmax(tf.where(mask > 0, scores, -1e9)) @ rows
    joined = tf.concat([mixed[:, :, :2], rows[..., ::-1][:, :, 2:]], -1)
    logits = tf.tensordot(joined, matrix, 1)
    losses = tf.nn.softmax_cross_entropy_with_logits(tf.one_hot(labels, 5, 0.9, 0.025), logits)
    count = tf.cast(tf.shape(x)[0] * length, tf.float32)
    return tf.reduce_sum(losses * tf.linspace(0.5, 1.5, 6)) / count


def elements(x: Any, labels: Any) -> Any:
    x = x[:, :, 0, 0] @ matrix[:2] if x.shape[1] == 2 else tf.reshape(x, [-1, 32])[:, :4] @ matrix
    parts = tf.stack([tf.tanh(x), tf.nn.elu(x), tf.nn.leaky_relu(x), tf.math.softplus(x)], 1)
    parts = tf.pad(tf.transpose(parts, [0, 2, 1]), [[0, 0], [1, 0], [0, 2]])
    parts = tf.clip_by_value(tf.tile(parts, [1, 1, 2]), -0.8, 0.8) + tf.cumsum(parts[:, :, :1], 1)
    best = tf.cast(tf.argmax(parts, -1), tf.float32)
    largest = tf.reduce_max(parts, -1) * tf.maximum(best, 1.0)
    return tf.reduce_mean(tf.math.squared_difference(largest, tf.cast(labels, tf.float32)[:, None]))


CASES: dict[str, tuple[Loss, tuple[int, ...], tuple[int, ...]]] = {
    "images": (images, (8, 8, 2), ()),
    "words": (words, (6,), (6,)),
    "elements": (elements, (4, 4, 2), ()),
}


@pytest.mark.parametrize("name", CASES)
def test_graph_has_the_loss_of_the_function(name: str) -> None:
    function, shape, of_labels = CASES[name]
    x = integers(9, SAMPLES, *shape) if name == "words" else numbers(SAMPLES, *shape)
    batch = {"x": x, "labels": integers(5, SAMPLES, *of_labels)}
    arrays = arrays_of(batch)
    traced, network = trace_function(tf.function(function), arrays)
    expected = float(function(**{key: tf.constant(value) for key, value in batch.items()}))
    weights = {key: value.double() for key, value in traced.tensors(network).items()}
    assert loss_of(traced.document, in_double(arrays), weights).item() == pytest.approx(expected, rel=2e-6)


def test_dropout_keeps_its_rate_and_evaluations_keep_all() -> None:
    def loss(x: Any) -> Any:
        return tf.reduce_mean(tf.square(tf.nn.dropout(x @ matrix, 0.3)))

    arrays = arrays_of({"x": numbers(SAMPLES, 4)})
    traced, network = trace_function(tf.function(loss), arrays)
    rates = [node["op"]["rate"] for node in traced.document["nodes"] if node["op"]["op"] == "dropout"]
    assert rates == pytest.approx([0.3])
    weights = {key: value.double() for key, value in traced.tensors(network).items()}
    expected = float(np.square(arrays["x"].numpy() @ matrix.numpy()).mean())
    found = loss_of(traced.document, in_double(arrays), weights).item()
    assert found == pytest.approx(expected, rel=1e-5)


def test_gradient_is_stopped_by_an_operator() -> None:
    traced, _ = trace_function(tf.function(stopped), arrays_of({"x": numbers(SAMPLES, 4)}))
    assert [node["op"]["op"] for node in traced.document["nodes"]][-3:-1] == ["stop_gradient", "unary"]


def test_variables_have_the_order_of_their_use() -> None:
    function = tf.function(images)
    with pytest.raises(UnsupportedDataError, match="call it once"):
        weights_of_function(function)
    arrays = arrays_of({"x": numbers(SAMPLES, 8, 8, 2), "labels": integers(5, SAMPLES)})
    _, network = trace_function(function, arrays)
    names = [weight.name for weight in network.weights]
    assert names == ["kernel", "matrix", "fixed"]
    assert [weight.name for weight in weights_of_function(function)] == names
    assert [weight.is_trained for weight in network.weights] == [True, True, False]


def counted(x: Any) -> Any:
    state.assign_add(1.0)
    return tf.reduce_mean(x @ matrix)


def contrastive(x: Any) -> Any:
    rows = x @ matrix
    return tf.reduce_mean(tf.matmul(rows, rows, transpose_b=True))


def branching(x: Any) -> Any:
    if tf.reduce_sum(x) > 0:
        x = x * 2.0
    return tf.reduce_mean(x @ matrix)


def noisy(x: Any) -> Any:
    return tf.reduce_mean(tf.square(x @ matrix + tf.random.normal([5])))


def stopped(x: Any) -> Any:
    return tf.reduce_mean(tf.square(tf.stop_gradient(x @ matrix)))


def normalized(x: Any) -> Any:
    mean, variance = tf.nn.moments(x @ matrix, [0])
    return tf.reduce_mean(tf.square((x @ matrix - mean) * variance))


def vector(x: Any) -> Any:
    return tf.reduce_mean(x @ matrix, 1)


def misshapen(x: Any) -> Any:
    return tf.reduce_mean(x @ table)


@pytest.mark.parametrize(
    ("function", "text", "message"),
    [
        (counted, "assign_add", "the state state:0 is changed"),
        (contrastive, "transpose_b", "combines each sample of a batch with each other"),
        (branching, "if tf", "a branch or a loop of TensorFlow, which depends on data: use tf.where"),
        (noisy, "random.normal", "RandomStandardNormal of TensorFlow is not supported: use dropout"),
        (normalized, "moments", "over the samples of a batch"),
        (misshapen, "x @ table", "can't trace the function"),
        (vector, "", "the loss is not a mean"),
    ],
    ids=lambda item: getattr(item, "__name__", ""),
)
def test_function_that_cannot_be_trained_is_rejected(function: Loss, text: str, message: str) -> None:
    lines, first = inspect.getsourcelines(function)
    place = f"{__file__}:{first + next(at for at, line in enumerate(lines) if text in line)}" if text else ""
    with pytest.raises(UnsupportedModelError, match=f"{place}.*{message}"):
        trace_function(tf.function(function), arrays_of({"x": numbers(SAMPLES, 4)}))


def test_data_are_given_by_the_names_or_the_order_of_the_parameters() -> None:
    batch = numbers(8, 8, 8, 2), integers(5, 8)

    def describe(data: Any) -> Any:
        return describe_function(
            tf.function(images), {"data": data, "optimizer": "sgd", "batch_size": 4}, 3, None
        )

    by_order = describe(batch)
    named = describe(dict(zip(("labels", "x"), batch[::-1], strict=True)))
    assert by_order.uploads.keys() == named.uploads.keys() >= {"train/x.npy", "train/labels.npy"}
    with pytest.raises(UnsupportedDataError, match="3 arrays for a function of 2 parameters"):
        describe((*batch, batch[1]))
