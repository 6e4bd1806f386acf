"""Traces a Keras model, or a `tf.function` with a loss, into the document of a graph.

    import keras, millrace

    model.compile(keras.optimizers.Adam(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    job = millrace.Appliance().train(model, data=(images, labels), batch_size=64, max_steps=1000, num_csx=4)
    job.follow()
    job.update(model)                              # and continue in Keras

* The model is traced on the backend that Keras runs on (TensorFlow, JAX or PyTorch), in training mode, with
  its own loss, and the batch may have any size.
* The graph computes what the model computes, sample by sample. A model that computes one sample from another
  (batch norm), changes a state, or uses an operator that the appliance does not have, is rejected with the
  layer, and with file and line where these are known.
"""

from millrace.torch.operands import UnsupportedModelError
from millrace.torch.schedule import UnsupportedOptimizerError

__all__ = ["UnsupportedModelError", "UnsupportedOptimizerError"]
