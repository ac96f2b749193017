import numpy as np
import pytest
import tensorflow as tf

from experiments.recommendation.criteo import features
from tests import downloads, rounding

SAMPLE, needs_sample = downloads.needs("criteo_sample.txt")

# Lines of the Kaggle dataset, with missing integers, missing categories and negative integers.
LINES = [
    "0\t\t3\t260\t\t17668\t\t\t33\t\t\t\t0\t\t05db9164\t08d6d899\t9143c832\tf56b7dd5\t25c83c98"
    "\t7e0ccccf\tdf5c2d18\t0b153874\ta73ee510\t8f48ce11\ta7b606c4\tae1bb660\teae197fd\tb28479f6"
    "\tbfef54b3\tbad5ee18\te5ba7672\t87c6f83c\t\t\t0429f84b\t\t3a171ecb\tc0d61a5c\t\t",
    "1\t\t-1\t19\t35\t30251\t247\t1\t35\t160\t\t1\t\t35\t68fd1e64\t04e09220\t95e13fd4\ta1e6a194"
    "\t25c83c98\tfe6b92e5\tf819e175\t062b5529\ta73ee510\tab9456b4\t6153cf57\t8882c6cd\t769a1844"
    "\tb28479f6\t69f825dd\t23056e4f\td4bb7bd8\t6fc84bfb\t\t\t5155d8a3\t\tbe7c41b4\tded4aac9\t\t",
]


def _inputs(lines: list[str], table_rows: int = 1000):
    inputs, labels = features.to_model_inputs(features.decode_lines(tf.constant(lines)), table_rows)
    return inputs["integers"].numpy(), inputs["rows"].numpy(), labels.numpy()


def test_criteo_lines_are_decoded_to_log_scaled_integers_table_rows_and_labels() -> None:
    dense, rows, labels = _inputs(LINES)
    np.testing.assert_array_equal(labels, [[0], [1]])
    rounding.assert_close(dense[0, [1, 2, 4]], np.log1p([3, 260, 17668]))
    # Missing and negative integers become 0.
    assert (dense[0, [0, 3, 5]] == 0).all()
    assert dense[1, 1] == 0
    assert (rows // 1000 == np.arange(26)).all()
    # C5 and C9 have the same values in both lines.
    assert (rows[0] == rows[1]).nonzero()[0].tolist() == [4, 8, 13, 18, 19, 21, 24, 25]


def test_missing_categorical_values_use_a_separate_table_row() -> None:
    _, rows, _ = _inputs(LINES, table_rows=2)
    is_missing = rows % 2 == 0
    assert is_missing.sum(axis=1).tolist() == [5, 5]
    assert is_missing[:, [18, 19, 21, 24, 25]].all()


def test_criteo_line_with_a_missing_field_is_refused() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="Expect 40 fields but have 39"):
        _inputs([LINES[0].removesuffix("\t")])


@needs_sample
def test_lines_of_the_real_criteo_dataset_are_decoded_to_valid_features() -> None:
    lines = [line.replace(",", "\t") for line in SAMPLE.read_text().splitlines()[1:]]
    dense, rows, labels = _inputs(lines)
    assert dense.shape == (200, 13)
    assert np.isfinite(dense).all()
    assert (rows // 1000 == np.arange(26)).all()
    assert 0.1 < labels.mean() < 0.4
