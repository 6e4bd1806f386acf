"""Packages of Python datasets."""

from __future__ import annotations

import json
import pickle
import random
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("cloudpickle")

from millrace.loader import PythonDataset, UnsupportedDatasetError, is_dataset, pack  # noqa: E402


class Numbers:
    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": np.full((2, 3), index, np.float32), "labels": index}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project of the user: a module, a package that it imports, keys and large files."""
    files = {
        "own_data.py": "import own_tools.scale\nimport json\nimport numpy as np\n"
        "class Train:\n"
        "    def __init__(self, root='.'): self.root = root\n"
        "    def __len__(self): return 4\n"
        "    def __getitem__(self, index): return own_tools.scale.double(np.float32(index)), index\n",
        "own_tools/__init__.py": "",
        "own_tools/scale.py": "def double(x): return 2 * x\n",
        "own_tools/words.txt": "a b c\n",
        "own_tools/.env": "KEY=1\n",
        "own_tools/server.pem": "key\n",
        "own_tools/weights.bin": "0" * (2 << 20),
        "own_tools/__pycache__/scale.pyc": "",
        "unrelated.py": "",
        "rows/0.txt": "row\n",
        "rows/.hidden": "",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]


def names(path: Path) -> set[str]:
    with zipfile.ZipFile(path) as archive:
        return {name for name in archive.namelist() if not name.startswith("cloudpickle/")}


def test_package_describes_samples_and_how_the_dataset_is_created(tmp_path: Path) -> None:
    packed = pack(PythonDataset(Numbers(), workers=3, timeout_seconds=20), tmp_path / "train")
    manifest = json.loads(packed.files["manifest.json"].read_text())
    assert manifest["inputs"] == [
        {"name": "x", "type": "f32", "shape": [2, 3]},
        {"name": "labels", "type": "i32", "shape": []},
    ]
    assert manifest["python"] == {
        "version": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "executable": sys.executable,
    }
    given = {name: manifest[name] for name in ("samples", "fields", "workers", "timeout_seconds")}
    assert given == {"samples": 5, "fields": ["x", "labels"], "workers": 3, "timeout_seconds": 20}
    assert packed.example["x"].shape == (2, 2, 3)
    assert packed.example["labels"].tolist() == [0, 1]
    assert len(pickle.loads(packed.files["dataset.pickle"].read_bytes())) == 5


def test_own_modules_are_packed_and_keys_are_left_out(project: Path) -> None:
    packed = pack(PythonDataset("own_data:Train", {"root": "rows"}, include=["rows"]), project / "train")
    assert names(packed.files["code.zip"]) == {
        "own_data.py",
        "own_tools/__init__.py",
        "own_tools/scale.py",
        "own_tools/words.txt",
        "rows/0.txt",
    }
    manifest = json.loads(packed.files["manifest.json"].read_text())
    assert manifest["dataset"] == {"function": "own_data:Train", "keywords": {"root": "rows"}}
    assert manifest["fields"] == [0, 1]
    assert [entry["name"] for entry in manifest["inputs"]] == ["input_0", "labels"]
    assert manifest["sources"]["own_data.py"] == str(project / "own_data.py")
    summary = "\n".join(packed.summary)
    for part in (
        "packed own_data (own_data:Train creates the dataset)",
        "packed own_tools (imported by own_data.py)",
        "packed rows (included)",
        ".env (hidden)",
        "server.pem (may contain a key)",
        "weights.bin (2.1 MB; mount it",
        ".hidden (hidden)",
    ):
        assert part in summary
    assert "dataset.pickle" not in packed.files


def test_package_of_the_same_dataset_has_the_same_bytes(project: Path) -> None:
    import own_data  # type: ignore[import-not-found]

    packed = [pack(own_data.Train(), project / name) for name in ("one", "two")]
    for name in ("manifest.json", "code.zip", "dataset.pickle"):
        assert packed[0].files[name].read_bytes() == packed[1].files[name].read_bytes()


