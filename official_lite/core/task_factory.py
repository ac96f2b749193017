"""Which task a config class stands for.

The link may be a string that is followed only when the task is made, so that a module of configs
needs no TensorFlow::

    task_factory.register_task_cls(DigitsConfig, "experiments.vision.digits.task:DigitsTask")
"""

from collections.abc import Callable
from typing import Any, TypeVar, overload

from official_lite.common import errors, origins, plugins, registry

__all__ = ["find_task_cls", "get_task", "get_task_cls", "register_task_cls"]

TaskClass = TypeVar("TaskClass", bound=Callable[..., Any])

_REGISTERED_TASK_CLS: registry.Collection = {}


@overload
def register_task_cls(task_config_cls: type) -> Callable[[TaskClass], TaskClass]: ...
@overload
def register_task_cls(task_config_cls: type, target: str) -> str: ...
def register_task_cls(
    task_config_cls: type, target: str | None = None
) -> Callable[[TaskClass], TaskClass] | str:
    """Makes `get_task` answer `task_config_cls` with a task class, or a callable that makes one.

    Without `target` this is a decorator for the class; `target` names it instead, as
    `package.module:Class`.

    Raises:
        DuplicateNameError: (a `KeyError`) The config class already has another task.
    """
    decorator = registry.register(_REGISTERED_TASK_CLS, task_config_cls)
    return decorator if target is None else decorator(target)


def get_task(task_config: Any, **kwargs: Any) -> Any:
    """The task that `task_config` describes; `kwargs` go to its constructor.

    A builder that `base_config.bind` gave to the config class comes first.

    Raises:
        UnknownNameError: (a `LookupError`) No task is registered for the class of `task_config`.
    """
    return find_task_cls(task_config)(task_config, **kwargs)


def find_task_cls(task_config: Any) -> Any:
    """What `get_task` makes the task of a config with.

    Raises:
        UnknownNameError: (a `LookupError`) There is nothing.
    """
    return getattr(task_config, "BUILDER", None) or get_task_cls(type(task_config))


def get_task_cls(task_config_cls: type) -> Any:
    """The task of `task_config_cls`, or of the nearest class that it derives from.

    Raises:
        UnknownNameError: (a `LookupError`) None of them is registered.
    """
    for cls in task_config_cls.__mro__:
        if cls in _REGISTERED_TASK_CLS:
            found = _REGISTERED_TASK_CLS[cls]
            return plugins.import_spec(found, kind="task") if isinstance(found, str) else found
    name = task_config_cls.__qualname__
    raise errors.UnknownNameError(
        f"No task is registered for the config `{origins.name_of(task_config_cls)}`. Put "
        f"`@task_factory.register_task_cls({name})` above its task, or call "
        f'`task_factory.register_task_cls({name}, "package.module:Task")` beside the config. '
        f"{registry.import_hint}"
    )
