"""The page on input shows code that works."""

import pathlib
import re

import numpy as np
import pytest

from official_lite.core import config_definitions as cfg
from official_lite.core import file_writers, tf_example_builder
from tests import rounding

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def page():
    """What the page's code defines; `first` is its first dataset."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "input.md").read_text(), re.DOTALL)
    names = {}
    for block in blocks:
        exec(block, names)
        names.setdefault("first", names.get("dataset"))
    return names


def test_arrays_and_other_sources_give_batches(page):
    assert next(iter(page["first"]))["image"].shape == (32, 8, 8)
    batch = next(page["dataset"].as_numpy_iterator())
    np.testing.assert_array_equal(batch["square"], batch["x"] ** 2)


def test_records_are_read_as_the_page_reads_them(page, tmp_path):
    examples = [
        tf_example_builder.TfExampleBuilder()
        .add_ints_feature("label", i)
        .add_floats_feature("dense", [float(i)] * 13)
        .example
        for i in range(10)
    ]
    file_writers.write_small_dataset(examples, str(tmp_path / "records"))
    params = cfg.DataConfig(input_path=f"{tmp_path}/records", global_batch_size=5)
    dense, labels = next(page["read"](params).as_numpy_iterator())
    assert labels.tolist() == [0, 1, 2, 3, 4]
    rounding.assert_close(dense[:, 12], np.log1p(labels))
