from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.modeling import optimization, performance
from official_lite.modeling.multitask import multitask


def _joint_step(tasks: Any, model: Any, optimizer: Any) -> dict[str, Any]:
    multi_task = multitask.MultiTask(tasks, task_weights={"bar": 0.5})
    batches = {n: next(iter(t.build_inputs(t.task_config.train_data))) for n, t in tasks.items()}
    return multi_task.joint_train_step(batches, model, optimizer, {name: [] for name in tasks})


def _sgd() -> keras.optimizers.Optimizer:
    return optimization.make_distributed(keras.optimizers.SGD(0.1))


# With weight 1 and targets 0 and 3, the gradients of both losses cancel:
# 2 * 1 + 0.5 * 2 * (1 - 3) = 0. What remains is the gradient of the regularization, 2 * l2 * 1, and
# of losses that a layer adds.


def test_regularization_of_a_shared_weight_is_added_once(
    tasks: Any, make_model: Callable[..., Any]
) -> None:
    model = make_model(l2=0.1)
    losses = _joint_step(tasks, model, _sgd())
    assert {name: float(loss) for name, loss in losses.items()} == pytest.approx(
        {"foo": 1.0, "bar": 4.0, "total_loss": 1.0 + 0.5 * 4.0 + 0.1}
    )
    assert model.weight == pytest.approx(1 - 0.1 * 0.2)


def test_layer_loss_is_added_only_to_the_loss_of_its_task(
    tasks: Any, make_model: Callable[..., Any]
) -> None:
    model = make_model(l2=0.1, added_loss=2.0)
    losses = _joint_step(tasks, model, _sgd())
    assert float(losses["foo"]) == pytest.approx(1.0 + 2.0)
    assert float(losses["bar"]) == pytest.approx(4.0)
    assert model.weight == pytest.approx(1 - 0.1 * (0.2 + 2.0))


def test_joint_update_does_not_depend_on_loss_scaling_or_the_number_of_replicas(
    tasks: Any, make_model: Callable[..., Any], two_replicas: tf.distribute.Strategy
) -> None:
    with two_replicas.scope():
        model = make_model(l2=0.1)
        optimizer = performance.LossScaleOptimizer(_sgd(), initial_scale=1024.0)
        model.shared.build((None, 1))
        optimizer.build(model.trainable_variables)
    two_replicas.run(tf.function(lambda: _joint_step(tasks, model, optimizer)))
    assert model.weight == pytest.approx(1 - 0.1 * 0.2)


def test_multitask_from_config_keeps_task_names_weights_and_eval_steps(
    experiment: Callable[..., Any],
) -> None:
    config = experiment().task
    config.task_routines[0].override({"task_weight": None, "eval_steps": 2})
    config.task_routines[1].override({"task_weight": 3.0})
    multi_task = multitask.MultiTask.from_config(config)
    assert [task.name for task in multi_task.tasks.values()] == ["foo", "bar"]
    assert multi_task.task_weights == {"foo": 1.0, "bar": 3.0}
    assert multi_task.task_eval_steps == {"foo": 2, "bar": None}


def test_duplicate_tasks_and_weights_of_unknown_tasks_are_refused(tasks: Any) -> None:
    with pytest.raises(errors.ConfigValueError, match="named 'foo'"):
        multitask.MultiTask([tasks["foo"], tasks["foo"]])
    with pytest.raises(errors.UnknownKeyError, match="Did you mean `bar`"):
        multitask.MultiTask(tasks, task_weights={"baz": 1.0})
    with pytest.raises(errors.ConfigValueError, match="expected a list"):
        multitask.MultiTask(tasks["foo"])
