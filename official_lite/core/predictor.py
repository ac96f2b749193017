"""Prediction: the loop, the step over all replicas, and checks of what a task returns."""

import dataclasses
import functools
import itertools
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from absl import logging

from official_lite import orbit
from official_lite.common import (
    errors,
    keras_variables,
    nests,
    plugins,
    preemption,
    tf_config,
    user_code,
)
from official_lite.core import base_task, config_definitions, step_checks, train_data
from official_lite.data import length, replicas
from official_lite.execution import executors, repeatability
from official_lite.modeling import replica_state
from official_lite.modeling.optimization import ema_optimizer
from official_lite.orbit import xla_loops
from official_lite.prediction import output

__all__ = [
    "Prediction",
    "Predictor",
    "are_of_classes",
    "as_arrays",
    "build_dataset",
    "checked",
    "count_rows",
    "create_exchange",
    "joined",
    "pack",
    "unpack",
]

Columns: TypeAlias = dict[str, npt.NDArray[Any]]
# The predictions for a batch, or its parts if rows differ in shape.
Prediction: TypeAlias = Columns | list[Columns]
Exchange: TypeAlias = Callable[[list[Columns]], list[Columns]]

# Metrics that expect predictions with one score per class, along the last axis.
_OF_CLASSES = (
    keras.metrics.CategoricalAccuracy,
    keras.metrics.SparseCategoricalAccuracy,
    keras.metrics.SparseTopKCategoricalAccuracy,
    keras.metrics.TopKCategoricalAccuracy,
)

# Losses that expect the same.
_LOSSES_OF_CLASSES = (
    keras.losses.CategoricalCrossentropy,
    keras.losses.CategoricalFocalCrossentropy,
    keras.losses.SparseCategoricalCrossentropy,
)
# The names of these metrics and losses, and of their functions, in lower case without underscores.
_NAMES_OF_CLASSES = frozenset(cls.__name__.lower() for cls in (*_OF_CLASSES, *_LOSSES_OF_CLASSES))


def build_dataset(
    config: config_definitions.ExperimentConfig,
    task: base_task.Task,
    strategy: tf.distribute.Strategy,
    first_batch: int = 0,
) -> executors.Dataset:
    """Build the distributed dataset to predict, without its first `first_batch` global batches.

    Every host reads the whole input and keeps the batches of its own replicas, so that the rows are
    in the same order with any number of hosts.
    """
    num_replicas = strategy.num_replicas_in_sync

    def build_inputs(input_context: tf.distribute.InputContext) -> tf.data.Dataset:
        whole = tf.distribute.InputContext(num_replicas_in_sync=num_replicas)
        dataset = orbit.utils.bind_dataset_fn(task.build_inputs, data)(whole)
        if not isinstance(dataset, tf.data.Dataset):
            raise errors.ConfigTypeError(
                f"`build_inputs` returned a {type(dataset).__name__}, but the mode `predict` "
                "requires a `tf.data.Dataset`."
            )
        if length.is_infinite(dataset):
            raise errors.ConfigValueError(
                "The prediction data repeat forever. Call `repeat` in `build_inputs` only if "
                "`params.is_training` is true."
            )
        dataset = dataset.skip(first_batch * num_replicas)
        num_hosts = input_context.num_input_pipelines
        if num_hosts > 1:
            num_own, own = num_replicas // num_hosts, input_context.input_pipeline_id
            dataset = dataset.enumerate().filter(
                lambda number, _: number % num_replicas // num_own == own
            )
            dataset = dataset.map(lambda _, batch: batch)
        return replicas.with_any_batch_size(dataset) if num_replicas > 1 else dataset

    data = train_data.predict_data(config)
    num_threads = config.runtime.dataset_num_private_threads
    path = f"task.{train_data.predict_block(config.task)}"
    with step_checks.naming_the_block(task.build_inputs, path, data):
        # The replicas take batches in turn even with `trainer.virtual_replicas`, so always use the
        # default executor.
        executor = executors.GraphExecutor(strategy, num_private_threads=num_threads)
        return executor.distribute(build_inputs)


