import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from official_lite.core import config_definitions as cfg
from official_lite.data import arrays, position
from official_lite.nas import one_shot_trainer


def _build_inputs(params, input_context=None) -> tf.data.Dataset:
    return arrays.from_arrays(
        np.arange(20),
        params.global_batch_size,
        shuffle=True,
        repeat=True,
        input_context=input_context,
    )


def _config(**fields):
    return cfg.DataConfig(global_batch_size=4, is_training=True, **fields)


def _take(dataset, count):
    return [{k: v.tolist() for k, v in b.items()} for b in dataset.take(count).as_numpy_iterator()]


def test_halves_have_no_example_in_common_and_leave_none_out() -> None:
    batches = _take(one_shot_trainer.build_streams(_build_inputs)(_config()), 5)
    train, val = ({x for batch in batches for x in batch[name]} for name in ("train", "val"))
    assert not train & val
    assert train | val == set(range(20))
    assert len(batches[0]["train"]) == len(batches[0]["val"]) == 4


@pytest.mark.sample(2)
@pytest.mark.parametrize("replicas", [1, 2, 4])
@pytest.mark.parametrize("names", [("train", "val"), ("train",)])
def test_both_go_on_where_they_stopped(replicas, names) -> None:
    context = tf.distribute.InputContext(1, 0, replicas)
    build = one_shot_trainer.build_streams(_build_inputs, names=names)

    def batches_from(batch):
        with position.begin_at(batch, seed=7) as begin:
            dataset = build(_config(), context)
        assert begin.is_kept
        return list(dataset.take(3 * replicas).as_numpy_iterator())

    whole, rest = batches_from(0), batches_from(2)
    np.testing.assert_equal(whole[2 * replicas :], rest[:replicas])


def test_one_that_begins_anew_is_not_called_kept() -> None:
    def build_inputs(params, input_context=None):
        if params.seed:
            return _build_inputs(params, input_context)
        return tf.data.Dataset.range(8).batch(4)

    build = one_shot_trainer.build_streams(build_inputs, arch_data=_config(seed=None))
    with position.begin_at(3, seed=7) as begin:
        build(_config(seed=5))
    assert not begin.is_kept


def test_data_of_its_own_are_not_divided() -> None:
    arch_data = dataclasses.replace(_config(), global_batch_size=2)
    batches = _take(
        one_shot_trainer.build_streams(_build_inputs, arch_data=arch_data)(_config()), 10
    )
    assert {x for batch in batches for x in batch["train"]} == set(range(20))
    assert {len(batch["val"]) for batch in batches} == {2}
