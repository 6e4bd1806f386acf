"""Builds the document of a graph, as docs/reference/graph.md describes it."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

DTYPES = {torch.float32: "f32", torch.int32: "i32", torch.int64: "i32", torch.bool: "bool"}
"""Types of elements that documents have, by those of PyTorch. 64-bit integers must fit into 32 bits."""

MAX_CONSTANT_ELEMENTS = 1 << 18
"""Maximum elements of a constant."""


@dataclass(frozen=True)
class Value:
    """A value of a graph: its number, element type, and dimensions per sample."""

    number: int
    dtype: str
    shape: tuple[int, ...]


@dataclass
class GraphBuilder:
    """A graph that grows by one operator at a time."""

    path: str = ""
    """The module of the operators that are added, such as `layers.3.mlp`."""
    values: list[dict[str, Any]] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    tensors: list[dict[str, Any]] = field(default_factory=list)
    constants: list[dict[str, Any]] = field(default_factory=list)
    nodes: list[dict[str, Any]] = field(default_factory=list)
    _constants: dict[tuple[str, tuple[int, ...], bytes], Value] = field(default_factory=dict)

    def _value(self, name: str, dtype: str, shape: tuple[int, ...]) -> Value:
        self.values.append({"name": name, "dtype": dtype, "shape": list(shape)})
        return Value(len(self.values) - 1, dtype, shape)

    def input(self, name: str, dtype: str, shape: tuple[int, ...]) -> Value:
        """Add an input that the data deliver."""
        value = self._value(name, dtype, shape)
        self.inputs.append(value.number)
        return value

    def tensor(
        self, name: str, shape: tuple[int, ...], role: str, init: dict[str, Any], *, trained: bool
    ) -> int:
        """Add a tensor; return its number."""
        tensor = {"name": name, "shape": list(shape), "role": role, "init": init}
        self.tensors.append(tensor if trained else tensor | {"trained": False})
        return len(self.tensors) - 1

    def constant(self, data: torch.Tensor) -> Value:
        """Return a value with these elements, the same in each sample."""
        dtype = DTYPES[data.dtype]
        stored = data.to(torch.float32 if dtype == "f32" else torch.int32).contiguous()
        content = stored.numpy().tobytes()
        key = (dtype, tuple(data.shape), content)
        if key not in self._constants:
            value = self._value(f"constant_{len(self.constants)}", dtype, tuple(data.shape))
            self.constants.append({"value": value.number, "data": base64.b64encode(content).decode()})
            self._constants[key] = value
        return self._constants[key]

    def node(
        self,
        op: dict[str, Any],
        inputs: list[Value],
        shape: tuple[int, ...],
        dtype: str = "f32",
        params: Sequence[int] = (),
        name: str = "",
    ) -> Value:
        """Add an operator; return its output."""
        output = self._value(name or f"{op['op']}_{len(self.nodes)}", dtype, shape)
        self._node(op, inputs, params, output.number)
        return output

    def loss(self, op: dict[str, Any], inputs: list[Value], weight: Value | None = None) -> None:
        """Add an operator without output. One with a weight is divided by the sum of it over the batch."""
        self._node(op, inputs if weight is None else [*inputs, weight], (), None)

    def _node(
        self, op: dict[str, Any], inputs: list[Value], params: Sequence[int], output: int | None
    ) -> None:
        numbers = [value.number for value in inputs]
        node = {"op": op, "inputs": numbers, "params": list(params), "output": output, "path": self.path}
        self.nodes.append(node)

    def document(self) -> dict[str, Any]:
        """Return the document."""
        return {
            "version": 2,
            "inputs": self.inputs,
            "constants": self.constants,
            "tensors": self.tensors,
            "values": self.values,
            "nodes": self.nodes,
        }
