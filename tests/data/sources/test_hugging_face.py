import datasets
import numpy as np
import pytest

from official_lite.common import errors
from official_lite.data.sources import registry


@pytest.fixture(autouse=True)
def _without_progress_bars():
    datasets.disable_progress_bars()


def test_values_are_read_as_they_are_stored(tmp_path):
    features = datasets.Features(
        {
            "grid": datasets.Array2D((2, 3), "float32"),
            "label": datasets.ClassLabel(names=["a", "b"]),
            "tokens": datasets.Sequence(datasets.Value("int32"), length=4),
        }
    )
    grid = np.arange(60, dtype=np.float32).reshape(10, 2, 3)
    content = {"grid": grid.tolist(), "label": [0, 1] * 5, "tokens": [[1, 2, 3, 4]] * 10}
    datasets.Dataset.from_dict(content, features).save_to_disk(tmp_path / "x")
    read = registry.open_source("huggingface", [str(tmp_path / "x")]).read(0)
    np.testing.assert_array_equal(read["grid"], grid)
    assert read["label"].tolist() == content["label"]
    assert read["tokens"].dtype == np.int32


def test_selected_rows_keep_their_order(tmp_path):
    dataset = datasets.Dataset.from_dict({"x": range(10)}).select([7, 2, 5])
    dataset.save_to_disk(tmp_path / "x")
    source = registry.open_source("huggingface", [str(tmp_path / "x")])
    assert source.read(0)["x"].tolist() == [7, 2, 5]


def test_splits_are_named(tmp_path):
    split = datasets.Dataset.from_dict({"x": [1]})
    datasets.DatasetDict({"train": split, "test": split}).save_to_disk(tmp_path / "x")
    with pytest.raises(errors.DataError, match=r"several splits.*x/train`, `.*x/test`"):
        registry.open_source("huggingface", [str(tmp_path / "x")])
