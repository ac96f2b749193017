"""The registry that maps config classes to task classes.

A task class can be registered as a string, which is imported only when the task is created. A
module of configs then does not need to import TensorFlow::

    task_factory.register_task_cls(DigitsConfig, "experiments.vision.digits.task:DigitsTask")

A task without config fields of its own can be registered together with its experiment::

    @task_factory.register_experiment("digits/cnn")
    class DigitsTask(base_task.Task):
        ...
"""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar, overload

from official_lite.common import errors, plugins
from official_lite.core import config_definitions, exp_factory
from official_lite.modeling.hyperparams import base_config

__all__ = [
    "find_task_cls",
    "get_task",
    "get_task_cls",
    "register_experiment",
    "register_task_cls",
]

TaskClass = TypeVar("TaskClass", bound=Callable[..., Any])

_REGISTERED_TASK_CLS: plugins.Collection = {}


@overload
def register_task_cls(task_config_cls: type) -> Callable[[TaskClass], TaskClass]: ...
@overload
def register_task_cls(task_config_cls: type, target: str) -> str: ...
def register_task_cls(
    task_config_cls: type, target: str | None = None
) -> Callable[[TaskClass], TaskClass] | str:
    """Register the task class, or a callable that creates the task, of a config class.

    Without `target` this function returns a decorator for the task class. With `target`, it
    registers the class at that path, `package.module:Class`.

    Raises:
        DuplicateNameError: (a `KeyError`) If the config class already has another task.
    """
    if hasattr(task_config_cls, "build_inputs"):
        raise errors.ConfigTypeError(
            f"`register_task_cls` takes the config class of the task, but got the task "
            f"`{task_config_cls.__qualname__}` itself. Write `@register_task_cls(MyTaskConfig)` "
            "above it."
        )
    decorator = plugins.register(_REGISTERED_TASK_CLS, task_config_cls)
    return decorator if target is None else decorator(target)


def register_experiment(name: str) -> Callable[[TaskClass], TaskClass]:
    """Return a decorator that registers a task class as an experiment.

    The config of the task has the fields of `TaskConfig`. By default, the training data repeats and
    is shuffled, and an evaluation reads all validation data once. A config file sets the rest, such
    as the batch sizes, the steps and the optimizer. In Python, the class of the config is
    `task_cls.OwnConfig`. If the task needs fields of its own, use `register_task_cls` and
    `exp_factory.register_config_factory`.

    Args:
        name: The name of the experiment.

    Raises:
        DuplicateNameError: (a `KeyError`) If `name` already belongs to another experiment.
    """

    def decorator(task_cls: TaskClass) -> TaskClass:
        config_cls = _own_config_cls(task_cls)

        def build_config() -> config_definitions.ExperimentConfig:
            train_data = config_definitions.DataConfig(is_training=True)
            validation_data = config_definitions.DataConfig(is_training=False, drop_remainder=False)
            return config_definitions.ExperimentConfig(
                task=config_cls(train_data=train_data, validation_data=validation_data)
            )

        # Copy these attributes, because the registry shows the module and the docstring of the
        # factory, and uses the module and the name to detect that a notebook cell registers the
        # same experiment again.
        build_config.__module__ = task_cls.__module__
        build_config.__qualname__ = task_cls.__qualname__
        build_config.__doc__ = task_cls.__doc__
        exp_factory.register_config_factory(name)(build_config)
        return task_cls

    return decorator


def _own_config_cls(task_cls: Any) -> Any:
    """Return the task class's own config class; create and register it if there is none.

    The config class is an attribute of the task class, so that other processes can find it when
    they unpickle a config.
    """
    if "OwnConfig" not in vars(task_cls):
        task_cls.OwnConfig = dataclasses.make_dataclass(
            f"{task_cls.__name__}Config",
            [],
            bases=(config_definitions.TaskConfig,),
            namespace={
                "__module__": task_cls.__module__,
                "__qualname__": f"{task_cls.__qualname__}.OwnConfig",
            },
        )
        register_task_cls(task_cls.OwnConfig)(task_cls)
    return task_cls.OwnConfig


def get_task(task_config: base_config.Config | None, **kwargs: Any) -> Any:
    """Create the task of `task_config`; `kwargs` are passed to its constructor.

    A builder bound to the config class with `base_config.bind` takes precedence.

    Raises:
        UnknownNameError: (a `LookupError`) If no task is registered for the class of
            `task_config`.
        ConfigTypeError: The constructor of the task does not accept the arguments, or does not
            call the constructor of its base class.
    """
    create, arguments = find_task_cls(task_config), "params, logging_dir, name"
    remedy = f"Use the parameters `{arguments}`, and pass them to `super().__init__`."
    plugins.require_signature(create, remedy, "params", **kwargs)
    task = create(task_config, **kwargs)
    if hasattr(type(task), "build_inputs"):
        plugins.require_constructed(task, "task_config", arguments)
    return task


def find_task_cls(task_config: base_config.Config | None) -> Any:
    """Return the class or callable with which `get_task` creates the task of a config.

    Raises:
        UnknownNameError: (a `LookupError`) If no task is registered.
    """
    return getattr(task_config, "BUILDER", None) or get_task_cls(type(task_config))


def get_task_cls(task_config_cls: type) -> Any:
    """Return the task class of `task_config_cls` or of its nearest registered base class.

    Raises:
        UnknownNameError: (a `LookupError`) If none of them is registered.
    """
    for cls in task_config_cls.__mro__:
        if cls in _REGISTERED_TASK_CLS:
            found = _REGISTERED_TASK_CLS[cls]
            return plugins.import_spec(found, kind="task") if isinstance(found, str) else found
    name = task_config_cls.__qualname__
    raise errors.UnknownNameError(
        f"No task is registered for the config `{plugins.name_of(task_config_cls)}`. Decorate "
        f"the task with `@task_factory.register_task_cls({name})`, or call "
        f'`task_factory.register_task_cls({name}, "package.module:Task")` next to the config. '
        f"{plugins.import_hint}"
    )
