"""Convolutions, pooling and batch norm of TensorFlow, computed by PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from millrace.keras.host import sizes, tensor
from millrace.keras.tensorflow_operators import Function, translates
from millrace.keras.tensorflow_shapes import SpaceToBatch
from millrace.torch.operands import UnsupportedModelError


def _channels_first(x: torch.Tensor) -> torch.Tensor:
    return x.permute(0, 3, 1, 2)


def _channels_last(x: torch.Tensor) -> torch.Tensor:
    return x.permute(0, 2, 3, 1)


def _height_and_width(f: Function, name: str) -> list[int]:
    """Return an attribute with a number for each dimension, for height and width."""
    if f.attribute("data_format") != "NHWC":
        raise UnsupportedModelError("images with channels first: use channels last")
    return [int(item) for item in f.attribute(name)[1:3]]


def _borders(
    f: Function, x: Any, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> list[int]:
    """Return the padding of an image as `F.pad` has it: left, right, top, bottom."""
    padding = f.attribute("padding")
    if padding == "VALID":
        return [0, 0, 0, 0]
    if padding == "EXPLICIT":
        amounts = list(f.attribute("explicit_paddings"))
        return [*amounts[4:6], *amounts[2:4]]
    found = []
    for size, count, step, gap in zip(x.shape[1:3], kernel, stride, dilation, strict=True):
        extent = (count - 1) * gap + 1
        missing = max((-(-size // step) - 1) * step + extent - size, 0)
        found.append([missing // 2, missing - missing // 2])
    return [*found[1], *found[0]]


def _padded(x: torch.Tensor, borders: list[int], fill: float = 0.0) -> torch.Tensor:
    return F.pad(x, borders, value=fill) if any(borders) else x


@translates("Conv2D")
def _convolution(f: Function) -> Any:
    x, kernel = f.inputs[0], tensor(f.inputs[1])
    stride, dilation = _height_and_width(f, "strides"), _height_and_width(f, "dilations")
    if isinstance(x, SpaceToBatch):
        groups = x.x.shape[3] // kernel.shape[2]
        image = F.conv2d(_channels_first(x.x), kernel.permute(3, 2, 0, 1), None, 1, 0, x.dilation, groups)
        return SpaceToBatch(_channels_last(image), x.dilation)
    x = tensor(x)
    borders = _borders(f, x, kernel.shape[:2], stride, dilation)
    groups = x.shape[3] // kernel.shape[2]
    image = _padded(_channels_first(x), borders)
    return _channels_last(F.conv2d(image, kernel.permute(3, 2, 0, 1), None, stride, 0, dilation, groups))


@translates("DepthwiseConv2dNative")
def _depthwise_convolution(f: Function) -> Any:
    x, kernel = (tensor(item) for item in f.inputs)
    stride, dilation = _height_and_width(f, "strides"), _height_and_width(f, "dilations")
    height, width, channels, multiple = kernel.shape
    borders = _borders(f, x, (height, width), stride, dilation)
    weight = kernel.permute(2, 3, 0, 1).reshape(channels * multiple, 1, height, width)
    image = _padded(_channels_first(x), borders)
    return _channels_last(F.conv2d(image, weight, None, stride, 0, dilation, channels))


@translates("Conv2DBackpropInput")
def _transposed_convolution(f: Function) -> Any:
    shape, kernel, x = sizes(f.inputs[0]), tensor(f.inputs[1]), tensor(f.inputs[2])
    stride, dilation = _height_and_width(f, "strides"), _height_and_width(f, "dilations")
    weight = kernel.permute(3, 2, 0, 1)
    image = F.conv_transpose2d(_channels_first(x), weight, None, stride, 0, 0, 1, dilation)
    wanted = torch.empty(1, *shape[1:3], device="meta")
    before = _borders(f, wanted, kernel.shape[:2], stride, dilation)[::2][::-1]
    for axis, (start, size) in enumerate(zip(before, shape[1:3], strict=True), 2):
        missing = start + size - image.shape[axis]
        if missing > 0:
            image = F.pad(image, [0, missing] if axis == 3 else [0, 0, 0, missing])
        image = image.narrow(axis, start, size)
    return _channels_last(image)


@translates("MaxPool", "MaxPoolV2")
def _max_pool(f: Function) -> Any:
    x, kernel, stride = tensor(f.inputs[0]), _height_and_width(f, "ksize"), _height_and_width(f, "strides")
    borders = _borders(f, x, kernel, stride, (1, 1))
    return _channels_last(F.max_pool2d(_padded(_channels_first(x), borders, -torch.inf), kernel, stride))


@translates("AvgPool")
def _average_pool(f: Function) -> Any:
    x, kernel, stride = tensor(f.inputs[0]), _height_and_width(f, "ksize"), _height_and_width(f, "strides")
    borders = _borders(f, x, kernel, stride, (1, 1))
    mean = F.avg_pool2d(_padded(_channels_first(x), borders), kernel, stride)
    if any(borders):
        # Elements of the border do not count.
        share = F.avg_pool2d(F.pad(torch.ones(1, 1, *x.shape[1:3]), borders), kernel, stride)
        mean = mean / share
    return _channels_last(mean)


@translates("ResizeBilinear", "ResizeNearestNeighbor")
def _resize(f: Function) -> Any:
    x, size = _channels_first(tensor(f.inputs[0])), sizes(f.inputs[1])
    if f.attribute("align_corners") or not f.attribute("half_pixel_centers"):
        raise UnsupportedModelError("a change of the size of images other than by tf.image.resize")
    if f.type == "ResizeBilinear":
        return _channels_last(F.interpolate(x.float(), size, mode="bilinear", align_corners=False))
    return _channels_last(F.interpolate(x, size, mode="nearest-exact"))


@translates("FusedBatchNormV3", "FusedBatchNormV2", "FusedBatchNorm")
def _batch_norm(f: Function) -> Any:
    if f.attribute("is_training"):
        raise UnsupportedModelError(
            "batch norm computes over the samples of a batch: use group or layer normalization"
        )
    x, gain, offset, mean, variance = (tensor(item) for item in f.inputs)
    scale = torch.rsqrt(variance + f.attribute("epsilon")) * gain
    return [(x - mean) * scale + offset, None, None, None, None, None]
