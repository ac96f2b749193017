"""Exact batch normalization statistics, and two hooks: their updates, and weight averaging."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from absl import logging
from keras.src.backend.common import stateless_scope

from official_lite import telemetry
from official_lite.checkpoint import async_checkpoint_manager, directories
from official_lite.common import errors, keras_variables, nests, preemption, user_code
from official_lite.modeling import hyperparams
from official_lite.modeling.optimization import ema_optimizer, gradient_accumulator
from official_lite.orbit import reports, runner
from official_lite.orbit.hooks.hook import Hook, output_directory
from official_lite.orbit.utils import loop_fns

Array = npt.NDArray[Any]


class BatchNormStatistics:
    """Replaces moving means and variances with exact ones, computed over training batches.

    The task's own train step runs on the batches without an update: as in training, but with
    constant weights. Everything that the step changes (random state, metrics, other statistics) is
    restored exactly afterwards. The training data keep their position, because the batches come
    from a separate pipeline created by the trainer's `build_train_dataset`. If the trainer was
    constructed with a dataset instead, the batches come from another iterator over that dataset. If
    that dataset reshuffles in each epoch, its order in later epochs changes.

    Mean and variance are computed over all examples and replicas together. Layers that are frozen,
    or that the step does not call in training mode, keep their statistics. Calls within
    `model.stateless_call` do not count.

    Args:
        trainer: A trainer with a `task`, a `model`, an `optimizer`, a `strategy` and a
            `train_dataset`, such as `core.base_trainer.Trainer`.

    Attributes:
        trainer: The same trainer.

    Raises:
        errors.ConfigTypeError: The trainer lacks one of these attributes.
        errors.ConfigValueError: The trainer computes virtual replicas.
    """

    def __init__(self, trainer: Any) -> None:
        check_trainer(trainer)
        self.trainer = trainer
        self._recorders = [
            _Recorder(layer, self.trainer.strategy)
            for layer in _batch_norm_layers(self.trainer.model)
        ]
        self._dataset: Any = None
        self._step_fn: Any = None

    @property
    def is_empty(self) -> bool:
        """Return whether the model has no trainable batch normalization layer."""
        return not self._recorders

    def update(self, num_steps: int, ends_on_signal: bool = True) -> Callable[[], None]:
        """Compute the statistics over `num_steps` whole batches and assign them to the layers.

        Args:
            num_steps: The number of batches.
            ends_on_signal: Whether a signal that requests a stop ends the computation.

        Returns:
            A function that assigns the earlier statistics.

        Raises:
            errors.DataError: The training data are empty.
            errors.PreemptedError: A signal requested a stop. Nothing has changed then.
        """
        # Discard numbers that layers log in these passes, because they are not part of training.
        with telemetry.get_event_storage().muted():
            totals = self._totals(num_steps, ends_on_signal) if self._recorders else []
        statistics = [each for recorder in self._recorders for each in recorder.statistics]
        earlier = [each.numpy() for each in statistics]
        for recorder, total in zip(self._recorders, totals, strict=True):
            recorder.put_in_place(total)

        def undo() -> None:
            for variable, value in zip(statistics, earlier, strict=True):
                variable.assign(value)

        return undo

    def _totals(self, num_steps: int, ends_on_signal: bool) -> list[Array]:
        if self._dataset is None:
            build = getattr(self.trainer, "build_train_dataset", None)
            self._dataset = self.trainer.train_dataset if build is None else build()
        if self._step_fn is None:
            self._step_fn = tf.function(self._build_step())
        for recorder in self._recorders:
            recorder.begin()
        # With gradient accumulation, the dataset yields micro-batches, several for each step.
        config = getattr(self.trainer, "config", None)
        num_parts = hyperparams.get_by_path(config, "trainer.grad_accum_steps") or 1
        iterator = iter(self._dataset)
        totals: list[Array] = [np.zeros([3, 1])] * len(self._recorders)
        with contextlib.ExitStack() as stack:
            for recorder in self._recorders:
                stack.enter_context(recorder.recording())
            # Restore all variables that the traced step uses. Some of them may be known only to the
            # task, such as the variables of a second optimizer.
            function = self._step_fn.get_concrete_function(iterator)
            stack.enter_context(unchanged(function.graph.variables))
            for part in range(num_steps * num_parts):
                if ends_on_signal:
                    preemption.check()
                try:
                    sums = self._step_fn(iterator)
                except loop_fns.END_OF_DATA as error:
                    if part == 0:
                        raise errors.DataError(
                            "The training data are empty, so batch normalization statistics can't "
                            "be computed from them. Check the training data."
                        ) from error
                    logging.warning(
                        "The training data ended after %d batches, so the batch normalization "
                        "statistics are computed from fewer batches than requested.",
                        part // num_parts,
                    )
                    break
                totals = [t + s.numpy() for t, s in zip(totals, sums, strict=True)]
        return totals

    def _build_step(self) -> loop_fns.StepFn:
        trainer = self.trainer
        optimizer = gradient_accumulator.GradientSink(trainer.optimizer)
        with trainer.strategy.scope(), user_code.keeping_attributes(trainer.task):
            metrics = list(trainer.task.build_metrics(training=True))
        next_inputs = getattr(trainer, "next_train_inputs", user_code.next_batch)
        task_inputs = getattr(trainer, "task_inputs", lambda inputs: inputs)

        def replica_step(inputs: nests.Nest) -> None:
            trainer.task.train_step(
                task_inputs(inputs), model=trainer.model, optimizer=optimizer, metrics=metrics
            )

        def step(iterator: Iterator[nests.Nest]) -> list[tf.Tensor]:
            inputs = user_code.converted(next_inputs)(iterator)
            trainer.strategy.run(replica_step, args=(inputs,))
            return [recorder.take() for recorder in self._recorders]

        return loop_fns.guard_step(step)


class _Recorder:
    """An accumulator for the count, the sum and the sum of squares of a layer's inputs.

    The initial moving mean is subtracted from the inputs. This avoids a loss of precision when the
    mean is large and the variance is small.
    """

    def __init__(
        self, layer: keras.layers.BatchNormalization, strategy: tf.distribute.Strategy
    ) -> None:
        self._layer = layer
        self._signature = inspect.signature(layer.call)
        size = int(layer.moving_mean.shape[0])
        with strategy.scope():
            self._origin = tf.Variable(tf.zeros([size]), trainable=False)
            self._sums = tf.Variable(
                tf.zeros([3, size]),
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
            )

    @property
    def statistics(self) -> list[Any]:
        """Return the variables that `put_in_place` assigns."""
        names = ["moving_mean", "moving_variance"]
        if getattr(self._layer, "renorm", False):
            names.append("moving_stddev")
        return [getattr(self._layer, name) for name in names]

    def begin(self) -> None:
        mean = np.asarray(self._layer.moving_mean.numpy(), np.float32)
        self._origin.assign(np.where(np.isfinite(mean), mean, 0.0))

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Enter a context in which a traced call of the layer also records its inputs."""
        call = self._layer.call

        def recording_call(*args: Any, **kwargs: Any) -> Any:
            arguments = self._signature.bind(*args, **kwargs).arguments
            if arguments.get("training"):
                # Take the first argument by position, because a subclass may rename the parameter.
                self._add(next(iter(arguments.values())), arguments.get("mask"))
            return call(*args, **kwargs)

        with keras_variables.replacing_call(self._layer, recording_call):
            yield

    def take(self) -> tf.Tensor:
        """Return the sums over all replicas, with the shape `[3, size]`, and reset them.

        Call this method in cross-replica context.
        """
        sums = tf.identity(self._sums.read_value())
        with tf.control_dependencies([sums]):
            self._sums.assign(tf.zeros_like(sums))
        return sums

    def put_in_place(self, total: Array) -> None:
        counts, sums, squares = total.astype(np.float64)
        if not np.all(counts > 0):
            logging.warning(
                "No training data passed through %s, so its statistics are unchanged.",
                self._layer.path,
            )
            return
        offset = sums / counts
        variance = np.maximum(squares / counts - offset**2, 0.0)
        self._layer.moving_mean.assign(self._origin.numpy() + offset)
        self._layer.moving_variance.assign(variance)
        if getattr(self._layer, "renorm", False):
            self._layer.moving_stddev.assign(np.sqrt(variance + self._layer.epsilon))

    def _add(self, inputs: nests.Nest, mask: tf.Tensor | None) -> None:
        # As for Keras' moving statistics, stateless calls do not count. Most of them repeat a pass
        # over the same batch: with other weights, as in a step of SAM, or to recompute activations.
        if stateless_scope.in_stateless_scope():
            return
        inputs = tf.convert_to_tensor(inputs)
        shape = [1] * inputs.shape.rank
        shape[self._layer.axis] = -1
        axes = [axis for axis, size in enumerate(shape) if size == 1]
        distance = tf.cast(inputs, tf.float32) - tf.reshape(self._origin, shape)
        weight = tf.ones_like(distance)
        if mask is not None:
            weight *= tf.cast(tf.expand_dims(mask, -1), tf.float32)
            distance = tf.where(weight > 0, distance, 0.0)
        self._sums.assign_add(
            tf.stack([tf.reduce_sum(x, axes) for x in (weight, distance, distance**2)])
        )


