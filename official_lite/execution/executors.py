"""Executors, one for each way to run a step on all replicas, and the loops of such steps."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from absl import logging
from tensorflow.python.distribute import input_lib
from tensorflow.python.distribute.coordinator import values

from official_lite import orbit
from official_lite.common import errors, nests, terminal, user_code
from official_lite.core import step_metrics
from official_lite.data import position, tf_data_options
from official_lite.execution import repeatability
from official_lite.modeling import distributed_gradients
from official_lite.modeling.optimization import gradient_accumulator

__all__ = [
    "Dataset",
    "EvalStep",
    "GraphExecutor",
    "ParameterServerExecutor",
    "TrainStep",
    "WorkerDatasets",
    "XlaExecutor",
    "create_eval_loop_fn",
    "create_train_loop_fn",
    "create_xla_loop",
    "measuring",
    "run_and_count",
]

Dataset: TypeAlias = tf.data.Dataset | tf.distribute.DistributedDataset
StepFn = Callable[..., Any]
TrainStep = Callable[..., Mapping[str, Any]]
EvalStep = Callable[[nests.Nest], Mapping[str, Any]]
# The metrics of a single task, or a mapping from task names to metrics.
Metrics: TypeAlias = Sequence[keras.metrics.Metric] | Mapping[str, Sequence[keras.metrics.Metric]]

# The number of different batch sizes at which a warning is logged. A partial last batch or a few
# length buckets do not reach this number.
_MANY_SIZES = 8

# The number of parts per worker into which each loop call is divided. With short parts, no worker
# waits long for the slowest worker, and little work is repeated if a worker is lost.
_PARTS_PER_WORKER = 4

# A substring of the names of all ops that call Python functions. Such functions exist only in this
# process.
_PYTHON = "PyFunc"

# The value of `external_state_policy` that omits the state of a stateful dataset, such as a
# shuffle, from the serialized dataset. The copy starts with a new state.
_NEW_STATE = 1


@dataclasses.dataclass(eq=False)
class GraphExecutor:
    """Executor that runs steps on all replicas, in graphs or, if the trainer requests it, eagerly.

    The other executors override the methods that they implement differently.

    Args:
        strategy: The strategy of the trainer.
        mode: The execution mode: `eager`, `graph`, `xla` or `xla_loop`.
        options: Options for `strategy.run`.
        num_private_threads: See `RuntimeConfig.dataset_num_private_threads`.

    Attributes:
        coordinator: The `ClusterCoordinator` that schedules steps to asynchronous workers, or None.
        num_sizes: The number of different batch sizes for which programs were compiled.
    """

    strategy: tf.distribute.Strategy
    mode: str = "graph"
    options: tf.distribute.RunOptions | None = None
    num_private_threads: int | None = None

    coordinator: Any = dataclasses.field(default=None, init=False)
    num_sizes: int = dataclasses.field(default=0, init=False)

    def distribute(
        self, dataset_or_fn: Dataset | Callable[..., Dataset], *args: Any, **kwargs: Any
    ) -> Dataset:
        """Distribute a training dataset, or the result of a dataset function, over the replicas."""
        return self._distribute_over(self.strategy, dataset_or_fn, *args, **kwargs)

    def distribute_eval(
        self, dataset_or_fn: Dataset | Callable[..., Dataset], *args: Any, **kwargs: Any
    ) -> Dataset:
        """Distribute a dataset for evaluation."""
        return self.distribute(dataset_or_fn, *args, **kwargs)

    def run_step(self, step_fn: StepFn, *inputs: nests.Nest) -> Any:
        """Run a function on all replicas, as a part of a step."""
        step_fn = user_code.with_dtype_policy(user_code.converted(step_fn))
        return self.strategy.run(step_fn, args=inputs, options=self.options)

    def replica_step(self, step: TrainStep, metrics: Metrics) -> TrainStep:
        """Return the function that a replica calls instead of a task's `train_step`.

        Args:
            step: The `train_step` of a task, or a function with the same arguments.
            metrics: The metrics that the step updates.
        """
        del metrics
        return user_code.converted(step)

    def count_examples(self, inputs: nests.Nest) -> tuple[tf.Tensor | None, int]:
        """Return the number of examples in the inputs of a replica, and the number of replicas.

        Returns:
            The number of examples, or None if it is unknown or the same in all batches; and the
            number of replicas.
        """
        return step_metrics.num_examples(inputs), self.strategy.num_replicas_in_sync

    def run_eval_step(
        self, step: EvalStep, inputs: nests.Nest
    ) -> dict[str, tuple[nests.Nest, ...]]:
        """Run an evaluation step on all replicas.

        Returns:
            Each output of the step, as a tuple with one element per replica of this host.
        """
        outputs = self.strategy.run(user_code.with_dtype_policy(step), args=(inputs,))
        return tf.nest.map_structure(self.strategy.experimental_local_results, outputs)

    def replica_spec(self, dataset: Dataset) -> nests.Nest:
        """Return the specs of the inputs of a task's step, given the data of the trainer."""
        return dataset.element_spec

    def forget_programs(self) -> None:
        """Drop the compiled programs, so that the next trace of a step compiles new ones."""

    def require_coordinator(self) -> tf.distribute.coordinator.ClusterCoordinator:
        """Return the coordinator.

        Raises:
            ValueError: If the strategy is not a `ParameterServerStrategy`.
        """
        if self.coordinator is None:
            raise ValueError(
                f"{type(self.strategy).__name__} has no `ClusterCoordinator`. Use the strategy "
                "`parameter_server`."
            )
        return self.coordinator

    def join(self) -> None:
        """Wait for scheduled steps, which only parameter-server training has."""

    def _distribute_over(
        self,
        strategy: tf.distribute.Strategy,
        dataset_or_fn: Dataset | Callable[..., Dataset],
        *args: Any,
        **kwargs: Any,
    ) -> Dataset:
        own = tf_data_options.with_private_threads(dataset_or_fn, self.num_private_threads)
        return orbit.utils.make_distributed_dataset(strategy, own, *args, **kwargs)


