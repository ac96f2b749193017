"""The loops of a trainer on the workers of a parameter-server strategy."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import keras
import tensorflow as tf
from absl import logging

from official_lite import orbit
from official_lite.core import worker_datasets
from official_lite.data import position

__all__ = ["AsyncTrainer", "Dataset"]

Dataset: TypeAlias = Any
"""A `tf.data.Dataset` or a `tf.distribute.DistributedDataset`."""

# A stretch of steps is divided into so many parts for each worker, so that none has to wait long
# for the slowest, and little is done twice if one is lost.
_PARTS_PER_WORKER = 4


class AsyncTrainer(orbit.StandardTrainer, orbit.StandardEvaluator):
    """Runs the loops on the workers of a `ParameterServerStrategy`; elsewhere does nothing.

    Workers make their updates whenever they are ready, each from a batch of its own share of the
    data. `run_steps` returns when all of its steps have been made, so that whatever is done between
    two calls finds a state at rest. Evaluation is the chief's alone: every example once.
    """

    _strategy: tf.distribute.Strategy
    _coordinator: tf.distribute.coordinator.ClusterCoordinator | None = None

    def init_async(self) -> None:
        """Creates the coordinator, if the strategy needs one."""
        if not isinstance(self._strategy, tf.distribute.ParameterServerStrategy):
            return
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(self._strategy)
        # The chief evaluates by itself on purpose; TensorFlow would warn of it.
        self._strategy.extended._allow_run_without_coordinator = True
        logging.log_first_n(
            logging.INFO,
            "The workers of a parameter server train on their own, in the mode graph, each step at "
            "least once and in no fixed order: a resumed training is not bit for bit the one "
            "without the interruption.",
            1,
        )

    @property
    def has_coordinator(self) -> bool:
        """Whether steps are scheduled to workers that run on their own."""
        return self._coordinator is not None

    def coordinator_for_async(self) -> tf.distribute.coordinator.ClusterCoordinator:
        """The coordinator.

        Raises:
            ValueError: If the strategy is not a `ParameterServerStrategy`.
        """
        if self._coordinator is None:
            raise ValueError(
                f"There is no coordinator under {type(self._strategy).__name__}; only "
                "`parameter_server` has one."
            )
        return self._coordinator

    def join(self) -> None:
        """Waits for all scheduled steps."""
        if self._coordinator is None:
            return
        try:
            self._coordinator.join()
        except Exception as error:
            # What kept an iterator from being made is inside of an error of the coordinator's.
            cause = getattr(error, "original_exception", None)
            if not isinstance(cause, tf.errors.OpError):
                raise
            raise cause from error

    def run_steps(self, num_steps: tf.Tensor) -> None:
        """Runs so many steps, and counts so many; see `orbit.StandardTrainer`.

        Steps that were made twice, because a worker was lost before it could say that it had made
        them, count once: intervals and schedules go by what was asked for.
        """
        step = getattr(self, "global_step", None) if self.has_coordinator else None
        if step is None:
            super().run_steps(num_steps)
            return
        expected = int(step.numpy()) + int(num_steps)
        super().run_steps(num_steps)
        surplus = int(step.numpy()) - expected
        if surplus > 0:
            logging.warning("%d steps were made twice, as a worker was lost.", surplus)
            step.assign_sub(surplus)
            iterations = getattr(getattr(self, "optimizer", None), "iterations", None)
            if isinstance(iterations, keras.Variable):
                iterations.assign(iterations - surplus)

    def create_train_loop_fn(self) -> Callable[..., Any]:
        if self._coordinator is None:
            return super().create_train_loop_fn()
        step_fn = self._wrapped(self.train_step)
        loop_fn = tf.function(orbit.utils.create_tf_while_loop_fn(step_fn))
        is_divided = self._train_options.use_tf_while_loop
        num_parts = _PARTS_PER_WORKER * self._num_workers if is_divided else None

        def run(iterator: Any, num_steps: Any) -> None:
            for length in _divide(int(num_steps), num_parts):
                self.coordinator_for_async().schedule(loop_fn, (iterator, tf.constant(length)))
            # Whoever has called reads the global step next.
            self.join()

        return run

    def create_eval_loop_fn(self, has_state: bool) -> Callable[..., Any]:
        """The loop of the chief; of a worker, if that was given the data."""
        loop_fn = super().create_eval_loop_fn(has_state)
        if self._coordinator is None or isinstance(self.eval_dataset, tf.data.Dataset):
            return loop_fn
        if has_state:
            raise ValueError(
                "`aggregate_logs` needs the outputs of each step in order, which workers that run "
                "on their own can't give. Give the evaluation a `tf.data.Dataset`, which the chief "
                "reads."
            )

        def run(iterator: Any, num_steps: Any, *_: Any) -> None:
            self.coordinator_for_async().schedule(loop_fn, (iterator, num_steps))
            self.join()

        return run

    def distribute_dataset(
        self, dataset_or_fn: Dataset | Callable[..., Dataset], *args: Any, **kwargs: Any
    ) -> Any:
        """Distributes a dataset, or what a dataset function returns, over the replicas."""
        if self._coordinator is None:
            return orbit.utils.make_distributed_dataset(
                self._strategy, dataset_or_fn, *args, **kwargs
            )
        kwargs.pop("input_options", None)
        shares = [
            self._build_share(worker, dataset_or_fn, args, kwargs)
            for worker in range(self._num_workers)
        ]
        return worker_datasets.WorkerDatasets(self._coordinator, shares)

    def distribute_eval_dataset(
        self, dataset_or_fn: Dataset | Callable[..., Dataset], *args: Any, **kwargs: Any
    ) -> Any:
        """The same for evaluation, which the chief does alone where workers run on their own."""
        if self._coordinator is None:
            return self.distribute_dataset(dataset_or_fn, *args, **kwargs)
        chief = tf.distribute.OneDeviceStrategy("CPU:0")
        return orbit.utils.make_distributed_dataset(chief, dataset_or_fn, *args, **kwargs)

    @property
    def _num_workers(self) -> int:
        # Of all its ways to say so, the only one that is right.
        return int(self._strategy._num_workers)

    def _build_share(
        self,
        worker: int,
        dataset_or_fn: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tf.data.Dataset:
        """A worker's part of the training data, in batches of the size of a whole step."""
        if isinstance(dataset_or_fn, tf.data.Dataset):
            return dataset_or_fn.shard(self._num_workers, worker)
        if "input_context" in inspect.signature(dataset_or_fn).parameters:
            context = tf.distribute.InputContext(
                num_input_pipelines=self._num_workers,
                input_pipeline_id=worker,
                num_replicas_in_sync=self._strategy.num_replicas_in_sync,
            )
            kwargs = {**kwargs, "input_context": context}
        training = position.current()
        if training is None:
            return dataset_or_fn(*args, **kwargs)
        # As if all workers had made the same number of steps.
        with position.begin_at(training.batch // self._num_workers, training.seed) as begin:
            dataset = dataset_or_fn(*args, **kwargs)
        training.is_kept |= begin.is_kept
        return dataset


def _divide(num_steps: int, num_parts: int | None) -> Iterator[int]:
    """Lengths that add up to the steps; each is one where the number of parts is None."""
    num_parts = min(num_steps, num_parts or num_steps)
    for part in range(num_parts):
        yield num_steps * (part + 1) // num_parts - num_steps * part // num_parts