@dataclasses.dataclass(eq=False)
class Predictor:
    """Runs the prediction loop of a trainer; see `Trainer.predict`."""

    config: config_definitions.ExperimentConfig
    task: base_task.Task
    model: keras.Model
    optimizer: keras.optimizers.Optimizer
    strategy: tf.distribute.Strategy
    seeds: replica_state.StepSeeds
    # The compiled steps by execution mode.
    _compiled: dict[str, Callable[..., Any]] = dataclasses.field(default_factory=dict)
    # Whether XLA may be able to compile the step.
    _can_compile: bool = True

    def predict(
        self, step: Callable[..., Any], execution: str, first_batch: int
    ) -> Generator[Prediction, None, None]:
        """Yield the predictions for each global batch; see `Trainer.predict`.

        Args:
            step: The trainer's `predict_step`.
            execution: The execution mode.
            first_batch: The number of global batches to skip. If later predictions may depend on
                them, they are predicted, but not yielded.
        """
        task = self.task
        with user_code.keeping_attributes(task):
            metrics = step_checks.build_metrics(task, training=False)
        task.scores_classes = are_of_classes(metrics) or _is_compiled_for_classes(self.model)
        step_checks.require_signature(task.predict_step, "inputs", model="")
        base_task.warn_of_overridden_step(self.model, task, "predict_step")
        exchange = create_exchange(self.strategy)
        run = self._compile(step, execution)
        iterator = iter(build_dataset(self.config, task, self.strategy, first_batch))
        start = first_batch
        if first_batch and self._carries_state(run, iterator):
            logging.info(
                "The first %d batches are predicted again, because a prediction may depend on the "
                "batches before it.",
                first_batch,
            )
            start = 0
            iterator = iter(build_dataset(self.config, task, self.strategy))
        with ema_optimizer.averaged_weights(self.optimizer):
            for number in self._numbers(start):
                counted = tf.constant(number, tf.int64)
                try:
                    predictions, num_rows = run(iterator, counted)
                except orbit.utils.loop_fns.END_OF_DATA:
                    return
                except xla_loops.NOT_COMPILABLE as error:
                    if not self._uses_xla(execution) or not _is_of_compiler(error):
                        raise
                    self._stop_using_xla(error)
                    run = self._compile(step, execution)
                    # Rebuild the iterator, because the failed step has already drawn the batch.
                    iterator = iter(build_dataset(self.config, task, self.strategy, number))
                    predictions, num_rows = run(iterator, counted)
                if number >= first_batch:
                    parts = joined(exchange(as_arrays(predictions, num_rows, _author(task))))
                    yield parts[0] if len(parts) == 1 else parts

    def _compile(self, step: Callable[..., Any], execution: str) -> Callable[..., Any]:
        """Return the step as a `tf.function`, unless the config or the mode is eager."""
        if not self.config.trainer.eval_tf_function or execution == "eager":
            return step
        if execution not in self._compiled:
            self._compiled[execution] = tf.function(step, autograph=False)
        return self._compiled[execution]

    def _carries_state(self, run: Callable[..., Any], iterator: Iterator[Any]) -> bool:
        """Return whether the step may change state that the next step reads.

        Examples are the state of a recurrent layer with `stateful=True`, a random number generator
        of the task, and a lookup table. The seeds of the model do not count, because they are set
        before each batch. The step is traced to find the state that it changes.
        """
        traced = self._trace(run, iterator)
        if traced is None or any(repeatability.find_lasting_effects([traced])):
            return True
        if any(repeatability.find_random_numbers([traced], self.model)):
            return True
        seeds = itertools.chain.from_iterable(map(keras_variables.local_values, self.seeds.states))
        known = {id(seed.handle) for seed in seeds}
        return any(
            id(handle) not in known and keras_variables.value_spec(handle) is not None
            for handle in keras_variables.written_handles(traced.graph)
        )

    def _trace(self, run: Callable[..., Any], iterator: Iterator[Any]) -> Any:
        """Return the traced step; None if an eager step may do more than its graph."""
        number = tf.constant(0, tf.int64)
        if isinstance(run, tf.types.experimental.GenericFunction):
            return run.get_concrete_function(iterator, number)
        task, traced = self.task, None
        before = {name: id(value) for name, value in vars(task).items()}
        with user_code.keeping_attributes(task):
            try:
                traced = tf.function(run, autograph=False).get_concrete_function(iterator, number)
            # Code written for eager execution may raise any error when it is traced. If so, the
            # earlier batches are predicted again, which is slower but always correct.
            except Exception as error:
                logging.info("The eager prediction step can't be traced: %s", error)
            # If the step changes attributes, its eager calls do so with every batch, which its
            # graph does not show.
            is_changed = before != {name: id(value) for name, value in vars(task).items()}
        # Delete the attributes that tracing added, because the eager step can't use graph tensors.
        for name in vars(task).keys() - before.keys():
            delattr(task, name)
        return None if is_changed else traced

    def _uses_xla(self, execution: str) -> bool:
        return self._can_compile and execution in ("xla", "xla_loop")

    def _stop_using_xla(self, error: tf.errors.OpError) -> None:
        logging.warning(
            "Predicting without XLA, because XLA can't compile the prediction step: %s",
            error.message,
        )
        self._can_compile = False
        self._compiled.clear()

    def _numbers(self, first_batch: int) -> Iterator[int]:
        """Yield the numbers of the global batches until a signal requests a stop.

        A single process checks for a signal before each batch. Several workers agree on a stop
        between slices of batches.
        """
        stop_check = preemption.StopCheck(self.strategy)
        for start, stop in stop_check.slices(first_batch, sys.maxsize, is_splittable=True):
            for number in range(start, stop):
                preemption.check()
                yield number

    def run_step(
        self, inputs: nests.Nest, number: tf.Tensor, execution: str
    ) -> tuple[dict[str, tuple[tf.Tensor, ...]], tuple[tf.Tensor, ...]]:
        """Predict a batch on all replicas; see `Trainer.predict_step`."""
        step: Callable[..., Any] = self._replica_step
        if self._uses_xla(execution):
            # Hide the `tf.function` in a `partial`; otherwise `strategy.run` would compile one
            # program for all replicas.
            step = functools.partial(tf.function(step, autograph=False, jit_compile=True))
        outputs = self.strategy.run(step, args=(inputs, number))
        return tf.nest.map_structure(self.strategy.experimental_local_results, outputs)

    def _replica_step(
        self, inputs: nests.Nest, number: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """Predict a replica's part of a batch, which may be empty."""
        # A model may draw random numbers in inference, too. A resumed run must draw the same
        # numbers for this batch.
        self.seeds.set(number)
        method = self.task.predict_step
        with step_checks.explaining_the_step(self.task, method, inputs):
            predictions = user_code.converted(method)(inputs, model=self.model)
        return checked(_author(self.task), predictions), count_rows(inputs)


def _is_of_compiler(error: tf.errors.OpError) -> bool:
    """Return whether the error says that XLA can't compile the step.

    The class of the error is not enough, because ops and the input raise the same classes.
    """
    return "tf2xla conversion failed" in error.message


def _author(task: base_task.Task) -> Callable[..., Any]:
    """Return the method that determines what a task predicts, to name it in error messages."""
    is_default = type(task).predict_step is base_task.Task.predict_step
    return task.build_predictions if is_default else task.predict_step


def are_of_classes(metrics: Sequence[keras.metrics.Metric]) -> bool:
    """Return whether any of the metrics expects one score per class."""
    return any(isinstance(metric, _OF_CLASSES) for metric in metrics)


def _is_compiled_for_classes(model: keras.Model | tf.Module) -> bool:
    """Return whether the loss or a metric given to `compile` expects one score per class."""
    if not isinstance(model, keras.Model) or not model.compiled:
        return False
    # A model with a single output may have its loss in a list or a dictionary.
    if all(map(_is_of_classes, keras.tree.flatten(model.loss))):
        return True
    compiled = model._compile_metrics
    if compiled is None:
        return False
    metrics = keras.tree.flatten([compiled._user_metrics, compiled._user_weighted_metrics])
    return any(map(_is_of_classes, metrics))


def _is_of_classes(given: Any) -> bool:
    """Return whether a loss or a metric, as given to `compile`, expects one score per class."""
    if isinstance(given, (*_OF_CLASSES, *_LOSSES_OF_CLASSES)):
        return True
    if given in ("ce", "crossentropy"):
        # Keras chooses the crossentropy by the shapes. It is binary only for a single score.
        return True
    name = given if isinstance(given, str) else getattr(given, "__name__", "")
    return name.replace("_", "").lower() in _NAMES_OF_CLASSES


def count_rows(inputs: nests.Nest) -> tf.Tensor:
    """Return the number of examples in a batch; -1 if it has no dense tensor with rows."""
    for part in tf.nest.flatten(inputs):
        if isinstance(part, tf.Tensor) and part.shape.rank != 0:
            return tf.shape(part)[0]
    return tf.constant(-1)


def as_arrays(
    predictions: Mapping[str, Sequence[tf.Tensor]],
    num_rows: Sequence[tf.Tensor],
    method: Callable[..., Any],
) -> list[Columns]:
    """Return the predictions of each replica, in replica order, as one array per column.

    Args:
        predictions: The tensors of each column, one per replica.
        num_rows: The number of examples of each replica; negative if unknown.
        method: The method of the task that returned the predictions, for the error message.

    Raises:
        errors.ConfigValueError: If a column does not have one row per example.
    """
    wanted = [int(count) for count in num_rows]
    parts: list[Columns] = [{} for _ in wanted]
    for name, tensors in predictions.items():
        arrays = [tensor.numpy() for tensor in tensors]
        counts = [len(array) for array in arrays]
        wanted = counts if min(wanted) < 0 else wanted
        if counts != wanted:
            raise errors.ConfigValueError(
                f"{plugins.described(method)} returned {sum(counts)} rows as {name!r} for a "
                f"batch of {sum(wanted)} examples; expected one row per example."
            )
        for part, array in zip(parts, arrays, strict=True):
            part[name] = array
    return parts


def joined(parts: Sequence[Columns]) -> list[Columns]:
    """Return consecutive parts of a batch as a single part, unless their rows differ in shape."""
    # Drop parts without rows, because their other dimensions may not match.
    parts = [part for part in parts if len(next(iter(part.values())))] or parts[:1]
    shapes = [{name: array.shape[1:] for name, array in part.items()} for part in parts]
    if len(parts) == 1 or any(shape != shapes[0] for shape in shapes):
        return list(parts)
    return [{name: np.concatenate([part[name] for part in parts]) for name in parts[0]}]


def create_exchange(strategy: tf.distribute.Strategy) -> Exchange:
    """Create a function that returns the parts of all workers, in the order of the workers.

    All workers must call the function, with the same number of parts and with columns of the same
    names and types. It returns the same parts to each of them.
    """
    found = tf_config.read_tf_config()
    workers = found.members("chief", "worker") if found is not None else {}
    is_several = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    if not is_several or found is None or found.name not in workers or len(workers) == 1:
        return lambda parts: parts
    num_own = strategy.num_replicas_in_sync // len(workers)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def gather(numbers: tf.Tensor) -> tf.Tensor:
        def send() -> tf.Tensor:
            # Only the first replica of each worker sends the numbers of its worker.
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            return numbers[: tf.where(replica % num_own == 0, tf.size(numbers), 0)]

        return strategy.gather(strategy.run(send), axis=0)

    def exchange(parts: list[Columns]) -> list[Columns]:
        numbers = gather(np.concatenate([pack(part) for part in parts])).numpy()
        return unpack(numbers, parts[0], len(workers) * len(parts))

    return exchange


def pack(columns: Columns) -> npt.NDArray[np.int64]:
    """Return columns of any type as integers, which all strategies can exchange.

    Each column is the number of its bytes, followed by the bytes.
    """
    parts: list[Any] = []
    # The order of a dictionary may differ between processes.
    for name in sorted(columns):
        text = tf.io.serialize_tensor(columns[name]).numpy()
        padded = text.ljust(8 * _num_words(len(text)), b"\0")
        parts += [[len(text)], np.frombuffer(padded, np.int64)]
    return np.concatenate(parts)


def unpack(numbers: npt.NDArray[np.int64], columns: Columns, num_parts: int) -> list[Columns]:
    """Return the columns of several calls of `pack`.

    Args:
        numbers: The results of `pack`, one after the other.
        columns: The columns of any of the parts, with the names and types.
        num_parts: The number of results.
    """
    parts: list[Columns] = []
    start = 0
    for _ in range(num_parts):
        part: Columns = {}
        for name in sorted(columns):
            length = int(numbers[start])
            end = start + 1 + _num_words(length)
            text = numbers[start + 1 : end].tobytes()[:length]
            part[name] = tf.io.parse_tensor(text, columns[name].dtype).numpy()
            start = end
        parts.append({name: part[name] for name in columns})
    return parts


def _num_words(num_bytes: int) -> int:
    return -(-num_bytes // 8)


def checked(method: Callable[..., Any], predictions: Any) -> dict[str, tf.Tensor]:
    """Return the predictions of a step as dense tensors by name.

    Args:
        method: The method that returned the predictions; errors name its file and line.
        predictions: The returned value.

    Raises:
        errors.ConfigTypeError: If `predictions` is not a mapping of names to dense tensors.
        errors.ConfigValueError: If `predictions` is empty, or a name is reserved.
    """
    said = plugins.described(method)
    expected = "expected a dictionary of tensors with one row per example"
    if not isinstance(predictions, Mapping):
        raise errors.ConfigTypeError(
            f"{said} returned predictions of type {type(predictions).__name__}; {expected}."
        )
    if not predictions:
        raise errors.ConfigValueError(f"{said} returned no predictions; {expected}.")
    if output.INDEX in predictions:
        raise errors.ConfigValueError(
            f"{said} returned predictions named {output.INDEX!r}, but this name is reserved for "
            "the column with the row number. Use another name."
        )
    for name, value in predictions.items():
        if isinstance(value, tf.RaggedTensor | tf.SparseTensor):
            raise errors.ConfigTypeError(
                f"{said} returned a {type(value).__name__} as {name!r}; {expected}. "
                "Convert it with `to_tensor()` or `tf.sparse.to_dense`."
            )
    tensors = {str(name): tf.convert_to_tensor(value) for name, value in predictions.items()}
    for name, tensor in tensors.items():
        if tensor.shape.rank == 0:
            raise errors.ConfigValueError(f"{said} returned a scalar as {name!r}; {expected}.")
    return tensors
