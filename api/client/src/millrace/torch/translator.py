"""Translates the operators of an exported program, in order."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from millrace.torch.document import DTYPES, MAX_CONSTANT_ELEMENTS, GraphBuilder, Value
from millrace.torch.layout import Layout, MixesSamplesError
from millrace.torch.locations import module_path, source_location
from millrace.torch.operands import (
    BatchSize,
    Complex,
    ComplexParameter,
    Fixed,
    LabelLosses,
    Loss,
    Losses,
    Operand,
    Parameter,
    ParameterView,
    Ratio,
    Traced,
    Uniform,
    UnsupportedModelError,
)

BATCH = 2
"""The size of the batch with which tensors that depend on no input are computed."""

SIZES = frozenset({"sym_size", "_assert_scalar", "_assert_tensor_metadata", "sym_constrain_range_for_size"})
"""Operators without a tensor as result."""

RANDOM = frozenset(
    {
        "native_dropout",
        "rand",
        "randn",
        "rand_like",
        "randn_like",
        "bernoulli",
        "randint",
        "randint_like",
        "normal",
        "normal_functional",
        "uniform",
        "exponential",
        "multinomial",
        "randperm",
    }
)
"""Operators whose result differs in each step."""

COMPUTED = (
    *(Traced, Parameter, ParameterView, Complex, ComplexParameter),
    *(LabelLosses, Loss, Losses, Ratio, Uniform),
)
"""Operands that depend on inputs, parameters or random numbers."""


class Translator:
    """Translates operators to those of a graph. Translations call the methods below `translate`."""

    def __init__(self, parameters: dict[str, torch.Tensor], location: str) -> None:
        self.graph = GraphBuilder()
        self.parameters = parameters
        self.known: dict[str, Operand] = {}
        """What the nodes of the program stand for, by name."""
        self.tensors: dict[str, bool] = {}
        """The parameters that are tensors of the graph, and whether they are transposed there."""
        self._numbers: dict[str, int] = {}
        self.counted_labels: dict[tuple[int, int], Value] = {}
        """Labels without those that are ignored, by the number of their value and the ignored label."""
        self.location = location
        """Where the operators are that no module computes: those of the loss."""
        self.name = ""
        """Name and overload of the operator that is being translated."""
        self.dtype = "f32"
        """Type of the elements that it computes."""

    def translate(self, node: torch.fx.Node) -> None:
        """Translate one operator."""
        self.graph.path = module_path(node)
        try:
            self.known[node.name] = self._call(node)
        except (MixesSamplesError, UnsupportedModelError) as error:
            where = source_location(node, self.location)
            is_moe = "/transformers/integrations/moe.py" in where
            advice = ": give the configuration experts_implementation='batched_mm'" if is_moe else ""
            raise UnsupportedModelError(f"{where}: {error}{advice}") from error
        except Exception as error:
            # Arguments that a translation does not expect.
            raise UnsupportedModelError(
                f"{source_location(node, self.location)}: the operator {node.target} of PyTorch is "
                f"not supported with these arguments ({type(error).__name__}: {error})"
            ) from error

    def operand(self, argument: Any) -> Operand:
        """Return what an argument of an operator stands for."""
        if isinstance(argument, torch.fx.Node):
            return self.known[argument.name]
        if isinstance(argument, list | tuple):
            return [self.operand(item) for item in argument]
        return argument

    def _call(self, node: torch.fx.Node) -> Operand:
        from millrace.torch.operators import COMPLEX_TRANSLATIONS, TRANSLATIONS, is_complex
        from millrace.torch.operators.unsupported import message

        args = [self.operand(argument) for argument in node.args]
        kwargs = {name: self.operand(argument) for name, argument in node.kwargs.items()}
        target, meta = node.target, node.meta.get("val")
        if not isinstance(target, torch._ops.OpOverload):
            if isinstance(target, torch._ops.OperatorBase):
                raise UnsupportedModelError(f"the operator {target} of PyTorch is not supported")
            return target(*args)  # arithmetic of sizes, or an item of a list
        self.name = str(target).removeprefix("aten.").removeprefix("millrace.")
        base = self.name.split(".")[0]
        if base in SIZES:
            return meta
        flat = _flatten([*args, *kwargs.values()])
        if base not in RANDOM and not any(isinstance(item, COMPUTED) for item in flat):
            return _evaluate(target, base, args, kwargs, meta)
        first = meta[0] if isinstance(meta, list | tuple) else meta
        if first is meta and any(isinstance(size, int) and size == 0 for size in meta.shape):
            return without_elements(Layout.of(meta.shape), meta.dtype)
        has_complex = first.is_complex() or any(is_complex(item) for item in flat)
        table = COMPLEX_TRANSLATIONS if has_complex else TRANSLATIONS
        translation = table.get(self.name) or table.get(base)
        if translation is None:
            raise UnsupportedModelError(message(base, is_complex=has_complex))
        self.dtype = DTYPES.get(first.dtype, "f32")
        layout = _inherit_sample_order(Layout.of(first.shape), _with_parts(flat))
        result = translation(self, layout, args, kwargs)
        if isinstance(result, Traced):
            found, expected = (result.layout.sizes, result.value.shape), (layout.sizes, result.layout.sample)
            assert found == expected, f"shape {found[1]} instead of {expected[1]}"
        return result

    def tensor(
        self,
        parameter: Parameter,
        role: str,
        *,
        transposed: bool = False,
        shape: tuple[int, ...] | None = None,
    ) -> int:
        """Return the number of the tensor of a parameter, as the module has it or transposed.

        With a `shape`, it has the same elements in the same order with these dimensions.
        """
        shape = shape or (parameter.shape[::-1] if transposed else parameter.shape)
        transposed ^= parameter.transposed
        source = self.parameters[parameter.name]
        data = source.detach()
        if self.tensors.setdefault(parameter.name, transposed) != transposed:
            raise UnsupportedModelError(f"the parameter {parameter.name} is used as it is and transposed")
        if parameter.name not in self._numbers:
            initial, trained = _initial(data), source.requires_grad
            number = self.graph.tensor(parameter.name, shape, role, initial, trained=trained)
            self._numbers[parameter.name] = number
        number = self._numbers[parameter.name]
        if self.graph.tensors[number]["shape"] != list(shape):
            raise UnsupportedModelError(f"the parameter {parameter.name} is used in two shapes")
        return number

    def is_used_in_another_shape(self, parameter: Parameter, *, transposed: bool = False) -> bool:
        """Return whether a parameter is a tensor already, with other dimensions than in this use of it."""
        if parameter.name not in self.tensors:
            return False
        shape = parameter.shape[::-1] if transposed else parameter.shape
        known = self.graph.tensors[self._numbers[parameter.name]]
        transposed ^= parameter.transposed
        return self.tensors[parameter.name] != transposed or known["shape"] != list(shape)

    def traced(self, operand: Operand) -> Traced:
        """Return a tensor as a value with its layout."""
        if isinstance(operand, Traced):
            return operand
        if isinstance(operand, Parameter | ParameterView):
            return Traced(self._parameter_value(operand), Layout(operand.shape))
        if isinstance(operand, LabelLosses):
            return Traced(self.reshape(operand.emit(), operand.layout.sample), operand.layout)
        if isinstance(operand, Fixed):
            return Traced(self.value(operand, operand.layout), operand.layout)
        if isinstance(operand, Uniform):
            numbers = self.random("uniform", operand.layout)
            if operand.start:
                node = {"op": "binary", "function": "add"}
                numbers = self.graph.node(node, [numbers, self.number(operand.start)], numbers.shape)
            return Traced(numbers, operand.layout)
        if isinstance(operand, Loss | Losses | Ratio):
            raise UnsupportedModelError(
                "a mean over the batch can be multiplied by numbers and added to another, and nothing else: "
                "apply other functions to the losses of each sample, before the mean"
            )
        if isinstance(operand, torch.SymInt | BatchSize):
            raise MixesSamplesError("it computes with the size of the batch, on which no sample may depend")
        raise UnsupportedModelError(f"a {type(operand).__name__.lower()} where a tensor is expected")

    def _parameter_value(self, operand: Parameter | ParameterView) -> Value:
        """Return the elements of a parameter as a value."""
        name = operand.name
        if (
            isinstance(operand, Parameter)
            and not self.is_used_in_another_shape(operand)
            and name in self.tensors
        ):
            return self.graph.node({"op": "parameter"}, [], operand.shape, params=[self._numbers[name]])
        source = tuple(self.parameters[name].shape)
        if name not in self.tensors:
            is_turned = isinstance(operand, Parameter) and operand.transposed and len(source) == 2
            turned = Parameter(name, source[::-1], transposed=True)
            self.tensor(
                turned if is_turned else Parameter(name, source), "weight" if len(source) > 1 else "bias"
            )
        known = tuple(self.graph.tensors[self._numbers[name]]["shape"])
        value = self.graph.node({"op": "parameter"}, [], known, params=[self._numbers[name]])
        if self.tensors[name]:
            if len(known) != 2:
                raise UnsupportedModelError(f"the parameter {name} is used as it is and transposed")
            if isinstance(operand, Parameter) and operand.transposed and operand.shape == known:
                return value
            value = self._permuted(value, [1, 0])
        # A view has the elements in the order of its strides.
        strides = (ParameterView.of(operand) if isinstance(operand, Parameter) else operand).strides
        order = sorted(range(strides.dim()), key=lambda at: (-strides.stride(at), -strides.shape[at]))
        value = self.reshape(value, tuple(strides.shape[at] for at in order))
        return self._permuted(value, [order.index(at) for at in range(len(order))])

    def _permuted(self, x: Value, order: list[int]) -> Value:
        if order == sorted(order):
            return x
        shape = tuple(x.shape[at] for at in order)
        return self.graph.node({"op": "permute", "order": order}, [x], shape, x.dtype)

    def parameter_view(
        self, operand: Parameter | ParameterView, change: Callable[[torch.Tensor], torch.Tensor]
    ) -> Parameter | ParameterView | None:
        """Return a parameter with its dimensions changed by `change`; None if that needs other strides."""
        view = operand if isinstance(operand, ParameterView) else ParameterView.of(operand)
        try:
            changed = ParameterView(view.name, change(view.strides))
        except RuntimeError:
            return None
        simple, source = changed.simplified(), tuple(self.parameters[view.name].shape)
        # Whether a matrix was transposed before or after its dimensions were changed could not be said.
        is_ambiguous = isinstance(simple, Parameter) and simple.transposed and len(source) == 2
        return changed if is_ambiguous and simple.shape[::-1] != source else simple

    def value(self, operand: Operand, batch: Layout) -> Value:
        """Return an operand as a value that is broadcast to a tensor of this layout."""
        if isinstance(operand, bool | int | float):
            return self.number(operand, "bool" if isinstance(operand, bool) else "f32")
        if isinstance(operand, Fixed):
            outer = batch.outer if batch.merged == operand.layout.merged else operand.layout.outer
            return self.constant(sample_elements(operand, outer).reshape(operand.layout.broadcast_to(batch)))
        traced = self.traced(operand)
        return self.reshape(traced.value, traced.layout.broadcast_to(batch))

    def number(self, number: float, dtype: str = "f32") -> Value:
        """Return a constant of one number."""
        kinds = {"f32": (float, torch.float32), "i32": (int, torch.int32), "bool": (bool, torch.bool)}
        convert, kind = kinds[dtype]
        return self.graph.constant(torch.tensor(convert(number), dtype=kind))

    def random(self, distribution: str, layout: Layout) -> Value:
        """Return random numbers, others for each sample and each step; in evaluations, their mean."""
        shape = layout.sample
        node = {"op": "random", "distribution": distribution, "dimensions": list(shape)}
        return self.graph.node(node, [], shape)

    def constant(self, data: torch.Tensor) -> Value:
        """Return a constant; elements that are repeated along a dimension are stored once."""
        if data.is_floating_point():
            data = data.to(torch.float32)
        elif data.dtype not in DTYPES:
            data = data.to(torch.int64)
        once = data
        for axis, size in enumerate(data.shape):
            first = once.narrow(axis, 0, 1)
            if size > 1 and torch.equal(once, first.expand_as(once)):
                once = first
        if once.numel() > MAX_CONSTANT_ELEMENTS:
            raise UnsupportedModelError(
                f"a fixed tensor of {once.numel()} elements; at most {MAX_CONSTANT_ELEMENTS} are supported"
            )
        return self.expand(self.graph.constant(once), tuple(data.shape))

    def reshape(self, x: Value, shape: tuple[int, ...]) -> Value:
        """Return the same elements with other dimensions."""
        if shape == x.shape:
            return x
        return self.graph.node({"op": "reshape", "dimensions": list(shape)}, [x], shape, x.dtype)

    def expand(self, x: Value, shape: tuple[int, ...]) -> Value:
        """Return a value whose elements are repeated."""
        if shape == x.shape:
            return x
        x = self.reshape(x, (1,) * (len(shape) - len(x.shape)) + x.shape)
        if shape == x.shape:
            return x
        return self.graph.node({"op": "expand", "dimensions": list(shape)}, [x], shape, x.dtype)

    def cast(self, x: Value, dtype: str) -> Value:
        """Return a value of another type."""
        if dtype == x.dtype:
            return x
        return self.graph.node({"op": "cast", "to": dtype}, [x], x.shape, dtype)

    def is_indicator(self, x: Value) -> bool:
        """Return whether the elements of a value are truth values as numbers: each is 0 or 1."""
        if x.dtype == "bool":
            return True
        node = next((node for node in reversed(self.graph.nodes) if node["output"] == x.number), None)
        if node is None:
            return False
        sources = [self.graph.values[number] for number in node["inputs"]]
        inputs = [
            Value(number, source["dtype"], tuple(source["shape"]))
            for number, source in zip(node["inputs"], sources, strict=True)
        ]
        op = node["op"]
        is_move = op["op"] in ("cast", "reshape", "expand", "permute", "slice", "one_hot")
        if is_move or (op["op"] == "binary" and op["function"] == "mul"):
            return op["op"] == "one_hot" or (bool(inputs) and all(self.is_indicator(item) for item in inputs))
        return False

    def broadcast(self, *values: Value) -> tuple[int, ...]:
        """Return the dimensions to which values are broadcast."""
        return tuple(torch.broadcast_shapes(*(value.shape for value in values)))


def _flatten(items: list[Any]) -> list[Any]:
    return [inner for item in items for inner in (_flatten(item) if isinstance(item, list) else [item])]


def _with_parts(operands: list[Any]) -> list[Any]:
    """Return operands with the real parts of complex ones in place of these."""
    return [operand.real if isinstance(operand, Complex) else operand for operand in operands]


def _inherit_sample_order(layout: Layout, operands: list[Any]) -> Layout:
    """Return a layout whose samples are in the order of those of the operands."""
    if layout.merged == 1:
        return layout
    merged = [item for item in operands if isinstance(item, Traced | Fixed) and item.layout.merged > 1]
    # Fixed tensors follow the order of the others, if their elements allow it.
    outers = {item.layout.outer for item in merged if isinstance(item, Traced)}
    outers = outers or {item.layout.outer for item in merged}
    if len(outers) > 1:
        raise MixesSamplesError("it combines tensors in which samples are in another order")
    return Layout(layout.sizes, layout.axis, layout.merged, outers.pop() if outers else 1)


def _evaluate(target: Any, name: str, args: list[Any], kwargs: dict[str, Any], meta: Any) -> Operand:
    """Compute a tensor that depends on no input and on no parameter, by the operator of this name."""

    def concrete(item: Any, batch: int) -> Any:
        if isinstance(item, Fixed):
            return item.tensor
        if isinstance(item, BatchSize):
            return item.tensor if batch == BATCH else item.next
        if isinstance(item, torch.SymInt):
            expression = item.node.expr
            return int(expression.subs(dict.fromkeys(expression.free_symbols, batch)))
        return [concrete(inner, batch) for inner in item] if isinstance(item, list) else item

    def compute(batch: int) -> Any:
        named = {name: concrete(value, batch) for name, value in kwargs.items()}
        with torch.no_grad():
            return target(*concrete(args, batch), **named)

    result = compute(BATCH)
    if isinstance(result, torch.Tensor):
        if "empty" in name:
            # Elements that are assigned later. They would differ from one trace to the next.
            return Fixed(result.zero_(), Layout.of(meta.shape))
        layout = _fixed_layout(Layout.of(meta.shape), name, args)
        if layout.axis is not None and any(isinstance(item, BatchSize) for item in _flatten(args)):
            raise MixesSamplesError("it computes with the size of the batch, on which no sample may depend")
        if layout.axis is None and any(isinstance(item, torch.SymInt | BatchSize) for item in _flatten(args)):
            larger = compute(BATCH + 1)
            return Fixed(result, layout) if torch.equal(result, larger) else BatchSize(result, larger)
        return Fixed(result, layout)
    return [Fixed(item, Layout.of(like.shape)) for item, like in zip(result, meta, strict=True)]


def _fixed_layout(layout: Layout, name: str, args: list[Any]) -> Layout:
    """Return the layout of what an operator computes from fixed tensors, with the order of its samples."""
    sources = [item.layout for item in _flatten(args) if isinstance(item, Fixed)]
    sources = [source for source in sources if source.axis is not None]
    if layout.merged == 1 or not sources:
        return layout
    if name in ("view", "reshape", "_unsafe_view"):
        with suppress(MixesSamplesError):
            return sources[0].reshaped(layout)
        return layout
    outers = {source.outer for source in sources if source.merged == layout.merged}
    return replace(layout, outer=outers.pop()) if len(outers) == 1 else layout


def without_elements(layout: Layout, dtype: torch.dtype) -> Fixed:
    """Return a tensor of which a dimension is 0, such as the part of a head that has no rotary position."""
    sizes = [size * (BATCH if axis == layout.axis else 1) for axis, size in enumerate(layout.sizes)]
    return Fixed(torch.zeros(sizes, dtype=dtype), layout)


def sample_elements(operand: Fixed, outer: int | None = None) -> torch.Tensor:
    """Return the elements of one sample of a tensor, which must be those of every sample.

    `outer` is the part of the dimension of the batch that counts before it, if another tensor decides that.
    """
    layout = operand.layout
    if layout.axis is None:
        return operand.tensor
    outer = outer or layout.outer
    samples = operand.tensor.unflatten(layout.axis, (outer, BATCH, layout.merged // outer))
    first, second = samples.unbind(layout.axis + 1)
    if not torch.equal(first, second):
        raise MixesSamplesError("it numbers the samples of a batch")
    return first.flatten(layout.axis, layout.axis + 1)


def _initial(data: torch.Tensor) -> dict[str, Any]:
    """Describe the elements of a parameter: a constant, or a normal distribution."""
    first = data.flatten()[0]
    if bool((data == first).all()):
        return {"kind": "constant", "value": float(first)}
    return {"kind": "normal", "mean": float(data.mean()), "std": float(data.std())}
