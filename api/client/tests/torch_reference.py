"""Computes the loss and the metrics of a graph document with PyTorch in f64, operator by operator."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

Operator = Callable[[dict[str, Any], list[Any], list[Any]], Any]

KINDS = {"f32": torch.float64, "i32": torch.int64, "bool": torch.bool}
STORED = {"f32": torch.float32, "i32": torch.int32, "bool": torch.int32}
BINARY = {"max": "maximum", "min": "minimum"}
REDUCTIONS = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax, "min": torch.amin}
MEANS = {"uniform": 0.5, "normal": 0.0}
ACTIVATIONS = {
    **{"gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "relu": F.relu, "silu": F.silu},
    **{"sigmoid": torch.sigmoid, "tanh": torch.tanh},
}


def loss_of(
    document: dict[str, Any],
    batch: Mapping[str, torch.Tensor],
    tensors: Mapping[str, torch.Tensor],
) -> torch.Tensor:
    """Return the loss of a batch, without dropout."""
    return results_of(document, batch, tensors)[0]


def results_of(
    document: dict[str, Any],
    batch: Mapping[str, torch.Tensor],
    tensors: Mapping[str, torch.Tensor],
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the loss of a batch, without dropout, and the metrics by their names."""
    shapes, samples = document["values"], len(next(iter(batch.values())))
    values, metrics = {}, {}
    for number in document["inputs"]:
        values[number] = batch[shapes[number]["name"]].to(KINDS[shapes[number]["dtype"]])
    for constant in document["constants"]:
        shape = shapes[constant["value"]]
        content = bytearray(base64.b64decode(constant["data"]))
        data = torch.frombuffer(content, dtype=STORED[shape["dtype"]]).to(KINDS[shape["dtype"]])
        values[constant["value"]] = data.reshape(shape["shape"]).expand(samples, *shape["shape"])
    total, divisor = torch.zeros((), dtype=torch.float64), 1 if document["reduction"] == "sum" else samples
    weighted = torch.zeros((), dtype=torch.float64)
    for node in document["nodes"]:
        inputs = [values[number] for number in node["inputs"]]
        params = [tensors[document["tensors"][number]["name"]] for number in node["params"]]
        result = OPERATORS[node["op"]["op"]](node["op"], inputs, params)
        if node["output"] is None:
            expected = 1 if node["op"]["op"] == "sum_loss" else 2
            if len(inputs) > expected:
                assert document["reduction"] == "samples" and shapes[node["inputs"][-1]]["shape"] == []
                weighted = weighted + result / inputs[-1].sum()
                continue
            total = total + result
            if document["reduction"] == "labels" and len(inputs) > 1:
                divisor = int((inputs[1] >= 0).sum())
            continue
        shape = shapes[node["output"]]
        found = list(result.shape[1:]), result.dtype
        assert found == (shape["shape"], KINDS[shape["dtype"]]), f"{node['op']}: {found} instead of {shape}"
        values[node["output"]] = result
        if node["op"]["op"] == "metric":
            weight = inputs[1].sum() if len(inputs) > 1 else samples
            metrics[shape["name"]] = result.sum(0) / weight
    return weighted + total / divisor, metrics


