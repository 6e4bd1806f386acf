"""Keras models with their losses and data, for tests on each backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import layers

CLASSES, WORDS, LENGTH, WIDTH = 5, 50, 12, 24

Data = tuple[Any, Any]
Case = tuple[Any, Any, Callable[[int], Data]]
"""A model, its loss, and its data for a number of samples."""


def numbers(*shape: int) -> np.ndarray[Any, Any]:
    """Returns normal random numbers in f32."""
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def integers(limit: int, *shape: int) -> np.ndarray[Any, Any]:
    """Returns random integers below a limit."""
    return np.random.default_rng(sum(shape)).integers(0, limit, shape).astype(np.int32)


@keras.saving.register_keras_serializable()
class Block(layers.Layer):
    """A layer of a decoder."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.attention = layers.MultiHeadAttention(4, WIDTH // 4)
        self.norm_1, self.norm_2 = layers.LayerNormalization(epsilon=1e-5), layers.LayerNormalization()
        self.up, self.down = layers.Dense(2 * WIDTH, activation="gelu"), layers.Dense(WIDTH)

    def call(self, x: Any) -> Any:
        rows = self.norm_1(x)
        x = x + self.attention(rows, rows, use_causal_mask=True)
        return x + self.down(self.up(self.norm_2(x)))


@keras.saving.register_keras_serializable()
class Embeddings(layers.Layer):
    """Embeddings of words and positions."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.words, self.positions = layers.Embedding(WORDS, WIDTH), layers.Embedding(LENGTH, WIDTH)

    def call(self, ids: Any) -> Any:
        return self.words(ids) + self.positions(keras.ops.arange(keras.ops.shape(ids)[1]))


def mlp() -> Case:
    model = keras.Sequential(
        [
            layers.Input((8,)),
            layers.Dense(16, activation="relu", kernel_regularizer=keras.regularizers.L2(0.01)),
            layers.Dense(CLASSES),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return model, loss, lambda n: (numbers(n, 8), integers(CLASSES, n))


def transformer() -> Case:
    ids = keras.Input((LENGTH,), dtype="int32")
    x = Embeddings()(ids)
    for _ in range(2):
        x = Block()(x)
    model = keras.Model(ids, layers.Dense(WORDS)(layers.LayerNormalization()(x)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return model, loss, lambda n: (integers(WORDS, n, LENGTH), integers(WORDS, n, LENGTH))


def cnn() -> Case:
    model = keras.Sequential(
        [
            layers.Input((12, 12, 3)),
            layers.Conv2D(8, 3, padding="same", strides=2, activation="gelu"),
            layers.GroupNormalization(2),
            layers.MaxPooling2D(2),
            layers.SeparableConv2D(6, 3, padding="same", activation="silu"),
            layers.AveragePooling2D(3, padding="same", strides=2),
            layers.Conv2DTranspose(4, 3, strides=2, padding="same"),
            layers.UpSampling2D(2),
            layers.GlobalAveragePooling2D(),
            layers.Dense(CLASSES, activation="softmax"),
        ]
    )
    return model, "sparse_categorical_crossentropy", lambda n: (numbers(n, 12, 12, 3), integers(CLASSES, n))


def rows() -> Case:
    model = keras.Sequential(
        [
            layers.Input((15, 4)),
            layers.Conv1D(8, 3, padding="causal", activation="elu"),
            layers.Conv1D(6, 3, groups=2, dilation_rate=2),
            layers.BatchNormalization(trainable=False),
            layers.MaxPooling1D(2),
            layers.Flatten(),
            layers.Dense(CLASSES, activation="softmax"),
        ]
    )
    return (
        model,
        "categorical_crossentropy",
        lambda n: (numbers(n, 15, 4), np.eye(CLASSES)[np.arange(n) % CLASSES]),
    )


def recurrent() -> Case:
    model = keras.Sequential(
        [layers.Input((4, 3)), layers.LSTM(7, return_sequences=True), layers.GRU(6), layers.Dense(1)]
    )
    return model, "mse", lambda n: (numbers(n, 4, 3), numbers(n, 1))


def two_losses() -> Case:
    """Two inputs, shared and frozen layers, two outputs with weights, and a loss of activities."""
    left, right = keras.Input((8,), name="left"), keras.Input((8,), name="right")
    shared = layers.Dense(8, activation="tanh", activity_regularizer="l2")
    frozen = layers.Dense(6, trainable=False)
    joined = layers.Concatenate()([shared(left), frozen(shared(right))])
    outputs = {"a": layers.Dense(1, activation="sigmoid")(joined), "b": layers.Dense(3)(joined)}
    model = keras.Model({"left": left, "right": right}, outputs)
    losses = {"a": keras.losses.BinaryCrossentropy(label_smoothing=0.1), "b": keras.losses.Huber()}

    def data(n: int) -> Data:
        return {"left": numbers(n, 8), "right": numbers(n, 8)}, {"a": integers(2, n, 1), "b": numbers(n, 3)}

    return model, losses, data


CASES: dict[str, Callable[[], Case]] = {
    case.__name__: case for case in (mlp, transformer, cnn, rows, recurrent, two_losses)
}