def check_trainer(trainer: Any) -> None:
    """Check that exact statistics can be computed for a trainer.

    Raises:
        errors.ConfigTypeError: The trainer lacks an attribute.
        errors.ConfigValueError: The model has batch normalization, and the trainer computes virtual
            replicas.
    """
    for attribute in ("task", "model", "optimizer", "strategy", "train_dataset"):
        if not hasattr(trainer, attribute):
            raise errors.ConfigTypeError(
                f"Exact batch normalization statistics require a trainer with a `{attribute}`, "
                f"such as `core.base_trainer.Trainer`; got {type(trainer).__name__}. Remove the "
                "hook `precise_batch_norm`, or set `recalibration_steps` to 0."
            )
    count = hyperparams.get_by_path(getattr(trainer, "config", None), "trainer.virtual_replicas")
    if count and _batch_norm_layers(trainer.model):
        raise errors.ConfigValueError(
            f"`trainer.virtual_replicas` is {count}, but exact batch normalization statistics "
            "can't be computed with virtual replicas, because the task's step then runs on whole "
            "batches. Set `trainer.virtual_replicas` to 0, remove the hook `precise_batch_norm`, "
            "or set `recalibration_steps` to 0."
        )


@contextlib.contextmanager
def unchanged(variables: Iterable[Any]) -> Iterator[None]:
    """Enter a context that restores the variables on each replica when it exits."""
    kept = [(one, one.numpy()) for v in variables for one in keras_variables.local_values(v)]
    try:
        yield
    finally:
        for one, value in kept:
            one.assign(value)


