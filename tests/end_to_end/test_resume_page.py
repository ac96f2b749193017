"""The page on resuming shows code that works."""

import pathlib
import re

import numpy as np
import pytest

from official_lite.core import config_definitions as cfg
from official_lite.data import position

ROOT = pathlib.Path(__file__).parents[2]
BLOCKS = re.findall(
    r"```python\n(.*?)```", (ROOT / "docs" / "resume.md").read_text(), flags=re.DOTALL
)


def _read(build_inputs, batch, count):
    params = cfg.DataConfig(global_batch_size=8, is_training=True, seed=3)
    with position.begin_at(batch=batch, seed=7) as begin:
        dataset = build_inputs(params)
    assert begin.is_kept
    return [
        np.asarray(each[0] if isinstance(each, tuple) else each) for each in dataset.take(count)
    ]


@pytest.mark.parametrize("block", BLOCKS, ids=["arrays", "a source of one's own"])
def test_sources_of_the_page_go_on_with_the_batch_that_would_have_come(block):
    names = {}
    exec(block, names)
    unbroken = _read(names["build_inputs"], 0, 30)
    resumed = _read(names["build_inputs"], 17, 13)
    np.testing.assert_array_equal(resumed, unbroken[17:])
