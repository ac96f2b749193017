"""Multitask training gives the same results in each execution mode."""

import pathlib
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from official_lite import orbit
from official_lite.common import errors
from official_lite.modeling.multitask import multitask, train_lib
from tests import rounding


class LargestGradient(orbit.hooks.GraphHook):
    """A hook that records the loss of a step and the largest gradient."""

    def __init__(self) -> None:
        self.largest = tf.Variable(0.0, trainable=False)
        self.loss = tf.Variable(0.0, trainable=False)

    def call(self, step_outputs: Any) -> None:
        self.loss.assign(tf.cast(tf.add_n(list(step_outputs.values())), tf.float32))

    def on_gradients(self, grads_and_vars: Any) -> None:
        self.largest.assign(tf.maximum(self.largest, tf.abs(grads_and_vars[0][0][0, 0])))


@pytest.fixture
def train(experiment: Callable[..., Any], make_model: Callable[..., Any]) -> Callable[..., Any]:
    def train(
        execution: str, trainer_type: str, strategy: Any = None, hooks: Any = (), num_steps: int = 8
    ) -> Any:
        params = experiment(trainer_type=trainer_type)
        params.runtime.execution = execution
        strategy = strategy or tf.distribute.get_strategy()
        with strategy.scope():
            task, model = multitask.MultiTask.from_config(params.task), make_model()
            trainer = train_lib.get_trainer(strategy, params, task, model)
            trainer.set_graph_hooks(hooks)
            trainer.train(tf.constant(num_steps))
        return trainer

    return train


@pytest.mark.parametrize(("trainer_type", "replicas"), [("joint", 2), ("interleaving", 1)])
def test_xla_loop_is_refused_for_several_replicas_and_interleaved_tasks(
    train: Callable[..., Any], two_replicas: Any, replicas: int, trainer_type: str
) -> None:
    with pytest.raises(errors.ConfigValueError, match="xla_loop"):
        train("xla_loop", trainer_type, two_replicas if replicas == 2 else None)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("execution", "trainer_type", "replicas"),
    [
        ("xla_loop", "joint", 1),
        ("xla", "joint", 2),
        ("eager", "joint", 1),
        ("xla", "interleaving", 1),
        ("eager", "interleaving", 2),
    ],
)
def test_all_execution_modes_give_the_same_multitask_weights(
    train: Callable[..., Any],
    two_replicas: Any,
    execution: str,
    replicas: int,
    trainer_type: str,
) -> None:
    strategy = two_replicas if replicas == 2 else None
    expected = train("graph", trainer_type, strategy)
    trained = train(execution, trainer_type, strategy)
    assert trained.global_step.numpy() == 8
    # Each of the eight updates has about four roundings.
    rounding.assert_close(trained.model.weight, expected.model.weight, roundings=8 * 4)


@pytest.mark.parametrize("trainer_type", ["joint", "interleaving"])
def test_graph_hooks_receive_losses_and_gradients_in_multitask_training(
    train: Callable[..., Any], trainer_type: str
) -> None:
    hook = LargestGradient()
    train("graph", trainer_type, hooks=[hook], num_steps=1)
    assert hook.largest.numpy() > 0
    assert hook.loss.numpy() > 0


@pytest.mark.sample(1)
@pytest.mark.parametrize("execution", ["xla", "xla_loop"])
def test_resumed_multitask_run_equals_an_uninterrupted_run(
    experiment: Callable[..., Any],
    make_model: Callable[..., Any],
    tmp_path: pathlib.Path,
    execution: str,
) -> None:
    def run(name: str, train_steps: int) -> float:
        params = experiment(trainer_type="joint", train_steps=train_steps)
        params.runtime.execution = execution
        model = train_lib.run_experiment(
            distribution_strategy=tf.distribute.get_strategy(),
            task=multitask.MultiTask.from_config(params.task),
            model=make_model(),
            mode="train",
            params=params,
            model_dir=str(tmp_path / name),
        )
        return model.weight

    run("resumed", 4)
    assert run("resumed", 8) == run("unbroken", 8)


def test_joint_trainer_runs_as_many_steps_per_loop_as_the_config_sets(
    train: Callable[..., Any],
) -> None:
    assert train("graph", "joint", num_steps=1).config.trainer.steps_per_loop == 4


def test_error_for_an_unknown_trainer_type_suggests_the_most_similar_type(train) -> None:
    with pytest.raises(errors.UnknownNameError, match="joint"):
        train("graph", "jonit")
