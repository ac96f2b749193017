"""Factories for the optimizer and the trainer of a config.

To use a custom trainer, set `trainer.name` in the config to its registered name, to
`package.module:Class` or to `{workspace}/file.py:Class`. In gin, set `create_trainer.trainer_cls =
@MyTrainer`; in Python, pass the class as an argument. Register a trainer with::

    @trainer_factory.register_trainer_cls("distillation")
    class DistillationTrainer(base_trainer.Trainer): ...
"""

import inspect
from collections.abc import Callable
from typing import TypeVar

import gin
import keras

from official_lite.common import errors, keras_variables, plugins
from official_lite.core import (
    base_task,
    base_trainer,
    checkpoint_state,
    config_definitions,
    step_checks,
)

__all__ = [
    "build_model",
    "create_optimizer",
    "create_trainer",
    "divides_data",
    "get_trainer_cls",
    "register_trainer_cls",
]

TrainerClass = TypeVar("TrainerClass", bound=type[base_trainer.Trainer])

# The trainers of `official_lite.nas`, which is imported only when one of them is looked up.
_REGISTERED_TRAINER_CLS: plugins.Collection = {
    name: f"official_lite.nas:{name.capitalize()}Trainer"
    for name in ("darts", "enas", "gumbel", "proxyless", "spos")
}


def register_trainer_cls(name: str) -> Callable[[TrainerClass], TrainerClass]:
    """Return a decorator that registers a trainer class for `trainer.name`.

    Raises:
        errors.ConfigError: If the name belongs to another trainer.
    """
    return plugins.register(_REGISTERED_TRAINER_CLS, name)


def build_model(task: base_task.Task) -> keras.Model:
    """Return the model that the task builds.

    Raises:
        errors.ConfigTypeError: If `build_model` does not return an object, or a model does not
            call the constructor of its base class.
    """
    step_checks.require_signature(task.build_model)
    model = keras_variables.build_with_fresh_names(task.build_model)
    model = step_checks.returned(task.build_model, model, "a Keras model")
    if isinstance(model, keras.Model):
        plugins.require_constructed(model, "built")
    return model


def create_optimizer(
    task: base_task.Task, params: config_definitions.ExperimentConfig
) -> keras.optimizers.Optimizer:
    """Create the task's optimizer.

    An overridden `Task.create_optimizer` may omit the argument `dp_config`.
    """
    dp_config = params.task.differential_privacy_config
    args = (params.trainer.optimizer_config, params.runtime)
    create = task.create_optimizer
    if "dp_config" in inspect.signature(create).parameters:
        optimizer = keras_variables.build_with_fresh_names(
            lambda: create(*args, dp_config=dp_config)
        )
        return step_checks.returned(create, optimizer, "a Keras optimizer")
    if dp_config is not None:
        raise errors.ConfigValueError(
            "`task.differential_privacy_config` is set, but the task's `create_optimizer` takes "
            "no `dp_config`. Remove the field from the config."
        )
    optimizer = keras_variables.build_with_fresh_names(lambda: create(*args))
    return step_checks.returned(create, optimizer, "a Keras optimizer")


@gin.configurable
def create_trainer(
    params: config_definitions.ExperimentConfig,
    task: base_task.Task,
    train: bool,
    evaluate: bool,
    checkpoint_exporter: object = None,
    trainer_cls: type[base_trainer.Trainer] | None = None,
    model: keras.Model | None = None,
    optimizer: keras.optimizers.Optimizer | None = None,
) -> base_trainer.Trainer:
    """Build the model, the optimizer and the trainer; call it in the strategy's scope.

    The checkpoint of the trainer also contains the stateful attributes of the trainer and of its
    tasks; see `checkpoint_state.add_attributes`.

    Steps are executed in the mode of `runtime.execution`. `auto` is `graph` until
    `trainer.choose_execution()` finds the fastest mode, which `run_experiment` does by itself.

    Args:
        params: The experiment's config.
        task: The task.
        train: Whether the trainer will train.
        evaluate: Whether it will evaluate.
        checkpoint_exporter: An object that is called after every evaluation; see `Trainer`.
        trainer_cls: The trainer's class; by default that of `get_trainer_cls`.
        model: The model; by default the task builds it.
        optimizer: The optimizer; by default the task creates it.

    Raises:
        errors.UnknownNameError: If `trainer.name` is unknown.
        errors.ConfigTypeError: If the trainer does not call the constructor of its base class.
    """
    trainer_cls = trainer_cls or get_trainer_cls(params)
    # `model or ...` would also replace a given model whose `__len__` returns 0.
    trainer = trainer_cls(
        params,
        task,
        model=build_model(task) if model is None else model,
        optimizer=create_optimizer(task, params) if optimizer is None else optimizer,
        train=train,
        evaluate=evaluate,
        checkpoint_exporter=checkpoint_exporter,
    )
    if isinstance(trainer, base_trainer.Trainer):
        plugins.require_constructed(trainer, "checkpoint", "config, task, model, optimizer, …")
        # The caller may still build a second optimizer or model, so do not check them here.
        checkpoint_state.add_attributes(trainer.checkpoint, trainer, trains=False)
    return trainer


def get_trainer_cls(params: config_definitions.ExperimentConfig) -> type[base_trainer.Trainer]:
    """Return the class that gin or `trainer.name` selects; `Trainer` if neither does.

    Raises:
        errors.UnknownNameError: If the name is unknown.
    """
    found: type[base_trainer.Trainer] | None = gin.get_bindings(create_trainer).get("trainer_cls")
    if found:
        return found
    name = params.trainer.name
    if not name:
        return base_trainer.Trainer
    named: type[base_trainer.Trainer] = plugins.resolve(
        name,
        registry=_REGISTERED_TRAINER_CLS,
        base=base_trainer.Trainer,
        workspace=params.workspace or None,
        kind="trainer",
    )
    return named


def divides_data(params: config_definitions.ExperimentConfig) -> bool:
    """Return whether the trainer of a config divides the training data; see `Trainer`."""
    return bool(getattr(get_trainer_cls(params), "divides_data", False))
