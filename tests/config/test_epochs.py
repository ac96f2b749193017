import logging

import numpy as np
import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.config import epochs
from official_lite.core import config_definitions as cfg
from official_lite.core import input_reader
from official_lite.data import position
from official_lite.modeling.multitask import configs as multitask_configs


def _params(num_examples: int | None = 100, **trainer: object) -> cfg.ExperimentConfig:
    data = cfg.DataConfig(global_batch_size=10, num_examples=num_examples)
    params = cfg.ExperimentConfig(task=cfg.TaskConfig(train_data=data))
    params.override({"trainer": trainer})
    return params


class Data:
    """A stand-in for a task that has only `build_inputs`."""

    def __init__(self, dataset: tf.data.Dataset) -> None:
        self._dataset = dataset

    def build_inputs(self, params: cfg.DataConfig) -> tf.data.Dataset:
        return self._dataset.batch(params.global_batch_size, drop_remainder=params.drop_remainder)


def test_epochs_are_converted_to_steps_and_each_conversion_logs_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="absl")
    params = _params(train_epochs=3, validate_every_epochs=1, checkpoint_every_epochs=0.5)
    trainer = epochs.resolve(params).trainer
    assert (trainer.train_steps, trainer.validation_interval) == (30, 10)
    assert (trainer.checkpoint_interval, trainer.steps_per_epoch) == (5, 10)
    assert trainer.train_epochs is trainer.validate_every_epochs is None
    assert trainer.checkpoint_every_epochs is None
    epochs.resolve(epochs.resolve(params))
    messages = [r.message for r in caplog.records if "3 epochs = 30 steps" in r.message]
    assert len(messages) == 2, "one line for each conversion"


@pytest.mark.parametrize(
    ("num_examples", "count", "steps"), [(103, 3, 31), (102, 2, 21), (100, 0.7, 7)]
)
def test_fractional_train_epochs_are_rounded_only_once_to_the_total_number_of_steps(
    num_examples, count, steps
) -> None:
    assert epochs.resolve(_params(num_examples, train_epochs=count)).trainer.train_steps == steps


def test_schedule_ratios_are_converted_to_numbers_of_steps() -> None:
    schedules = {
        "learning_rate": {"type": "cosine", "cosine": {"decay_ratio": 0.9}},
        "warmup": {"type": "linear", "linear": {"warmup_ratio": 0.1}},
    }
    resolved = epochs.resolve(_params(train_epochs=3, optimizer_config=schedules))
    config = resolved.trainer.optimizer_config
    assert (config.learning_rate.cosine.decay_steps, config.warmup.linear.warmup_steps) == (27, 3)
    assert config.learning_rate.cosine.decay_ratio is config.warmup.linear.warmup_ratio is None


def test_schedule_ratios_are_converted_without_reading_data_if_train_steps_are_set() -> None:
    stepwise = {"boundary_ratios": [0.5, 0.51], "values": [1.0, 0.1, 0.01]}
    learning_rate = {"type": "stepwise", "stepwise": stepwise}
    params = _params(None, train_steps=20, optimizer_config={"learning_rate": learning_rate})
    resolved = epochs.resolve(params).trainer.optimizer_config.learning_rate.stepwise
    assert (resolved.boundaries, resolved.boundary_ratios) == ([10, 11], None)


def test_converting_the_epochs_of_a_config_twice_returns_the_same_locked_config() -> None:
    params = _params(train_epochs=3)
    params.lock()
    resolved = epochs.resolve(params)
    assert params.trainer.train_epochs == 3
    assert epochs.resolve(resolved) is resolved
    with pytest.raises(errors.LockedConfigError):
        resolved.trainer.train_steps = 1


def test_later_override_of_train_steps_replaces_train_epochs() -> None:
    params = _params(train_epochs=3)
    params.override({"trainer": {"train_steps": 7}})
    assert epochs.resolve(params).trainer.train_steps == 7


def test_dataset_length_is_used_for_epochs_if_the_config_has_no_num_examples() -> None:
    task = Data(tf.data.Dataset.range(55))
    params = _params(None, train_epochs=2)
    assert epochs.resolve(params) is params
    assert epochs.resolve(params, task).trainer.train_steps == 10
    params.trainer.steps_per_epoch = 4
    assert epochs.resolve(params, task).trainer.train_steps == 8


