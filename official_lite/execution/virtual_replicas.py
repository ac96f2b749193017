"""Virtual replicas: steps whose results do not depend on the number of replicas.

A global batch always consists of the same number of shards. Each shard is computed separately, by
the same graph, as if it had its own replica. The results of the shards are then reduced in an order
that depends only on the number of shards. See docs/elastic.md.
"""

import contextvars
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import keras
import numpy as np
import tensorflow as tf
from absl import logging
from tensorflow.python.distribute import values as tf_values

from official_lite import orbit
from official_lite.common import errors, keras_variables, nests, user_code
from official_lite.core import step_metrics
from official_lite.execution import executors
from official_lite.modeling import replica_state
from official_lite.modeling.optimization import gradient_accumulator
from official_lite.orbit.utils import loop_fns

__all__ = ["VirtualReplicasExecutor"]


# The number of virtual replicas while the step of a virtual replica is traced, otherwise 0.
_count_in_step: contextvars.ContextVar[int] = contextvars.ContextVar("count_in_step", default=0)


@dataclasses.dataclass(eq=False)
class VirtualReplicasExecutor(executors.GraphExecutor):
    """Executor that computes each shard of a batch separately and reduces in a fixed order.

    The elements of a dataset are tuples with one batch per virtual replica. Within a step of a
    task, the replica context is that of a virtual replica, and the number of replicas is the number
    of virtual replicas. The mode `xla` compiles the forward and backward passes, but neither the
    reduction nor the update, which may involve several replicas.

    Args:
        count: The number of virtual replicas in total; a multiple of the number of replicas.
    """

    count: int = 1

    def __post_init__(self) -> None:
        _assign_locally_in_virtual_replicas()
        # TensorFlow compares strategies by identity, so change the class of the strategy in place.
        if not hasattr(self.strategy, "counts_virtual_replicas"):
            strategy_cls: Any = type(self.strategy)
            self.strategy.__class__ = _virtual_class(strategy_cls)
        self._num_local = self.count // self.strategy.num_replicas_in_sync

    def distribute(
        self,
        dataset_or_fn: executors.Dataset | Callable[..., executors.Dataset],
        *args: Any,
        **kwargs: Any,
    ) -> executors.Dataset:
        """Distribute a dataset function, which is called once for each virtual replica.

        Raises:
            ConfigValueError: If a dataset was given instead of a function.
        """
        if not callable(dataset_or_fn):
            raise errors.ConfigValueError(
                "`trainer.virtual_replicas` requires data that are built by a function with the "
                "parameter `input_context`, such as `task.build_inputs`, but a dataset was given. "
                "Pass the function instead."
            )
        build = orbit.utils.bind_dataset_fn(dataset_or_fn, *args, **kwargs)

        def dataset_fn(input_context: tf.distribute.InputContext) -> tf.data.Dataset:
            return self._build(build, input_context)

        return super().distribute(dataset_fn)

    def replica_step(
        self, step: executors.TrainStep, metrics: executors.Metrics
    ) -> executors.TrainStep:
        del metrics

        def train_step(
            inputs: Sequence[nests.Nest],
            *,
            model: keras.Model,
            optimizer: keras.optimizers.Optimizer,
            metrics: executors.Metrics,
        ) -> Mapping[str, Any]:
            variables: list[keras.Variable] = []
            # For each call of `apply_gradients`, the number of variables.
            sizes: list[int] = []
            # For each leaf of the logs, whether it is a number.
            are_numbers: list[bool] = []

            def learn(shard: nests.Nest) -> tuple[list[Any], Mapping[str, Any]]:
                collector = gradient_accumulator.GradientCollector(optimizer)
                logs = step(shard, model=model, optimizer=collector, metrics=metrics)
                pairs = list(itertools.chain.from_iterable(collector.updates))
                variables[:] = [variable for _, variable in pairs]
                sizes[:] = map(len, collector.updates)
                leaves = tf.nest.flatten(logs)
                are_numbers[:] = map(_is_number, leaves)
                gradients = [gradient for gradient, _ in pairs]
                return [*gradients, *itertools.compress(leaves, are_numbers)], logs

            sums, logs = self._run(learn, inputs, jit_compile=self.mode == "xla")
            gradients, numbers = sums[: len(variables)], iter(sums[len(variables) :])
            pairs = zip(gradients, variables, strict=True)
            for size in sizes:
                update = list(itertools.islice(pairs, size))
                optimizer.apply_gradients(update, skip_gradients_aggregation=True)
            by_leaf = zip(*map(tf.nest.flatten, logs), strict=True)
            leaves = [
                next(numbers) / self.count if is_number else _merged(values)
                for is_number, values in zip(are_numbers, by_leaf, strict=True)
            ]
            merged: Mapping[str, Any] = tf.nest.pack_sequence_as(logs[0], leaves)
            return merged

        return train_step

    def count_examples(self, inputs: nests.Nest) -> tuple[tf.Tensor | None, int]:
        # The gradients of a micro-batch are already summed over all virtual replicas, so return the
        # number of examples on all of them, and 1 as the number of replicas.
        counts = [step_metrics.num_examples(shard) for shard in inputs]
        if any(count is None or tf.get_static_value(count) is not None for count in counts):
            return None, 1
        total = tf.add_n(counts)
        context = tf.distribute.get_replica_context()
        if context.num_replicas_in_sync > 1:
            total = context.all_reduce(tf.distribute.ReduceOp.SUM, total)
        return total, 1

    def run_eval_step(
        self, step: executors.EvalStep, inputs: nests.Nest
    ) -> dict[str, tuple[nests.Nest, ...]]:
        def replica_step(shards: Sequence[nests.Nest]) -> list[Mapping[str, Any]]:
            return self._run(lambda shard: ([], step(shard)), shards)[1]

        run = user_code.with_dtype_policy(replica_step)
        shards: list[Mapping[str, Any]] = self.strategy.run(run, args=(inputs,))
        local = self.strategy.experimental_local_results

        def in_order(*outputs: Any) -> tuple[Any, ...]:
            """Return all outputs of the first replica's shards, then of the second's, and so on."""
            return tuple(itertools.chain.from_iterable(zip(*map(local, outputs), strict=True)))

        return tf.nest.map_structure(in_order, *shards)

    def replica_spec(self, dataset: executors.Dataset) -> nests.Nest:
        return dataset.element_spec[0]

    def _build(
        self,
        build: Callable[[tf.distribute.InputContext], tf.data.Dataset],
        input_context: tf.distribute.InputContext,
    ) -> tf.data.Dataset:
        """Build this process's dataset, whose elements are tuples of one replica's shards."""
        num_replicas = input_context.num_replicas_in_sync // input_context.num_input_pipelines
        num_shards = num_replicas * self._num_local
        first = input_context.input_pipeline_id * num_shards
        pipelines = [
            build(tf.distribute.InputContext(self.count, index, self.count))
            for index in range(first, first + num_shards)
        ]
        shards = _zip_longest(pipelines)
        if num_shards > 1:
            shards = _watch_for_equal_data(shards)
        if num_replicas > 1:
            shards = shards.flat_map(lambda *shards: _in_turn(shards, self._num_local))
        return shards.prefetch(2 * num_replicas)

    def _run(
        self,
        fn: Callable[[nests.Nest], tuple[list[Any], Mapping[str, Any]]],
        shards: Sequence[nests.Nest],
        *,
        jit_compile: bool = False,
    ) -> tuple[list[Any], list[Mapping[str, Any]]]:
        """Call a function for each shard of this replica.

        Args:
            fn: A function that takes a shard and returns a pair: a list of tensors, which are
                summed over all virtual replicas, and its other outputs.
            shards: The shards.
            jit_compile: Whether to compile the function with XLA.

        Returns:
            A pair: the sums, and a list of the other outputs, with one element for each shard.
        """
        replica = tf.distribute.get_replica_context()

        def run_shard(index: tf.Tensor, shard: nests.Nest) -> tuple[list[Any], Mapping[str, Any]]:
            with _VirtualReplica(replica, self.count, index), loop_fns.fetched(shard):
                return fn(shard)

        # Prevent inlining, so that TensorFlow optimizes the function separately and its kernels
        # can't depend on the number of shards per replica.
        own_graph = {} if jit_compile else {"experimental_attributes": {"_noinline": True}}
        function = tf.function(run_shard, autograph=False, jit_compile=jit_compile, **own_graph)
        traced = function.get_concrete_function(tf.TensorSpec([], tf.int32), shards[0])
        state = _State(traced)
        first = tf.convert_to_tensor(replica.replica_id_in_sync_group) * self._num_local
        sums, outputs = [], []
        for number, shard in enumerate(shards):
            state.prepare(first + number)
            to_sum, other = function(first + number, shard)
            outputs.append(other)
            sums.append([*to_sum, *state.take(first + number)])
        totals = self._sum(sums)
        num_state = state.num_taken
        state.finish(totals[len(totals) - num_state :], self.count)
        return totals[: len(totals) - num_state], outputs

    def _sum(self, shards: Sequence[Sequence[Any]]) -> list[Any]:
        """Return the sum of each tensor over all virtual replicas, on every replica."""
        sums: list[Any] = [None] * len(shards[0])
        places: dict[tf.DType, list[int]] = {}
        for place, tensor in enumerate(shards[0]):
            if isinstance(tensor, tf.IndexedSlices):
                sums[place] = self._concat_rows([shard[place] for shard in shards])
            else:
                places.setdefault(tensor.dtype, []).append(place)
        for of_dtype in places.values():
            parts = [[shard[place] for place in of_dtype] for shard in shards]
            for place, total in zip(of_dtype, self._sum_of_dtype(parts), strict=True):
                sums[place] = total
        return sums

    def _sum_of_dtype(self, shards: Sequence[Sequence[tf.Tensor]]) -> list[tf.Tensor]:
        """Return the sum of each tensor over all shards. All tensors have the same dtype."""
        context = tf.distribute.get_replica_context()
        rows = _halved(tf.stack([_flat(tensors) for tensors in shards]))
        if context.num_replicas_in_sync > 1:
            num_rows = rows.shape[0] * context.num_replicas_in_sync
            rows = tf.ensure_shape(context.all_gather(rows, axis=0), [num_rows, None])
        shapes = [tf.shape(tensor) for tensor in shards[0]]
        values = tf.split(_total(rows), [tf.reduce_prod(shape) for shape in shapes])
        return [
            tf.ensure_shape(tf.reshape(value, shape), tensor.shape)
            for value, shape, tensor in zip(values, shapes, shards[0], strict=True)
        ]

    def _concat_rows(self, shards: Sequence[tf.IndexedSlices]) -> tf.IndexedSlices:
        """Concatenate the rows of all virtual replicas; the optimizer adds up repeated rows."""
        context = tf.distribute.get_replica_context()
        values = tf.concat([shard.values for shard in shards], 0)
        indices = tf.concat([shard.indices for shard in shards], 0)
        if context.num_replicas_in_sync > 1:
            values, indices = context.all_gather(values, 0), context.all_gather(indices, 0)
        return tf.IndexedSlices(values, indices, shards[0].dense_shape)


