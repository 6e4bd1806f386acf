"""Products, attention, norms and embeddings."""

from __future__ import annotations

from math import inf, prod, sqrt
from typing import Any

import torch

from millrace.torch.document import Value
from millrace.torch.layout import Layout, MixesSamplesError
from millrace.torch.operands import (
    Fixed,
    Operand,
    Parameter,
    ParameterView,
    Traced,
    UnsupportedModelError,
)
from millrace.torch.operators.elementwise import binary, unary
from millrace.torch.operators.reductions import reduce
from millrace.torch.operators.registry import completed, translates
from millrace.torch.translator import Translator


def _linear(t: Translator, x: Value, weight: Parameter, bias: Operand, *, transposed: bool = False) -> Value:
    """Add a product with a weight of shape [out, in], or [in, out] if it is transposed."""
    params = [t.tensor(weight, "weight", transposed=transposed)]
    if bias is not None:
        params.append(t.tensor(bias, "bias"))
    outputs = weight.shape[1 if transposed else 0]
    return t.graph.node({"op": "linear"}, [x], (*x.shape[:-1], outputs), params=params)


def _is_row(bias: Operand) -> bool:
    """Return whether a bias is missing, or a parameter with one dimension."""
    return bias is None or (isinstance(bias, Parameter) and len(bias.shape) == 1)


def matmul(t: Translator, a: Value, b: Value, *, transposed: bool = False) -> Value:
    """Add the product of the matrices of two values. The second one may be given transposed.

    The first one may be a row.
    """
    if len(a.shape) == 1:
        product = matmul(t, t.reshape(a, (1, *a.shape)), b, transposed=transposed)
        return t.reshape(product, product.shape[1:])
    b = t.expand(b, a.shape[:-2] + b.shape[-2:])
    columns = b.shape[-2 if transposed else -1]
    node = {"op": "matmul"} | ({"transpose_b": True} if transposed else {})
    return t.graph.node(node, [a, b], (*a.shape[:-1], columns))


def linear(t: Translator, x: Value, weight: Operand, bias: Operand) -> Value:
    """Add a product with a weight of shape [out, in], which may be computed, and the sum with a bias."""
    is_tensor = isinstance(weight, Parameter) and not t.is_used_in_another_shape(weight)
    if is_tensor and _is_row(bias):
        return _linear(t, x, weight, bias)
    product = matmul(t, x, t.traced(weight).value, transposed=True)
    return product if bias is None else binary(t, "add", product, t.traced(bias).value)