@pytest.mark.parametrize(
    "without_length",
    [
        lambda data: data.filter(lambda x: x > 2).repeat(),
        lambda data: data.filter(lambda x: x > 2),
        lambda data: tf.data.Dataset.sample_from_datasets([data.repeat(), data.repeat()]),
    ],
    ids=["endless", "unknown", "mixed"],
)
def test_train_epochs_raise_for_a_dataset_of_unknown_or_infinite_length(
    without_length,
) -> None:
    task = Data(without_length(tf.data.Dataset.range(9)))
    with pytest.raises(errors.ConfigValueError, match=r"num_examples` or `trainer\.steps"):
        epochs.resolve(_params(None, train_epochs=1), task)


@pytest.mark.parametrize(
    "repeat",
    [
        lambda data: data.repeat(),
        lambda data: data.cache().shuffle(9).repeat().map(lambda x: x + 1).prefetch(2),
        lambda data: tf.data.Dataset.zip((data.repeat(), data.repeat())),
    ],
    ids=["repeat", "shuffle", "zip"],
)
def test_epoch_of_a_repeated_dataset_is_one_pass_over_the_data(repeat) -> None:
    task = Data(repeat(tf.data.Dataset.range(45)))
    resolved = epochs.resolve(_params(None, train_epochs=2, validate_every_epochs=1), task)
    assert (resolved.trainer.train_steps, resolved.trainer.validation_interval) == (9, 4)


def test_length_of_an_epoch_counts_the_micro_batches_that_training_reads() -> None:
    params = _params(None, train_epochs=30, grad_accum_steps=3)
    params.task.train_data.global_batch_size = 300
    task = Data(tf.data.Dataset.range(1000))
    # A pass has 10 micro-batches of 100, but only 3 whole batches of 300.
    assert epochs.resolve(params, task).trainer.train_steps == 100


def test_epoch_of_an_array_dataset_has_as_many_examples_as_the_arrays_have_rows() -> None:
    class Arrays:
        def build_inputs(self, params: cfg.DataConfig) -> tf.data.Dataset:
            rows = input_reader.from_arrays(np.arange(45), params)
            return position.map_batches(rows, lambda batch, seed: batch).prefetch(2)

    params = _params(None, train_epochs=2)
    params.task.train_data.is_training = True
    assert epochs.resolve(params, Arrays()).trainer.train_steps == 9


@pytest.mark.parametrize("unknown", [None, -1])
def test_num_examples_of_none_or_minus_one_is_derived_from_the_dataset(unknown) -> None:
    task = Data(tf.data.Dataset.range(40))
    assert epochs.resolve(_params(unknown, train_epochs=2), task).trainer.train_steps == 8


def test_train_epochs_raise_for_an_empty_dataset() -> None:
    with pytest.raises(errors.DataError, match="empty"):
        epochs.resolve(_params(None, train_epochs=1), Data(tf.data.Dataset.range(0)))


@pytest.mark.parametrize("given", [{"train_epochs": 1}, {"train_steps": 5}])
def test_error_for_contradictory_epoch_lengths_shows_both_lengths(
    given: dict[str, float],
) -> None:
    params = _params(steps_per_epoch=7, **given)
    with pytest.raises(errors.ConfigValueError, match=r"is 7,.*100, which makes 10 batches of 10"):
        epochs.resolve(params)


def test_steps_are_derived_again_if_a_config_whose_epochs_were_converted_is_changed() -> None:
    schedules = {
        "learning_rate": {"type": "cosine", "cosine": {"decay_ratio": 1.0}},
        "warmup": {"type": "linear", "linear": {"warmup_ratio": 0.1}},
    }
    resolved = epochs.resolve(
        _params(train_epochs=3, validate_every_epochs=1, optimizer_config=schedules)
    )

    def steps(params: cfg.ExperimentConfig) -> tuple[int | None, ...]:
        trainer = epochs.resolve(params).trainer
        config = trainer.optimizer_config
        decay, warmup = config.learning_rate.cosine.decay_steps, config.warmup.linear.warmup_steps
        return (trainer.train_steps, trainer.validation_interval, decay, warmup)

    assert steps(resolved) == (30, 10, 30, 3)
    assert steps(resolved.replace(trainer={"train_steps": 100})) == (100, 10, 100, 10)
    data = {"task": {"train_data": {"global_batch_size": 20}}}
    assert steps(resolved.replace(**data)) == (15, 5, 15, 2)
    assert steps(resolved.replace(trainer={"train_epochs": 1}).replace(**data)) == (5, 5, 5, 0)
    pinned = resolved.replace(trainer={"train_steps": resolved.trainer.train_steps}, **data)
    assert steps(pinned) == (30, 5, 30, 3)
    assigned = resolved.replace()
    assigned.trainer.train_steps = 50
    assigned.trainer.optimizer_config.warmup.linear.warmup_steps = 4
    assert steps(assigned) == (50, 10, 50, 4)
    given = epochs.given(resolved).trainer
    assert (given.train_epochs, given.validate_every_epochs, given.steps_per_epoch) == (3, 1, 0)