def in_double(batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a batch with numbers in f64."""
    return {name: data.double() if data.is_floating_point() else data for name, data in batch.items()}


def check_loss_and_gradients(
    traced: Any,
    document: dict[str, Any],
    model: torch.nn.Module,
    batch: Mapping[str, torch.Tensor],
    expected: torch.Tensor,
) -> None:
    """Assert that the loss of a batch and its gradients are those of the loss `expected` of the module."""
    loss = loss_of(document, batch, traced.tensors(model))
    # Some models of transformers compute parts in f32.
    assert abs(loss.item() - expected.item()) <= 1e-6 * abs(expected.item()), (loss.item(), expected.item())
    frozen = {tensor["name"] for tensor in document["tensors"] if not tensor.get("trained", True)}
    names = [name for name in traced.transposed if name not in frozen]
    parameters = [model.get_parameter(name) for name in names]
    assert all(parameter.requires_grad for parameter in parameters)
    both = [torch.autograd.grad(total, parameters) for total in (loss, expected)]
    for name, ours, theirs in zip(names, *both, strict=True):
        allowed = 1e-12 + 1e-5 * theirs.abs().max().item()
        assert torch.allclose(ours, theirs, rtol=0, atol=allowed), name


def _aligned(inputs: list[Any]) -> list[Any]:
    """Gives values the same number of dimensions, after that of samples."""
    rank = max(x.dim() for x in inputs)
    return [x.reshape(len(x), *(1,) * (rank - x.dim()), *x.shape[1:]) for x in inputs]


def _binary(function: str) -> Any:
    return getattr(torch, BINARY.get(function, function))


def _bias(params: list[Any]) -> Any:
    return params[1] if len(params) > 1 else None


def _slice(op: dict[str, Any], inputs: list[Any], _: list[Any]) -> Any:
    axis = op["axis"] + 1
    places = torch.arange(op["start"], op["end"], op.get("step", 1))
    result = inputs[0].index_select(axis, places)
    return result.squeeze(axis) if op.get("drop") else result


def _pad(op: dict[str, Any], inputs: list[Any], _: list[Any]) -> Any:
    x, amounts = inputs[0], [0, 0] * inputs[0].dim()
    at = 2 * (x.dim() - 2 - op["axis"])
    amounts[at : at + 2] = op["before"], op["after"]
    return F.pad(x, amounts)


def _cross_entropy(op: dict[str, Any], inputs: list[Any], _: list[Any]) -> Any:
    labels = inputs[1].reshape(-1)
    rows = inputs[0].reshape(len(labels), -1)
    return op["factor"] * F.cross_entropy(rows, labels.where(labels >= 0, -100), reduction="sum")


OPERATORS: dict[str, Operator] = {
    "linear": lambda op, x, p: F.linear(x[0], p[0], _bias(p)),
    "embedding": lambda op, x, p: F.embedding(x[0], p[0]),
    "layer_norm": lambda op, x, p: F.layer_norm(x[0], x[0].shape[-1:], p[0], _bias(p), op["epsilon"]),
    "rms_norm": lambda op, x, p: F.rms_norm(x[0], x[0].shape[-1:], p[0], op["epsilon"]),
    "stop_gradient": lambda op, x, p: x[0].detach(),
    # As in evaluations.
    "random": lambda op, x, p: torch.full((SAMPLES, *op["dimensions"]), MEANS[op["distribution"]]).double(),
    "parameter": lambda op, x, p: p[0].expand(SAMPLES, *p[0].shape),
    "dropout": lambda op, x, p: x[0],
    "activation": lambda op, x, p: ACTIVATIONS[op["kind"]](x[0]),
    "unary": lambda op, x, p: getattr(torch, op["function"])(x[0]),
    "binary": lambda op, x, p: _binary(op["function"])(*_aligned(x)),
    "compare": lambda op, x, p: getattr(torch, op["relation"])(*_aligned(x)),
    "logical": lambda op, x, p: getattr(torch, f"logical_{op['function']}")(*_aligned(x)),
    "select": lambda op, x, p: torch.where(*_aligned(x)),
    "cast": lambda op, x, p: x[0].to(KINDS[op["to"]]),
    "reshape": lambda op, x, p: x[0].reshape(len(x[0]), *op["dimensions"]),
    "permute": lambda op, x, p: x[0].permute(0, *(axis + 1 for axis in op["order"])),
    "expand": lambda op, x, p: x[0].expand(len(x[0]), *op["dimensions"]),
    "slice": _slice,
    "concatenate": lambda op, x, p: torch.cat(x, op["axis"] + 1),
    "pad": _pad,
    "reduce": lambda op, x, p: REDUCTIONS[op["reduction"]](
        x[0], [axis + 1 for axis in op["axes"]], keepdim=op.get("keep", False)
    ),
    "cumulative_sum": lambda op, x, p: x[0].cumsum(op["axis"] + 1),
    "softmax": lambda op, x, p: (F.log_softmax if op.get("log") else F.softmax)(x[0], -1),
    "matmul": lambda op, x, p: x[0] @ (x[1].mT if op.get("transpose_b") else x[1]),
    "arg_max": lambda op, x, p: x[0].argmax(op["axis"] + 1),
    "metric": lambda op, x, p: x[0],
    "gather": lambda op, x, p: torch.gather(x[0], op["axis"] + 1, x[1]),
    "one_hot": lambda op, x, p: F.one_hot(x[0], op["classes"]).double(),
    "convolution": lambda op, x, p: F.conv2d(
        x[0], p[0], _bias(p), op["stride"], op["padding"], op["dilation"], op["groups"]
    ),
    "max_pool": lambda op, x, p: F.max_pool2d(
        x[0], op["kernel"], op["stride"], op.get("padding", 0), op.get("dilation", 1)
    ),
    "average_pool": lambda op, x, p: F.avg_pool2d(
        x[0], op["kernel"], op["stride"], op.get("padding", 0), count_include_pad=op["counts_padding"]
    ),
    "logits_cross_entropy": _cross_entropy,
    "sum_loss": lambda op, x, p: op["factor"] * x[0].sum(),
}
SAMPLES = 6
"""The number of samples in the batches of the tests."""
