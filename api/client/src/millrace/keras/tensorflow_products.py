"""Products, cross-entropies and indices of TensorFlow, computed by PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from millrace.keras.host import is_numpy, number, sizes, tensor
from millrace.keras.tensorflow_operators import Function, translates
from millrace.torch.operands import UnsupportedModelError


@translates("Softmax")
def _softmax(f: Function) -> Any:
    return torch.softmax(tensor(f.inputs[0]), -1)


@translates("LogSoftmax")
def _log_softmax(f: Function) -> Any:
    return torch.log_softmax(tensor(f.inputs[0]), -1)


@translates("SparseSoftmaxCrossEntropyWithLogits")
def _cross_entropy(f: Function) -> Any:
    logits, labels = (tensor(item) for item in f.inputs)
    return [F.cross_entropy(logits, labels.long(), reduction="none"), None]


@translates("SoftmaxCrossEntropyWithLogits")
def _cross_entropy_of_probabilities(f: Function) -> Any:
    logits, labels = (tensor(item) for item in f.inputs)
    return [-(labels * torch.log_softmax(logits, -1)).sum(-1), None]


@translates("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def _product(f: Function) -> Any:
    left, right = (tensor(item) for item in f.inputs)
    names = ("transpose_a", "transpose_b") if f.type == "MatMul" else ("adj_x", "adj_y")
    left = left.transpose(-1, -2) if f.attribute(names[0]) else left
    right = right.transpose(-1, -2) if f.attribute(names[1]) else right
    return torch.matmul(left, right)


@translates("Einsum")
def _einsum(f: Function) -> Any:
    return torch.einsum(f.attribute("equation"), *(tensor(item) for item in f.inputs))


@translates("BiasAdd")
def _add_bias(f: Function) -> Any:
    x, bias = (tensor(item) for item in f.inputs)
    if f.attribute("data_format") == "NCHW":
        bias = bias.reshape(-1, *(1 for _ in x.shape[2:]))
    return x + bias


@translates("ResourceGather")
def _rows_of_table(f: Function) -> Any:
    table, indices = (tensor(item) for item in f.inputs)
    return F.embedding(indices.long(), table)


@translates("GatherV2", "Gather")
def _gather(f: Function) -> Any:
    x, indices = f.inputs[:2]
    axis = int(number(f.inputs[2])) if len(f.inputs) > 2 else 0
    batch_dims = f.attribute("batch_dims") if f.type == "GatherV2" else 0
    if is_numpy(x) and is_numpy(indices):
        return np.take(x, indices.astype(np.int64), axis=axis)
    x, positions = tensor(x), tensor(indices).long()
    axis %= x.dim()
    if batch_dims:
        if axis != batch_dims or positions.dim() != axis + 1:
            raise UnsupportedModelError("tf.gather with batch_dims other than its axis")
        rest = x.shape[axis + 1 :]
        positions = positions.reshape(*positions.shape, *(1 for _ in rest)).expand(*positions.shape, *rest)
        return torch.gather(x, axis, positions)
    if axis == 0 and x.dim() == 2:
        return F.embedding(positions, x)
    if positions.dim() == 0:
        return (
            x.select(axis, int(number(indices)))
            if is_numpy(indices)
            else x.index_select(axis, positions[None])[0]
        )
    return x[(slice(None),) * axis + (positions,)]


@translates("OneHot")
def _one_hot(f: Function) -> Any:
    indices, depth, on, off = f.inputs
    values = F.one_hot(tensor(indices).long(), int(number(depth)))
    on, off = number(on), number(off)
    kind = torch.float32 if isinstance(on, float) else torch.bool if isinstance(on, bool) else torch.int64
    values = values.to(kind)
    if kind != torch.bool and (on, off) != (1, 0):
        values = values * (on - off) + off
    axis = f.attribute("axis")
    return values if axis == -1 else values.movedim(-1, axis)


@translates("Fill")
def _fill(f: Function) -> Any:
    shape, value = sizes(f.inputs[0]), number(f.inputs[1])
    if all(isinstance(size, int) for size in shape) and not isinstance(value, torch.Tensor):
        return np.full(shape, value, dtype=f.inputs[1].dtype)
    return torch.full(shape, value) if not isinstance(value, torch.Tensor) else value.expand(shape)


@translates("Range")
def _range(f: Function) -> Any:
    start, end, step = (number(item) for item in f.inputs)
    if all(isinstance(item, int | float) for item in (start, end, step)):
        return np.arange(start, end, step, dtype=f.inputs[0].dtype if f.inputs[0].dtype != object else None)
    return torch.arange(start, end, step)
