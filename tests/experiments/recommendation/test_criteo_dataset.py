import pathlib

import numpy as np
import pytest
import tensorflow as tf

from experiments.recommendation.criteo import configs, dataset, generate
from official_lite.common import errors
from official_lite.data import position
from tests import rounding

TABLE_ROWS = 50
COUNT = 300


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> pathlib.Path:
    """Write the same 300 examples in each format, to two files each."""
    directory = tmp_path_factory.mktemp("criteo")
    for file_format in configs.FORMATS:
        generate.main(
            [f"--output={directory}", f"--format={file_format}", f"--examples={COUNT}", "--files=2"]
        )
    return directory


def _params(directory: pathlib.Path, source: str, **fields) -> configs.CriteoDataConfig:
    params = configs.CriteoDataConfig(
        num_generated=COUNT, global_batch_size=30, is_training=False, cycle_length=1
    )
    if source != "memory":
        files = {"input_path": f"{directory}/train-*.{source}", "file_format": source}
        params = params.replace(**files)
    return params.replace(**fields)


def _read(params: configs.CriteoDataConfig, count: int = -1, context=None) -> list:
    built = dataset.build_dataset(params, TABLE_ROWS, context)
    return [tf.nest.map_structure(np.asarray, batch) for batch in built.take(count)]


def _assert_equal(batches: list, others: list) -> None:
    assert len(batches) == len(others) > 0
    for one, other in zip(tf.nest.flatten(batches), tf.nest.flatten(others), strict=True):
        # The rounding may depend on how many rows are computed together.
        rounding.assert_close(one, other)


@pytest.mark.parametrize("source", configs.FORMATS)
def test_files_of_each_format_contain_the_generated_examples(directory, source) -> None:
    _assert_equal(_read(_params(directory, source)), _read(_params(directory, "memory")))


@pytest.mark.parametrize("source", ["memory", configs.FORMATS[0]])
def test_resumed_training_continues_with_the_next_batch(directory, source) -> None:
    params = _params(directory, source, is_training=True, shuffle_buffer_size=100)
    with position.begin_at(batch=0, seed=7):
        unbroken = _read(params, 30)
    with position.begin_at(batch=17, seed=7) as begin:
        resumed = _read(params, 13)
    assert begin.is_kept
    _assert_equal(resumed, unbroken[17:])


def test_two_workers_together_read_the_batches_of_one_worker(directory) -> None:
    params = _params(directory, "memory", is_training=True)
    parts = [_read(params, 10, tf.distribute.InputContext(2, pipeline, 2)) for pipeline in range(2)]
    for batch, *halves in zip(_read(params, 10), *parts, strict=True):
        together = np.concatenate([half[0]["rows"] for half in halves])
        rows = batch[0]["rows"]
        np.testing.assert_array_equal(np.sort(together, axis=0), np.sort(rows, axis=0))


def test_generate_command_prints_the_best_possible_auc(tmp_path, capsys) -> None:
    generate.main([f"--output={tmp_path}", "--split=validation", "--examples=2000"])
    best = dataset.best_possible_auc(
        configs.CriteoDataConfig(split="validation", num_generated=2000)
    )
    assert capsys.readouterr().out == f"2000 examples; the best possible AUC is {best:.4f}\n"
    (file,) = tmp_path.iterdir()
    assert file.name == "validation-00000-of-00001.tsv"


def test_criteo_data_config_without_files_or_generated_examples_is_refused() -> None:
    with pytest.raises(errors.ConfigValueError, match=r"`input_path`.*`num_generated`"):
        dataset.build_dataset(configs.CriteoDataConfig(), TABLE_ROWS)
