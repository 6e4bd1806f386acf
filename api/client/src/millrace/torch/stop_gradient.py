"""An operator that returns its input without a gradient, which no decomposition removes."""

from __future__ import annotations

import torch


def _copy(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


def _like(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


_OPERATOR = torch.library.custom_op("millrace::stop_gradient", _copy, mutates_args=())
_OPERATOR.register_fake(_like)


def stop_gradient(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    """Make the users of a tensor use it without its gradient."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return
    with graph.inserting_after(node):
        stopped = graph.call_function(torch.ops.millrace.stop_gradient.default, (node,))
    stopped.meta = {**node.meta}
    node.replace_all_uses_with(stopped, delete_user_cb=lambda user: user is not stopped)
