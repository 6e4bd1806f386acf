"""Recurrent layers (LSTM, GRU, RNN), unrolled over the steps of their sequence.

    inputs ── linear ──> gates of all steps ── slice ──┐
    state  ── linear ──────────────────────────────── add ──> cell ──> state of the next step

PyTorch decomposes them in the same way, but traces each operator of each step, which takes most of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from millrace.torch.document import Value
from millrace.torch.layout import Layout, MixesSamplesError
from millrace.torch.operands import Operand, Traced
from millrace.torch.operators.elementwise import activation, binary
from millrace.torch.operators.layers import linear
from millrace.torch.operators.registry import Translation, translates
from millrace.torch.operators.shapes import join, permute
from millrace.torch.translator import Translator

State = list[Value]
"""Hidden state, and the cell's state of an LSTM."""
Cell = Callable[[Translator, Value, Value, State], State]
"""Computes the next state from the gates by the inputs, the gates by the hidden state, and the state."""


@dataclass(frozen=True)
class _Weights:
    """The weights of a layer in one direction."""

    of_inputs: Operand
    of_state: Operand
    input_bias: Operand = None
    state_bias: Operand = None
    projection: Operand = None

    @classmethod
    def read(cls, params: list[Operand], *, has_biases: bool) -> _Weights:
        """Return the weights in the order of PyTorch; an LSTM may have a projection after them."""
        biases = params[2:4] if has_biases else [None, None]
        return cls(*params[:2], *biases, *params[4 if has_biases else 2 :])


def _slice(t: Translator, x: Value, axis: int, start: int, end: int) -> Value:
    shape = (*x.shape[:axis], end - start, *x.shape[axis + 1 :])
    return t.graph.node({"op": "slice", "axis": axis, "start": start, "end": end}, [x], shape)


def _gates(t: Translator, x: Value, number: int) -> list[Value]:
    size = x.shape[1] // number
    return [_slice(t, x, 1, at * size, (at + 1) * size) for at in range(number)]


def _lstm_cell(t: Translator, of_inputs: Value, of_state: Value, state: State) -> State:
    gates = _gates(t, binary(t, "add", of_inputs, of_state), 4)
    kinds = ("sigmoid", "sigmoid", "tanh", "sigmoid")
    taken, kept, new, output = (activation(t, kind, gate) for kind, gate in zip(kinds, gates, strict=True))
    cell = binary(t, "add", binary(t, "mul", kept, state[1]), binary(t, "mul", taken, new))
    return [binary(t, "mul", output, activation(t, "tanh", cell)), cell]


def _gru_cell(t: Translator, of_inputs: Value, of_state: Value, state: State) -> State:
    inputs, hidden = _gates(t, of_inputs, 3), _gates(t, of_state, 3)
    reset, kept = (activation(t, "sigmoid", binary(t, "add", inputs[at], hidden[at])) for at in (0, 1))
    new = activation(t, "tanh", binary(t, "add", inputs[2], binary(t, "mul", reset, hidden[2])))
    return [binary(t, "add", binary(t, "mul", binary(t, "sub", state[0], new), kept), new)]


def _simple_cell(kind: str) -> Cell:
    def cell(t: Translator, of_inputs: Value, of_state: Value, state: State) -> State:
        return [activation(t, kind, binary(t, "add", of_inputs, of_state))]

    return cell


def _direction(
    t: Translator, cell: Cell, x: Value, weights: _Weights, state: State, *, is_reverse: bool
) -> tuple[Value, State]:
    """Unroll a layer in one direction; return the hidden states of all steps, and the last state.

    The dimensions are steps, sequences and features.
    """
    steps = range(x.shape[0])
    gates = linear(t, x, weights.of_inputs, weights.input_bias)
    hidden = {}
    for step in reversed(steps) if is_reverse else steps:
        of_state = linear(t, state[0], weights.of_state, weights.state_bias)
        of_inputs = t.reshape(_slice(t, gates, 0, step, step + 1), (x.shape[1], gates.shape[2]))
        state = cell(t, of_inputs, of_state, state)
        if weights.projection is not None:
            state[0] = linear(t, state[0], weights.projection, None)
        hidden[step] = t.reshape(state[0], (1, *state[0].shape))
    return join(t, [hidden[step] for step in steps], 0), state


def _recurrent(cell: Cell) -> Translation:
    def translation(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
        x, initial, params, has_biases, layers, dropout, train, is_bidirectional, is_batch_first = args
        x = t.traced(x)
        if x.layout.rank != 3 or x.layout.axis != (0 if is_batch_first else 1):
            raise MixesSamplesError("its sequence is the batch: the module needs x[batch, step, feature]")
        directions = 2 if is_bidirectional else 1
        count, rows = layers * directions, x.layout.merged
        initial = initial if isinstance(initial, list) else [initial]
        of_states = Layout((count, rows, 1), 1, rows, x.layout.outer)
        states = [t.value(state, of_states) for state in initial]
        per_direction = len(params) // count
        # Steps, sequences of a sample, features.
        value = x.value
        if rows > 1 and is_batch_first:
            value = permute(t, value, [1, 0, 2])
        value = t.reshape(value, (prod(value.shape[:-1]) // rows, rows, value.shape[-1]))
        last = list[State]()
        for layer in range(layers):
            outputs = []
            for direction in range(directions):
                at = layer * directions + direction
                weights = _Weights.read(
                    params[at * per_direction : (at + 1) * per_direction], has_biases=has_biases
                )
                state = [_slice(t, values, 0, at, at + 1) for values in states]
                state = [t.reshape(values, (rows, values.shape[-1])) for values in state]
                output, state = _direction(t, cell, value, weights, state, is_reverse=direction == 1)
                outputs.append(output)
                last.append(state)
            value = join(t, outputs, 2)
            if train and dropout and layer < layers - 1:
                value = t.graph.node({"op": "dropout", "rate": float(dropout)}, [value], value.shape)
        if rows > 1 and is_batch_first:
            value = permute(t, value, [1, 0, 2])
        final = []
        for each in zip(*last, strict=True):
            state_layout = replace(of_states, sizes=(count, rows, each[0].shape[1]))
            rows_of_layers = [t.reshape(state, (1, *state.shape)) for state in each]
            joined = t.reshape(join(t, rows_of_layers, 0), state_layout.sample)
            final.append(Traced(joined, state_layout))
        return [Traced(t.reshape(value, layout.sample), layout), *final]

    return translation


translates("lstm.input")(_recurrent(_lstm_cell))
translates("gru.input")(_recurrent(_gru_cell))
translates("rnn_tanh.input")(_recurrent(_simple_cell("tanh")))
translates("rnn_relu.input")(_recurrent(_simple_cell("relu")))
