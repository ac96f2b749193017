"""Training data on the workers of a parameter server: each worker reads its own share.

TensorFlow's `create_per_worker_dataset` builds one and the same dataset on all of them. Where its
order is fixed by a seed, all workers would then read the same examples at the same time.
"""

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import input_lib
from tensorflow.python.distribute.coordinator import values

from official_lite.common import errors

__all__ = ["WorkerDatasets"]

# Of the function that runs Python; in the process of a server nobody knows that function.
_PYTHON = "PyFunc"

# `DatasetToGraphV2`: a dataset with a state, such as that of a shuffle, begins with a new one.
_NEW_STATE = 1


class WorkerDatasets:
    """Datasets that are built here and read on the workers; `iter` makes the iterators there.

    A worker that was lost and comes back begins its dataset anew.

    Args:
        coordinator: Knows the workers.
        datasets: One for each of them, of batches, all of one structure.

    Raises:
        errors.ConfigValueError: One of them can't be read in another process.
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
            # Over the GPUs of the worker, if it has several.
            return strategy.distribute_datasets_from_function(lambda _: dataset)

        with strategy.scope():
            self._build = build.get_concrete_function()

    @property
    def element_spec(self) -> Any:
        """What a worker draws."""
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
        """Called for a worker, and once more when it has come back."""
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
            "server can't. Write them to files, or use TensorFlow's ops."
        )
    return graph


def _ops(graph: tf.Tensor) -> str:
    definition = tf.compat.v1.GraphDef.FromString(graph.numpy())
    nodes = [definition.node, *(function.node_def for function in definition.library.function)]
    return " ".join({node.op for group in nodes for node in group})
