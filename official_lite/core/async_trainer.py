"""The loops of a trainer on the workers of a parameter-server strategy."""

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import tensorflow as tf

from official_lite import orbit

__all__ = ["AsyncTrainer", "Dataset"]

Dataset: TypeAlias = Any
"""A `tf.data.Dataset` or a `tf.distribute.DistributedDataset`."""


class AsyncTrainer(orbit.StandardTrainer, orbit.StandardEvaluator):
    """Runs the loops on the workers of a `ParameterServerStrategy`; elsewhere does nothing."""

    _strategy: tf.distribute.Strategy
    _coordinator: tf.distribute.coordinator.ClusterCoordinator | None = None

    def init_async(self) -> None:
        """Creates the coordinator, if the strategy needs one."""
        if isinstance(self._strategy, tf.distribute.ParameterServerStrategy):
            self._coordinator = tf.distribute.coordinator.ClusterCoordinator(self._strategy)

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
        if self._coordinator is not None:
            self._coordinator.join()

    def create_train_loop_fn(self) -> Callable[..., Any]:
        loop_fn = super().create_train_loop_fn()
        return self._scheduled(loop_fn) if self._coordinator else loop_fn

    def create_eval_loop_fn(self, has_state: bool) -> Callable[..., Any]:
        loop_fn = super().create_eval_loop_fn(has_state)
        if self._coordinator is None:
            return loop_fn
        if has_state:
            raise ValueError(
                "`aggregate_logs` needs the outputs of each step in order, which workers that run "
                "on their own can't give. Use metrics instead, or evaluate in a job of its own."
            )
        return self._scheduled(loop_fn)

    def distribute_dataset(
        self, dataset_or_fn: Dataset | Callable[..., Dataset], *args: Any, **kwargs: Any
    ) -> Any:
        """Distributes a dataset, or what a dataset function returns, over the replicas."""
        distribute = functools.partial(
            orbit.utils.make_distributed_dataset, self._strategy, dataset_or_fn, *args, **kwargs
        )
        if self._coordinator is None:
            return distribute()
        return self._coordinator.create_per_worker_dataset(tf.function(distribute))

    def _scheduled(self, loop_fn: Callable[..., Any]) -> Callable[..., None]:
        def schedule(iterator: Any, num_steps: Any, *state_and_reduce_fn: Any) -> None:
            self.coordinator_for_async().schedule(loop_fn, args=(iterator, num_steps))
            # The controller reads the global step when the call returns.
            self.join()

        return schedule
