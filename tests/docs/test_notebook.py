"""Tests that the notebook runs from its first cell to its last, and has no outputs in git."""

import pathlib

import nbclient
import nbformat
import pytest

from tests import waiting
from tests.docs import blocks

PATH = blocks.ROOT / "docs" / "notebook.ipynb"


def _code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_documentation_notebook_is_committed_without_outputs() -> None:
    notebook = nbformat.read(PATH, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.outputs or cell.execution_count for cell in _code_cells(notebook))


@pytest.mark.slow
def test_documentation_notebook_runs_and_shows_three_images_and_the_accuracy(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(blocks.ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    notebook = nbformat.read(PATH, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=int(waiting.SECONDS), resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    outputs = [output for cell in _code_cells(notebook) for output in cell.outputs]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 3
    assert "accuracy" in outputs[-2]["data"].get("text/plain", "") or "accuracy" in str(outputs[-1])
