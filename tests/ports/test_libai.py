"""The code of LiBai's page on training: its hook, its trainers, its logging model and its loop."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl import logging

from experiments.vision.digits import configs as digits_configs
from experiments.vision.digits import task as digits_task
from official_lite import orbit, telemetry
from official_lite.core import base_trainer, train_lib, trainer_factory
from official_lite.orbit import hooks
from tests import rounding
from tests.experiments import evaluations


class InfoHook(orbit.Hook):
    every_n_steps = 1

    def before_train(self):
        logging.info(f"start training at {self.trainer.iter}")

    def after_train(self):
        logging.info(f"end training ad {self.trainer.iter}")

    def after_step(self):
        if self.trainer.iter % 100 == 0:
            logging.info(f"iteration {self.trainer.iter}!")


@trainer_factory.register_trainer_cls("test/libai")
class MyTrainer(base_trainer.Trainer):
    def build_hooks(self):
        ret = [
            hooks.IterationTimer(),
            hooks.LearningRateLogger(every_n_steps=50),
            hooks.PeriodicCheckpoint(self.config.trainer.checkpoint_interval),
        ]
        ret.append(InfoHook())
        return ret


class MyEagerTrainer(base_trainer.Trainer):
    @property
    def previous_output(self):
        return self.last_step_outputs

    def train_step(self, iterator):
        inputs = self.next_train_inputs(iterator)
        return self.strategy.run(self._step_fn, args=(inputs,))

    def _step_fn(self, inputs):
        loss_dict = self.task.train_step(
            inputs, model=self.model, optimizer=self.optimizer, metrics=self.train_metrics
        )
        self.train_loss.update_state(loss_dict["loss"])
        self.global_step.assign_add(1)
        return loss_dict


class LoggingModel(keras.Model):
    def __init__(self):
        super().__init__()
        self.flatten = keras.layers.Flatten()
        self.dense = keras.layers.Dense(10)

    def call(self, x, training=False):
        x = self.flatten(x)
        if training:
            value = tf.reduce_mean(x)
            storage = telemetry.get_event_storage()
            storage.put_scalar("some_accuracy", value)
        return self.dense(x)


class LoggingTask(digits_task.DigitsTask):
    def build_model(self):
        return LoggingModel()


class Recorder(orbit.Hook):
    every_n_steps = 1

    def __init__(self, calls):
        self.calls = calls

    def before_train(self):
        self.calls.append("before_train")

    def before_step(self):
        self.calls.append(f"before_step {self.iter}")

    def after_step(self):
        self.calls.append(f"after_step {self.iter}")

    def after_train(self, success):
        self.calls.append(f"after_train {self.iter}")


class StorageHook(orbit.Hook):
    """A hook that uses trainer attributes known from LiBai and detectron2."""

    every_n_steps = 1

    def after_step(self):
        left = self.trainer.max_iter - self.trainer.iter
        self.trainer.storage.put_scalar("progress", self.trainer.iter - self.trainer.start_iter)
        self.trainer.storage.put_scalar("left", left)


def _params(**trainer):
    params = digits_configs.digits_mlp()
    params.override({"trainer": {"train_steps": 3, "checkpoint_interval": 0, **trainer}})
    return params


def _run(params, model_dir, task_cls=digits_task.DigitsTask, strategy=None, mode="train", **kwargs):
    strategy = strategy or tf.distribute.get_strategy()
    with strategy.scope():
        task = task_cls(params.task)
    return train_lib.run_experiment(strategy, task, mode, params, str(model_dir), **kwargs)


def _records(model_dir):
    lines = (model_dir / "metrics.json").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_hooks_and_steps_alternate_as_in_libai(tmp_path, monkeypatch):
    calls = []
    run_steps = base_trainer.Trainer.run_steps

    def recorded(self, num_steps):
        run_steps(self, num_steps)
        calls.append(f"run_step x{int(num_steps)}")

    monkeypatch.setattr(base_trainer.Trainer, "run_steps", recorded)
    _run(_params(), tmp_path, hooks=[Recorder(calls)])
    assert calls == [
        "before_train",
        *["before_step 0", "run_step x1", "after_step 0"],
        *["before_step 1", "run_step x1", "after_step 1"],
        *["before_step 2", "run_step x1", "after_step 2"],
        "after_train 3",
    ]


def test_libai_trainer_trains_with_the_hooks_that_it_builds(tmp_path, log_as_train_py_does):
    params = _params(name="test/libai", train_steps=201, checkpoint_interval=200)
    _run(params, tmp_path)
    log = (tmp_path / "log.txt").read_text()
    lines = ["start training at 0", "iteration 0!", "iteration 100!", "iteration 200!"]
    places = [log.index(line) for line in [*lines, " iterations in ", "end training ad 201"]]
    assert places == sorted(places)
    assert (tmp_path / "ckpt-200.index").exists()
    assert (tmp_path / "ckpt-201.index").exists()
    report = _records(tmp_path)[-1] | _records(tmp_path)[0]
    assert report["learning_rate"] > 0
    assert report["seconds_per_step"] > 0


def test_hook_can_use_libai_attributes_of_its_trainer(tmp_path):
    _run(_params(train_steps=2, steps_per_loop=1, checkpoint_interval=2), tmp_path)
    params = _params(train_steps=5, steps_per_loop=1)
    _run(params, tmp_path, hooks=[StorageHook()])
    told = [(r["progress"], r["left"]) for r in _records(tmp_path) if "progress" in r]
    assert told == [(0, 3), (1, 2), (2, 1)]


@pytest.mark.sample(1)
@pytest.mark.parametrize("run_eagerly", [False, True])
def test_libai_trainer_provides_the_output_of_the_last_step(tmp_path, run_eagerly):
    params = _params(train_steps=10)
    params.override({"runtime": {"run_eagerly": run_eagerly}})

    def trained(steps):
        keras.utils.set_random_seed(0)
        task = digits_task.DigitsTask(params.task)
        optimizer = task.create_optimizer(params.trainer.optimizer_config)
        trainer = MyEagerTrainer(params, task, task.build_model(), optimizer, evaluate=False)
        trainer.train(tf.constant(steps))
        return trainer

    before = trained(9)
    batch = next(iter(before.task.build_inputs(params.task.train_data).skip(9)))
    expected = before.task.train_step(batch, before.model, before.optimizer)["loss"]
    # The loss follows from ten steps of 64 examples each.
    rounding.assert_close(trained(10).previous_output["loss"], expected, roundings=10 * 64)


@pytest.mark.sample(1)
@pytest.mark.parametrize(("replicas", "enable_xla"), [(1, True), (2, False)])
def test_model_logs_scalars_to_the_event_storage_during_training(
    tmp_path, two_replicas, replicas, enable_xla
):
    params = _params(train_steps=6, steps_per_loop=3)
    params.override({"runtime": {"enable_xla": enable_xla}})
    strategy = two_replicas if replicas == 2 else None
    _run(params, tmp_path, LoggingTask, strategy)
    dataset = digits_task.DigitsTask(params.task).build_inputs(params.task.train_data)
    means = [float(np.mean(images)) for images, _ in dataset.take(6)]
    logged = [r["some_accuracy"] for r in _records(tmp_path) if r["split"] == "train"]
    # Each mean is over 64 images of 64 pixels.
    rounding.assert_close(logged, [np.mean(means[:3]), np.mean(means[3:])], roundings=64 * 64)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("trainer", "replicas"), [("test/libai", 2), (f"{__name__}:MyEagerTrainer", 1)]
)
def test_eval_mode_of_a_libai_trainer_reproduces_its_last_evaluation(
    tmp_path, two_replicas, replicas, trainer
):
    params = _params(name=trainer, train_steps=4, validation_interval=2, checkpoint_interval=4)
    strategy = two_replicas if replicas == 2 else None
    for mode in ("train_and_eval", "eval"):
        _run(params, tmp_path, LoggingTask, strategy, mode)
    evaluations.assert_recorded_as_in_training(tmp_path)


def test_model_that_logs_can_be_called_outside_a_training_run():
    assert LoggingModel()(tf.zeros((2, 8, 8, 1)), training=True).shape == (2, 10)
    with pytest.raises(Exception, match="storage"):
        telemetry.get_event_storage(required=True)
