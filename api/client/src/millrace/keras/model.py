"""What the training of a Keras model computes: its loss in training mode, as `fit` computes it."""

from __future__ import annotations

import contextlib
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
from keras.src.losses import loss as losses
from keras.src.trainers.compile_utils import CompileLoss

from millrace.keras.network import user_frame
from millrace.keras.weights import Weight, kernel_order, unique_names
from millrace.torch.operands import UnsupportedModelError

STATE_ADVICE = "use layers without a state"


class LossOfModel:
    """Computes the loss of a Keras model: that of `compile`, or another one, and those of its layers."""

    def __init__(self, model: Any, loss: Any = None) -> None:
        self.model = model
        self._given = None if loss is None else CompileLoss(loss, output_names=model.output_names)
        self.function = loss
        if self._given is None and not getattr(model, "compiled", False):
            raise UnsupportedModelError(
                "the model has no loss: call model.compile(optimizer, loss), or give loss"
            )

    def __call__(self, x: Any, y: Any) -> Any:
        """Return the loss of a batch, as a tensor of the backend."""
        model = self.model
        predicted = model(x, training=True)
        if self._given is None and not _is_of_keras(type(model).compute_loss):
            return model.compute_loss(x=x, y=y, y_pred=predicted, training=True)
        compiled = self._given or model._compile_loss
        parts = [] if compiled is None else [compiled(y, predicted)]
        parts += [part if len(part.shape) == 0 else keras.ops.sum(part) for part in model.losses]
        parts = [part for part in parts if part is not None]
        if not parts:
            raise UnsupportedModelError(
                "the model has no loss: call model.compile(optimizer, loss), or give loss"
            )
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    def build(self, x: Any, y: Any) -> None:
        """Create what the model and its loss create at their first call, from a batch of tensors.

        It would be bound to the trace otherwise.
        """
        compiled = self._given or getattr(self.model, "_compile_loss", None)
        if not self.model.built or (compiled is not None and not compiled.built):
            predicted = self.model(x, training=False)
            if compiled is not None and not compiled.built:
                compiled.build(y, predicted)

    def user_functions(self) -> list[Callable[..., Any]]:
        """Return the functions of the user that the loss is computed by."""
        kinds = {type(layer): layer for layer in layers_of(self.model)}
        found = [kind.call for kind in kinds if not _is_of_keras(kind)]
        found.append(type(self.model).compute_loss)
        given = getattr(self.model, "loss", None) if self.function is None else self.function
        found += [item for item in keras.tree.flatten(given) if callable(item)]
        return [item for item in found if isinstance(item, types.FunctionType) and not _is_of_keras(item)]


def layers_of(model: Any) -> list[Any]:
    """Return the model and all layers in it, each once."""
    return list({id(layer): layer for layer in model._flatten_layers()}.values())


def _is_of_keras(item: Any) -> bool:
    return str(getattr(item, "__module__", "")).split(".")[0] == "keras"


def check(model: Any) -> None:
    """Reject what can't be trained as Keras trains it, by the name of the layer.

    Raises `UnsupportedModelError`.
    """
    if not _is_of_keras(type(model).train_step):
        raise UnsupportedModelError(
            f"{type(model).__name__} has its own train_step, which is not used: write the loss as "
            "compute_loss, or as a tf.function"
        )
    for layer in layers_of(model):
        where = f"the layer {layer.path or layer.name}"
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable:
            raise UnsupportedModelError(
                f"{where} is a BatchNormalization, which computes over the samples of a batch: use "
                "GroupNormalization or LayerNormalization, or set trainable = False to keep its statistics"
            )
        if getattr(layer, "stateful", False):
            raise UnsupportedModelError(f"{where} is stateful: {STATE_ADVICE}")
        policy = layer.dtype_policy
        if policy.variable_dtype != "float32" or policy.compute_dtype not in ("float32", "bfloat16"):
            raise UnsupportedModelError(
                f"{where} has the dtype policy {policy.name}: use float32 or mixed_bfloat16"
            )
    for variable in model.trainable_variables:
        if variable.dtype != "float32":
            raise UnsupportedModelError(
                f"the variable {variable.path} is of type {variable.dtype}: use float32"
            )
        if getattr(variable, "constraint", None) is not None:
            raise UnsupportedModelError(
                f"the variable {variable.path} has a constraint ({type(variable.constraint).__name__}), "
                "which the appliance does not apply: leave it out, or use weight decay"
            )