def _variables(model: keras.Model | tf.Module) -> list[Any]:
    """Return all variables that a train step may change: weights, random state and metrics."""
    # Only Keras models have metrics.
    return [*model.variables, *getattr(model, "metrics_variables", ())]


def _batch_norm_layers(model: keras.Model | tf.Module) -> list[Any]:
    # A multi-task model has a model for each task.
    models = [
        one
        for one in getattr(model, "sub_tasks", {"": model}).values()
        if isinstance(one, keras.Model)
    ]
    layers = {id(layer): layer for one in models for layer in one._flatten_layers()}.values()
    normalizing = [la for la in layers if isinstance(la, keras.layers.BatchNormalization)]
    return [layer for layer in normalizing if layer.trainable and layer.built]


class PreciseBatchNorm(Hook):
    """Replaces the moving statistics of batch normalization with those of the training data.

    Moving averages include statistics of old weights, and lag behind weights that change fast. This
    hook computes the mean and variance over all examples of `num_steps` batches, with the current
    weights. Training itself is unaffected and continues with the same weights, random numbers and
    batches, because training mode does not use the moving statistics.
    `BatchNormStatistics` documents the computation and the source of the batches.

    Each update costs `num_steps` forward passes and the start of an input pipeline. If the
    optimizer keeps a moving average of the weights, the statistics are computed for the averaged
    weights, because evaluation uses those.

    Args:
        num_steps: The number of training batches per update.
        every_n_steps: The interval. 0 updates the statistics before each evaluation during
            training, including the last one. A checkpoint at the same step contains the new
            statistics.

    Raises:
        errors.ConfigValueError: `num_steps` is less than 1.
    """

    def __init__(self, num_steps: int = 200, every_n_steps: int = 0) -> None:
        if num_steps < 1:
            raise errors.ConfigValueError(f"`num_steps` is {num_steps}; expected at least 1.")
        self.every_n_steps = every_n_steps
        self._num_steps = num_steps
        self._statistics: BatchNormStatistics | None = None
        self._is_training = False

    def before_train(self) -> None:
        # Keep the variables and the traced step if the trainer trains in several passes.
        if self._statistics is None or self._statistics.trainer is not self.trainer:
            self._statistics = BatchNormStatistics(self.trainer)
        if self._statistics.is_empty:
            raise errors.ConfigValueError(
                "PreciseBatchNorm requires a trainable `keras.layers.BatchNormalization`, but the "
                "model has none. Remove the hook."
            )
        self._is_training = True
        if not self.every_n_steps and self._update not in self.controller.eval_preparations:
            self.controller.eval_preparations.append(self._update)

    def after_step(self) -> None:
        # Complete the update despite a signal: the run saves this step, and a resumed run does not
        # repeat its update.
        self._update(ends_on_signal=False)

    def after_train(self, success: bool) -> None:
        self._is_training = False

    def detach(self) -> None:
        super().detach()
        self._statistics = None

    def _update(self, ends_on_signal: bool = True) -> Callable[[], None] | None:
        if self._statistics is None or not self._is_training:
            return None
        optimizer = runner.optimizer_of(self.trainer)
        with ema_optimizer.averaged_weights(optimizer):
            undo = self._statistics.update(self._num_steps, ends_on_signal)

        def undo_in_averages() -> None:
            # Put the averaged weights in place first, because they may include the statistics.
            with ema_optimizer.averaged_weights(optimizer):
                undo()

        return undo_in_averages


