"""Operators that the appliance does not have, and what to write instead."""

from __future__ import annotations

ADVICE = {
    "use torch.where, torch.gather or a product with F.one_hot": (
        *("scatter", "scatter_add", "scatter_reduce", "index_put", "index_add", "masked_scatter", "put"),
    ),
    "use torch.where, and a fixed size": ("masked_select", "nonzero", "unique_dim", "_unique2"),
    "use amax, amin or topk": ("max", "min", "sort", "argsort", "kthvalue", "median", "cummax", "cummin"),
    "use Embedding with a fixed number of indices, and sum or mean": ("embedding_bag", "_embedding_bag"),
    "use sums of logarithms": ("prod", "cumprod"),
    "use dropout, the only random operator that is supported": (
        *("randn", "randn_like", "randint", "randint_like", "normal", "multinomial", "randperm"),
        *("rrelu_with_noise_functional", "rrelu_with_noise"),
    ),
    "use real numbers, such as the sine and the cosine of an angle": (
        *("view_as_complex", "view_as_real", "complex", "polar", "_fft_r2c", "_fft_c2r", "_fft_c2c"),
    ),
    "use Conv3d with a stride, or pooling of two dimensions": (
        *("max_pool3d_with_indices", "avg_pool3d", "_adaptive_avg_pool3d", "adaptive_max_pool3d"),
    ),
    "use torch.einsum": ("_trilinear",),
    "use matrix products, squares and square roots": ("_cdist_forward", "_euclidean_dist"),
    "compute with the tensor, not with a number of Python": ("_local_scalar_dense",),
    "use floor(x + 0.5)": ("round",),
}
"""The advice, and the names of the operators it is for."""

BY_OPERATOR = {name: advice for advice, names in ADVICE.items() for name in names}


def message(operator: str) -> str:
    """Return what is wrong with an operator, and what to use."""
    advice = BY_OPERATOR.get(operator)
    return f"the operator {operator} of PyTorch is not supported" + (f": {advice}" if advice else "")
