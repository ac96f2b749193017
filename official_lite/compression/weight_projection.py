"""The base class of pruning and clustering: kernels that stay in a set of allowed values."""

import abc
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from official_lite.common.keras_variables import local_values, raw
from official_lite.compression.kernels import Kernel
from official_lite.modeling.optimization import ema_optimizer

__all__ = ["WeightProjection"]


class WeightProjection(abc.ABC):
    """Restricts kernels to allowed values: `project` after each update of the optimizer.

    Variables, such as a mask for each kernel, say which values are allowed. They are part of the
    checkpoints of a run, but not of the model. `update` sets them on the host, between two steps,
    so that the step itself stays small. An average of allowed values is allowed as well, so moving
    averages of the weights need only be projected when the variables change.

    Create it in the strategy's scope.

    Args:
        kernels: The kernels.
        states: The variables of each kernel, by name.
        steps: The steps after which `update` must be called; 0 means before the first step.

    Attributes:
        states: The variables of each kernel, by name. Save them in the checkpoints.
    """

    def __init__(
        self,
        kernels: Sequence[Kernel],
        states: Sequence[Mapping[str, tf.Variable]],
        steps: Sequence[int],
    ) -> None:
        self.steps = tuple(steps)
        pairs = [(k, dict(state)) for k, state in zip(kernels, states, strict=True)]
        # By position, because Keras numbers the names of layers differently in each process.
        self.states = [state for _, state in pairs]
        self._kernels = {id(raw(kernel.variable)): (kernel, state) for kernel, state in pairs}

    def project(self, variables: Sequence[Any]) -> None:
        """Set kernels among the variables to allowed values; call this in every replica."""
        kernels = [raw(variable) for variable in variables if id(raw(variable)) in self._kernels]
        merge_call = tf.__internal__.distribute.interim.maybe_merge_call
        merge_call(self._project_all, tf.distribute.get_strategy(), kernels)

    def update(
        self, step: int, average: ema_optimizer.ExponentialMovingAverage | None = None
    ) -> dict[str, float]:
        """Choose the allowed values for the current weights, and set the weights to them.

        Args:
            step: The number of completed steps.
            average: The moving average of the weights, which is set to allowed values as well.

        Returns:
            Numbers to report, by name.
        """
        averages = {id(raw(weight)): own for weight, own in average.shadows} if average else {}
        for key, (kernel, state) in self._kernels.items():
            value = local_values(kernel.variable)[0].numpy()
            for name, new in self._choose(kernel, value, step).items():
                for variable in local_values(state[name]):
                    variable.assign(tf.cast(new, variable.dtype))
            for variable in (kernel.variable, *([averages[key]] if key in averages else [])):
                copies = [local_values(variable), *map(local_values, state.values())]
                for one, *own_state in zip(*copies, strict=True):
                    self._assign(one, *own_state)
        return self._numbers([kernel for kernel, _ in self._kernels.values()])

    @abc.abstractmethod
    def _choose(self, kernel: Kernel, value: Any, step: int) -> Mapping[str, Any]:
        """Return the new values of the variables of a kernel, given its present value."""

    @abc.abstractmethod
    def _projected(self, value: tf.Tensor, *state: tf.Variable) -> tf.Tensor:
        """Return the allowed value nearest to a value, given the variables of the kernel."""

    @abc.abstractmethod
    def _numbers(self, kernels: Sequence[Kernel]) -> dict[str, float]:
        """Return the numbers that describe the kernels."""

    def _project_all(self, strategy: tf.distribute.Strategy, kernels: Sequence[Any]) -> None:
        for variable in kernels:
            _, state = self._kernels[id(variable)]
            strategy.extended.update(
                variable, self._assign, args=tuple(state.values()), group=False
            )

    def _assign(self, variable: tf.Variable, *state: tf.Variable) -> None:
        variable.assign(self._projected(variable.read_value(), *state))