class StochasticWeightAveraging(Hook):
    """Averages the trainable weights every `every_n_steps` steps (Izmailov et al., 2018).

    All averaged weights count equally. The average is kept in host memory and in the run's
    checkpoints, so a resumed run continues it exactly. The resumed run starts a new average, with a
    warning, if it trains other weights (for example after a change of `trainer.freeze`), or if the
    average includes weights from before `start_step`. When training ends without an error:

    1. The average replaces the weights.
    2. Exact batch normalization statistics are computed for it from `recalibration_steps` batches
       of training data (see `BatchNormStatistics`).
    3. The average is evaluated, if the controller has an evaluator. The results are reported as
       `swa/<name>`, together with those of training. This evaluation is never the best one.
    4. The average is saved to `<model_dir>/swa/ckpt-<step>`. This checkpoint has the same contents
       as the run's own checkpoints. It works as a `task.init_checkpoint`, and with `--mode=eval` on
       that directory.
    5. The trained weights are restored exactly.

    Averaging works best with a learning rate that stays high, or is cyclic, from `start_step` on.
    If the learning rate has decayed, the averaged weights are nearly equal. If the optimizer keeps
    its own moving average, that average is not used in steps 3 and 4.

    Args:
        start_step: The first step whose weights may be averaged.
        every_n_steps: The interval. Weights are averaged at its multiples, usually once or a few
            times per epoch.
        recalibration_steps: The number of batches for batch normalization. 0 leaves the statistics
            unchanged.
        eval_steps: The number of steps in the evaluation; -1 means all the data. Defaults to the
            number in the run's other evaluations.

    Raises:
        errors.ConfigValueError: An argument is out of range.
    """

    def __init__(
        self,
        start_step: int,
        every_n_steps: int,
        recalibration_steps: int = 100,
        eval_steps: int | None = None,
    ) -> None:
        if start_step < 0 or every_n_steps < 1 or recalibration_steps < 0:
            raise errors.ConfigValueError(
                f"StochasticWeightAveraging: `start_step` is {start_step}, `every_n_steps` is "
                f"{every_n_steps} and `recalibration_steps` is {recalibration_steps}; expected at "
                "least 0, 1 and 0, respectively."
            )
        self.every_n_steps = every_n_steps
        self._start_step = start_step
        self._recalibration_steps = recalibration_steps
        self._eval_steps = eval_steps
        self._average: list[npt.NDArray[Any]] = []
        self._num_averaged = 0
        # The step of the first weights in the average; None if there are none.
        self._first_step: int | None = None

    def before_train(self) -> None:
        for attribute in ("model", "checkpoint"):
            if not hasattr(self.trainer, attribute):
                raise errors.ConfigTypeError(
                    f"StochasticWeightAveraging requires a trainer with a `{attribute}`, such as "
                    f"`core.base_trainer.Trainer`; got {type(self.trainer).__name__}."
                )
        if self._recalibrates:
            check_trainer(self.trainer)
        self._directory()

    def after_step(self) -> None:
        if self._step() < self._start_step:
            return
        self._num_averaged += 1
        weights = [_as_float(weight.numpy()) for weight in self._weights()]
        if self._num_averaged == 1:
            self._average, self._first_step = weights, self._step()
            return
        for average, weight in zip(self._average, weights, strict=True):
            average += (weight - average) / self._num_averaged

    def after_train(self, success: bool) -> None:
        # After a signal, time may be short, and the resumed run continues the average.
        if not success or self.controller.is_interrupted:
            return
        if self._num_averaged == 0:
            logging.warning(
                "StochasticWeightAveraging averaged no weights: training ended at step %d, before "
                "the first multiple of %d that is at least %d. Lower `every_n_steps` or "
                "`start_step`.",
                self._step(),
                self.every_n_steps,
                self._start_step,
            )
            return
        trainer: Any = self.trainer
        model = trainer.model
        with unchanged(_variables(model)):
            for weight, average in zip(self._weights(), self._average, strict=True):
                weight.assign(average)
            self._recalibrate()
            with ema_optimizer.following_weights(trainer.optimizer):
                self._evaluate()
                self._save()

    def state_dict(self) -> dict[str, Any]:
        # Return a state even if there is no average yet. An empty state would not be saved, so
        # restoring the checkpoint would not discard an average that was started after the save.
        arrays = {f"average_{i}": average for i, average in enumerate(self._average)}
        # A controller that only evaluates has no trainer.
        is_known = bool(self._average) and self.trainer is not None
        positions = self._trainable_positions() if is_known else []
        return {
            "num_averaged": self._num_averaged,
            "first_step": self._first_step,
            "positions": positions,
            **arrays,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._num_averaged = state["num_averaged"]
        self._first_step = state.get("first_step")  # Older checkpoints lack this entry.
        count = sum(key.startswith("average_") for key in state)
        self._average = [np.array(state[f"average_{i}"]) for i in range(count)]
        positions = state.get("positions")  # Older checkpoints lack this entry.
        is_known = bool(positions) and self.trainer is not None
        if is_known and positions != self._trainable_positions():
            logging.warning(
                "StochasticWeightAveraging starts a new average: the checkpoint has an average of "
                "other weights than those that are trainable now, after a change such as that of "
                "`trainer.freeze`."
            )
            self._discard_average()
        elif self._first_step is not None and self._first_step < self._start_step:
            logging.warning(
                "StochasticWeightAveraging starts a new average: the average in the checkpoint "
                "begins with the weights of step %d, but `start_step` is now %d.",
                self._first_step,
                self._start_step,
            )
            self._discard_average()

    def _discard_average(self) -> None:
        self._num_averaged, self._average, self._first_step = 0, [], None

    @property
    def _recalibrates(self) -> bool:
        trainer: Any = self.trainer
        return self._recalibration_steps > 0 and bool(_batch_norm_layers(trainer.model))

    def _recalibrate(self) -> None:
        if self._recalibrates:
            BatchNormStatistics(self.trainer).update(self._recalibration_steps)

    def _evaluate(self) -> None:
        evaluator, storage = self.controller.evaluator, self.controller.storage
        # In the mode `train`, the trainer is also the evaluator, but was not built to evaluate.
        if evaluator is None or not getattr(evaluator, "evaluates", True):
            return
        steps = self.controller.eval_steps if self._eval_steps is None else self._eval_steps
        # Do not call `controller.evaluate`, because it also calls hooks and actions, which expect
        # the trained weights instead of the averaged ones. For the same reason, `evaluating_apart`
        # prevents the evaluator from recording these results as the best evaluation.
        apart = getattr(evaluator, "evaluating_apart", contextlib.nullcontext)
        with storage.muted(), apart():
            output = dict(evaluator.evaluate(tf.constant(steps, tf.int32)) or {})
        logs = telemetry.numbers(reports.as_numpy(output))
        values = telemetry.Record(step=self._step(), split="swa", values=logs).flat()
        logging.info("Evaluated the average of %d sets of weights: %s", self._num_averaged, values)
        for name, value in values.items():
            storage.put_scalar(f"swa/{name}", value, smoothing_hint=False)

    def _save(self) -> None:
        trainer: Any = self.trainer
        manager = async_checkpoint_manager.AsyncCheckpointManager(
            trainer.checkpoint,
            directories.writable_directory(self._directory(), self.controller.strategy),
            max_to_keep=1,
        )
        logging.info("Saved %s.", manager.save(checkpoint_number=self._step()))

    def _directory(self) -> str:
        return output_directory(self, "swa")

    def _weights(self) -> list[Any]:
        trainer: Any = self.trainer
        return list(trainer.model.trainable_variables)

    def _trainable_positions(self) -> list[int]:
        # Identify weights by position, because the names of layers may differ in another process.
        trainable = {id(weight) for weight in self._weights()}
        trainer: Any = self.trainer
        variables = enumerate(trainer.model.variables)
        return [position for position, variable in variables if id(variable) in trainable]

    def _step(self) -> int:
        return self.controller.step


def _as_float(weight: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a copy of a weight for accumulation, in float32 if its dtype is less precise."""
    return np.array(weight, np.promote_types(weight.dtype, np.float32))
