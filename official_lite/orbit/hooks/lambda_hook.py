"""A hook built from functions."""

import functools
from collections.abc import Callable
from typing import TypeAlias

from official_lite.common import errors, plugins
from official_lite.orbit.hooks.hook import Hook

Function: TypeAlias = Callable[..., None] | str


class LambdaHook(Hook):
    """Calls the function given for each event.

    Each function receives the hook, which gives access to the controller and the trainer, followed
    by the arguments of the `Hook` method with the same name::

        LambdaHook(after_eval=lambda hook, logs: print(hook.controller.step, logs["accuracy"]))

    In a config, give a function's import path::

        {name: lambda, after_train: "my_package.notify:to_chat"}

    Args:
      before_train: Called as `before_train(hook)`.
      before_step: Called as `before_step(hook)`.
      after_step: Called as `after_step(hook)`.
      after_epoch: Called as `after_epoch(hook)`.
      after_eval: Called as `after_eval(hook, logs)`.
      on_checkpoint: Called as `on_checkpoint(hook, path)`.
      on_exception: Called as `on_exception(hook, error)`.
      after_train: Called as `after_train(hook, success)`.
      every_n_steps: The interval of `before_step` and `after_step`, as in `Hook`.

    Raises:
      errors.ConfigTypeError: One of the event arguments is not a function.
    """

    def __init__(
        self,
        *,
        before_train: Function | None = None,
        before_step: Function | None = None,
        after_step: Function | None = None,
        after_epoch: Function | None = None,
        after_eval: Function | None = None,
        on_checkpoint: Function | None = None,
        on_exception: Function | None = None,
        after_train: Function | None = None,
        every_n_steps: int | None = None,
    ) -> None:
        self.every_n_steps = every_n_steps
        functions = {
            "before_train": before_train,
            "before_step": before_step,
            "after_step": after_step,
            "after_epoch": after_epoch,
            "after_eval": after_eval,
            "on_checkpoint": on_checkpoint,
            "on_exception": on_exception,
            "after_train": after_train,
        }
        for event, function in functions.items():
            if function is not None:
                # On the object: a method of the class would ask for every step and every epoch.
                setattr(self, event, functools.partial(_function(event, function), self))


def _function(event: str, function: Function) -> Callable[..., None]:
    found = plugins.resolve(function, kind="function")
    if not callable(found):
        raise errors.ConfigTypeError(
            f"`{event}` of LambdaHook is {function!r}; expected a function, or its name as "
            "`package.module:function`."
        )
    return found
