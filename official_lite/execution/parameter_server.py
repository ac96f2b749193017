"""The executor for parameter-server strategies, and the datasets of their workers."""

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging
from tensorflow.python.distribute import input_lib
from tensorflow.python.distribute.coordinator import values

from official_lite import orbit
from official_lite.common import errors, nests
from official_lite.data import position
from official_lite.execution import executors
from official_lite.execution.executors import Dataset

__all__ = ["ParameterServerExecutor", "WorkerDatasets"]


# Parts of the names of ops that call Python functions, which exist only in this process.
_PYTHON = "PyFunc"

# A policy of `DatasetToGraphV2`: a dataset with state, such as a shuffle, starts with a new state.
_NEW_STATE = 1


class WorkerDatasets:
    """Datasets that are built on the coordinator and read on the workers.

    `iter` creates the iterators on the workers. A worker that was lost and comes back reads its
    dataset from the beginning.

    Args:
        coordinator: The coordinator of the workers.
        datasets: One dataset of batches per worker, all with the same element spec.

    Raises:
        errors.ConfigValueError: If a dataset can't be read in another process.
    """

    def __init__(
        self,
        coordinator: tf.distribute.coordinator.ClusterCoordinator,
        datasets: Sequence[tf.data.Dataset],
    ) -> None:
        self._coordinator = coordinator
        self._graphs = [_serialize(dataset) for dataset in datasets]
        strategy, spec = coordinator.strategy, datasets[0].element_spec

        @tf.function(input_signature=[tf.TensorSpec([], tf.string)])
        def build(graph: tf.Tensor) -> Any:
            variant = tf.raw_ops.DatasetFromGraph(graph_def=graph)
            dataset = tf.data.experimental.from_variant(variant, spec)
            # Distribute the dataset over the worker's GPUs, if it has several.
            return strategy.distribute_datasets_from_function(lambda _: dataset)

        with strategy.scope():
            self._build = build.get_concrete_function()

    @property
    def element_spec(self) -> Any:
        """The element spec of a worker's dataset."""
        return self._build.structured_outputs.element_spec

    def __iter__(self) -> Any:
        spec = input_lib.get_iterator_spec_from_dataset(
            self._coordinator.strategy, self._build.structured_outputs
        )
        workers = self._coordinator._cluster.workers
        iterators = []
        for worker, graph in zip(workers, self._graphs, strict=True):
            iterator = worker.create_resource(functools.partial(self._iterate, graph))
            iterator._type_spec = spec
            iterators.append(iterator)
        return values.PerWorkerDistributedIterator(tuple(iterators))

    def _iterate(self, graph: tf.Tensor) -> Any:
        """Create the iterator of a worker; called again when the worker comes back."""
        return iter(self._build(graph))


def _serialize(dataset: tf.data.Dataset) -> tf.Tensor:
    try:
        graph = tf.raw_ops.DatasetToGraphV2(
            input_dataset=tf.data.experimental.to_variant(dataset),
            external_state_policy=_NEW_STATE,
            strip_device_assignment=True,
        )
    except tf.errors.OpError as error:
        raise errors.ConfigValueError(
            "The training data can't be sent to the workers of a parameter server: "
            f"{error.message[:300]}"
        ) from error
    if _PYTHON in _ops(graph):
        raise errors.ConfigValueError(
            "The training data run Python (`tf.numpy_function`, `tf.py_function`, "
            "`Dataset.from_generator`, memory-mapped arrays), which the workers of a parameter "
            "server can't run. Write the data to files, or use TensorFlow ops."
        )
    return graph


def _ops(graph: tf.Tensor) -> str:
    definition = tf.compat.v1.GraphDef.FromString(graph.numpy())
    nodes = [definition.node, *(function.node_def for function in definition.library.function)]
    return " ".join({node.op for group in nodes for node in group})


# Each call of the loop is divided into this many parts per worker, so that no worker waits long for
# the slowest one, and little work is repeated if a worker is lost.
_PARTS_PER_WORKER = 4


