"""Reads the golden event file with the real `tensorboard` package (pip install tensorboard); run by hand.

Checks that every TensorBoard reader shows step 3 once, with the value told after the second session start, and that the
official protocol-buffer library writes the same bytes for every event.
"""

import pathlib
import struct
import sys

from tensorboard.backend.event_processing import event_accumulator, plugin_event_accumulator
from tensorboard.compat.proto import event_pb2
from tensorboard.util import tensor_util

path = sys.argv[1] if len(sys.argv) > 1 else str(pathlib.Path(__file__).with_name("events.out.tfevents.golden"))
expected = [(1, 5.5), (3, 4.25)]

scalars = event_accumulator.EventAccumulator(path).Reload()
assert scalars.file_version == 2.0
assert [(event.step, event.value) for event in scalars.Scalars("train/loss")] == expected

tensors = plugin_event_accumulator.EventAccumulator(path).Reload()
points = [(event.step, tensor_util.make_ndarray(event.tensor_proto).item()) for event in tensors.Tensors("train/loss")]
assert points == expected, points

data = pathlib.Path(path).read_bytes()
while data:
    (length,) = struct.unpack_from("<Q", data)
    event, data = data[12 : 12 + length], data[16 + length :]
    assert event_pb2.Event.FromString(event).SerializeToString(deterministic=True) == event
print("ok")
