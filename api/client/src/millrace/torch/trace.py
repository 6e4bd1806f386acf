"""Exports a module with its loss, and translates it."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._decomp import get_decompositions
from torch.export import Dim, ExportedProgram, default_decompositions, export
from torch.export.graph_signature import InputKind

from millrace.torch.counters import Counters, Tracing
from millrace.torch.document import DTYPES
from millrace.torch.export_errors import check_call, export_failure
from millrace.torch.generators import Generators
from millrace.torch.layout import Layout
from millrace.torch.locations import library_directories, line_of, source_location
from millrace.torch.metrics import add_metric, loss_and_metrics
from millrace.torch.operands import (
    ComplexParameter,
    Fixed,
    Operand,
    Parameter,
    Traced,
    UnsupportedModelError,
)
from millrace.torch.operators.terms import emit_losses, terms_of
from millrace.torch.places import places
from millrace.torch.quiet import quiet
from millrace.torch.stop_gradient import stop_gradient
from millrace.torch.traced_model import TracedModel, as_real
from millrace.torch.translator import Translator
from millrace.torch.triton import hide_triton

KEPT = frozenset(
    {
        *("linear", "scaled_dot_product_attention", "layer_norm", "rms_norm", "group_norm", "embedding"),
        *("cross_entropy_loss", "mse_loss", "nll_loss", "nll_loss_nd", "nll_loss2d", "gelu", "silu"),
        *("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_max_pool1d", "adaptive_max_pool2d"),
        *("instance_norm", "stack", "one_hot", "feature_dropout"),
        *("upsample_nearest1d", "upsample_nearest2d", "_upsample_nearest_exact2d", "upsample_linear1d"),
        *("upsample_bilinear2d", "upsample_bicubic2d", "embedding_bag", "elu", "leaky_relu", "softplus"),
        *("bernoulli", "lstm", "gru", "rnn_tanh", "rnn_relu", "bilinear", "upsample_nearest3d"),
        *("adaptive_avg_pool3d", "_adaptive_avg_pool3d", "adaptive_max_pool3d", "_upsample_nearest_exact1d"),
        *(
            "upsample_trilinear3d",
            "sort",
            "median",
            "kthvalue",
            "scatter",
            "index_add",
            "prod",
            "cumprod",
            "round",
            "col2im",
            "unfold_backward",
        ),
    }
)
"""Operators of PyTorch that are translated as a whole."""


class _Call(torch.nn.Module):
    """Calls a module and its loss with positional inputs, as keyword arguments can't be exported."""

    def __init__(
        self, model: torch.nn.Module, call: Callable[..., Any], metrics: list[str], counters: Counters
    ) -> None:
        """Create the module; its calls write the names of the metrics to `metrics`."""
        super().__init__()
        self.model = model
        self.call = call
        self.metrics = metrics
        self.counters = counters

    def forward(self, *batch: Any) -> Any:
        """Return the metrics of a batch, and its loss as the last value."""
        loss, metrics = loss_and_metrics(self.call(self.model, *batch))
        self.metrics[:] = metrics
        self.counters.observe()
        return (*metrics.values(), loss)


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
    `call(model, *batch)` replaces both. Metrics may be returned with the loss, see `loss_and_metrics`.

    Raises `UnsupportedModelError` if the appliance can't train the module.
    """
    _check(model, batch)
    location = _location(call or loss)
    counters = Counters(places(model, loss, call))
    if call is None:
        call = _without_loss if loss is None else _with_loss(loss)
    metrics: list[str] = []
    module = _Call(model, call, metrics, counters)
    was_training = model.training
    try:
        program = _exported(module.train(), tuple(batch.values()), location)
    finally:
        model.train(was_training)
    return _translated(model, program, list(batch), metrics, location)


def _location(function: Callable[..., Any] | None) -> str:
    """Return where the function of the loss begins. PyTorch records lines of modules only."""
    function = getattr(function, "func", function)  # that of functools.partial
    if isinstance(function, torch.nn.Module):
        return f"the loss {type(function).__name__}"
    code = getattr(function, "__code__", None)
    if code is None or code.co_filename.startswith(library_directories()):
        return f"the loss {getattr(function, '__name__', '')}".rstrip()
    return f"the loss ({code.co_filename}:{code.co_firstlineno})"


def _check(model: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> None:
    sizes = {name: tensor.shape[0] if tensor.dim() else 0 for name, tensor in batch.items()}
    if len(set(sizes.values())) != 1 or min(sizes.values()) < 2:
        found = ", ".join(f"{name} has {size}" for name, size in sizes.items())
        raise UnsupportedModelError(
            f"the example has to be a batch of the same two or more samples in each input: {found}"
        )
    for name, parameter in model.named_parameters():
        if parameter.dtype not in (torch.float32, torch.complex64):
            raise UnsupportedModelError(
                f"the parameter {name} is of type {parameter.dtype}: use model.float()"
            )
        if parameter.numel() == 0 or not bool(parameter.isfinite().all()):
            raise UnsupportedModelError(f"the parameter {name} has no elements, or some that are not finite")


def _exported(module: _Call, inputs: tuple[torch.Tensor, ...], location: str) -> ExportedProgram:
    shapes = (tuple({0: Dim.DYNAMIC} for _ in inputs),)
    try:
        hide_triton()
        generators = Generators()

        def exported() -> ExportedProgram:
            # With that package, einsum chooses an order by sizes, and the size of the batch is a symbol.
            with torch.backends.opt_einsum.flags(enabled=False), quiet():
                return export(module, inputs, dynamic_shapes=shapes, strict=False)

        program = exported()
        module.counters.check(program, Tracing(exported, _differ, lambda: module(*inputs)))
        if name := generators.changed():
            line = generators.line_that_draws(lambda: module(*inputs))
            # Models of transformers draw numbers that they do not need, such as for `layerdrop` of 0.
            if sysconfig.get_path("purelib") not in line or _differ(program, exported()):
                raise UnsupportedModelError(
                    f"{line}a random number of {name}, which would be the same in each step: use one of "
                    "PyTorch, such as torch.rand(x.shape[0], 1)"
                )
            generators.restore()
        _keep_stopped_gradients(program, location)
        _widen_cross_entropies(program.graph)
        return program.run_decompositions(_decompositions())
    except UnsupportedModelError:
        raise
    except Exception as error:
        check_call(module, inputs)
        raise UnsupportedModelError(f"{line_of(error)}{export_failure(error)}") from error


def _differ(first: ExportedProgram, second: ExportedProgram) -> bool:
    """Return whether two exports of a module compute something else."""
    if (
        first.graph_module.code != second.graph_module.code
        or first.constants.keys() != second.constants.keys()
    ):
        return True
    pairs = [(value, second.constants[name]) for name, value in first.constants.items()]
    return any(isinstance(value, torch.Tensor) and not torch.equal(value, other) for value, other in pairs)


def _keep_stopped_gradients(program: ExportedProgram, location: str) -> None:
    """Mark values without gradient, which decompositions do not preserve. Reject alpha dropout."""
    specs = program.graph_signature.input_specs
    trained = {
        spec.arg.name
        for spec in specs
        if spec.kind == InputKind.PARAMETER and program.state_dict[spec.target].requires_grad
    }
    # Metrics have no gradients.
    of_loss = _nodes_of_outputs(program.graph, 1)
    for node in list(program.graph.nodes):
        name = str(node.target)
        if "alpha_dropout" in name:
            raise UnsupportedModelError(f"{source_location(node, location)}: alpha dropout: use Dropout")
        values = node.meta.get("val")
        values = values if isinstance(values, list | tuple) else [values]
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        has_gradient = any(value.is_floating_point() or value.is_complex() for value in tensors)
        if not has_gradient or not any(source.name in trained for source in node.all_input_nodes):
            continue
        trained.add(node.name)
        if node not in of_loss:
            continue
        if name.startswith("aten.detach"):
            stop_gradient(program.graph, node)
        elif name == "wrap_with_set_grad_enabled" and not node.args[0]:
            # Its values are items of a list.
            for item in list(node.users):
                stop_gradient(program.graph, item)
    program.graph.lint()


def _widen_cross_entropies(graph: torch.fx.Graph) -> None:
    """Give the classes of each cross-entropy without reduction a dimension after them.

    Otherwise its result is decomposed with the wrong shape (PyTorch 2.15).
    """
    aten = torch.ops.aten
    losses = (aten.cross_entropy_loss.default, aten.nll_loss_nd.default)
    for node in list(graph.nodes):
        reduction = node.args[3] if len(node.args) > 3 else 1
        if node.target not in losses or reduction != 0:
            continue
        logits, labels, *others = node.args
        if logits.meta["val"].dim() == 2 and labels.meta["val"].dim() == 1:
            with graph.inserting_before(node):
                wide = [graph.call_function(aten.unsqueeze.default, (item, -1)) for item in (logits, labels)]
            with graph.inserting_after(node):
                result = graph.call_function(aten.squeeze.dim, (node, -1))
            result.meta = {**node.meta}
            node.replace_all_uses_with(result, delete_user_cb=lambda user, result=result: user is not result)
            node.args = (*wide, *others)
    graph.lint()


def _decompositions() -> Any:
    table = default_decompositions()
    for overload in list(table.keys()):
        name = str(overload)
        if name.startswith("aten.") and name.split(".")[1] in KEPT:
            table.pop(overload)
    # PyTorch 2.6 does not have it by default.
    table.update(get_decompositions([torch.ops.aten.linalg_vector_norm.default]))
    return table


def _translated(
    model: torch.nn.Module, program: ExportedProgram, names: list[str], metrics: list[str], location: str
) -> TracedModel:
    parameters = model.named_parameters(remove_duplicate=False)
    translator = Translator({name: as_real(parameter) for name, parameter in parameters}, location)
    _add_inputs(translator, program, names)
    outputs: list[Operand] = [None]
    used = _nodes_of_outputs(program.graph, len(metrics) + 1)
    for node in program.graph.nodes:
        if node.op == "call_function" and node in used:
            translator.translate(node)
        elif node.op == "output":
            outputs = [translator.operand(output) for output in node.args[0][-len(metrics) - 1 :]]
    *_, output = program.graph.nodes
    try:
        terms = terms_of(translator, outputs.pop())
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{source_location(output.args[0][-1], location)}: {error}") from error
    for name, metric in zip(metrics, outputs, strict=True):
        add_metric(translator, name, metric)
    try:
        reduction = emit_losses(translator, terms)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{source_location(output.args[0][-1], location)}: {error}") from error
    _check_changed_buffers(program, used, location)
    return TracedModel(translator.graph.document() | {"reduction": reduction}, translator.tensors)


def _check_changed_buffers(program: ExportedProgram, used: set[torch.fx.Node], location: str) -> None:
    """Reject a loss that depends on a buffer that the module changes, which the appliance would not."""
    changed = set(program.graph_signature.buffers_to_mutate.values())
    buffers = program.graph_signature.inputs_to_buffers
    for node in program.graph.nodes:
        if node in used and buffers.get(node.name) in changed:
            user = next(user for user in node.users if user in used)
            raise UnsupportedModelError(
                f"{source_location(user, location)}: the loss depends on the buffer "
                f"{buffers[node.name].removeprefix('model.')}, which the module changes in each step: "
                "compute with inputs and fixed buffers only"
            )


def _nodes_of_outputs(graph: torch.fx.Graph, outputs: int) -> set[torch.fx.Node]:
    """Return the nodes of which the last outputs are computed. The loss is the last one."""
    used: set[torch.fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "output":
            used |= {output for output in node.args[0][-outputs:] if isinstance(output, torch.fx.Node)}
        elif node in used or _modifies_in_place(node, used):
            used |= {node, *node.all_input_nodes}
    return used


def _modifies_in_place(node: torch.fx.Node, values: set[torch.fx.Node]) -> bool:
    """Return whether an operator changes one of these values in place."""
    name = str(node.target).removeprefix("aten.").split(".")[0]
    is_in_place = name.endswith("_") and not name.endswith("__")
    return is_in_place and any(item in values for item in node.all_input_nodes)


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
            name, shape = first_names.setdefault(key, name), tuple(data.shape)
            is_complex = node.meta["val"].is_complex()
            parameter = ComplexParameter(name, shape[:-1]) if is_complex else Parameter(name, shape)
            translator.known[node.name] = parameter
        elif spec.kind == InputKind.USER_INPUT:
            example, name = node.meta["val"], next(remaining)
            if example.dtype not in DTYPES:
                raise UnsupportedModelError(
                    f"the input {name} is of type {example.dtype}: use float32, int64 or bool"
                )
            layout = Layout.of(example.shape)
            # Data are numbers: a mask is one of 0 and 1.
            dtype = DTYPES[example.dtype]
            value = translator.graph.input(name, "i32" if dtype == "bool" else dtype, layout.sample)
            translator.known[node.name] = Traced(translator.cast(value, dtype), layout)
        else:
            stored = program.constants if spec.target in program.constants else program.state_dict
            data = stored.get(spec.target)
            if isinstance(data, torch.Tensor):
                translator.known[node.name] = Fixed(data.detach(), Layout(tuple(data.shape)))
            else:
                # A generator of random numbers, or a token of effects: their operators are not supported.
                translator.known[node.name] = None
