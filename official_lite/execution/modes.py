"""Execution modes: the mode of a config, the modes a trainer supports, and trainers with one."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from official_lite import orbit
from official_lite.common import errors, nests, user_code
from official_lite.core import config_definitions
from official_lite.data import tf_data_options
from official_lite.execution import executors, parameter_server
from official_lite.execution.executors import Dataset
from official_lite.execution.virtual_replicas import VirtualReplicasExecutor
from official_lite.modeling import distributed_gradients, hyperparams
from official_lite.orbit import runner, xla_loops

__all__ = [
    "AsyncTrainer",
    "check",
    "check_virtual_replicas",
    "check_virtual_steps",
    "create_executor",
    "execution_of",
    "get_runtime_options",
    "why_not_xla",
    "why_not_xla_loop",
]


class AsyncTrainer(orbit.StandardTrainer, orbit.StandardEvaluator):
    """Trainer whose loops are made by an executor; see `execution.executors`.

    Under a `ParameterServerStrategy` the workers run asynchronously and `join` waits for them;
    elsewhere `join` does nothing. The Model Garden calls this class
    `base_trainer._AsyncTrainer`. A subclass sets `_strategy` and then calls `init_async`.
    """

    _strategy: tf.distribute.Strategy
    # The metrics of the task: under True for training, under False for evaluation. A trainer of
    # several tasks has a dictionary of them.
    _task_metrics: dict[bool, Any]
    _num_private_threads: int | None = None
    _executor: executors.GraphExecutor
    _eval_executor: executors.GraphExecutor

    def init_async(self) -> None:
        """Create the executor."""
        self._init_execution("graph")

    if TYPE_CHECKING:
        # Attributes of some subclasses, as in the Model Garden, and properties of others.
        @property
        def strategy(self) -> tf.distribute.Strategy: ...

        @property
        def config(self) -> config_definitions.ExperimentConfig: ...

        @property
        def model(self) -> keras.Model: ...

        @property
        def optimizer(self) -> keras.optimizers.Optimizer: ...

        @property
        def global_step(self) -> tf.Variable: ...

    @property
    def evaluates(self) -> bool:
        """Whether the trainer was built to evaluate."""
        return False in self._task_metrics

    @property
    def has_coordinator(self) -> bool:
        """Whether steps are scheduled to workers that run asynchronously."""
        return self._coordinator is not None

    def coordinator_for_async(self) -> tf.distribute.coordinator.ClusterCoordinator:
        """Return the coordinator.

        Raises:
            ValueError: If the strategy is not a `ParameterServerStrategy`.
        """
        if self._coordinator is None:
            raise ValueError(
                f"`coordinator` is not available under {type(self._strategy).__name__}; only "
                "`parameter_server` has one."
            )
        return self._coordinator

    def join(self) -> None:
        """Wait for all scheduled steps."""
        self._executor.join()

    def run_steps(self, num_steps: tf.Tensor) -> None:
        """Run steps; see `orbit.StandardTrainer.run_steps`."""
        self._executor.run_steps(self, num_steps)

    def create_train_loop(self, dataset: Dataset) -> orbit.TrainLoop:
        """Create the training loop over a dataset."""
        return self._executor.create_train_loop(self, dataset)

    def create_train_loop_fn(self) -> Callable[..., Any]:
        """Create the function `(iterator, num_steps)` that the training loop calls."""
        return self._executor.create_train_loop_fn(self)

    def create_eval_loop_fn(self, has_state: bool) -> Callable[..., Any]:
        """Create the function that evaluates; see `orbit.StandardEvaluator`."""
        return self._eval_executor.create_eval_loop_fn(self, has_state)

    def distribute_dataset(
        self, dataset_or_fn: Dataset | Callable[..., Dataset], *args: Any, **kwargs: Any
    ) -> Dataset:
        """Distribute a training dataset, or the result of a dataset function, over the replicas."""
        own = tf_data_options.with_private_threads(dataset_or_fn, self._num_private_threads)
        return self._executor.distribute(own, *args, **kwargs)

    def distribute_eval_dataset(
        self, dataset_or_fn: Dataset | Callable[..., Dataset], *args: Any, **kwargs: Any
    ) -> Dataset:
        """Distribute a dataset for evaluation; with async workers, only the chief evaluates."""
        own = tf_data_options.with_private_threads(dataset_or_fn, self._num_private_threads)
        return self._executor.distribute_eval(own, *args, **kwargs)

    def build_train_dataset(self) -> Dataset:
        """Return the training data, built again if the trainer knows how to build them."""
        return self.train_dataset

    @property
    def execution(self) -> str:
        """How steps are executed: `eager`, `graph`, `xla` or `xla_loop`. See docs/performance.md.

        Set it before training: a trainer that has already trained would read its data from the
        beginning.
        """
        return self._execution

    @execution.setter
    def execution(self, value: str) -> None:
        check(value, self)
        self._execution = value
        if not self.has_coordinator:
            runner.set_untracked(self, _executor=self._create_executor(value))
        self.use_train_loop(None)

    @property
    def eval_execution(self) -> str:
        """How the steps of an evaluation are executed."""
        return self._eval_execution

    @eval_execution.setter
    def eval_execution(self, value: str) -> None:
        self._eval_execution = value
        if not self.has_coordinator:
            runner.set_untracked(self, _eval_executor=self._create_executor(value))
        self._eval_loop_fn = None

    @property
    def num_batch_sizes(self) -> int:
        """The number of different sizes of batches for which XLA has compiled the step."""
        return self._executor.num_sizes

    @user_code.not_converted
    def run_step(self, step_fn: Callable[..., Any], *inputs: nests.Nest) -> Any:
        """Run a function on all replicas, as a part of a training step."""
        return self._executor.run_step(step_fn, *inputs)

    @property
    def _coordinator(self) -> tf.distribute.coordinator.ClusterCoordinator | None:
        if isinstance(self._executor, parameter_server.ParameterServerExecutor):
            return self._executor.coordinator
        return None

    def _init_execution(self, execution: str) -> None:
        self._execution = self._eval_execution = execution
        executor = self._create_executor(execution)
        runner.set_untracked(self, _executor=executor, _eval_executor=executor)

    def _create_executor(self, execution: str) -> executors.GraphExecutor:
        return create_executor(execution, self._strategy)


def execution_of(runtime: config_definitions.RuntimeConfig) -> str:
    """Return the execution mode of a runtime config; `auto` if it is not decided yet."""
    if hyperparams.get_by_path(runtime, "run_eagerly"):
        return "eager"
    execution: str = hyperparams.get_by_path(runtime, "execution", "graph")
    if execution == "auto" and runtime.enable_xla:
        return "xla"
    return execution


def get_runtime_options(config: config_definitions.ExperimentConfig) -> tf.distribute.RunOptions:
    """Return the options of `strategy.run` for training steps."""
    padder = config.runtime.tpu_enable_xla_dynamic_padder
    options = {} if padder is None else {"enable_xla_dynamic_padder": padder}
    return tf.distribute.RunOptions(experimental_xla_options=tf.tpu.XLAOptions(**options))


def create_executor(
    execution: str,
    strategy: tf.distribute.Strategy,
    options: tf.distribute.RunOptions | None = None,
    steps_per_loop: int = 1,
    virtual_replicas: int = 0,
) -> executors.GraphExecutor:
    """Create the executor of a mode.

    Args:
        execution: `eager`, `graph`, `xla` or `xla_loop`; without effect under a
            `ParameterServerStrategy`, which has its own executor.
        strategy: The strategy of the trainer.
        options: Options for `strategy.run`.
        steps_per_loop: The number of steps that are usually run at once.
        virtual_replicas: See `TrainerConfig`.

    Raises:
        errors.ConfigValueError: The virtual replicas don't fit the strategy or the mode.
    """
    if virtual_replicas:
        check_virtual_replicas(virtual_replicas, execution, strategy)
        return VirtualReplicasExecutor(
            strategy, options, count=virtual_replicas, jit_compile=execution == "xla"
        )
    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        return parameter_server.ParameterServerExecutor(strategy, options)
    if execution == "xla_loop":
        return executors.XlaLoopExecutor(strategy, options, steps_per_loop)
    executor = executors.XlaExecutor if execution == "xla" else executors.GraphExecutor
    return executor(strategy, options)


def check_virtual_replicas(count: int, execution: str, strategy: tf.distribute.Strategy) -> None:
    """Check that virtual replicas can be computed.

    Raises:
        errors.ConfigValueError: If the execution mode or the strategy does not support them.
    """
    what = f"`trainer.virtual_replicas` is {count}"
    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        raise errors.ConfigValueError(
            f"{what}, but the workers of a parameter server update the weights in any order. Use "
            "the strategy `mirrored` or `multi_worker_mirrored`, or set it to 0."
        )
    unsupported = {
        "tpu": tf.distribute.TPUStrategy,
        "central_storage": tf.distribute.experimental.CentralStorageStrategy,
    }
    for name, strategy_cls in unsupported.items():
        if isinstance(strategy, strategy_cls):
            raise errors.ConfigValueError(
                f"{what}, which the strategy `{name}` does not support. Use `mirrored` or "
                "`multi_worker_mirrored`, or set it to 0."
            )
    if execution not in ("graph", "xla"):
        raise errors.ConfigValueError(
            f"{what}, but `runtime.execution` is {execution}. Use `graph` or `xla`."
        )
    if count % strategy.num_replicas_in_sync:
        raise errors.ConfigValueError(
            f"{what}; expected a multiple of the number of replicas "
            f"({strategy.num_replicas_in_sync}), because each replica computes equally many."
        )


def check_virtual_steps(
    config: config_definitions.TrainerConfig, trainer_cls: type, base: type
) -> None:
    """Check that a class of trainers leaves the steps of its base to virtual replicas, if any.

    Raises:
        errors.ConfigValueError: If it overrides a step, or the steps are not compiled.
    """
    count = config.virtual_replicas
    for field in ("train_tf_function", "eval_tf_function"):
        if count and not getattr(config, field):
            raise errors.ConfigValueError(
                f"`trainer.virtual_replicas` is {count}, but `trainer.{field}` is false. Virtual "
                "replicas are computed by compiled functions only: set it to true, or "
                "`trainer.virtual_replicas` to 0."
            )
    for name in ("train_step", "eval_step", "replica_train_step"):
        if count and getattr(trainer_cls, name) is not getattr(base, name):
            raise errors.ConfigValueError(
                f"`trainer.virtual_replicas` is {count}, but {trainer_cls.__name__} overrides "
                f"`{name}`, which would get several batches at once. Set it to 0, or override "
                "`train_step` or `validation_step` of the task instead."
            )


def check(execution: str, trainer: AsyncTrainer) -> None:
    """Check that a trainer supports the requested execution mode.

    Raises:
        errors.ConfigValueError: If it does not.
    """
    if execution != "graph" and trainer.has_coordinator:
        raise errors.ConfigValueError(
            f"`runtime.execution` is {execution}, but the workers of a parameter server support "
            "only `graph`. Use `graph` or `auto`."
        )
    if execution in ("xla", "xla_loop") and (reason := _why_wrong_in_xla(trainer)):
        raise errors.ConfigValueError(
            f"`runtime.execution` is {execution}, but {reason}. Use `graph`, or crop the images in "
            "`build_inputs`."
        )
    if execution == "xla_loop" and (reason := why_not_xla_loop(trainer)):
        raise errors.ConfigValueError(
            f"`runtime.execution` is xla_loop, but {reason}. Use `xla`, `graph`, or `auto`, which "
            "selects the fastest supported mode."
        )


def why_not_xla(trainer: AsyncTrainer) -> str | None:
    """Return why XLA can't compile the replica's step; None if no reason is known."""
    if isinstance(trainer.strategy, tf.distribute.TPUStrategy):
        return "on a TPU everything is already compiled"
    if trainer.has_coordinator:
        return "the workers of a parameter server run independently"
    if distributed_gradients.has_lazy_rows(trainer.optimizer):
        return "XLA can't update single rows of a table, which the optimizer's `lazy_rows` requires"
    return _why_wrong_in_xla(trainer)


def why_not_xla_loop(trainer: AsyncTrainer) -> str | None:
    """Return why many steps can't become one XLA program; None if no reason is known."""
    if reason := why_not_xla(trainer):
        return reason
    if trainer.strategy.num_replicas_in_sync > 1:
        return "XLA can't exchange gradients between replicas within a program"
    if not trainer.train_options.use_tf_while_loop:
        return "`trainer.train_tf_while_loop` is off"
    reasons = map(xla_loops.why_not_stackable, tf.nest.flatten(trainer.train_dataset))
    return next(filter(None, reasons), None)


def _why_wrong_in_xla(trainer: AsyncTrainer) -> str | None:
    """Return why XLA would compute something else than a graph; None if no reason is known."""
    # A crop has a size that XLA does not know, and the layer resizes it. XLA then fills it up with
    # zeros and resizes these, too.
    models = getattr(trainer.model, "sub_tasks", {"": trainer.model}).values()
    for model in models:
        for layer in model._flatten_layers() if isinstance(model, keras.Layer) else ():
            if isinstance(layer, keras.layers.RandomCrop):
                return f"XLA computes wrong images in the layer `{layer.name}`, a RandomCrop"
    return None
