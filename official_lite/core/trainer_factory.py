"""Builds the optimizer and the trainer that a config asks for.

A trainer of one's own is named in the config, `trainer.name`, by its registered name or as
`package.module:Class` or `{workspace}/file.py:Class`; in gin, `create_trainer.trainer_cls =
@MyTrainer`; or in Python, as an argument::

    @trainer_factory.register_trainer_cls("distillation")
    class DistillationTrainer(base_trainer.Trainer): ...
"""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import gin
import keras

from official_lite.common import errors, plugins, registry
from official_lite.core import base_task, base_trainer, config_definitions

__all__ = ["create_optimizer", "create_trainer", "get_trainer_cls", "register_trainer_cls"]

TrainerClass = TypeVar("TrainerClass", bound=type[base_trainer.Trainer])

# Those of `official_lite.nas`, which is imported when one of them is asked for.
_REGISTERED_TRAINER_CLS: registry.Collection = {
    name: f"official_lite.nas.{name}:{name.capitalize()}Trainer"
    for name in ("darts", "enas", "gumbel", "proxyless", "spos")
}


def register_trainer_cls(name: str) -> Callable[[TrainerClass], TrainerClass]:
    """A decorator that gives a trainer a name for `trainer.name`.

    Raises:
        errors.ConfigError: If the name belongs to another trainer.
    """
    return registry.register(_REGISTERED_TRAINER_CLS, name)


def create_optimizer(
    task: base_task.Task, params: config_definitions.ExperimentConfig
) -> keras.optimizers.Optimizer:
    """The task's optimizer. Tasks that override `create_optimizer` without `dp_config` will do."""
    dp_config = getattr(params.task, "differential_privacy_config", None)
    args = (params.trainer.optimizer_config, params.runtime)
    if "dp_config" in inspect.signature(task.create_optimizer).parameters:
        return task.create_optimizer(*args, dp_config=dp_config)
    if dp_config is not None:
        raise errors.ConfigValueError(
            "`task.differential_privacy_config` is set, but the task's `create_optimizer` takes "
            "no `dp_config`."
        )
    return task.create_optimizer(*args)


@gin.configurable
def create_trainer(
    params: config_definitions.ExperimentConfig,
    task: base_task.Task,
    train: bool,
    evaluate: bool,
    checkpoint_exporter: Any = None,
    trainer_cls: type[base_trainer.Trainer] | None = None,
    model: keras.Model | None = None,
    optimizer: keras.optimizers.Optimizer | None = None,
) -> base_trainer.Trainer:
    """Builds model, optimizer and trainer; call it in the strategy's scope.

    Args:
        params: The experiment's config.
        task: The task.
        train: Whether the trainer will train.
        evaluate: Whether it will evaluate.
        checkpoint_exporter: Shown every evaluation; see `Trainer`.
        trainer_cls: The trainer's class; by default what `trainer.name` names, or `Trainer`.
        model: The model; by default one that the task builds.
        optimizer: The optimizer; by default one that the task creates.

    Raises:
        errors.UnknownNameError: If there is no trainer of that name.
    """
    trainer_cls = trainer_cls or get_trainer_cls(params)
    # Not `or`: a model may have a length, and be empty.
    return trainer_cls(
        params,
        task,
        model=task.build_model() if model is None else model,
        optimizer=create_optimizer(task, params) if optimizer is None else optimizer,
        train=train,
        evaluate=evaluate,
        checkpoint_exporter=checkpoint_exporter,
    )


def get_trainer_cls(params: config_definitions.ExperimentConfig) -> type[base_trainer.Trainer]:
    """The class that `trainer.name` names; `Trainer` where it names none.

    Raises:
        errors.UnknownNameError: If there is none of that name.
    """
    name = getattr(params.trainer, "name", None)
    if not name:
        return base_trainer.Trainer
    found: type[base_trainer.Trainer] = plugins.resolve(
        name,
        registry=_REGISTERED_TRAINER_CLS,
        base=base_trainer.Trainer,
        workspace=getattr(params, "workspace", "") or None,
        kind="trainer",
    )
    return found