def _flat(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)


def _halved(rows: tf.Tensor) -> tf.Tensor:
    """Add pairs of neighboring rows until the number of rows is odd.

    In this order, a replica can add its own rows before it receives the rows of other replicas. A
    single op adds all pairs at once, so TensorFlow's graph optimizer can't change the order.
    """
    while rows.shape[0] % 2 == 0:
        rows = rows[::2] + rows[1::2]
    return rows


def _total(rows: tf.Tensor) -> tf.Tensor:
    """Sum the rows: add neighbors while the number of rows is even, then add one by one."""
    rows = _halved(rows)
    while rows.shape[0] > 1:
        rows = tf.concat([rows[:1] + rows[1:2], rows[2:]], 0)
    return rows[0]


class _State:
    """The variables of this replica that a shard's step changes.

    Every shard starts with the values from before the step, or 0 for metrics. After the step:

    * A metric on the first replica has increased by the changes of all shards. Its value on the
      other replicas is 0, because Keras sums metrics over replicas.
    * A random state has advanced once. Within a shard, the state depends on the shard's number.
    * A variable whose aggregation is `ONLY_FIRST_REPLICA` has the value of the first shard.
    * Any other variable whose aggregation is `SUM` has changed by the sum of all changes.
    * Any other variable, such as a moving average, has changed by the mean of all changes. Elements
      that were infinite or NaN before the step have the mean of the values of all shards.

    Args:
        function: The traced function of a shard.

    Raises:
        ConfigValueError: If the function changes a variable that can't be averaged or summed.
    """

    def __init__(self, function: tf.types.experimental.ConcreteFunction) -> None:
        self._random: list[tf.Variable] = []
        self._first_only: list[tf.Variable] = []
        self._metrics: list[tf.Variable] = []
        self._sums: list[tf.Variable] = []
        self._averages: list[tf.Variable] = []
        for variable in _changed_variables(function):
            self._kind_of(variable).append(variable)
        # The variables of which the changes are measured.
        self._changing = (*self._sums, *self._averages)
        everything = (*self._random, *self._first_only, *self._metrics, *self._changing)
        self._starts = {v.ref(): v.read_value() for v in everything}

    @property
    def num_taken(self) -> int:
        """The number of tensors that `take` returns."""
        return len(self._metrics) + len(self._changing) + len(self._first_only)

    def prepare(self, index: tf.Tensor) -> None:
        """Set the variables to the values with which a shard's step starts."""
        for variable in self._metrics:
            variable.assign(tf.zeros_like(variable))
        for variable in (*self._changing, *self._first_only):
            variable.assign(self._starts[variable.ref()])
        for variable in self._random:
            variable.assign(_random_state(self._starts[variable.ref()], index))

    def take(self, index: tf.Tensor) -> list[tf.Tensor]:
        """Return a shard's changes as tensors to sum over all shards."""
        return [
            *(variable.read_value() for variable in self._metrics),
            *(v.read_value() - self._base(v) for v in self._changing),
            *(_only_if(index == 0, variable.read_value()) for variable in self._first_only),
        ]

    def finish(self, totals: Sequence[tf.Tensor], count: int) -> None:
        """Set the variables after the step, from the sums of the tensors that `take` returned."""
        is_first = tf.distribute.get_replica_context().replica_id_in_sync_group == 0
        of_variables = iter(totals)
        for variable in self._metrics:
            total = self._starts[variable.ref()] + next(of_variables)
            variable.assign(_only_if(is_first, total))
        for variable in self._sums:
            variable.assign(self._base(variable) + next(of_variables))
        for variable in self._averages:
            variable.assign(self._base(variable) + next(of_variables) / count)
        for variable in self._first_only:
            value = next(of_variables)
            variable.assign(_only_if(is_first, value) if _is_of_replica(variable) else value)
        for variable in self._random:
            variable.assign(_random_state(self._starts[variable.ref()], tf.constant(count)))

    def _base(self, variable: tf.Variable) -> tf.Tensor:
        """Return the start value from which changes are measured, with 0 where it is not finite."""
        start = self._starts[variable.ref()]
        return _only_if(tf.math.is_finite(start), start) if start.dtype.is_floating else start

    def _kind_of(self, variable: tf.Variable) -> list[tf.Variable]:
        aggregation = variable.aggregation
        if replica_state.is_random_state(variable) and "StateVar" in variable.name:
            raise errors.ConfigValueError(
                "`trainer.virtual_replicas`: the step draws from a `tf.random.Generator`, which "
                "has a different state on each replica. Use a `keras.random.SeedGenerator`."
            )
        if "/rnn_state" in variable.name:
            raise errors.ConfigValueError(
                "`trainer.virtual_replicas`: the step changes the state of a recurrent layer with "
                f"`stateful=True` ({variable.name}), which belongs to the sequences of one batch. "
                "Set `stateful=False`."
            )
        if replica_state.is_random_state(variable):
            return self._random
        if _is_of_replica(variable) and aggregation == tf.VariableAggregation.SUM:
            return self._metrics
        if _is_of_replica(variable) and aggregation == tf.VariableAggregation.NONE:
            # Hooks record values per replica in variables without aggregation. Do not reset or
            # reduce them.
            return []
        if aggregation == tf.VariableAggregation.ONLY_FIRST_REPLICA:
            return self._first_only
        is_integer = variable.dtype.is_integer
        if aggregation == tf.VariableAggregation.SUM and (is_integer or variable.dtype.is_floating):
            return self._sums
        if variable.dtype.is_floating:
            return self._averages
        raise errors.ConfigValueError(
            f"`trainer.virtual_replicas`: the step changes the variable {variable.name}, whose "
            f"dtype is {variable.dtype.name}, so its mean over the virtual replicas can't be "
            "computed. Create it with `aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA`, "
            "which keeps the value of the first virtual replica, or a number with `SUM`, which "
            "adds up the changes of all virtual replicas."
        )


