"""Traces a PyTorch module with its loss into the document of a graph, which the appliance trains.

    import torch, millrace.torch

    model = MyNet()
    batch = {"image": torch.randn(4, 1, 28, 28), "labels": torch.tensor([0, 1, 2, 3])}
    traced = millrace.torch.trace(model, batch, loss=torch.nn.functional.cross_entropy)
    traced.save("net.json")                        # model.graph of the params

* The module is traced once, in training mode, by `torch.export`: branches are those that the example takes,
  loops are unrolled, and the batch may have any size.
* The graph computes what the module computes, sample by sample. A module that computes one sample from
  another (batch norm, a contrastive loss), or uses an operator that the appliance does not have, is rejected
  with its file and line.
"""

from millrace.torch.operands import UnsupportedModelError
from millrace.torch.optimizer import optimizer_params
from millrace.torch.schedule import UnsupportedOptimizerError
from millrace.torch.trace import trace
from millrace.torch.traced_model import TracedModel
from millrace.torch.triton import hide_triton

# Also for optimizers of PyTorch, which a program may create next.
hide_triton()

__all__ = [
    "TracedModel",
    "UnsupportedModelError",
    "UnsupportedOptimizerError",
    "optimizer_params",
    "trace",
]
