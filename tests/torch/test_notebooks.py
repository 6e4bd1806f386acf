"""Executes the notebooks in examples/notebooks, which check their own results."""

from __future__ import annotations

from pathlib import Path

import nbclient
import nbformat
import pytest

from millrace import Appliance

NOTEBOOKS = Path(__file__).parents[2] / "examples/notebooks"


@pytest.mark.parametrize("name", sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb")))
def test_notebook_runs(name: str, appliance: Appliance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_URL", appliance.url)
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(NOTEBOOKS)}})
    client.execute()
    assert all(cell.get("execution_count") for cell in notebook.cells if cell.cell_type == "code")