def test_num_examples_of_a_config_converted_to_steps_changes_only_if_steps_per_epoch_is_reset() -> (
    None
):
    read = cfg.ExperimentConfig(task=_params().task)
    read.override(epochs.resolve(_params(train_epochs=3)).as_dict())
    more = {"task": {"train_data": {"num_examples": 1000}}, "trainer": {"train_epochs": 4}}
    with pytest.raises(errors.ConfigValueError, match="`steps_per_epoch: 0`"):
        epochs.resolve(read.replace(**more))
    more["trainer"]["steps_per_epoch"] = 0
    assert epochs.resolve(read.replace(**more)).trainer.train_steps == 400


def test_changing_train_epochs_after_epochs_were_converted_rounds_only_the_total_steps() -> None:
    resolved = epochs.resolve(_params(106, train_epochs=2))
    assert resolved.trainer.steps_per_epoch == 10
    again = epochs.resolve(resolved.replace(trainer={"train_epochs": 3}))
    assert again.trainer.train_steps == 32


@pytest.mark.parametrize(
    ("num_examples", "batch_size", "count"), [(106, 10, 3), (60000, 128, 10), (106, 10, 1)]
)
def test_intervals_of_whole_epochs_fit_into_the_number_of_train_steps(
    num_examples, batch_size, count
) -> None:
    params = _params(
        num_examples, train_epochs=count, validate_every_epochs=1, checkpoint_every_epochs=count
    )
    params.task.train_data.global_batch_size = batch_size
    trainer = epochs.resolve(params).trainer
    assert count * trainer.steps_per_epoch <= trainer.train_steps
    assert count * trainer.validation_interval <= trainer.train_steps
    assert trainer.checkpoint_interval <= trainer.train_steps


def test_epoch_interval_below_one_step_becomes_one_step() -> None:
    often = {"validate_every_epochs": 0.01, "checkpoint_every_epochs": 0.01}
    trainer = epochs.resolve(_params(5, train_epochs=1, **often)).trainer
    assert (trainer.steps_per_epoch, trainer.train_steps) == (1, 1)
    assert (trainer.validation_interval, trainer.checkpoint_interval) == (1, 1)


def test_schedule_ratios_of_a_short_run_give_one_decay_step_and_no_warmup() -> None:
    schedules = {
        "learning_rate": {"type": "cosine", "cosine": {"decay_ratio": 0.01}},
        "warmup": {"type": "linear", "linear": {"warmup_ratio": 0.01}},
    }
    config = epochs.resolve(_params(train_steps=10, optimizer_config=schedules)).trainer
    config = config.optimizer_config
    assert (config.learning_rate.cosine.decay_steps, config.warmup.linear.warmup_steps) == (1, 0)


def test_multi_task_config_with_epochs_requires_steps_per_epoch() -> None:
    params = multitask_configs.MultiTaskExperimentConfig()
    assert epochs.resolve(params, object()) is params
    params.trainer.train_epochs = 1
    for task in (None, object()):
        with pytest.raises(errors.ConfigValueError, match="several tasks"):
            epochs.resolve(params, task)
    # A pipeline stage may still set the length of an epoch.
    late = params.replace(pipeline={"prepare": "mine.py:Prepare"})
    assert epochs.resolve(late) is late
    with pytest.raises(
        errors.ConfigValueError, match=r"several tasks.* `trainer\.steps_per_epoch`"
    ):
        epochs.resolve(late, object())
    params.trainer.steps_per_epoch = 5
    assert epochs.resolve(params, object()).trainer.train_steps == 5