def _is_of_replica(variable: tf.Variable) -> bool:
    """Return whether a variable stores one value per replica, to be aggregated when it is read."""
    return bool(variable.synchronization == tf.VariableSynchronization.ON_READ)


def _only_if(condition: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    return tf.where(condition, value, tf.zeros_like(value))


def _changed_variables(function: tf.types.experimental.ConcreteFunction) -> Iterator[tf.Variable]:
    """Yield the variables that a traced function may write."""
    # Follow the order of `written_handles`, because the order of `graph.variables` is arbitrary and
    # the replicas must agree on an order.
    variables = {id(variable.handle): variable for variable in function.graph.variables}
    for handle in keras_variables.written_handles(function.graph):
        if id(handle) in variables:
            yield variables[id(handle)]


def _random_state(start: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
    """Derive a random state from the state before the step.

    An index below the number of virtual replicas gives the state of a virtual replica. The number
    itself gives the state after the step.
    """
    key = tf.cast(tf.stack([start[0], start[-1]]), tf.int64)
    key = tf.random.experimental.stateless_fold_in(key, tf.cast(index, tf.int64))
    numbers = tf.random.stateless_uniform(
        start.shape, key, maxval=np.iinfo(np.int32).max, dtype=tf.int32, alg="philox"
    )
    return tf.cast(numbers, start.dtype)


class _VirtualReplica(tf.distribute.ReplicaContext):
    """The replica context of a virtual replica.

    A virtual replica uses the variables of the real replica that computes it.

    Args:
        replica: The context of the real replica.
        count: The number of virtual replicas.
        index: The number of the virtual replica, int32.
    """

    def __init__(
        self,
        replica: tf.distribute.ReplicaContext,
        count: int,
        index: tf.Tensor,
    ) -> None:
        super().__init__(replica.strategy, replica._replica_id_in_sync_group)
        self._count = count
        self._index = index

    def __enter__(self) -> None:
        self._token = _count_in_step.set(self._count)
        super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        _count_in_step.reset(self._token)

    @property
    def replica_id_in_sync_group(self) -> tf.Tensor:
        return self._index

    def merge_call(self, merge_fn: object, args: object = (), kwargs: object = None) -> NoReturn:
        self._refuse()

    def all_reduce(
        self, reduce_op: tf.distribute.ReduceOp, value: nests.Nest, options: object = None
    ) -> NoReturn:
        self._refuse()

    def all_gather(self, value: nests.Nest, axis: int, options: object = None) -> NoReturn:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise errors.ConfigValueError(
            "`trainer.virtual_replicas`: a step can't exchange values between replicas (as "
            "`BatchNormalization(synchronized=True)` does), because virtual replicas are computed "
            "one after another. Pass gradients to `optimizer.apply_gradients` and values to "
            "metrics or `put_scalar`, which reduce them after the step, or set the field to 0."
        )


@functools.cache
def _assign_locally_in_virtual_replicas() -> None:
    """Keep assignments to aggregated variables local to a virtual replica.

    In a replica, TensorFlow aggregates such an assignment over all replicas immediately. A virtual
    replica instead changes only the copy of the replica that computes it; `_State` aggregates the
    changes after all shards.
    """
    # Variables look this function up in its module on each call, so it can be replaced there.
    aggregate = tf_values._on_write_update_replica

    @functools.wraps(aggregate)
    def update_replica(variable: Any, update_fn: Any, value: Any, **kwargs: Any) -> Any:
        if not _count_in_step.get():
            return aggregate(variable, update_fn, value, **kwargs)
        return update_fn(variable._get(), value, **kwargs)

    tf_values._on_write_update_replica = update_replica


@functools.cache
def _virtual_class(strategy_cls: Any) -> Any:
    """Return a subclass of a strategy that counts virtual replicas.

    While a step of virtual replicas runs, `num_replicas_in_sync` is the number of virtual replicas.
    """

    def num_replicas_in_sync(self: tf.distribute.Strategy) -> int:
        return _count_in_step.get() or int(strategy_cls.num_replicas_in_sync.fget(self))

    namespace = {
        "__module__": strategy_cls.__module__,
        "__qualname__": strategy_cls.__qualname__,
        "__doc__": strategy_cls.__doc__,
        "num_replicas_in_sync": property(num_replicas_in_sync),
        "counts_virtual_replicas": True,
    }
    return type(strategy_cls.__name__, (strategy_cls,), namespace)


def _is_number(value: Any) -> bool:
    return tf.is_tensor(value) and value.dtype.is_floating and value.shape.rank == 0


def _merged(values: Sequence[Any]) -> Any:
    """Concatenate the values of all shards if they are dense tensors; else keep the first one."""
    is_batch = isinstance(values[0], tf.Tensor) and values[0].shape.rank
    return tf.concat(values, 0) if is_batch else values[0]


def _in_turn(shards: Sequence[nests.Nest], num_local: int) -> tf.data.Dataset:
    """Return a dataset with one element per replica: the tuple of its `num_local` shards."""
    first, *others = (
        tf.data.Dataset.from_tensors(tuple(shards[i : i + num_local]))
        for i in range(0, len(shards), num_local)
    )
    return functools.reduce(tf.data.Dataset.concatenate, others, first)


def _zip_longest(pipelines: Sequence[tf.data.Dataset]) -> tf.data.Dataset:
    """Zip datasets, and add empty batches to datasets that end early."""
    if len(pipelines) == 1 or all(_repeats(pipeline) for pipeline in pipelines):
        return tf.data.Dataset.zip(tuple(pipelines))
    is_there = tf.data.Dataset.from_tensors(True).repeat()
    padded = [
        tf.data.Dataset.zip((pipeline, is_there)).concatenate(
            tf.data.Dataset.from_tensors((_empty(pipeline.element_spec), False)).repeat()
        )
        for pipeline in pipelines
    ]
    zipped = tf.data.Dataset.zip(tuple(padded))
    zipped = zipped.take_while(lambda *pairs: tf.reduce_any([is_there for _, is_there in pairs]))
    return zipped.map(lambda *pairs: tuple(batch for batch, _ in pairs))


def _repeats(pipeline: tf.data.Dataset) -> bool:
    return bool(pipeline.cardinality() == tf.data.INFINITE_CARDINALITY)


def _empty(spec: nests.Nest) -> nests.Nest:
    def zeros(spec: tf.TensorSpec) -> tf.Tensor:
        if not isinstance(spec, tf.TensorSpec) or not spec.shape.rank:
            raise errors.ConfigValueError(
                "`trainer.virtual_replicas`: the virtual replicas read different numbers of "
                f"batches, and no empty batch can be created for {spec}. Return dense tensors with "
                "a batch dimension from `build_inputs`."
            )
        return tf.zeros([0, *(size or 0 for size in spec.shape[1:])], spec.dtype)

    return nests.map_parts(zeros, spec)


def _watch_for_equal_data(shards: tf.data.Dataset) -> tf.data.Dataset:
    """Warn if the first two virtual replicas read the same first batch.

    The batches are compared when the step reads them. Reading them earlier could change later
    batches, for example if the shuffle order of a source depends on what was already read.
    """
    is_first = tf.data.Dataset.from_tensors(True)
    is_first = is_first.concatenate(tf.data.Dataset.from_tensors(False).repeat())

    def compare(is_first: tf.Tensor, shards: Sequence[nests.Nest]) -> Sequence[nests.Nest]:
        parts = [nests.tensors_in(shard) for shard in shards[:2]]
        tf.cond(
            is_first,
            lambda: tf.numpy_function(_warn_if_equal, [*parts[0], *parts[1]], tf.bool),
            lambda: False,
        )
        return shards

    return tf.data.Dataset.zip((is_first, shards)).map(compare)


def _warn_if_equal(*parts: Any) -> bool:
    """Warn if the first half of the arrays equals the second half; return whether it does."""
    half = len(parts) // 2
    is_equal = half > 0 and all(map(np.array_equal, parts[:half], parts[half:]))
    if is_equal:
        logging.warning(
            "Two virtual replicas read the same first batch. `build_inputs` should give every "
            "input pipeline its own examples, as `dataset.shard(input_context."
            "num_input_pipelines, input_context.input_pipeline_id)` does."
        )
    return is_equal
