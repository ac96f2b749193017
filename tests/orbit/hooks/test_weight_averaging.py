import json
import os
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf

from experiments.vision.digits import configs as digits_configs
from experiments.vision.digits import task as digits_task
from official_lite import orbit
from official_lite.common import errors, preemption
from official_lite.core import train_lib
from official_lite.orbit import hooks
from tests import line_experiment, rounding


class Weights(orbit.Hook):
    """A hook that stores the trainable weights after each step and fails at step `fails_at`."""

    every_n_steps = 1

    def __init__(self, fails_at=None):
        self.at = {}
        self.fails_at = fails_at

    def after_step(self):
        step = self.controller.step
        self.at[step] = [w.numpy() for w in self.trainer.model.trainable_variables]
        if step == self.fails_at:
            raise KeyError("killed")


@pytest.fixture
def make(make_controller, make_task_trainer, points_task, tmp_path):
    """Return a function that builds a controller whose model has batch normalization."""

    class Task(points_task):
        def layers(self):
            normalize = keras.layers.BatchNormalization(name="normalize")
            return [keras.layers.Dense(3, name="bottom"), normalize]

    def build(*used, directory="run", strategy=None, **kwargs):
        strategy = strategy or tf.distribute.get_strategy()
        with strategy.scope():
            trainer = make_task_trainer(Task, **kwargs)
        manager = tf.train.CheckpointManager(
            trainer.checkpoint,
            str(tmp_path / directory),
            max_to_keep=None,
            step_counter=trainer.global_step,
            checkpoint_interval=4,
        )
        return make_controller(trainer, hooks=used, strategy=strategy, checkpoint_manager=manager)

    return build


def _swa(**kwargs):
    arguments = {"start_step": 4, "every_n_steps": 2, "recalibration_steps": 8}
    return hooks.StochasticWeightAveraging(**(arguments | kwargs))


def _values(controller):
    return [v.numpy() for v in controller.trainer.model.variables]


def _loaded(make, directory):
    """Return a new controller with the averaged weights and the path of their checkpoint."""
    controller = make(directory="other")
    path = tf.train.latest_checkpoint(directory)
    controller.restore_checkpoint(path)
    return controller, path