class ParameterServerExecutor(executors.GraphExecutor):
    """Executes steps on the workers of a `ParameterServerStrategy`, which run asynchronously.

    Each worker makes updates whenever it is ready, with batches from its own share of the data.
    `run_steps` returns after all its steps are done, so the state does not change between two
    calls. The chief evaluates alone, and each example once.

    Args:
        strategy: The strategy of the trainer.
        options: Options for `strategy.run`.

    Attributes:
        coordinator: The coordinator, which schedules steps to the workers.
    """

    def __init__(
        self,
        strategy: tf.distribute.ParameterServerStrategy,
        options: tf.distribute.RunOptions | None = None,
    ) -> None:
        super().__init__(strategy, options)
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        # Without this, TensorFlow warns about the evaluation on the chief, which is intended.
        strategy.extended._allow_run_without_coordinator = True
        logging.log_first_n(
            logging.INFO,
            "The workers of a parameter server train independently, in graph mode, and run each "
            "step at least once and in no fixed order. Resumed runs therefore are not bit for bit "
            "equal to uninterrupted ones.",
            1,
        )

    def join(self) -> None:
        """Wait for all scheduled steps."""
        try:
            self.coordinator.join()
        except Exception as error:
            # The coordinator wraps the error that kept an iterator from being created.
            cause = getattr(error, "original_exception", None)
            if not isinstance(cause, tf.errors.OpError):
                raise
            raise cause from error

    def run_steps(self, trainer: orbit.StandardTrainer, num_steps: tf.Tensor) -> None:
        """Run steps, and advance the global step by the requested number of steps.

        If a worker is lost before it can confirm a step, the step is run twice but counted once,
        because intervals and schedules depend on the number of requested steps.
        """
        step = getattr(trainer, "global_step", None)
        if step is None:
            super().run_steps(trainer, num_steps)
            return
        expected = int(step.numpy()) + int(num_steps)
        super().run_steps(trainer, num_steps)
        surplus = int(step.numpy()) - expected
        if surplus > 0:
            logging.warning("%d steps were repeated because a worker was lost.", surplus)
            step.assign_sub(surplus)
            iterations = getattr(getattr(trainer, "optimizer", None), "iterations", None)
            if isinstance(iterations, keras.Variable):
                iterations.assign(iterations - surplus)

    def create_train_loop_fn(self, trainer: orbit.StandardTrainer) -> Callable[..., Any]:
        step_fn = trainer.wrap_step(trainer.train_step)
        loop_fn = tf.function(orbit.utils.create_tf_while_loop_fn(step_fn))
        is_divided = trainer.train_options.use_tf_while_loop
        num_parts = _PARTS_PER_WORKER * self._num_workers if is_divided else None

        def run(iterator: Iterator[nests.Nest], num_steps: tf.Tensor) -> None:
            for length in _divide(int(num_steps), num_parts):
                self.coordinator.schedule(loop_fn, (iterator, tf.constant(length)))
            # The caller reads the global step next.
            self.join()

        return run

    def create_eval_loop_fn(
        self, trainer: orbit.StandardEvaluator, has_state: bool
    ) -> Callable[..., Any]:
        """Create the evaluation loop, which runs on a worker if the trainer was given its data."""
        loop_fn = super().create_eval_loop_fn(trainer, has_state)
        if isinstance(trainer.eval_dataset, tf.data.Dataset):
            return loop_fn
        if has_state:
            raise ValueError(
                "`aggregate_logs` needs the outputs of each step in order, which independent "
                "workers can't provide. Pass a `tf.data.Dataset` to the evaluation, so that the "
                "chief reads it."
            )

        def run(iterator: Iterator[nests.Nest], num_steps: tf.Tensor, *_: Any) -> None:
            self.coordinator.schedule(loop_fn, (iterator, num_steps))
            self.join()

        return run

    def distribute(
        self, dataset_or_fn: Dataset | Callable[..., Dataset], *args: Any, **kwargs: Any
    ) -> Dataset:
        kwargs.pop("input_options", None)
        shares = [
            self._build_share(worker, dataset_or_fn, args, kwargs)
            for worker in range(self._num_workers)
        ]
        return WorkerDatasets(self.coordinator, shares)

    def distribute_eval(
        self, dataset_or_fn: Dataset | Callable[..., Dataset], *args: Any, **kwargs: Any
    ) -> Dataset:
        """Distribute a dataset for evaluation, which the chief reads alone."""
        chief = tf.distribute.OneDeviceStrategy("CPU:0")
        return orbit.utils.make_distributed_dataset(chief, dataset_or_fn, *args, **kwargs)

    @property
    def _num_workers(self) -> int:
        # The only attribute of the strategy that gives the right number.
        return int(self.strategy._num_workers)

    def _build_share(
        self,
        worker: int,
        dataset_or_fn: Dataset | Callable[..., Dataset],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tf.data.Dataset:
        """Build a worker's part of the training data, in batches of the size of a whole step."""
        if isinstance(dataset_or_fn, tf.data.Dataset):
            return dataset_or_fn.shard(self._num_workers, worker)
        if "input_context" in inspect.signature(dataset_or_fn).parameters:
            context = tf.distribute.InputContext(
                num_input_pipelines=self._num_workers,
                input_pipeline_id=worker,
                num_replicas_in_sync=self.strategy.num_replicas_in_sync,
            )
            kwargs = {**kwargs, "input_context": context}
        training = position.current()
        if training is None:
            return dataset_or_fn(*args, **kwargs)
        # Assume that all workers have made the same number of steps.
        with position.begin_at(training.batch // self._num_workers, training.seed) as begin:
            dataset = dataset_or_fn(*args, **kwargs)
        training.is_kept |= begin.is_kept
        return dataset


def _divide(num_steps: int, num_parts: int | None) -> Iterator[int]:
    """Divide steps into parts and yield their lengths; if `num_parts` is None, each length is 1."""
    num_parts = min(num_steps, num_parts or num_steps)
    for part in range(num_parts):
        yield num_steps * (part + 1) // num_parts - num_steps * part // num_parts
