"""Tests that a notebook's code cells are ported like a module and that the rest is kept."""

import json
import pathlib
from typing import Any

import pytest

from official_lite import porting
from official_lite.porting import project


def _notebook(*sources: str, as_list: bool = True) -> dict[str, Any]:
    cells = [{"cell_type": "markdown", "metadata": {}, "source": ["import tf_keras\n"]}]
    for source in sources:
        value: Any = source.splitlines(keepends=True) if as_list else source
        cells.append({"cell_type": "code", "metadata": {"a": 1}, "outputs": [], "source": value})
    return {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


@pytest.mark.parametrize("as_list", [True, False])
def test_code_cells_of_a_notebook_are_ported_as_one_module(
    tmp_path: pathlib.Path, as_list: bool
) -> None:
    path = tmp_path / "a.ipynb"
    before = [
        "%matplotlib inline\nimport tf_keras\nif True:\n  !pip install x",
        "# ü\nmetric = tf_keras.losses.MSE\n\nmetric.reset_states()",
        "%%bash\nimport tf_keras",
        "tf_keras.backend.gradients(y, x)",
    ]
    after = [
        "%matplotlib inline\nimport keras\nif True:\n  !pip install x",
        "# ü\nmetric = keras.losses.mean_squared_error\n\nmetric.reset_state()",
        "%%bash\nimport tf_keras",
        "keras.backend.gradients(y, x)",
    ]
    text = json.dumps(_notebook(*before, as_list=as_list), indent=1, ensure_ascii=False) + "\n"
    path.write_text(text)
    port = porting.port_project([str(tmp_path)])
    assert [(one.path, one.line) for one in port.remaining] == [(f"{path}, cell 5", 1)]
    port.write()
    expected = json.dumps(_notebook(*after, as_list=as_list), indent=1, ensure_ascii=False) + "\n"
    assert path.read_text() == expected
    assert not porting.port_project([str(tmp_path)]).diff()


def test_notebook_without_deprecated_names_is_left_unchanged(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps(_notebook("print('ü')"), indent=4))
    porting.port_project([str(path)]).write()
    assert path.read_text() == json.dumps(_notebook("print('ü')"), indent=4)


def test_reading_a_notebook_from_json_without_cells_raises() -> None:
    for text in (b"[]", b"{", b'{"cells": 3}', b"{}"):
        with pytest.raises(ValueError, match="not a notebook"):
            project.Notebook(text)