@contextlib.contextmanager
def in_float32(model: Any) -> Iterator[bool]:
    """Compute in float32 what layers compute in bfloat16, and yield whether there are such layers.

    A graph is computed in one precision, which is a setting of the job.
    """
    mixed = [layer for layer in layers_of(model) if layer.compute_dtype == "bfloat16"]
    policies = [layer.dtype_policy for layer in mixed]
    try:
        for layer in mixed:
            layer.dtype_policy = "float32"
        yield bool(mixed)
    finally:
        for layer, policy in zip(mixed, policies, strict=True):
            layer.dtype_policy = policy


def weights_of(model: Any) -> list[Weight]:
    """Return the variables of a model, in the order of `model.weights`; each once."""
    trained = {id(variable) for variable in model.trainable_variables}
    orders = _kernel_orders(model)
    variables = list(model.weights)
    names = unique_names(variable.path for variable in variables)
    return [
        Weight(name, variable, id(variable) in trained, orders.get(id(variable)))
        for name, variable in zip(names, variables, strict=True)
    ]


def _kernel_orders(model: Any) -> dict[int, tuple[int, ...]]:
    """Return the order of dimensions in the graph of the kernels of convolutions."""
    kernels = [
        variable
        for layer in layers_of(model)
        if type(layer).__name__.replace("Transpose", "").rstrip("123D").endswith("Conv")
        for variable in layer.weights
        if len(variable.shape) >= 3
    ]
    return {id(kernel): kernel_order(len(kernel.shape)) for kernel in kernels}


RANDOM = (
    *("normal", "uniform", "truncated_normal", "randint", "categorical", "gamma", "beta", "binomial"),
    "shuffle",
)
"""Random functions of Keras that are not supported."""


def _rejected(name: str) -> Callable[..., Any]:
    """Return a function that rejects the layer that calls it."""

    def reject(*_: Any, **__: Any) -> Any:
        frames = traceback.walk_stack(None)
        owners = (frame.f_locals.get("self") for frame, _ in frames)
        layer = next((item for item in owners if isinstance(item, keras.layers.Layer)), None)
        source_line = user_frame([(item.filename, item.lineno or 0) for item in traceback.extract_stack()])
        where = "the model" if layer is None else f"the layer {layer.path or layer.name}"
        if layer is not None and not _is_of_keras(type(layer)) and source_line:
            where += f" ({source_line[0]}:{source_line[1]})"
        raise UnsupportedModelError(
            f"{where} uses random numbers (keras.random.{name}): use Dropout, the only random layer that is "
            "supported"
        )

    return reject


@contextlib.contextmanager
def tracing(model: Any, dropout: Callable[..., Any] | None = None) -> Iterator[None]:
    """Compute what a graph can't have in another way, while a model is traced.

    Dropout is computed by the function `dropout`, loops of recurrent layers are unrolled, and the mean of
    losses is computed without the size of the batch.
    """
    with contextlib.ExitStack() as stack:
        for layer in layers_of(model):
            if getattr(layer, "unroll", True) is False:
                stack.enter_context(replaced(layer, "unroll", True))
        if dropout is not None:
            stack.enter_context(replaced(keras.src.backend.random, "dropout", dropout))
        for name in RANDOM:
            stack.enter_context(replaced(keras.src.backend.random, name, _rejected(name)))
        original = losses.reduce_values

        def reduce_values(
            values: Any, sample_weight: Any = None, reduction: str = "sum_over_batch_size"
        ) -> Any:
            is_mean = reduction in ("sum_over_batch_size", "mean") and len(values.shape) > 0
            return keras.ops.mean(values) if is_mean else original(values, sample_weight, reduction)

        stack.enter_context(replaced(losses, "reduce_values", reduce_values))
        yield


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute for a while."""
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextlib.contextmanager
def named_forward(functions: Sequence[Callable[..., Any]]) -> Iterator[None]:
    """Give functions the name `forward` for a while: PyTorch records the lines of such functions only."""
    with contextlib.ExitStack() as stack:
        for function in {id(item): item for item in functions}.values():
            code: Any = function.__code__
            stack.enter_context(replaced(function, "__code__", code.replace(co_name="forward")))
        yield


def check_states(variables: Sequence[Any], is_changed: Callable[[Any], bool]) -> None:
    """Reject a model that changes a state while it is called, other than that of random numbers."""
    for variable in variables:
        if "seed_generator_state" not in variable.path and is_changed(variable):
            raise UnsupportedModelError(
                f"the model changes the state {variable.path} while it is called: {STATE_ADVICE}"
            )