@dataclasses.dataclass(eq=False)
class XlaExecutor(GraphExecutor):
    """Executor that compiles the computation of each replica with XLA.

    With a single replica, the step is one XLA program; in the mode `xla_loop`, the whole loop is
    one program, of which the step is a part. Several replicas exchange gradients, which XLA cannot
    do, so only the forward and backward passes are compiled.
    """

    mode: str = "xla"

    # This is not a context variable, because TensorFlow calls `_note_size` in its own threads.
    warns_of_sizes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._sizes: set[bytes] = set()
        self._programs: dict[StepFn, StepFn] = {}
        self._split_steps: dict[TrainStep, TrainStep] = {}

    def run_step(self, step_fn: StepFn, *inputs: nests.Nest) -> Any:
        if self.mode == "xla_loop":
            return super().run_step(step_fn, *inputs)
        self._watch_sizes(inputs)
        if self.strategy.num_replicas_in_sync > 1:
            return super().run_step(step_fn, *inputs)
        if step_fn not in self._programs:
            run = functools.partial(super().run_step, step_fn)
            self._programs[step_fn] = tf.function(
                lambda *args: run(*args), autograph=False, jit_compile=True
            )
        return self._programs[step_fn](*inputs)

    def forget_programs(self) -> None:
        self._programs.clear()
        self._split_steps.clear()

    def replica_step(self, step: TrainStep, metrics: Metrics) -> TrainStep:
        if self.strategy.num_replicas_in_sync == 1:
            return super().replica_step(step, metrics)
        # Reuse the split step, because a new one would be compiled again.
        if step not in self._split_steps:
            self._split_steps[step] = _split_train_step(step, metrics)
        return self._split_steps[step]

    def _watch_sizes(self, inputs: nests.Nest) -> None:
        """Record the batch sizes at run time, unless they are known when the step is traced."""
        shapes = [tf.shape(x) for x in nests.tensors_in(inputs) if not x.shape.is_fully_defined()]
        if shapes:
            sizes = tf.concat(shapes, 0)
            tf.numpy_function(self._note_size, [sizes], [], name=repeatability.BATCH_SIZES)

    def _note_size(self, shape: npt.NDArray[np.int32]) -> None:
        self._sizes.add(shape.tobytes())
        self.num_sizes = len(self._sizes)
        if self.num_sizes == _MANY_SIZES and self.warns_of_sizes:
            terminal.warn_once(
                "The execution mode is xla, and the batches have had %d different sizes so far. "
                "XLA compiles a program for each of them. Pad the batches to one or a few sizes, "
                "or use the execution mode `graph`.",
                _MANY_SIZES,
            )


@contextlib.contextmanager
def measuring() -> Iterator[None]:
    """Do not warn about many batch sizes in this context, whose steps only measure their speed."""
    XlaExecutor.warns_of_sizes = False
    try:
        yield
    finally:
        XlaExecutor.warns_of_sizes = True


def _split_train_step(step: TrainStep, metrics: Metrics) -> TrainStep:
    """Return a step that compiles the forward and backward passes, but not the update.

    The returned function takes the arguments of `step`, but always updates `metrics`.
    """
    variables: list[list[tf.Variable]] = []

    @tf.function(jit_compile=True)
    def forward_and_backward(
        inputs: nests.Nest, model: keras.Model, optimizer: keras.optimizers.Optimizer
    ) -> tuple[Mapping[str, Any], list[list[tf.Tensor]]]:
        collector = gradient_accumulator.GradientCollector(optimizer)
        logs = step(inputs, model=model, optimizer=collector, metrics=metrics)
        variables[:] = [[variable for _, variable in update] for update in collector.updates]
        return logs, [[gradient for gradient, _ in update] for update in collector.updates]

    def train_step(
        inputs: nests.Nest,
        *,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        metrics: Any = None,
    ) -> Mapping[str, Any]:
        del metrics
        logs, gradients = forward_and_backward(inputs, model, optimizer)
        for update in zip(gradients, variables, strict=True):
            optimizer.apply_gradients(list(zip(*update, strict=True)))
        return logs

    return train_step


