"""Packs a dataset in Python with the modules that it needs, for the activation servers of a job.

    class Train:                                     # any object with __len__ and __getitem__
        def __len__(self): return 60_000
        def __getitem__(self, index): return {"image": ..., "labels": ...}

    appliance.train(model, data=Train(), ...)        # packed, uploaded, read by worker processes
    appliance.train(model, data=PythonDataset("data:Train", {"root": "/data/train"}), ...)

* A sample is a mapping of names, a tuple, or a single value: NumPy arrays, tensors or numbers of fixed
  shapes.
* The generators of `random`, `numpy.random` and PyTorch are seeded for each sample, so that a sample is the
  same in every worker, on any number of systems and after a failure. Other random state is not allowed.
* A dataset that is only iterated over is read by one worker of each activation server, in its own order, and
  again from its beginning after a restart. Its generators are seeded at the beginning of each pass.
* The user's own modules are packed, found by their imports. Installed packages are not: the interpreter of
  the appliance must have them. Hidden and large files and files with keys are left out, and listed.
"""

from millrace.loader.package import PythonDataset, UnsupportedDatasetError, is_dataset, pack

__all__ = ["PythonDataset", "UnsupportedDatasetError", "is_dataset", "pack"]
