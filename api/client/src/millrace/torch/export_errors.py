"""Explains why PyTorch can't export a module. It raises errors of many kinds."""

from __future__ import annotations

import traceback

import torch

from millrace.torch.locations import line_of, lines_before
from millrace.torch.operands import UnsupportedModelError
from millrace.torch.operators.unsupported import advice_for_functions


def export_failure(error: Exception) -> str:
    """Return why PyTorch can't export a module that can be called, and what to change."""
    frames = traceback.extract_tb(error.__traceback__)
    is_packed = "FakeTensor" in str(error) and any(frame.filename.endswith("/rnn.py") for frame in frames)
    names = ["pack_padded_sequence"] if is_packed else [frame.name for frame in frames]
    reason = _first_line(error)
    if advice := advice_for_functions(names) or _advice_for_transformers(error, reason):
        return advice
    if "specialized it to be a constant" in str(error):
        return (
            "the size of the batch is used as a number: use x.shape[0] in place of len(x), and losses of "
            "each sample, not of pairs of samples as contrastive ones"
        )
    if "data-dependent" in reason:
        reason = "use torch.where in place of an if, and tensors in place of the numbers of item()"
    return (
        "PyTorch can't export the module: control flow must not depend on data, nor on the size of the batch "
        f"({reason})"
    )


def _advice_for_transformers(error: Exception, reason: str) -> str | None:
    """Return what to change where a model does what those of transformers do."""
    line = line_of(error)
    if "inside of vmap" in reason and "masking_utils" in line:
        return (
            f"PyTorch {torch.__version__} can't export the masks of this version of transformers: install a "
            "newer PyTorch, or transformers<4.53"
        )
    if "data-dependent" in reason and "layerdrop" in lines_before(error):
        return (
            "layers are skipped at random, each for the whole batch: set layerdrop to 0 in the configuration "
            "of the model"
        )
    if "'NoneType' object" in reason and "transformers" in line:
        return (
            "transformers creates no inputs that are missing while PyTorch exports a model: add all of them "
            f"to the data, such as attention_mask ({reason})"
        )
    return None


def check_call(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
    """Reject a module that can't be called with the example at all, with the error of PyTorch."""
    try:
        with torch.no_grad(), torch.random.fork_rng():
            module(*inputs)
    except Exception as error:
        raise UnsupportedModelError(
            f"{line_of(error)}the module fails with the example: check names, order and shapes of the data "
            f"({_first_line(error)})"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
