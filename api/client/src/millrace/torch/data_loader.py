"""Reads what a `torch.utils.data.DataLoader` says about the data of a job."""

from __future__ import annotations

from typing import Any, cast

from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
    default_convert,
)

from millrace.loader import PythonDataset
from millrace.submission import ModuleOptions
from millrace.torch.arrays import UnsupportedDataError


def without_data_loader(options: ModuleOptions) -> ModuleOptions:
    """Replace data loaders by their datasets; batch size, order and workers are theirs unless they are given.

    Raises `UnsupportedDataError` if a loader assembles batches in a way that the appliance does not.
    """
    replaced: dict[str, Any] = dict(options)
    for name in ("data", "eval_data"):
        loader = replaced.get(name)
        if not isinstance(loader, DataLoader):
            continue
        _check(loader)
        source: Any = loader.dataset
        replaced[name] = source
        # Arrays need no workers.
        if (loader.num_workers or loader.timeout) and not isinstance(source, TensorDataset):
            replaced[name] = PythonDataset(
                source, workers=loader.num_workers or None, timeout_seconds=int(loader.timeout) or None
            )
        if name == "data":
            of_loader = {
                "batch_size": loader.batch_size,
                "shuffle": isinstance(loader.sampler, RandomSampler),
            }
            given = {key: value for key, value in of_loader.items() if value is not None}
            replaced |= {key: value for key, value in given.items() if replaced.get(key) is None}
    return cast(ModuleOptions, replaced)


def _check(loader: DataLoader[Any]) -> None:
    # Without a batch size, a loader returns samples.
    if loader.collate_fn is not (default_convert if loader.batch_size is None else default_collate):
        raise UnsupportedDataError(
            "the DataLoader has a collate_fn: the appliance stacks samples. Pad samples in the "
            "dataset's __getitem__"
        )
    is_iterated = isinstance(loader.dataset, IterableDataset)
    if not is_iterated and not isinstance(loader.sampler, (RandomSampler, SequentialSampler)):
        raise UnsupportedDataError(
            f"the DataLoader has the sampler {type(loader.sampler).__name__}: the appliance reads samples in "
            "order or shuffled. Select samples by torch.utils.data.Subset, or in the dataset"
        )
    if loader.worker_init_fn is not None:
        raise UnsupportedDataError(
            "the DataLoader has a worker_init_fn: create what workers need when the dataset reads "
            "its first sample"
        )
