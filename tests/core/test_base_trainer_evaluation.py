import numpy as np
import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.core import base_trainer
from tests import rounding
from tests.line_experiment import NUM_EXAMPLES, LineTask

EMA = {"optimizer": {"type": "sgd"}, "ema": {"average_decay": 0.9}}


def test_evaluation_uses_averaged_weights_and_restores_the_trained_weights(
    experiment, make_trainer
) -> None:
    trainer = make_trainer(experiment(trainer={"optimizer_config": EMA}))
    trainer.train(tf.constant(5))
    before = trainer.model.dense.kernel.numpy()
    average = trainer.evaluate(tf.constant(-1))["validation_loss"]
    np.testing.assert_array_equal(trainer.model.dense.kernel, before)
    trainer._optimizer = trainer.optimizer.inner_optimizer
    assert trainer.evaluate(tf.constant(-1))["validation_loss"] != average


def test_trained_weights_are_restored_if_an_evaluation_of_averaged_weights_fails(
    experiment, make_trainer
) -> None:
    class Failing(base_trainer.Trainer):
        def eval_end(self, aggregated_logs=None):
            raise OSError("disk full")

    params = experiment(trainer={"optimizer_config": EMA})
    trainer = make_trainer(params, cls=Failing)
    trainer.train(tf.constant(5))
    before = trainer.model.dense.kernel.numpy()
    with pytest.raises(OSError, match="disk full"):
        trainer.evaluate(tf.constant(-1))
    np.testing.assert_array_equal(trainer.model.dense.kernel, before)


def test_logs_of_next_eval_inputs_reach_eval_reduce_without_replacing_task_logs(
    experiment, make_trainer, caplog
) -> None:
    seen = []

    class Passing(base_trainer.Trainer):
        def next_eval_inputs(self, iterator):
            return next(iterator), {"id": tf.constant("a"), "loss": tf.constant(-1.0)}

        def eval_reduce(self, state=None, step_outputs=None):
            seen.append(step_outputs)

    make_trainer(experiment(), cls=Passing, train=False).evaluate(tf.constant(1))
    assert seen[0]["id"] == b"a"
    assert seen[0]["loss"][0] >= 0
    assert "both report loss" in caplog.text


def test_train_loss_is_reset_before_each_training_loop(experiment, make_trainer) -> None:
    trainer = make_trainer(experiment())
    trainer.train_loss.update_state(1e9)
    assert float(trainer.train(tf.constant(1))["training_loss"]) < 1e3


def test_eval_reduce_may_return_an_array(experiment, make_trainer) -> None:
    class Collecting(base_trainer.Trainer):
        def eval_reduce(self, state=None, step_outputs=None):
            return np.append([] if state is None else state, step_outputs["loss"][0].numpy())

    trainer = make_trainer(experiment(), cls=Collecting, train=False)
    trainer.task.reduce_aggregated_logs = lambda logs, global_step=None: {"batches": len(logs)}
    assert trainer.evaluate(tf.constant(-1))["batches"] == 4


def test_best_checkpoint_of_averaged_weights_evaluates_to_the_loss_that_selected_it(
    experiment, make_trainer, tmp_path
) -> None:
    params = experiment(trainer={"optimizer_config": EMA})
    manager = []

    class Exporter:
        best_metric_value = None

        def maybe_export_checkpoint(self, checkpoint, logs, step):
            manager.append(checkpoint.save(str(tmp_path / "best")))

    trainer = make_trainer(params, checkpoint_exporter=Exporter())
    trainer.train(tf.constant(5))
    chosen = trainer.evaluate(tf.constant(-1))["validation_loss"]
    restored = make_trainer(params, train=False)
    restored.checkpoint.restore(manager[0])
    loss = restored.evaluate(tf.constant(-1))["validation_loss"]
    rounding.assert_close(loss, chosen, roundings=NUM_EXAMPLES)


def test_evaluate_raises_if_the_trainer_was_created_with_evaluate_false(
    experiment, make_trainer
) -> None:
    with pytest.raises(errors.ConfigValueError, match="created with `evaluate=False`"):
        make_trainer(experiment(), evaluate=False).evaluate(tf.constant(1))


def test_metrics_are_reset_between_evaluations(experiment, make_trainer) -> None:
    trainer = make_trainer(experiment(), train=False)
    assert float(trainer.evaluate(tf.constant(-1))["mae"]) > 1
    trainer.model.dense.kernel.assign([[3.0], [0.0]])
    trainer.model.dense.bias.assign([1.0])
    logs = trainer.evaluate(tf.constant(-1))
    # Both metrics are differences of outputs and labels, all of which are below 10.
    rounding.assert_close([logs["mae"], logs["validation_loss"]], 0.0, scale=10.0)


def test_validation_step_without_a_loss_reports_no_validation_loss(
    experiment, make_trainer, make_task
) -> None:
    class Silent(type(make_task(experiment()))):
        def validation_step(self, inputs, model, metrics=None):
            super().validation_step(inputs, model, metrics)
            return {}

    logs = make_trainer(experiment(), task_cls=Silent, train=False).evaluate(tf.constant(-1))
    assert "mae" in logs
    assert "validation_loss" not in logs


def test_eval_tf_while_loop_is_refused_before_training_if_the_task_aggregates_logs(
    experiment, make_trainer
) -> None:
    class Counting(LineTask):
        def aggregate_logs(self, state, step_logs):
            return (state or 0) + 1

        def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
            return {"num_batches": aggregated_logs}

    compiled = {"eval_tf_while_loop": True, "validation_steps": 2}
    with pytest.raises(errors.ConfigValueError, match=r"`trainer\.eval_tf_while_loop`"):
        make_trainer(experiment(trainer=compiled), task_cls=Counting)
    trainer = make_trainer(experiment(), task_cls=Counting)
    assert trainer.evaluate(tf.constant(2))["num_batches"] == 2
    trainer = make_trainer(experiment(trainer=compiled))
    assert trainer.evaluate(tf.constant(2))["validation_loss"] > 0
