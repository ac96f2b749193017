"""A hook that finds the step and the place in the model where numbers become non-finite."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from official_lite.common import errors, keras_variables, nests
from official_lite.modeling import distributed_gradients
from official_lite.orbit import runner, triggers
from official_lite.orbit.hooks.hook import GraphHook
from official_lite.orbit.utils import as_tf_variable, loop_fns

_NAMES_SHOWN = 10


class NonFinite(GraphHook):
    """Reports the step and the place of the first infinity or NaN, for debugging.

    The hook checks the loss and the gradients of each update in the graph and stores what it finds
    in the first bad step, so the compiled loop keeps its length. With `layers`, it also checks the
    inputs of the model and the outputs of each layer. This distinguishes bad data from a layer that
    produces bad values from good data. The report appears when the loop next stops: before reports,
    actions, evaluations and checkpoints. If another error is raised first (such as that of
    `trainer.recovery_max_trials`), the report is added to that error.

    The checked gradients are those of the whole update, as in `GradientNorm`. Updates that dynamic
    loss scaling skips are not checked, because bad gradients are normal there with float16. A
    non-finite loss is reported even with loss scaling, because no scale explains it.

    Restoring an older checkpoint discards all findings and restarts the search. Set `stop=False` to
    let automatic recovery proceed.

    The cost is one pass over each gradient and, with `layers`, over each output. On a CPU this took
    1 to 4 % of the step time, and 5 to 9 % with `layers` (a dense network with 6 million weights,
    and a small convolutional network with batch normalization).

    Args:
        every_n_steps: The maximum number of steps until a report.
        stop: Whether to raise an error. If false, only log the report.
        layers: Whether to check the layers, too. Requires a Keras model.
    """

    takes_rows = True

    def __init__(self, every_n_steps: int = 100, stop: bool = True, layers: bool = True) -> None:
        self.every_n_steps = every_n_steps
        self._stop = stop
        self._checks_layers = layers
        self._watch: _Watch | None = None
        self._watched_trainer: Any = None
        self._has_reported = False

    def build_trigger(self) -> triggers.Trigger:
        # `EverySeconds(0)` never makes the loop stop, but is due whenever the loop stops for any
        # other reason.
        return triggers.AnyOf([triggers.every(self.every_n_steps), triggers.EverySeconds(0)])

    def before_train(self) -> None:
        trainer: Any = self.trainer
        if self._watched_trainer is trainer:
            return
        layers = _layers(trainer.model) if self._checks_layers else []
        with self.controller.strategy.scope():
            self._watch = _Watch(trainer, as_tf_variable(self.controller.global_step), layers)
        self._watched_trainer = trainer
        if layers:
            trainer.wrap_train_step(self._watch.watching)

    def call(self, logs: Mapping[str, Any]) -> None:
        if self._watch is not None:
            self._watch.check_loss(logs)

    def on_gradients(self, grads_and_vars: Sequence[tuple[Any, Any]]) -> None:
        if self._watch is not None:
            self._watch.check_gradients(grads_and_vars)

    def after_step(self) -> None:
        report = self._take_report()
        if report and self._stop:
            raise errors.DivergedError(report)
        if report:
            logging.error(report)

    def on_exception(self, error: BaseException) -> None:
        if report := self._take_report():
            logging.error(report)
            error.add_note(report)

    def after_train(self, success: bool) -> None:
        if success:
            self.after_step()

    def detach(self) -> None:
        super().detach()
        self._watch = self._watched_trainer = None

    def state_dict(self) -> dict[str, Any]:
        # Always return a state. An empty state would not be saved, so a restore would not call
        # `load_state_dict`.
        return {"has_reported": self._has_reported}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if report := self._take_report():
            logging.warning("%s An older checkpoint has been restored.", report)
        if self._watch is not None:
            self._watch.restart()
        self._has_reported = False

    def _take_report(self) -> str | None:
        if self._watch is None or self._has_reported:
            return None
        finding = self._watch.find()
        self._has_reported = finding is not None
        return None if finding is None else _report(finding)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Finding:
    """One replica's findings in the first step with non-finite numbers.

    Weights and gradients are listed in model order, and layers in the order of their calls.
    """

    step: int
    loss: float
    replica: str
    inputs_are_bad: bool
    weights: list[str]
    layers: list[str]
    gradients: list[str]
    num_variables: int
    has_watched_layers: bool
    scales_loss: bool


class _Watch:
    """Per-replica variables that describe the first step with non-finite numbers (the bad step).

    Step 0 means that there has been no bad step.

    Args:
        trainer: The trainer of the model.
        global_step: The variable that counts the steps.
        layers: The layers to check.
    """

    def __init__(
        self,
        trainer: Any,
        global_step: tf.Variable,
        layers: Sequence[Any],
    ) -> None:
        self._model = trainer.model
        self._loss_names = _loss_names(trainer)
        self._scales_loss = _scales_loss_dynamically(trainer)
        self._global_step = global_step
        self._variables = list(self._model.trainable_variables)
        self._index = {id(keras_variables.raw(v)): i for i, v in enumerate(self._variables)}
        self._layers = {id(layer): layer for layer in layers}
        self._order: list[int] = []
        self._step = _create(0, tf.int64)
        self._loss = _create(0.0, tf.float32)
        self._weights = _create([False] * len(self._variables), tf.bool)
        # The last flag is for gradients of all variables outside the model.
        self._gradients = _create([False] * (len(self._variables) + 1), tf.bool)
        self._inputs = _create(0, tf.int64)
        self._outputs = {key: _create(0, tf.int64) for key in self._layers}

    def watching(self, step_fn: loop_fns.StepFn) -> loop_fns.StepFn:
        """Return a step function that also checks the layers."""

        def watched_step(iterator: Iterator[nests.Nest]) -> Any:
            with contextlib.ExitStack() as stack:
                for layer in self._layers.values():
                    stack.enter_context(self._checking(layer))
                return step_fn(iterator)

        return watched_step

    def check_gradients(self, grads_and_vars: Sequence[tuple[Any, Any]]) -> None:
        is_bad = [tf.constant(False)] * (len(self._variables) + 1)
        for gradient, variable in grads_and_vars:
            index = self._index.get(id(keras_variables.raw(variable)), -1)
            numbers = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
            is_bad[index] |= ~_all_finite(tf.convert_to_tensor(numbers))
        flags = tf.stack(is_bad)
        is_first_step = self._note(tf.reduce_any(flags))
        self._gradients.assign(self._gradients | (flags & is_first_step))

    def check_loss(self, logs: Mapping[str, Any]) -> None:
        losses = [logs[name] for name in self._loss_names if name in logs]
        if not losses:
            return
        loss = tf.reduce_mean(tf.cast(losses[0], tf.float32))
        is_first_step = self._note(~tf.math.is_finite(loss))
        # Store the latest loss until there is a bad step. In that step, store the first non-finite
        # loss of its micro-batches.
        is_open = (self._step == 0) | (is_first_step & tf.math.is_finite(self._loss))
        self._loss.assign(tf.where(is_open, loss, self._loss))

    def find(self) -> _Finding | None:
        """Return the most informative finding of a replica in the first bad step.

        Returns:
            The finding, or `None` if there is no bad step.
        """
        steps = [int(step.numpy()) for step in keras_variables.local_values(self._step)]
        first = min((step for step in steps if step), default=None)
        if first is None:
            return None
        found = [self._finding(i, len(steps)) for i, step in enumerate(steps) if step == first]
        return max(
            found, key=lambda f: (f.inputs_are_bad, bool(f.layers), not math.isfinite(f.loss))
        )

    def restart(self) -> None:
        for variable in (
            self._step,
            self._loss,
            self._weights,
            self._gradients,
            self._inputs,
            *self._outputs.values(),
        ):
            for one in keras_variables.local_values(variable):
                one.assign(tf.zeros_like(one))

    def _note(self, is_bad: tf.Tensor) -> tf.Tensor:
        """Store the current step if it is the first bad step.

        Returns:
            Whether the current step is the stored step.
        """
        step = self._next_step()
        is_new = is_bad & (self._step == 0)
        # Check the weights only in the first bad step, because the check reads all of them. If the
        # gradients are bad, the weights are checked before the update.
        tf.cond(is_new, self._check_weights, lambda: tf.constant(False))
        self._step.assign(tf.where(is_new, step, self._step))
        return self._step == step

    def _check_weights(self) -> tf.Tensor:
        is_bad = [~_all_finite(tf.convert_to_tensor(v)) for v in self._variables]
        self._weights.assign(tf.stack(is_bad))
        return tf.constant(True)

    @contextlib.contextmanager
    def _checking(self, layer: keras.layers.Layer) -> Iterator[None]:
        call = getattr(layer, keras_variables.name_of_call(layer))

        def watched_call(*args: Any, **kwargs: Any) -> Any:
            if layer is self._model:
                self._check((args, kwargs), self._inputs)
            outputs = call(*args, **kwargs)
            if id(layer) not in self._order:
                self._order.append(id(layer))
            self._check(outputs, self._outputs[id(layer)])
            return outputs

        with keras_variables.replacing_call(layer, watched_call):
            yield

    def _check(self, values: nests.Nest, first_bad_step: tf.Variable) -> None:
        tensors = tf.nest.flatten(values, expand_composites=True)
        floating = [x for x in tensors if tf.is_tensor(x) and x.dtype.is_floating]
        if not floating:
            return
        is_bad = ~tf.reduce_all(tf.stack([_all_finite(tensor) for tensor in floating]))
        is_new = is_bad & (first_bad_step == 0)
        first_bad_step.assign(tf.where(is_new, self._next_step(), first_bad_step))

    def _next_step(self) -> tf.Tensor:
        return tf.cast(tf.convert_to_tensor(self._global_step), tf.int64) + 1

    def _finding(self, replica: int, num_replicas: int) -> _Finding:
        def value(variable: tf.Variable) -> Any:
            return keras_variables.local_values(variable)[replica].numpy()

        step = int(value(self._step))
        paths = [keras_variables.path_of(variable) for variable in self._variables]
        in_order = [self._layers[key] for key in self._order]
        return _Finding(
            step=step,
            loss=float(value(self._loss)),
            replica=f" on replica {replica}" if num_replicas > 1 else "",
            inputs_are_bad=int(value(self._inputs)) == step,
            weights=_chosen(paths, value(self._weights)),
            # A layer whose outputs were already infinite in earlier steps, such as a mask, is not
            # the cause.
            layers=[
                f"{layer.path} ({type(layer).__name__})"
                for layer in in_order
                if int(value(self._outputs[id(layer)])) == step
            ],
            gradients=_chosen([*paths, "variables outside the model"], value(self._gradients)),
            num_variables=len(paths),
            has_watched_layers=bool(in_order),
            scales_loss=self._scales_loss,
        )


def _report(finding: _Finding) -> str:
    sentences = [
        f"Step {finding.step} is the first step with non-finite numbers.",
        f"The loss{finding.replica} is {finding.loss:g}.",
        _cause(finding),
    ]
    if finding.gradients:
        layer = finding.gradients[0].rpartition("/")[0] or finding.gradients[0]
        sentences.append(
            f"{len(finding.gradients)} of {finding.num_variables} gradients are not finite, "
            f"starting at the layer {layer}: {_listed(finding.gradients)}."
        )
    elif finding.scales_loss:
        sentences.append(
            "Loss scaling skips updates with non-finite gradients, so these are not listed."
        )
    else:
        sentences.append("All gradients are finite.")
    return " ".join(sentences)


def _cause(finding: _Finding) -> str:
    if finding.weights:
        return (
            f"Some weights were not finite before this step: {_listed(finding.weights)}. The "
            "previous update produced them, or they were loaded that way."
        )
    if finding.inputs_are_bad:
        return "The weights were finite, but the inputs of the model are not. Check the data."
    if finding.layers:
        return (
            "The weights and the inputs of the model were finite; the first non-finite output is "
            f"the output of the layer {finding.layers[0]}."
        )
    if math.isfinite(finding.loss):
        last = finding.gradients[-1]
        return (
            "The weights and the loss are finite, so the backward pass is the cause. It starts at "
            f"the end of the model: check {last} and the layers that use it."
        )
    if finding.has_watched_layers:
        return (
            "The weights, the inputs of the model and the outputs of its layers are finite. Check "
            "the labels and the loss function."
        )
    return (
        "The weights were finite. Check the data and the forward pass. NonFinite can also check "
        "the layers of a Keras model (`layers=True`)."
    )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + more


def _chosen(names: Sequence[str], flags: Iterable[bool]) -> list[str]:
    return [name for name, flag in zip(names, flags, strict=True) if flag]


def _layers(model: keras.Model | tf.Module) -> list[Any]:
    if not isinstance(model, keras.Model):
        return []
    layers = {id(layer): layer for layer in model._flatten_layers(include_self=True)}.values()
    return [layer for layer in layers if not isinstance(layer, keras.layers.InputLayer)]


def _loss_names(trainer: Any) -> list[str]:
    """Return the names that the loss of a step may have in its logs, in order of preference."""
    tasks = getattr(getattr(trainer, "multi_task", None), "tasks", None)
    if not tasks:
        return [getattr(getattr(trainer, "task", None), "loss", "loss")]
    # A joint step logs the loss that it minimizes, an interleaved step the loss of its task.
    return ["total_loss", *(task.loss for task in tasks.values())]


def _scales_loss_dynamically(trainer: Any) -> bool:
    return any(
        isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        and getattr(optimizer, "dynamic", True)
        for optimizer in distributed_gradients.wrapped_optimizers(runner.optimizer_of(trainer))
    )


def _create(value: tf.Tensor | float, dtype: tf.DType) -> tf.Variable:
    """Create a variable with a separate value on each replica."""
    return tf.Variable(
        value,
        dtype=dtype,
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.NONE,
    )


def _all_finite(tensor: tf.Tensor) -> tf.Tensor:
    return tf.reduce_all(tf.math.is_finite(tensor))
