"""What a DataLoader says about the data of a job."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, Dataset, TensorDataset, WeightedRandomSampler  # noqa: E402

from millrace.loader import PythonDataset  # noqa: E402
from millrace.torch.arrays import UnsupportedDataError  # noqa: E402
from millrace.torch.data_loader import without_data_loader  # noqa: E402


class Rows(Dataset[Any]):  # type: ignore[misc, unused-ignore]
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(3), index


def test_settings_of_the_loader_are_those_of_the_job() -> None:
    rows = Rows()
    options = without_data_loader({"data": DataLoader(rows, batch_size=4, shuffle=True)})
    assert options == {"data": rows, "batch_size": 4, "shuffle": True}
    options = without_data_loader({"data": DataLoader(rows, batch_size=4), "batch_size": 8, "shuffle": True})
    assert options == {"data": rows, "batch_size": 8, "shuffle": True}
    options = without_data_loader({"eval_data": DataLoader(rows, num_workers=3, timeout=20)})
    dataset = options["eval_data"]
    assert isinstance(dataset, PythonDataset)
    assert (dataset.source, dataset.workers, dataset.timeout_seconds) == (rows, 3, 20)
    assert "batch_size" not in without_data_loader({"data": DataLoader(rows, batch_size=None)})
    arrays = TensorDataset(torch.zeros(4, 2))
    assert without_data_loader({"data": DataLoader(arrays, num_workers=2)})["data"] is arrays


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"collate_fn": list}, "has a collate_fn.*Pad samples"),
        ({"sampler": WeightedRandomSampler([1.0] * 10, 5)}, "sampler WeightedRandomSampler.*Subset"),
        ({"worker_init_fn": print}, "has a worker_init_fn"),
    ],
)
def test_other_batches_are_rejected(settings: dict[str, Any], part: str) -> None:
    with pytest.raises(UnsupportedDataError, match=part):
        without_data_loader({"data": DataLoader(Rows(), **settings)})
