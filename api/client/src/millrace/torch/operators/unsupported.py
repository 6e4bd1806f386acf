"""Operators that the appliance does not have, and what to write instead."""

from __future__ import annotations

from collections.abc import Iterable

ADVICE = {
    "use torch.where, torch.gather or a product with F.one_hot": (
        *("scatter_reduce", "index_put", "masked_scatter", "put", "index_copy"),
    ),
    "use torch.where, and a fixed size": ("masked_select", "nonzero", "unique_dim", "_unique2"),
    "use amax, amin or topk of a dimension": (
        "max",
        "min",
        "median",
        "nanmedian",
        "mode",
    ),
    "use indices of the same number for each sample, x[batch, number], without offsets": ("embedding_bag",),
    "use the product over a dimension": ("prod",),
    "shuffle the data in place of the batch": ("randperm",),
    "use torch.rand, randn or dropout": ("multinomial", "geometric", "cauchy", "log_normal", "binomial"),
    "use LeakyReLU or PReLU": ("rrelu_with_noise_functional", "rrelu_with_noise"),
    "use Conv3d with a stride": ("fractional_max_pool2d", "fractional_max_pool3d"),
    "use torch.einsum": ("_trilinear",),
    "use a parametrization by products, such as weight_norm": (
        *("linalg_matrix_exp", "linalg_householder_product", "linalg_inv_ex", "_linalg_svd", "_linalg_eigh"),
        *("linalg_qr", "linalg_cholesky_ex", "_linalg_solve_ex"),
    ),
    "use matrix products, squares and square roots": ("_cdist_forward", "_euclidean_dist"),
    "compute with the tensor, not with a number of Python": ("_local_scalar_dense",),
}
"""The advice, and the names of the operators it is for."""

GENERAL_ADVICE = "write it with element-wise functions, reductions and products"

FUNCTIONS = {
    "pack_padded_sequence": (
        "packed sequences are not supported: compute all steps of the padded ones, and choose the last one "
        "with x[torch.arange(x.shape[0]), lengths - 1]"
    ),
    "gaussian_nll_loss": (
        "gaussian_nll_loss checks its data, which is not supported: write it as "
        "0.5 * (variance.log() + (x - y) ** 2 / variance).mean()"
    ),
    "ctc_loss": "ctc_loss is not supported: use a cross-entropy for aligned labels",
}
"""What is wrong with functions of PyTorch that can't be exported."""

BY_OPERATOR = {name: advice for advice, names in ADVICE.items() for name in names}


def message(operator: str, *, is_complex: bool = False) -> str:
    """Return what is wrong with an operator, and what to use. `is_complex` is for one on complex numbers."""
    if is_complex:
        return (
            f"the operator {operator} of PyTorch is not supported for complex numbers: write it with sums, "
            "products, abs, exp and conj, or with real numbers"
        )
    advice = BY_OPERATOR.get(operator, GENERAL_ADVICE)
    return f"the operator {operator} of PyTorch is not supported: {advice}"


def advice_for_functions(names: Iterable[str]) -> str:
    """Return what is wrong with one of the functions that an export ended in, or nothing."""
    return next((FUNCTIONS[name] for name in names if name in FUNCTIONS), "")
