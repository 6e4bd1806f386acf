"""Trains a `tf.function` on a real server, beside TensorFlow."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_models import CLASSES, integers, numbers
from millrace import Appliance

STEPS, BATCH, SAMPLES = 20, 16, 64


def test_function_trains_as_with_tensorflow(appliance: Appliance) -> None:
    matrix = tf.Variable(numbers(8, CLASSES) / 3, name="matrix")
    bias = tf.Variable(tf.zeros(CLASSES), name="bias")

    def loss(x: Any, labels: Any) -> Any:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, tf.nn.tanh(x) @ matrix + bias)
        return tf.reduce_mean(losses) + 1e-2 * tf.nn.l2_loss(matrix)

    function, variables = tf.function(loss), [matrix, bias]
    data = {"x": numbers(SAMPLES, 8), "labels": integers(CLASSES, SAMPLES)}
    job = appliance.train(
        function,
        data=data,
        optimizer=keras.optimizers.Adam(1e-2),
        batch_size=BATCH,
        max_steps=STEPS,
        shuffle=False,
        num_csx=2,
    )
    assert job.wait(timeout=300) == "Succeeded"
    losses = [point.loss for point in job.metrics() if point.loss is not None]
    start = [variable.numpy() for variable in variables]
    optimizer, expected = keras.optimizers.Adam(1e-2), []
    for step in range(STEPS):
        first = step * BATCH % SAMPLES
        batch = {name: tf.constant(array[first : first + BATCH]) for name, array in data.items()}
        with tf.GradientTape() as tape:
            total = function(**batch)
        optimizer.apply(tape.gradient(total, variables), variables)
        expected.append(float(total))
    assert losses == pytest.approx(expected, rel=1e-4)
    trained = [variable.numpy() for variable in variables]
    for variable, value in zip(variables, start, strict=True):
        variable.assign(value)
    job.update()
    for variable, value in zip(variables, trained, strict=True):
        np.testing.assert_allclose(variable.numpy(), value, rtol=1e-4, atol=1e-5)