@translates("linear")
def _linear_layer(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x, weight, bias = completed([t.traced(args[0]), *args[1:]], None, None, None)
    return Traced(linear(t, x.value, weight, bias), layout)


@translates("mm", "matmul", "bmm")
def _product(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    left, right = args
    if isinstance(right, Parameter | ParameterView) and len(right.shape) == 3 and right.shape[0] == 1:
        # As `einsum` has it.
        matrix = t.parameter_view(right, lambda strides: strides[0])
        right = matrix if isinstance(matrix, Parameter) else right
    is_matrix = isinstance(right, Parameter) and len(right.shape) == 2
    if is_matrix and not t.is_used_in_another_shape(right, transposed=True):
        return Traced(_linear(t, t.traced(left).value, right, None, transposed=True), layout)
    a, b = t.traced(left), t.traced(right)
    if a.layout.axis != b.layout.axis and None not in (a.layout.axis, b.layout.axis):
        raise MixesSamplesError("it multiplies the samples of a batch by each other")
    # Rows or columns that are samples: one of each in the product for a sample.
    left, right = a.value, b.value
    if a.layout.axis == a.layout.rank - 2 and a.layout.merged == 1:
        left = t.reshape(left, (*left.shape[:-1], 1, left.shape[-1]))
    if b.layout.axis == b.layout.rank - 1 and b.layout.merged == 1:
        right = t.reshape(right, (*right.shape, 1))
    return Traced(t.reshape(matmul(t, left, right), layout.sample), layout)


@translates("addmm")
def _product_and_sum(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    bias, x, weight = args
    is_tensor = isinstance(weight, Parameter) and not t.is_used_in_another_shape(weight, transposed=True)
    if is_tensor and bias is not None and _is_row(bias):
        return Traced(_linear(t, t.traced(x).value, weight, bias, transposed=True), layout)
    product = _product(t, layout, [x, weight], {})
    return Traced(binary(t, "add", product.value, t.value(bias, layout)), layout)


@translates("scaled_dot_product_attention")
def _attention(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    q, k, v = (t.traced(item).value for item in args[:3])
    given = dict(zip(("attn_mask", "dropout_p", "is_causal"), args[3:], strict=False)) | kwargs
    if given.get("enable_gqa"):
        k, v = (_repeated(t, item, q.shape[-3] // item.shape[-3]) for item in (k, v))
    scores = matmul(t, q, k, transposed=True)
    scores = binary(t, "mul", scores, t.number(given.get("scale") or 1.0 / sqrt(q.shape[-1])))
    mask = given.get("attn_mask")
    if given.get("is_causal"):
        rows, columns = scores.shape[-2:]
        mask = Fixed(torch.ones(rows, columns, dtype=torch.bool).tril(), Layout((rows, columns)))
    if mask is not None:
        of_scores = layout.with_size(-1, scores.shape[-1])
        scores = _masked(t, scores, mask, of_scores)
    weights = t.graph.node({"op": "softmax"}, [scores], scores.shape)
    if given.get("dropout_p"):
        weights = t.graph.node({"op": "dropout", "rate": float(given["dropout_p"])}, [weights], weights.shape)
    return Traced(matmul(t, weights, v), layout)


def _repeated(t: Translator, x: Value, times: int) -> Value:
    """Return a value of heads in which each is repeated."""
    heads, *rest = x.shape
    x = t.expand(t.reshape(x, (heads, 1, *rest)), (heads, times, *rest))
    return t.reshape(x, (heads * times, *rest))


def _masked(t: Translator, scores: Value, mask: Operand, layout: Layout) -> Value:
    """Return scores that are negative infinity where a mask is false, or their sum with a mask of numbers."""
    value = _causal(t, mask) if isinstance(mask, Fixed) else None
    value = t.value(mask, layout) if value is None else value
    if value.dtype != "bool":
        return binary(t, "add", scores, value)
    return t.graph.node({"op": "select"}, [value, scores, t.number(-inf)], scores.shape)


def _causal(t: Translator, mask: Fixed) -> Value | None:
    """Return a causal mask as a relation of positions, which is small; None if it is another mask."""
    kept = mask.tensor if mask.tensor.dtype == torch.bool else mask.tensor == 0
    rows, columns = kept.shape[-2:]
    if rows != columns or not bool((kept == torch.ones(rows, columns, dtype=torch.bool).tril()).all()):
        return None
    positions = torch.arange(rows, dtype=torch.int32)
    both = [t.graph.constant(positions[:, None]), t.graph.constant(positions[None, :])]
    return t.graph.node({"op": "compare", "relation": "ge"}, both, (rows, columns), "bool")


def _normalized(t: Translator, x: Value, axes: list[int], epsilon: float) -> Value:
    """Return a value with mean 0 and variance 1 over dimensions."""
    centered = binary(t, "sub", x, reduce(t, x, axes, "mean", keep=True))
    variance = reduce(t, unary(t, "square", centered), axes, "mean", keep=True)
    return binary(t, "mul", centered, unary(t, "rsqrt", binary(t, "add", variance, t.number(epsilon))))


@translates("layer_norm")
def _layer_norm(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x, shape, gain, offset, epsilon = completed(args, None, None, None, None, 1e-5)[:5]
    value = t.traced(x).value
    if len(shape) == 1 and isinstance(gain, Parameter):
        params = [t.tensor(item, "norm") for item in (gain, offset) if item is not None]
        node = {"op": "layer_norm", "epsilon": epsilon}
        return Traced(t.graph.node(node, [value], value.shape, params=params), layout)
    rank = len(value.shape)
    value = _normalized(t, value, list(range(rank - len(shape), rank)), epsilon)
    for function, item in (("mul", gain), ("add", offset)):
        value = value if item is None else binary(t, function, value, t.value(item, layout))
    return Traced(value, layout)


@translates("rms_norm")
def _rms_norm(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x, shape, gain, epsilon = completed(args, None, None, None, None)
    value = t.traced(x).value
    epsilon = torch.finfo(torch.float32).eps if epsilon is None else epsilon
    if len(shape) == 1 and isinstance(gain, Parameter):
        node = {"op": "rms_norm", "epsilon": epsilon}
        return Traced(t.graph.node(node, [value], value.shape, params=[t.tensor(gain, "norm")]), layout)
    rank = len(value.shape)
    axes = list(range(rank - len(shape), rank))
    mean = reduce(t, unary(t, "square", value), axes, "mean", keep=True)
    value = binary(t, "mul", value, unary(t, "rsqrt", binary(t, "add", mean, t.number(epsilon))))
    return Traced(value if gain is None else binary(t, "mul", value, t.value(gain, layout)), layout)


@translates("group_norm")
def _group_norm(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x, groups, gain, offset, epsilon = completed(args, None, None, None, None, 1e-5)[:5]
    x = t.traced(x)
    images, channels, *sizes = images_of_sample(x), *x.layout.sizes[1:]
    grouped = t.reshape(x.value, (images, groups, channels * prod(sizes) // groups))
    result = t.reshape(_normalized(t, grouped, [2], epsilon), x.value.shape)
    return Traced(_scaled_channels(t, result, gain, offset, (channels, *(1 for _ in sizes))), layout)


def _scaled_channels(
    t: Translator, x: Value, gain: Operand, offset: Operand, shape: tuple[int, ...]
) -> Value:
    """Return a value whose channels are multiplied by numbers and added to others, if these are given."""
    for function, item in (("mul", gain), ("add", offset)):
        if item is not None:
            x = binary(t, function, x, t.reshape(t.traced(item).value, shape))
    return x


def images_of_sample(x: Traced) -> int:
    """Return how many images or sequences a sample has: more than one if they are merged with the batch.

    Raises `MixesSamplesError` if they are not in the first dimension.
    """
    if x.layout.axis not in (0, None):
        raise MixesSamplesError("its first dimension is not that of the samples")
    return x.layout.sizes[0] if x.layout.axis is None else x.layout.merged


@translates("instance_norm")
def _instance_norm(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x, gain, offset, mean, _, _, _, epsilon = args[:8]
    if mean is not None:
        raise UnsupportedModelError("instance norm with running statistics: use track_running_stats=False")
    channels = t.traced(x).layout.sizes[1]
    return _group_norm(t, layout, [x, channels, gain, offset, epsilon], {})


@translates("embedding")
def _embedding(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    table, ids, padding, is_scaled = completed(
        [args[0], t.traced(args[1]), *args[2:]], None, None, -1, False
    )[:4]
    if is_scaled:
        raise UnsupportedModelError("an embedding with scale_grad_by_freq")
    indices, shape = ids.value, (*ids.value.shape, table_shape(table)[1])
    if isinstance(table, Parameter) and not t.is_used_in_another_shape(table):
        value = t.graph.node({"op": "embedding"}, [indices], shape, params=[t.tensor(table, "embedding")])
    else:
        # Rows of a matrix that is computed.
        flat = (prod(indices.shape), shape[-1])
        column = t.expand(t.reshape(indices, (flat[0], 1)), flat)
        value = t.graph.node({"op": "gather", "axis": 0}, [t.traced(table).value, column], flat)
        value = t.reshape(value, shape)
    if padding >= 0:
        # The row of the padding has no gradient from here. Another use of a tied table may change it.
        node = {"op": "compare", "relation": "eq"}
        is_padding = t.graph.node(node, [indices, t.number(padding, "i32")], indices.shape, "bool")
        stopped = t.graph.node({"op": "stop_gradient"}, [value], shape)
        chosen = [t.reshape(is_padding, (*indices.shape, 1)), stopped, value]
        value = t.graph.node({"op": "select"}, chosen, shape)
    return Traced(value, Layout(shape) if ids.layout.axis is None else layout)


def table_shape(table: Operand) -> tuple[int, ...]:
    """Return the shape of a table of embeddings, which may be computed."""
    return table.shape if isinstance(table, Parameter | ParameterView) else table.layout.sizes


@translates("embedding_bag", "_embedding_bag")
def _embedding_bag(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    table, ids, offsets, is_scaled, mode, _, weights, ends, padding = completed(
        args, None, None, None, False, 0, False, None, False, None
    )
    ids = t.traced(ids)
    count = ids.layout.merged
    is_regular = isinstance(offsets, Fixed) and ids.layout.axis == 0 and not ends
    if not is_regular or offsets.tensor.flatten().tolist() != [0, count]:
        raise UnsupportedModelError(
            "embedding_bag with offsets: use indices of the same number for each sample, x[batch, number]"
        )
    of_rows = Layout((count, 1), 0, count)
    rows = _embedding(t, of_rows, [table, ids, -1, False, is_scaled], {})
    value = t.reshape(rows.value, (count, table_shape(table)[1]))
    if weights is not None:
        value = binary(t, "mul", value, t.reshape(t.traced(weights).value, (count, 1)))
    has_padding = padding is not None and padding >= 0
    if has_padding:
        node = {"op": "compare", "relation": "ne"}
        indices = t.reshape(ids.value, (count, 1))
        is_kept = t.cast(t.graph.node(node, [indices, t.number(padding, "i32")], (count, 1), "bool"), "f32")
        value = binary(t, "mul", value, is_kept)
    if mode == MAX_MODE:
        if has_padding:
            raise UnsupportedModelError("embedding_bag with mode='max' and padding_idx: use mode='sum'")
        return [Traced(reduce(t, value, [0], "max", keep=False), layout), None, None, None]
    value = reduce(t, value, [0], "sum", keep=False)
    if mode == MEAN_MODE and not has_padding:
        value = binary(t, "mul", value, t.number(1.0 / count))
    elif mode == MEAN_MODE:
        number = reduce(t, is_kept, [0], "sum", keep=False)
        value = binary(t, "div", value, binary(t, "max", number, t.number(1.0)))
    return [Traced(value, layout), None, None, None]


MEAN_MODE, MAX_MODE = 1, 2
"""The numbers of the modes `mean` and `max` of an embedding bag in PyTorch."""


@translates("bilinear")
def _bilinear(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    left, right, weight, bias = completed(args, None, None, None, None)
    a, b = t.traced(left).value, t.traced(right).value
    outputs, inputs, others = table_shape(weight)
    merged = t.parameter_view(weight, lambda strides: strides.view(outputs * inputs, others))
    rows = t.reshape(linear(t, b, merged, None), (*b.shape[:-1], outputs, inputs))
    products = binary(t, "mul", rows, t.reshape(a, (*a.shape[:-1], 1, inputs)))
    value = reduce(t, products, [len(products.shape) - 1], "sum", keep=False)
    return Traced(value if bias is None else binary(t, "add", value, t.traced(bias).value), layout)


@translates("_cdist_forward", "_euclidean_dist")
def _distances(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    left, right, power = completed(args[:3], None, None, 2.0)
    a, b = t.traced(left), t.traced(right)
    if power not in (1.0, 2.0):
        raise UnsupportedModelError("cdist with another norm than 1 and 2")
    # Rows or columns that are samples: one of each in the distances for a sample.
    first, second = a.value, b.value
    if a.layout.axis == a.layout.rank - 2 and a.layout.merged == 1:
        first = t.reshape(first, (*first.shape[:-1], 1, first.shape[-1]))
    if b.layout.axis == b.layout.rank - 2:
        raise MixesSamplesError("it computes distances between the samples of a batch")
    first = t.reshape(first, (*first.shape[:-1], 1, first.shape[-1]))
    second = t.reshape(second, (*second.shape[:-2], 1, *second.shape[-2:]))
    difference = binary(t, "sub", first, second)
    norm = unary(t, "abs" if power == 1 else "square", difference)
    norm = reduce(t, norm, [len(norm.shape) - 1], "sum", keep=False)
    if power == 2:
        # The root of 0 has no gradient.
        zero, one = t.number(0.0), t.number(1.0)
        is_apart = t.graph.node({"op": "compare", "relation": "gt"}, [norm, zero], norm.shape, "bool")
        root = unary(t, "sqrt", t.graph.node({"op": "select"}, [is_apart, norm, one], norm.shape))
        norm = t.graph.node({"op": "select"}, [is_apart, root, zero], norm.shape)
    return Traced(t.reshape(norm, layout.sample), layout)


@translates("_native_batch_norm_legit_no_training")
def _frozen_batch_norm(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x, gain, offset, mean, variance, _, epsilon = args
    x = t.traced(x)
    images_of_sample(x)
    shape = (x.layout.sizes[1], *(1 for _ in x.layout.sizes[2:]))
    deviation = unary(t, "rsqrt", binary(t, "add", t.traced(variance).value, t.number(epsilon)))
    centered = binary(t, "sub", x.value, t.reshape(t.traced(mean).value, shape))
    value = binary(t, "mul", centered, t.reshape(deviation, shape))
    return [Traced(_scaled_channels(t, value, gain, offset, shape), layout), None, None]


@translates(
    *("_native_batch_norm_legit_functional", "_native_batch_norm_legit"),
    *("native_batch_norm", "batch_norm", "_batch_norm_with_update_functional"),
)
def _batch_norm(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    raise MixesSamplesError(
        "batch norm computes over the samples of a batch; use GroupNorm or LayerNorm, or freeze it by eval() "
        "in the train() of the module"
    )