@dataclasses.dataclass(eq=False)
class ParameterServerExecutor(GraphExecutor):
    """Executor for the workers of a `ParameterServerStrategy`, which run asynchronously.

    Each worker makes updates whenever it is ready, with batches from its own share of the data. A
    loop returns after all its steps are done, so the state does not change between two calls. Only
    the chief evaluates, each example exactly once.
    """

    def __post_init__(self) -> None:
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(self.strategy)
        # Allow evaluation on the chief without the coordinator; TensorFlow would otherwise warn
        # about it.
        self.strategy.extended._allow_run_without_coordinator = True
        logging.log_first_n(
            logging.INFO,
            "The workers of a parameter server train independently, in graph mode, and run each "
            "step at least once and in no fixed order. The results of a resumed run are therefore "
            "not bit-identical to those of an uninterrupted run.",
            1,
        )

    def join(self) -> None:
        """Wait for all scheduled steps."""
        try:
            self.coordinator.join()
        except Exception as error:
            # The coordinator wraps errors from iterator creation; raise the original error.
            cause = getattr(error, "original_exception", None)
            if not isinstance(cause, tf.errors.OpError):
                raise
            raise cause from error

    def distribute(
        self, dataset_or_fn: Dataset | Callable[..., Dataset], *args: Any, **kwargs: Any
    ) -> Dataset:
        kwargs.pop("input_options", None)
        own = tf_data_options.with_private_threads(dataset_or_fn, self.num_private_threads)
        num_workers = _num_workers(self.strategy)
        shares = [
            self._build_share(worker, num_workers, own, args, kwargs)
            for worker in range(num_workers)
        ]
        return WorkerDatasets(self.coordinator, shares)

    def distribute_eval(
        self, dataset_or_fn: Dataset | Callable[..., Dataset], *args: Any, **kwargs: Any
    ) -> Dataset:
        """Distribute a dataset for evaluation, which the chief reads alone."""
        chief = tf.distribute.OneDeviceStrategy("CPU:0")
        return self._distribute_over(chief, dataset_or_fn, *args, **kwargs)

    def _build_share(
        self,
        worker: int,
        num_workers: int,
        dataset_or_fn: Dataset | Callable[..., Dataset],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tf.data.Dataset:
        """Build a worker's share of the training data, in batches of the full global size."""
        if isinstance(dataset_or_fn, tf.data.Dataset):
            return dataset_or_fn.shard(num_workers, worker)
        build = orbit.utils.bind_dataset_fn(dataset_or_fn, *args, **kwargs)
        context = tf.distribute.InputContext(
            num_input_pipelines=num_workers,
            input_pipeline_id=worker,
            num_replicas_in_sync=self.strategy.num_replicas_in_sync,
        )
        training = position.current()
        if training is None:
            return build(context)
        # Assume that all workers have run the same number of steps.
        with position.begin_at(training.batch // num_workers, training.seed) as begin:
            dataset = build(context)
        training.is_kept |= begin.is_kept
        return dataset


def _num_workers(strategy: tf.distribute.Strategy) -> int:
    # Read a private attribute: no public attribute contains the number of workers.
    return int(strategy._num_workers)


class WorkerDatasets:
    """Datasets that are built on the coordinator and read on the workers.

    `iter` creates the iterators on the workers. A worker that was lost and rejoins reads its
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
            # Distribute the dataset over the worker's GPUs, if the worker has several.
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
        """Create the iterator of a worker; called again when the worker rejoins after a failure."""
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
            "The training data can't be sent to the workers of a parameter server. Use a dataset "
            f"that TensorFlow can serialize. The error is: {error.message[:300]}"
        ) from error
    definition = tf.compat.v1.GraphDef.FromString(graph.numpy())
    nodes = [definition.node, *(function.node_def for function in definition.library.function)]
    if any(_PYTHON in node.op for group in nodes for node in group):
        raise errors.ConfigValueError(
            "The input pipeline runs Python (`tf.numpy_function`, `tf.py_function`, "
            "`Dataset.from_generator`, memory-mapped arrays), which parameter-server "
            "workers can't run. Write the data to files, or use TensorFlow ops."
        )
    return graph


def create_xla_loop(
    trainer: orbit.StandardTrainer, dataset: tf.data.Dataset, steps_per_loop: int
) -> orbit.TrainLoop:
    """Create the training loop of the mode `xla_loop`: many steps in one program.

    Args:
        trainer: The trainer.
        dataset: A dataset of batches, all of the same size.
        steps_per_loop: The usual number of steps per call of the loop.
    """
    return orbit.StackedLoop(
        trainer.train_step,
        dataset,
        steps=orbit.steps_per_stack(dataset.element_spec, steps_per_loop, trainer.batches_per_step),
        batches_per_step=trainer.batches_per_step,
        wrap_step=trainer.wrap_step,
        wrap_fetch=trainer.wrap_fetch,
        counts=trainer.batch_counts,
    )


def create_train_loop_fn(
    trainer: orbit.StandardTrainer, executor: GraphExecutor
) -> Callable[..., Any]:
    """Create the function `(iterator, num_steps)` that the training loop calls."""
    # A new loop is needed only if the step has changed, for example because it has new hooks.
    # Programs that were compiled from the old step must not be reused.
    executor.forget_programs()
    coordinator = executor.coordinator
    if coordinator is None:
        return orbit.StandardTrainer.create_train_loop_fn(trainer)
    step_fn = trainer.wrap_fetch(trainer.wrap_step(trainer.train_step))
    loop_fn = tf.function(orbit.utils.create_tf_while_loop_fn(step_fn))
    is_divided = trainer.train_options.use_tf_while_loop
    num_parts = _PARTS_PER_WORKER * _num_workers(executor.strategy) if is_divided else None

    def run(iterator: Iterator[nests.Nest], num_steps: tf.Tensor) -> None:
        for length in _divide(int(num_steps), num_parts):
            coordinator.schedule(loop_fn, (iterator, tf.constant(length)))
        # Wait for all scheduled steps, because the caller reads the global step next.
        executor.join()

    return run


def run_and_count(
    run: Callable[[tf.Tensor], None],
    num_steps: tf.Tensor,
    global_step: tf.Variable,
    optimizer: Any,
) -> None:
    """Run steps on workers, and advance the global step by the requested number of steps.

    If a worker is lost before it can confirm a step, the step is run twice but counted once,
    because intervals and schedules depend on the number of requested steps.

    Args:
        run: A function that runs a number of steps.
        num_steps: The number of steps.
        global_step: The variable that the steps count.
        optimizer: The optimizer. The update counts of a Keras optimizer and of the optimizers
            inside it are corrected, too.
    """
    expected = int(global_step.numpy()) + int(num_steps)
    run(num_steps)
    surplus = int(global_step.numpy()) - expected
    if surplus > 0:
        logging.warning("%d steps were repeated because a worker was lost.", surplus)
        global_step.assign_sub(surplus)
        if isinstance(optimizer, keras.optimizers.Optimizer):
            innermost = distributed_gradients.innermost_optimizers(optimizer)
            counts = {id(one.iterations): one.iterations for one in (optimizer, *innermost)}
            for count in counts.values():
                # Keep the count at 0 for an optimizer to which a `MultiOptimizer` assigns no
                # variables.
                count.assign(max(int(count.numpy()) - surplus, 0))


def create_eval_loop_fn(
    evaluator: orbit.StandardEvaluator, executor: GraphExecutor, has_state: bool
) -> Callable[..., Any]:
    """Create the function `(iterator, num_steps, state, reduce_fn)` that evaluates.

    Under a `ParameterServerStrategy` it runs on a worker if the evaluator was given its data.
    """
    is_local = isinstance(evaluator.eval_dataset, tf.data.Dataset)
    options = evaluator.eval_options
    is_compilable = is_local and options.use_tf_function and not options.use_tf_while_loop
    if is_compilable and isinstance(executor, XlaExecutor):
        needs_outputs = executor.mode == "xla" or evaluator.folds_outputs
        return orbit.XlaEvalLoop(evaluator.eval_step, needs_outputs=needs_outputs)
    loop_fn = orbit.StandardEvaluator.create_eval_loop_fn(evaluator, has_state)
    coordinator = executor.coordinator
    if coordinator is None or is_local:
        return loop_fn
    if has_state:
        raise ValueError(
            "`aggregate_logs` needs the outputs of all steps in order, which independent workers "
            "can't provide. Evaluate a `tf.data.Dataset`, which the chief reads."
        )

    def run(iterator: Iterator[nests.Nest], num_steps: tf.Tensor, *_: Any) -> None:
        coordinator.schedule(loop_fn, (iterator, num_steps))
        executor.join()

    return run


def _divide(num_steps: int, num_parts: int | None) -> Iterator[int]:
    """Divide steps into `num_parts` parts, or into single steps if None, and yield the lengths."""
    num_parts = min(num_steps, num_parts or num_steps)
    for part in range(num_parts):
        yield num_steps * (part + 1) // num_parts - num_steps * part // num_parts
