"""Exports a module with its loss, and translates it."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._decomp import get_decompositions
from torch.export import Dim, ExportedProgram, default_decompositions, export
from torch.export.graph_signature import InputKind

from millrace.torch.document import DTYPES
from millrace.torch.layout import Layout
from millrace.torch.metrics import add_metric, loss_and_metrics
from millrace.torch.operands import Fixed, Loss, Operand, Parameter, Ratio, Traced, UnsupportedModelError
from millrace.torch.traced_model import TracedModel
from millrace.torch.translator import GENERATED, Translator, library_directories, source_location
from millrace.torch.triton import hide_triton

KEPT = frozenset(
    {
        *("linear", "scaled_dot_product_attention", "layer_norm", "rms_norm", "group_norm", "embedding"),
        *("cross_entropy_loss", "mse_loss", "nll_loss", "nll_loss_nd", "nll_loss2d", "gelu", "silu"),
        *("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_max_pool1d", "adaptive_max_pool2d"),
        *("instance_norm", "stack", "one_hot", "feature_dropout"),
        *("upsample_nearest1d", "upsample_nearest2d", "_upsample_nearest_exact2d", "upsample_linear1d"),
        *("upsample_bilinear2d", "upsample_bicubic2d", "embedding_bag", "elu", "leaky_relu", "softplus"),
        *("bernoulli", "lstm", "gru", "rnn_tanh", "rnn_relu"),
    }
)
"""Operators of PyTorch that are translated as a whole."""

REDUCTIONS = {"num_tokens": "labels", "batch_size": "samples", "sum": "sum"}
"""The reduction of a document, by what the sum of the losses is divided by."""


class _Call(torch.nn.Module):
    """Calls a module and its loss with positional inputs, as keyword arguments can't be exported."""

    def __init__(self, model: torch.nn.Module, call: Callable[..., Any], metrics: list[str]) -> None:
        """Create the module; its calls write the names of the metrics to `metrics`."""
        super().__init__()
        self.model = model
        self.call = call
        self.metrics = metrics

    def forward(self, *batch: Any) -> Any:
        """Return the metrics of a batch, and its loss as the last value."""
        loss, metrics = loss_and_metrics(self.call(self.model, *batch))
        self.metrics[:] = metrics
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
    if call is None:
        call = _without_loss if loss is None else _with_loss(loss)
    metrics: list[str] = []
    module = _Call(model, call, metrics)
    was_training = model.training
    try:
        program = _exported(module.train(), tuple(batch.values()), location)
    finally:
        model.train(was_training)
    return _translated(model, program, list(batch), metrics, location)


def _location(function: Callable[..., Any] | None) -> str:
    """Return where the function of the loss begins. PyTorch records lines of modules only."""
    code = getattr(function, "__code__", None)
    return f"the loss ({code.co_filename}:{code.co_firstlineno})" if code else "the loss"


def _check(model: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> None:
    sizes = {name: tensor.shape[0] if tensor.dim() else 0 for name, tensor in batch.items()}
    if len(set(sizes.values())) != 1 or min(sizes.values()) < 2:
        found = ", ".join(f"{name} has {size}" for name, size in sizes.items())
        raise UnsupportedModelError(
            f"the example has to be a batch of the same two or more samples in each input: {found}"
        )
    for name, parameter in model.named_parameters():
        if parameter.dtype != torch.float32:
            raise UnsupportedModelError(
                f"the parameter {name} is of type {parameter.dtype}: use model.float()"
            )
        if parameter.numel() == 0 or not bool(parameter.isfinite().all()):
            raise UnsupportedModelError(f"the parameter {name} has no elements, or some that are not finite")


def _exported(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], location: str) -> ExportedProgram:
    shapes = (tuple({0: Dim.DYNAMIC} for _ in inputs),)
    try:
        hide_triton()
        # With that package, einsum chooses an order by sizes, and the size of the batch is a symbol.
        with torch.backends.opt_einsum.flags(enabled=False):
            program = export(module, inputs, dynamic_shapes=shapes, strict=False)
        _check_before_decomposition(program, location)
        _widen_cross_entropies(program.graph)
        return program.run_decompositions(_decompositions())
    except UnsupportedModelError:
        raise
    except Exception as error:
        _check_call(module, inputs)
        raise UnsupportedModelError(f"{_line_of(error)}{_export_failure(error)}") from error