def _assert_equal(ones, others):
    for one, other in zip(ones, others, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.sample(1)
@pytest.mark.parametrize("is_distributed", [False, True])
def test_averaged_checkpoint_contains_the_mean_of_the_weights_at_averaging_steps(
    make, tmp_path, two_replicas, is_distributed
):
    weights = Weights()
    strategy = two_replicas if is_distributed else None
    make(_swa(), weights, strategy=strategy).train(11)
    controller, path = _loaded(make, str(tmp_path / "run" / "swa"))
    assert path.endswith("ckpt-11")
    for i, averaged in enumerate(controller.trainer.model.trainable_variables):
        expected = np.mean([weights.at[step][i] for step in (4, 6, 8, 10)], axis=0)
        rounding.assert_close(averaged.numpy(), expected, roundings=4)


def test_batch_norm_statistics_are_recalibrated_for_the_averaged_weights(make, tmp_path):
    make(_swa()).train(8)
    model = (trainer := _loaded(make, str(tmp_path / "run" / "swa"))[0].trainer).model
    kernel, bias = model.get_layer("bottom").get_weights()
    examples = np.concatenate([x for x, _ in trainer.build_train_dataset().take(8)])
    expected = (examples @ kernel + bias).mean(0)
    mean = model.get_layer("normalize").moving_mean
    rounding.assert_close(mean, expected, roundings=examples.size)


@pytest.mark.sample(1)
@pytest.mark.parametrize("optimizer", [{}, {"ema": {}}])
def test_weight_averaging_does_not_change_the_trained_weights_or_optimizer_state(make, optimizer):
    ends = []
    for name, used in (("plain", []), ("averaged", [_swa()])):
        controller = make(*used, directory=name, optimizer=optimizer)
        controller.train_and_evaluate(train_steps=10, eval_interval=5)
        ends.append(
            _values(controller) + [v.numpy() for v in controller.trainer.optimizer.variables]
        )
    _assert_equal(*ends)


@pytest.mark.parametrize("optimizer", [{}, {"ema": {}}])
def test_reported_swa_loss_equals_the_loss_of_the_saved_averaged_model(
    make, tmp_path, recording_writer, optimizer
):
    controller = make(_swa(), optimizer=optimizer)
    controller.train_and_evaluate(train_steps=10, eval_interval=5)
    reported = recording_writer.records[-1].values["swa/validation_loss"]
    assert reported != controller.eval_logs["validation_loss"]
    fresh = make(directory="other", optimizer=optimizer)
    fresh.restore_checkpoint(tf.train.latest_checkpoint(str(tmp_path / "run" / "swa")))
    # The loss is a mean over 64 examples.
    rounding.assert_close(fresh.evaluate()["validation_loss"], reported, roundings=64)


def test_average_is_computed_from_trained_weights_and_not_from_their_ema(make, recording_writer):
    for optimizer in ({}, {"ema": {}}):
        make(_swa(), directory=str(len(optimizer)), optimizer=optimizer).train(10)
    losses = [record.values.get("swa/validation_loss") for record in recording_writer.records]
    one, other = [loss for loss in losses if loss is not None]
    # Both runs train for ten steps of eight examples each.
    rounding.assert_close(one, other, roundings=10 * 8)


def test_resumed_run_saves_the_same_averaged_weights_as_an_uninterrupted_run(make, tmp_path):
    make(_swa(), directory="unbroken").train(12)
    with pytest.raises(KeyError):
        make(_swa(), Weights(fails_at=9), directory="broken").train(12)
    # These checkpoints do not contain the position in the data.
    resumed = make(_swa(), directory="broken")
    assert resumed.step == 8
    resumed.trainer._train_iter = iter(resumed.trainer.train_dataset)
    for _ in range(8):
        next(resumed.trainer._train_iter)
    resumed.train(12)
    averages = [_loaded(make, str(tmp_path / name / "swa"))[0] for name in ("unbroken", "broken")]
    _assert_equal(*map(_values, averages))


def test_restoring_a_checkpoint_from_before_averaging_began_discards_the_average(make):
    hook = _swa()
    controller = make(hook, Weights())
    controller.train(3)
    saved = controller.checkpoint_manager.latest_checkpoint
    controller.train(8)
    assert hook.state_dict()["num_averaged"] == 3
    controller.restore_checkpoint(saved)
    assert hook.state_dict() == {"num_averaged": 0, "first_step": None, "positions": []}


def test_weight_averaging_resumed_with_other_frozen_layers_covers_only_trainable_weights(
    make, tmp_path, log_lines
):
    make(_swa(), freeze=["bottom"]).train(8)
    weights = Weights()
    resumed = make(_swa(), weights, freeze=["top"])
    assert resumed.step == 8
    assert any("starts a new average" in line for line in log_lines)
    resumed.train(12)
    model = _loaded(make, str(tmp_path / "run" / "swa"))[0].trainer.model
    bottom = model.get_layer("bottom").kernel
    expected = np.mean([weights.at[step][0] for step in (10, 12)], axis=0)
    rounding.assert_close(bottom.numpy(), expected, roundings=2)


def test_run_resumed_with_a_later_start_step_averages_only_the_weights_from_that_step_on(
    make, tmp_path, log_lines
):
    make(_swa()).train(8)
    weights = Weights()
    resumed = make(_swa(start_step=10), weights)
    assert any("starts a new average" in line for line in log_lines)
    resumed.train(12)
    model = _loaded(make, str(tmp_path / "run" / "swa"))[0].trainer.model
    expected = np.mean([weights.at[step][0] for step in (10, 12)], axis=0)
    rounding.assert_close(model.get_layer("bottom").kernel.numpy(), expected, roundings=2)


def test_weight_average_restored_from_an_older_checkpoint_is_continued(make, tmp_path):
    class Older(hooks.StochasticWeightAveraging):
        """A hook that does not save which weights it averages, as in older versions."""

        name = "StochasticWeightAveraging"

        def state_dict(self):
            return {key: value for key, value in super().state_dict().items() if key != "positions"}

    before, after = Weights(), Weights()
    make(Older(4, every_n_steps=2, recalibration_steps=8), before).train(8)
    resumed = make(_swa(), after)
    assert resumed.step == 8
    resumed.train(12)
    model = _loaded(make, str(tmp_path / "run" / "swa"))[0].trainer.model
    at = before.at | after.at
    for i, averaged in enumerate(model.trainable_variables):
        expected = np.mean([at[step][i] for step in (4, 6, 8, 10, 12)], axis=0)
        rounding.assert_close(averaged.numpy(), expected, roundings=5)


def test_failed_training_run_saves_no_averaged_weights(make, tmp_path):
    with pytest.raises(KeyError):
        make(_swa(), Weights(fails_at=6)).train(8)
    assert not (tmp_path / "run" / "swa").exists()


def test_interrupted_training_run_saves_no_averaged_weights(make, tmp_path):
    interrupt = hooks.LambdaHook(
        after_step=lambda hook: os.kill(os.getpid(), signal.SIGTERM), every_n_steps=6
    )
    controller = make(_swa(), interrupt)
    controller.evaluator = None  # The signal would also end an evaluation, before the save.
    with preemption.catch_signals(), pytest.raises(errors.PreemptedError):
        controller.train(20)
    assert controller.step < 20
    assert not (tmp_path / "run" / "swa").exists()


def test_trained_weights_are_restored_if_evaluating_the_averaged_weights_fails(make):
    class Failing(orbit.Hook):
        def before_train(self):
            self.controller.evaluator = self

        def evaluate(self, num_steps):
            raise KeyError("evaluation")

    weights = Weights()
    controller = make(Failing(), weights, _swa())
    with pytest.raises(KeyError, match="evaluation"):
        controller.train(8)
    _assert_equal(weights.at[8], [w.numpy() for w in controller.trainer.model.trainable_variables])


def test_run_that_ends_before_the_first_averaging_step_logs_a_warning(make, tmp_path, log_lines):
    make(_swa(start_step=100)).train(8)
    assert any("averaged no weights" in line for line in log_lines)
    assert not (tmp_path / "run" / "swa").exists()


def test_swa_hook_saves_the_averaged_weights_in_a_run_without_evaluation(tmp_path):
    params = digits_configs.digits_mlp()
    params.override({"trainer": {"train_steps": 8}})
    task = digits_task.DigitsTask(params.task)
    strategy = tf.distribute.get_strategy()
    train_lib.run_experiment(strategy, task, "train", params, str(tmp_path), hooks=[_swa()])
    assert (tmp_path / "swa" / "ckpt-8.index").exists()


def test_evaluation_of_averaged_weights_reads_the_configured_number_of_batches(
    experiment, make_task, tmp_path
):
    class Task(line_experiment.LineTask):
        def build_inputs(self, params, input_context=None):
            dataset = super().build_inputs(params, input_context)
            if params.is_training:
                return dataset.repeat()
            # Reading more than one batch would make the loss NaN.
            return dataset.take(1).concatenate(dataset.map(lambda x, y: (x, y + np.nan)))

    params = experiment(trainer={"validation_steps": 1, "writers": ["jsonl"]})
    swa = _swa(recalibration_steps=0)
    task = make_task(params, Task)
    train_lib.run_experiment(None, task, "train_and_post_eval", params, str(tmp_path), hooks=[swa])
    records = map(json.loads, (tmp_path / "metrics.json").read_text().splitlines())
    (loss,) = [r["swa/validation_loss"] for r in records if "swa/validation_loss" in r]
    assert loss is not None  # NaN is recorded as null.


def test_evaluation_of_averaged_weights_is_never_saved_as_the_best_evaluation(tmp_path):
    params = digits_configs.digits_mlp()
    best = {"eval_metric": "validation_loss", "export_subdir": "best", "metric_comp": "higher"}
    fields = {f"best_checkpoint_{name}": value for name, value in best.items()}
    params.override({"trainer": {"train_steps": 8, "validation_interval": 8, **fields}})
    task = digits_task.DigitsTask(params.task)
    # The loss of the average is higher because the average includes the first steps.
    swa = _swa(start_step=0, every_n_steps=1)
    _, logs = train_lib.run_experiment(
        None, task, "train_and_eval", params, str(tmp_path), hooks=[swa], run_post_eval=True
    )
    info = json.loads((tmp_path / "best" / "info.json").read_text())
    assert info["validation_loss"] == logs["validation_loss"]
