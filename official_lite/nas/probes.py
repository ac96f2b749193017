"""The loss, the reward and the cost of an architecture.

`LossProbe` and `Reward` trace the task's own step on a batch, which computes the loss or the
metrics as usual. Everything that the step would change (weights, batch normalization statistics,
random state, reports) is left unchanged. `Penalty` counts parameters or floating-point operations,
or adds numbers from a table.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from official_lite import telemetry
from official_lite.common import errors, nests, suggestions, user_code
from official_lite.core import base_task, step_checks
from official_lite.modeling import model_summary
from official_lite.modeling.optimization import gradient_accumulator
from official_lite.nas import choices, configs, resolution
from official_lite.orbit.hooks import saving_and_stopping

__all__ = ["LossProbe", "Penalty", "Reward", "unchanged"]


class LossProbe:
    """The differentiable loss of a task's train step.

    Args:
        task: The task.
        model: The built model of the task.
        optimizer: The optimizer that the train step sees. Its attributes can be read, but gradients
            that are passed to it are discarded.
    """

    def __init__(
        self, task: base_task.Task, model: keras.Model, optimizer: keras.optimizers.Optimizer
    ) -> None:
        self._task = task
        self._model = model
        self._optimizer = _Unscaled(optimizer)

    @user_code.not_converted
    def __call__(
        self, inputs: nests.Nest, variables: Sequence[Any] = (), values: Sequence[tf.Tensor] = ()
    ) -> tf.Tensor:
        """Return this replica's share of the loss of a batch, in training mode.

        Call this in a replica context.

        Args:
            inputs: The batch of this replica.
            variables: Weights for which to substitute `values`.
            values: The values of `variables`.

        Returns:
            A scalar. Its sum over the replicas is the loss.

        Raises:
            errors.ConfigValueError: If the task's train step does not return its loss.
        """
        with unchanged(self._model, variables, values):
            logs = user_code.converted(self._task.train_step)(
                inputs, model=self._model, optimizer=self._optimizer, metrics=[]
            )
        if self._task.loss not in logs:
            raise errors.ConfigValueError(
                f"The train step of {type(self._task).__name__} returns {sorted(logs)}; it must "
                f"also return {self._task.loss!r}, the loss that the search differentiates."
            )
        loss = tf.cast(logs[self._task.loss], tf.float32)
        return loss / tf.distribute.get_strategy().num_replicas_in_sync


@contextlib.contextmanager
def unchanged(
    model: keras.Model, variables: Sequence[Any] = (), values: Sequence[tf.Tensor] = ()
) -> Iterator[None]:
    """Leave all Keras variables unchanged inside the `with` statement.

    Assignments to variables have no lasting effect. Reading one of `variables` returns the
    corresponding entry of `values`.
    """
    scope = keras.StatelessScope(collect_losses=True, initialize_variables=False)
    # Set the mapping directly, because the constructor would convert its values to tensors. The
    # mapping must contain variables, because a train step takes gradients with respect to them. It
    # must contain all variables of the model, because regularizers read all of them.
    scope.state_mapping = {id(v): v.value for v in model.variables}
    scope.state_mapping |= {
        id(variable): _as_variable(value) for variable, value in zip(variables, values, strict=True)
    }
    with telemetry.get_event_storage().muted(), scope:
        yield


def _as_variable(value: tf.Tensor) -> tf.Tensor:
    """Return a copy of a tensor that can replace a variable as a source of gradients."""
    tensor: Any = tf.identity(value)
    tensor.handle = tensor
    return tensor


class _Unscaled(gradient_accumulator.GradientSink):
    """An optimizer stand-in that neither updates variables nor scales the loss."""

    def scale_loss(self, loss: tf.Tensor) -> tf.Tensor:
        return loss

    def get_scaled_loss(self, loss: tf.Tensor) -> tf.Tensor:
        return loss


class Reward:
    """A reward for the output of a model with choices, based on the task's validation step.

    Create the reward in the strategy's scope.

    Args:
        task: The task.
        model: The model of the task.
        metric: The name of one of the task's metrics. If it is empty, the reward is the negative
            loss.
        direction: `maximize` or `minimize`; used only with a metric. If it is empty, the name of
            the metric decides.

    Raises:
        errors.ConfigValueError: If the metric is unknown to the task.
    """

    def __init__(
        self, task: base_task.Task, model: keras.Model, *, metric: str = "", direction: str = ""
    ) -> None:
        self._task = task
        self._model = model
        with user_code.keeping_attributes(task):
            self._metrics = step_checks.build_metrics(task, training=False, model=model)
        self._wanted = self._find(metric) if metric else None
        self._sign = 1.0
        if metric and not saving_and_stopping.maximizes(metric, direction, default="maximize"):
            self._sign = -1.0

    @user_code.not_converted
    def of_batch(self, inputs: nests.Nest) -> tf.Tensor:
        """Return the reward of a batch, averaged over the replicas, without side effects.

        Call this in a replica context.
        """
        with unchanged(self._model):
            for metric in self._metrics:
                metric.reset_state()
            logs = user_code.converted(self._task.validation_step)(
                inputs, model=self._model, metrics=self._metrics
            )
            reward = self._of_logs(logs)
        context = tf.distribute.get_replica_context()
        if context.num_replicas_in_sync > 1:
            reward = context.all_reduce(tf.distribute.ReduceOp.MEAN, reward)
        return tf.stop_gradient(reward)

    def _of_logs(self, logs: Mapping[str, tf.Tensor]) -> tf.Tensor:
        if self._wanted is None:
            return -tf.cast(logs[self._task.loss], tf.float32)
        return self._sign * tf.cast(self._wanted.result(), tf.float32)

    def _find(self, name: str) -> keras.metrics.Metric:
        named = {metric.name: metric for metric in self._metrics}
        if name not in named:
            raise errors.ConfigValueError(
                (
                    f"`one_shot.reward` is {name!r}, which is not a metric of "
                    f"{type(self._task).__name__}. {suggestions.did_you_mean(name, named)}"
                ).strip()
            )
        return named[name]


class Penalty:
    """The expected cost of the choices of a model.

    The cost of a choice inside a candidate is weighted by the probability of that candidate.

    Args:
        model: A built model.
        config: The kind and weight of the cost.

    Raises:
        errors.ConfigValueError: If the table does not match the model or has a cost that is not
            finite, or if `resource` is `flops` and the operations of a candidate can't be counted:
            it contains choices, or the size of its input is unknown.
    """

    def __init__(self, model: keras.Model, config: configs.PenaltyConfig) -> None:
        self._model = model
        self.weight = config.weight
        self._costs: dict[int, list[float]] = {}
        if not self.weight:
            return
        for choice in resolution.find_choices(model):
            self._costs[id(choice)] = _costs(choice, config)
        _require_known(config, model)
        self._unit = config.unit or self._largest(model) or 1.0

    def __call__(self, probs: Mapping[str, Any]) -> Any:
        """Return the expected cost times `weight`.

        Args:
            probs: The probability of each option, by label; tensors or numbers.
        """
        if not self.weight:
            return 0.0
        return self.weight * self._expected(self._model, probs) / self._unit

    def of(self, picks: Mapping[str, int]) -> float:
        """Return the cost of one architecture, given by the index of an option for each label."""
        space = resolution.space_of(self._model)
        one_hot = {
            label: [float(index == picks[label]) for index in range(len(options))]
            for label, options in space.items()
        }
        return float(self(one_hot))

    def _expected(self, layer: keras.layers.Layer, probs: Mapping[str, Any]) -> Any:
        total: Any = 0.0
        for choice in _choices_below(layer):
            shares = _as_list(probs[choice.label], len(choice.options))
            for index, share in enumerate(shares):
                total += share * self._cost(choice, index, lambda one: self._expected(one, probs))
        return total

    def _largest(self, layer: keras.layers.Layer) -> float:
        return sum(
            max(self._cost(c, index, self._largest) for index in range(len(c.options)))
            for c in _choices_below(layer)
        )

    def _cost(self, choice: choices.Choice, index: int, within: Callable[[Any], Any]) -> Any:
        return self._costs[id(choice)][index] + sum(
            within(layer) for layer in choice.layers_of(index)
        )


def _choices_below(layer: keras.layers.Layer) -> list[choices.Choice]:
    """Return the outermost choices in a layer, or only the layer itself if it is a choice."""
    if isinstance(layer, choices.Choice):
        return [layer]
    return [choice for one in getattr(layer, "_layers", ()) for choice in _choices_below(one)]


def _costs(choice: choices.Choice, config: configs.PenaltyConfig) -> list[float]:
    if config.resource == "table":
        return _from_table(choice, config.table.as_dict())
    count = _count_parameters if config.resource == "parameters" else _count_operations
    return [float(count(choice, index)) for index in range(len(choice.options))]


def _from_table(choice: choices.Choice, table: Mapping[str, Any]) -> list[float]:
    if choice.label not in table:
        raise errors.ConfigValueError(
            f"`penalty.table` has no costs for {choice.label!r}. "
            f"{suggestions.did_you_mean(choice.label, table)}".strip()
        )
    # Compare option names as strings: YAML may parse a name as a number, and options of an
    # `InputChoice` are lists.
    row = {str(option): float(cost) for option, cost in table[choice.label].items()}
    for option in choice.options:
        if str(option) not in row:
            raise errors.ConfigValueError(
                f"`penalty.table.{choice.label}` has no cost for {option!r}. Add its cost."
            )
        if not math.isfinite(row[str(option)]):
            raise errors.ConfigValueError(
                f"`penalty.table.{choice.label}` is {row[str(option)]} for {option!r}; expected a "
                "finite cost. To rule an option out, remove it from the model."
            )
    return [row[str(option)] for option in choice.options]


def _count_parameters(choice: choices.Choice, index: int) -> int:
    nested = {
        id(weight)
        for layer in choice.layers_of(index)
        for inner in _choices_below(layer)
        for weight in inner.weights
    }
    weights = {id(w): w for layer in choice.layers_of(index) for w in layer.weights}
    return sum(math.prod(w.shape) for key, w in weights.items() if key not in nested)


def _count_operations(choice: choices.Choice, index: int) -> int:
    layers = choice.layers_of(index)
    if not layers:
        return 0
    if any(_choices_below(layer) for layer in layers):
        raise _uncountable(choice, "it contains other choices")
    shape = choice.input_shape_built
    if unknown := [axis for axis, size in enumerate(shape) if axis and size is None]:
        raise _uncountable(
            choice,
            f"the size of its input {shape} is unknown in the axes {unknown}",
            "Give the model inputs of a fixed size, or set",
        )
    inputs = outputs = keras.Input(batch_shape=(1, *shape[1:]))
    for layer in layers:
        outputs = layer(outputs)
    count = model_summary.try_count_flops(keras.Model(inputs, outputs))
    if count is None:
        option = choice.options[index]
        raise _uncountable(choice, f"its option {option!r} can't be traced on inputs of {shape}")
    return count


def _uncountable(
    choice: choices.Choice, reason: str, remedy: str = "Set"
) -> errors.ConfigValueError:
    return errors.ConfigValueError(
        f"Can't count the operations of {choice.label!r}, because {reason}. {remedy} "
        "`penalty.resource: table` and the costs in `penalty.table`."
    )


def _require_known(config: configs.PenaltyConfig, model: keras.Model) -> None:
    space = resolution.space_of(model)
    for label in config.table.as_dict() if config.resource == "table" else ():
        if label not in space:
            raise errors.ConfigValueError(
                f"`penalty.table` has the label {label!r}, which the model does not have. "
                f"{suggestions.did_you_mean(label, space)}"
            )


def _as_list(probs: tf.Tensor | Sequence[float], count: int) -> list[Any]:
    return tf.unstack(probs, count) if tf.is_tensor(probs) else list(probs)
