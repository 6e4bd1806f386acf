"""Exports a module with its loss, and translates it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch.export import Dim, ExportedProgram, default_decompositions, export
from torch.export.graph_signature import InputKind

from millrace.torch.document import DTYPES
from millrace.torch.layout import Layout
from millrace.torch.operands import Fixed, Loss, Operand, Parameter, Traced, UnsupportedModelError
from millrace.torch.translator import Translator

KEPT = frozenset(
    {
        *("linear", "scaled_dot_product_attention", "layer_norm", "rms_norm", "group_norm", "embedding"),
        *("cross_entropy_loss", "mse_loss", "gelu", "silu", "conv2d", "adaptive_avg_pool2d"),
    }
)
"""Operators of PyTorch that are translated as a whole."""


@dataclass(frozen=True)
class TracedModel:
    """The graph of a module with its loss."""

    document: dict[str, Any]
    """The document of the graph."""
    transposed: dict[str, bool]
    """For each tensor of the graph, which has the name of its parameter: whether it is transposed there."""
    loss_scaling: str
    """What the sum of losses is divided by: `model.loss_scaling` of the params."""

    def save(self, path: str | Path) -> None:
        """Write the document to a file."""
        Path(path).write_text(json.dumps(self.document))

    def save_weights(self, model: torch.nn.Module, path: str | Path) -> None:
        """Write the weights of the module for `checkpoint import --from safetensors`."""
        weights = {name: _oriented(model.get_parameter(name), turn) for name, turn in self.transposed.items()}
        save_file(weights, path)

    def load_weights(self, model: torch.nn.Module, path: str | Path) -> None:
        """Give the module the weights that `checkpoint export --to safetensors` wrote.

        Raises `ValueError` if names or shapes differ; the module then keeps its weights.
        """
        weights = load_file(path)
        if weights.keys() != self.transposed.keys():
            names = ", ".join(sorted(weights.keys() ^ self.transposed.keys()))
            raise ValueError(f"{path} is not of this module: only one of them has {names}")
        loaded = {name: _oriented(weights[name], turn) for name, turn in self.transposed.items()}
        for name, weight in loaded.items():
            expected = model.get_parameter(name).shape
            if weight.shape != expected:
                raise ValueError(
                    f"{path} is not of this module: {name} has shape {tuple(weight.shape)}, "
                    f"not {tuple(expected)}"
                )
        with torch.no_grad():
            for name, weight in loaded.items():
                model.get_parameter(name).copy_(weight)


def _oriented(weight: torch.Tensor, transposed: bool) -> torch.Tensor:
    """Return a weight, transposed or as it is, without sharing memory with another."""
    weight = weight.detach().cpu()
    return (weight.t() if transposed else weight).contiguous().clone()


class _Call(torch.nn.Module):
    """Calls a module and its loss with positional inputs, as keyword arguments can't be exported."""

    def __init__(self, model: torch.nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.model = model
        self.call = call

    def forward(self, *batch: Any) -> Any:
        """Return the loss of a batch."""
        return self.call(self.model, *batch)


def _with_loss(loss: Callable[..., Any]) -> Callable[..., Any]:
    return lambda model, *batch: loss(model(*batch[:-1]), batch[-1])


def _without_loss(model: torch.nn.Module, *batch: Any) -> Any:
    return model(*batch)


def trace(
    model: torch.nn.Module,
    batch: Mapping[str, torch.Tensor],
    loss: Callable[..., Any] | None = None,
    *,
    call: Callable[..., Any] | None = None,
) -> TracedModel:
    """Trace a module with its loss.

    `batch` is an example of at least two samples, by the names that the data have. The loss is
    `loss(model(*all but the last), the last)`; without `loss`, the module itself returns it.
    `call(model, *batch)` replaces both.

    Raises `UnsupportedModelError` if the appliance can't train the module.
    """
    _check(model, batch)
    if call is None:
        call = _without_loss if loss is None else _with_loss(loss)
    module = _Call(model, call)
    was_training = model.training
    try:
        program = _exported(module.train(), tuple(batch.values()))
    finally:
        model.train(was_training)
    return _translated(model, program, list(batch))


def _check(model: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> None:
    sizes = {name: tensor.shape[0] if tensor.dim() else 0 for name, tensor in batch.items()}
    if len(set(sizes.values())) != 1 or min(sizes.values()) < 2:
        found = ", ".join(f"{name} has {size}" for name, size in sizes.items())
        raise UnsupportedModelError(
            f"the example has to be a batch of the same two or more samples in each input: {found}"
        )
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            raise UnsupportedModelError(f"the parameter {name} is frozen, which is not supported yet")
        if parameter.dtype != torch.float32:
            raise UnsupportedModelError(
                f"the parameter {name} is of type {parameter.dtype}: use model.float()"
            )
        if parameter.numel() == 0 or not bool(parameter.isfinite().all()):
            raise UnsupportedModelError(f"the parameter {name} has no elements, or some that are not finite")


def _exported(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> ExportedProgram:
    shapes = (tuple({0: Dim.DYNAMIC} for _ in inputs),)
    try:
        return export(module, inputs, dynamic_shapes=shapes).run_decompositions(_decompositions())
    except Exception as error:
        # PyTorch raises errors of many kinds: control flow that depends on data, a fixed size of the batch.
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UnsupportedModelError(
            "PyTorch can't export the module: control flow must not depend on data, nor on the size of the "
            f"batch ({reason})"
        ) from error


def _decompositions() -> Any:
    table = default_decompositions()
    for overload in list(table.keys()):
        name = str(overload)
        if name.startswith("aten.") and name.split(".")[1] in KEPT:
            table.pop(overload)
    return table


def _translated(model: torch.nn.Module, program: ExportedProgram, names: list[str]) -> TracedModel:
    translator = Translator(dict(model.named_parameters(remove_duplicate=False)))
    _add_inputs(translator, program, names)
    loss: Operand = None
    for node in program.graph.nodes:
        if node.op == "call_function":
            translator.translate(node)
        elif node.op == "output":
            loss = translator.operand(node.args[0][-1])
    if not isinstance(loss, Loss):
        raise UnsupportedModelError(
            "the loss is not a mean over the samples of the batch; use reduction='mean'"
        )
    scalings = {term.scaling for term in loss.terms}
    if len(scalings) > 1:
        raise UnsupportedModelError("the losses are means over different numbers: of labels, and of samples")
    for term in loss.terms:
        term.emit(term.factor)
    return TracedModel(translator.graph.document(), translator.tensors, scalings.pop())


def _add_inputs(translator: Translator, program: ExportedProgram, names: list[str]) -> None:
    """Define what the program reads: parameters, buffers, and the inputs called `names`."""
    remaining = iter(names)
    # Tied parameters are one tensor.
    first_names: dict[tuple[int, tuple[int, ...]], str] = {}
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    for node, spec in zip(placeholders, program.graph_signature.input_specs, strict=True):
        if spec.kind == InputKind.PARAMETER:
            name = spec.target.removeprefix("model.")
            data = translator.parameters[name]
            key = (data.data_ptr(), tuple(data.shape))
            translator.known[node.name] = Parameter(first_names.setdefault(key, name), tuple(data.shape))
        elif spec.kind == InputKind.USER_INPUT:
            example, name = node.meta["val"], next(remaining)
            if example.dtype not in DTYPES:
                raise UnsupportedModelError(
                    f"the input {name} is of type {example.dtype}: use float32, int64 or bool"
                )
            layout = Layout.of(example.shape)
            value = translator.graph.input(name, DTYPES[example.dtype], layout.sample)
            translator.known[node.name] = Traced(value, layout)
        else:
            stored = program.constants if spec.target in program.constants else program.state_dict
            data = stored[spec.target].detach()
            translator.known[node.name] = Fixed(data, Layout(tuple(data.shape)))
