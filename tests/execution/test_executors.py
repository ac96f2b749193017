import pytest
import tensorflow as tf

from tests.execution.test_auto import EndlessTask, NotForXlaTask


@pytest.mark.parametrize("mode", ["xla", "xla_loop"])
def test_step_that_xla_cannot_compile_is_not_run_and_the_error_names_the_op(
    experiment, make_trainer, mode
) -> None:
    trainer = make_trainer(experiment(runtime={"execution": mode}), task_cls=NotForXlaTask)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"(?s)unsupported.*(Print|String)"):
        trainer.train(tf.constant(1))
    assert trainer.global_step.numpy() == 0


def test_errors_of_the_step_itself_come_through(experiment, make_trainer) -> None:
    class Failing(EndlessTask):
        def build_losses(self, labels, model_outputs, aux_losses=None):
            tf.debugging.assert_equal(tf.reduce_sum(labels), 0.0)
            return super().build_losses(labels, model_outputs, aux_losses)

    trainer = make_trainer(experiment(runtime={"execution": "graph"}), task_cls=Failing)
    with pytest.raises(tf.errors.InvalidArgumentError, match="assertion failed"):
        trainer.train(tf.constant(1))


def test_mode_can_be_changed_before_the_training(experiment, make_trainer) -> None:
    trainer = make_trainer(experiment(), task_cls=EndlessTask)
    graph_loop = trainer.train_loop
    trainer.execution = "xla_loop"
    assert type(trainer.train_loop) is not type(graph_loop)
    trainer.train(tf.constant(3))
    assert trainer.global_step.numpy() == 3


def test_data_are_read_by_as_many_threads_as_configured(experiment, make_trainer) -> None:
    trainer = make_trainer(experiment(runtime={"dataset_num_private_threads": 3}))
    for dataset in (trainer.train_dataset, trainer.eval_dataset):
        assert dataset.options().threading.private_threadpool_size == 3
    assert trainer.train(tf.constant(2))["training_loss"] > 0


@pytest.mark.parametrize("mode", ["graph", "xla", "xla_loop"])
def test_step_on_one_replica_may_update_more_than_once(experiment, make_trainer, mode) -> None:
    class Twice(EndlessTask):
        def train_step(self, inputs, model, optimizer, metrics=None):
            super().train_step(inputs, model, optimizer, metrics)
            return super().train_step(inputs, model, optimizer, metrics)

    trainer = make_trainer(experiment(runtime={"execution": mode}), task_cls=Twice)
    trainer.train(tf.constant(3))
    assert int(trainer.optimizer.iterations) == 6