def test_dataset_of_a_script_is_unpickled_without_the_script(project: Path) -> None:
    """Classes of a script or a notebook are packed by value, with the modules that they use."""
    script = project / "script.py"
    script.write_text(
        "import sys\nfrom pathlib import Path\nimport own_tools.scale\nimport numpy as np\n"
        "from millrace.loader import pack\n"
        "class Local:\n"
        "    def __len__(self): return 3\n"
        "    def __getitem__(self, index): return {'x': own_tools.scale.double(np.float32(index))}\n"
        "pack(Local(), Path(sys.argv[1]))\n"
    )
    subprocess.run([sys.executable, script, project / "train"], check=True)
    read = "import pickle, sys; print(pickle.load(open(sys.argv[1] + '/dataset.pickle', 'rb'))[1])"
    manifest = json.loads((project / "train" / "manifest.json").read_text())
    assert manifest["sources"]["<dynamic-code>"] == str(script)
    archive = str(project / "train" / "code.zip")
    program = f"import sys; sys.path[:0] = [{archive!r}]; {read}"
    done = subprocess.run(
        [sys.executable, "-c", program, project / "train"],
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    assert "2.0" in done.stdout


class Unseeded(Numbers):
    def __init__(self) -> None:
        self.generator = np.random.default_rng()

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": self.generator.random(2, np.float32)}


class Seeded(Numbers):
    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": np.float32(random.random() + np.random.rand())}


class Ragged(Numbers):
    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": np.zeros(index + 1, np.float32)}


class Wide(Numbers):
    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": np.zeros(2)}


class Locked(Numbers):
    def __init__(self) -> None:
        self.lock = threading.Lock()


class Short(Numbers):
    def __len__(self) -> int:
        return 1


class Stream:
    def __init__(self, count: int) -> None:
        self.count = count
        self.returned = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in range(self.count):
            self.returned += 1
            yield {"x": np.full(3, random.random(), np.float32), "labels": number}


class UnseededStream:
    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield from ({"x": np.random.default_rng().random(3, np.float32)} for _ in range(2))


def test_dataset_that_is_only_iterated_over_has_no_number_of_samples(tmp_path: Path) -> None:
    stream = Stream(4)
    packed = pack(stream, tmp_path / "train")
    manifest = json.loads(packed.files["manifest.json"].read_text())
    assert (manifest["version"], manifest["samples"], packed.is_stream) == (2, None, True)
    assert packed.example["labels"].tolist() == [0, 1]
    assert stream.returned == 0, "the user's own object is not iterated over"
    assert "after a restart, it is read again from its beginning" in packed.summary[0]


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (Unseeded(), "another x each time it is read"),
        (Ragged(), "x of different shapes"),
        (Wide(), "x of a sample is of type float64"),
        (Locked(), "can't be pickled"),
        (Short(), "has 1 samples; at least two"),
        (PythonDataset("own"), "form MODULE:NAME"),
        (PythonDataset("no_such_module:Train"), "can't be created here"),
        (PythonDataset([(1.0, 2), (3.0, 4)], names=["x"]), "2 parts, and 1 names are given: x"),
        (PythonDataset(Numbers(), include=["/etc/hostname"]), "no path below the working directory"),
        (PythonDataset("json:loads", {"s": object()}), "must be numbers and strings"),
        (PythonDataset(iter([1, 2])), "can't be iterated over again"),
        (Stream(1), "returns 1 samples; at least two"),
        (UnseededStream(), "another x each time it is read"),
    ],
)
def test_unusable_dataset_is_rejected_with_the_reason(data: Any, part: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedDatasetError, match=part):
        pack(data, tmp_path / "train")


def test_seeded_random_numbers_are_accepted(tmp_path: Path) -> None:
    assert pack(Seeded(), tmp_path / "train").example["x"].shape == (2,)


def test_dataset_of_the_appliance_needs_no_data_here(tmp_path: Path) -> None:
    example = {"x": [[0.0, 0.0, 0.0]] * 2, "labels": [0, 1]}
    packed = pack(PythonDataset("nowhere:Train", samples=100, example=example), tmp_path / "train")
    manifest = json.loads(packed.files["manifest.json"].read_text())
    assert (manifest["samples"], manifest["inputs"][1]) == (
        100,
        {"name": "labels", "type": "i32", "shape": []},
    )


def test_arrays_and_paths_are_no_datasets() -> None:
    assert is_dataset(Numbers())
    assert is_dataset([{"x": 1}])
    assert not any(map(is_dataset, ["path", {"x": [1]}, ([1], [2]), np.zeros(3), iter([1]), None, 3]))
