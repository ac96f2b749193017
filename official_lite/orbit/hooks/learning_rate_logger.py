"""A hook that logs the learning rate."""

from collections.abc import Iterable, Mapping
from typing import Any

import keras

from official_lite.common import errors, nested_dict
from official_lite.orbit import runner, utils
from official_lite.orbit.hooks.hook import Hook


class LearningRateLogger(Hook):
    """Logs `learning_rate`, the value of the schedule at this step, to the event storage.

    The schedule is part of the optimizer, so nothing has to advance it. If the trainer has several
    `optimizers` (a dictionary or a list), the hook logs `learning_rate/<name>` for each of them.

    Args:
      every_n_steps: The interval.
    """

    def __init__(self, every_n_steps: int = 100) -> None:
        self.every_n_steps = every_n_steps

    def before_train(self) -> None:
        self._rates()

    def after_step(self) -> None:
        for name, rate in self._rates().items():
            self.controller.storage.put_scalar(name, rate, smoothing_hint=False)

    def _rates(self) -> dict[str, float]:
        optimizers = getattr(self.trainer, "optimizers", None)
        if optimizers:
            named = optimizers if isinstance(optimizers, Mapping) else _by_name(optimizers)
            return {f"learning_rate/{n}": self._rate(named[n]) for n in named}
        optimizer = runner.optimizer_of(self.trainer)
        if optimizer is None:
            raise errors.ConfigValueError(
                f"{type(self.trainer).__name__} has neither `optimizer` nor `optimizers`, so "
                "LearningRateLogger has no learning rate to log."
            )
        return {"learning_rate": self._rate(optimizer)}

    def _rate(self, optimizer: keras.optimizers.Optimizer) -> float:
        rate = utils.current_learning_rate(optimizer, self.controller.global_step)
        return float(utils.get_value(rate))


def _by_name(optimizers: Iterable[keras.optimizers.Optimizer]) -> dict[str, Any]:
    optimizers = list(optimizers)
    names = nested_dict.unique_keys([optimizer.name for optimizer in optimizers])
    return dict(zip(names, optimizers, strict=True))