def _export_failure(error: Exception) -> str:
    """Return why PyTorch can't export a module. It raises errors of many kinds."""
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if "inside of vmap" in reason and "masking_utils" in _line_of(error):
        return (
            f"PyTorch {torch.__version__} can't export the masks of this version of transformers: install a "
            "newer PyTorch, or transformers<4.53"
        )
    if "specialized it to be a constant" in str(error):
        reason = "use x.shape[0] in place of len(x), and no number in place of the size of the batch"
    return (
        "PyTorch can't export the module: control flow must not depend on data, nor on the size of the batch "
        f"({reason})"
    )


def _check_call(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
    """Reject a module that can't be called with the example at all, with the error of PyTorch."""
    try:
        with torch.no_grad(), torch.random.fork_rng():
            module(*inputs)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UnsupportedModelError(
            f"{_line_of(error)}the module fails with the example: check names, order and shapes of the data "
            f"({reason})"
        ) from error


def _line_of(error: Exception) -> str:
    """Return the last line of the user's code that an error passed, as the beginning of a message."""
    standard, packages = sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = frame.filename
        # Packages may be below the standard library.
        is_standard = file.startswith(standard) and not file.startswith(packages)
        if not (is_standard or GENERATED.match(file) or file.startswith(library_directories())):
            return f"{file}:{frame.lineno}: "
    return ""


def _check_before_decomposition(program: ExportedProgram, location: str) -> None:
    """Reject what decompositions do not preserve: stopped gradients, and the evaluation of alpha dropout."""
    specs = program.graph_signature.input_specs
    trained = {
        spec.arg.name
        for spec in specs
        if spec.kind == InputKind.PARAMETER and program.state_dict[spec.target].requires_grad
    }
    # Metrics have no gradients.
    of_loss = _nodes_of_outputs(program.graph, 1)
    for node in program.graph.nodes:
        name = str(node.target)
        if "alpha_dropout" in name:
            raise UnsupportedModelError(f"{source_location(node, location)}: alpha dropout: use Dropout")
        values = node.meta.get("val")
        values = values if isinstance(values, list | tuple) else [values]
        is_float = any(isinstance(value, torch.Tensor) and value.is_floating_point() for value in values)
        if not is_float or not any(source.name in trained for source in node.all_input_nodes):
            continue
        trained.add(node.name)
        if node not in of_loss:
            continue
        if name.startswith("aten.detach") or (name == "wrap_with_set_grad_enabled" and not node.args[0]):
            where = source_location(_first_operator_of_region(program, node), location)
            raise UnsupportedModelError(
                f"{where}: detach() or no_grad(), or stop_gradient(), stops the gradient of a value "
                "that depends on parameters, which is not supported: compute it from inputs and buffers only"
            )


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


def _first_operator_of_region(program: ExportedProgram, node: torch.fx.Node) -> torch.fx.Node:
    """Return the first operator of the region that a node is, or the node itself."""
    for argument in node.all_input_nodes:
        region = getattr(program.graph_module, str(argument.target), None)
        if isinstance(region, torch.fx.GraphModule):
            return next((item for item in region.graph.nodes if item.op == "call_function"), node)
    return node


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
    translator = Translator(dict(model.named_parameters(remove_duplicate=False)), location)
    _add_inputs(translator, program, names)
    outputs: list[Operand] = [None]
    used = _nodes_of_outputs(program.graph, len(metrics) + 1)
    for node in program.graph.nodes:
        if node.op == "call_function" and node in used:
            translator.translate(node)
        elif node.op == "output":
            outputs = [translator.operand(output) for output in node.args[0][-len(metrics) - 1 :]]
    loss = outputs.pop()
    if isinstance(loss, Ratio):
        *_, output = program.graph.nodes
        raise UnsupportedModelError(
            f"{source_location(output.args[0][-1], location)}: a division by a sum over the batch: "
            "use cross_entropy with ignore_index, or a mean"
        )
    if not isinstance(loss, Loss):
        raise UnsupportedModelError(
            "the loss is not a mean over the samples of the batch; use reduction='mean'"
        )
    scalings = {term.scaling for term in loss.terms}
    if len(scalings) > 1:
        raise UnsupportedModelError(
            "the losses are divided by different numbers: of labels, of samples, or not at all"
        )
    labels = {term.labels.number for term in loss.terms if term.labels}
    if scalings == {"num_tokens"} and len(labels) > 1:
        raise UnsupportedModelError(
            "the losses are means over different labels: use one loss, or none with ignore_index if no label "
            "is ignored"
        )
    for name, metric in zip(metrics, outputs, strict=True):
        add_metric(translator, name, metric)
    for term in loss.terms:
        term.emit(term.factor)
    reduction = REDUCTIONS[scalings.pop()]
    return TracedModel(translator.graph.document() | {"reduction": reduction}, translator.tensors)


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
            translator.known[node.name] = Parameter(first_names.setdefault(key, name), tuple(data.shape))
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
