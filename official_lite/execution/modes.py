"""Execution modes: the mode of a config, the modes a trainer supports, and their executors."""

from typing import Protocol

import keras
import tensorflow as tf

from official_lite import orbit
from official_lite.common import errors
from official_lite.core import config_definitions
from official_lite.execution import executors, parameter_server
from official_lite.execution.virtual_replicas import VirtualReplicasExecutor
from official_lite.modeling import distributed_gradients, hyperparams
from official_lite.orbit import xla_loops

__all__ = [
    "Trainer",
    "check",
    "check_virtual_replicas",
    "create_executor",
    "execution_of",
    "why_not_xla",
    "why_not_xla_loop",
]


class Trainer(Protocol):
    """The part of `core.base_trainer.Trainer` that decides which modes are possible."""

    @property
    def config(self) -> config_definitions.ExperimentConfig: ...

    @property
    def strategy(self) -> tf.distribute.Strategy: ...

    @property
    def model(self) -> keras.Model | tf.Module: ...

    @property
    def optimizer(self) -> keras.optimizers.Optimizer: ...

    @property
    def train_options(self) -> orbit.StandardTrainerOptions: ...

    @property
    def train_dataset(self) -> executors.Dataset: ...

    @property
    def has_coordinator(self) -> bool: ...


def execution_of(runtime: config_definitions.RuntimeConfig) -> str:
    """Return the execution mode of a runtime config; `auto` if it is not decided yet."""
    if hyperparams.get_by_path(runtime, "run_eagerly"):
        return "eager"
    execution: str = hyperparams.get_by_path(runtime, "execution", "graph")
    if execution == "auto" and runtime.enable_xla:
        return "xla"
    return execution


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


def check(execution: str, trainer: Trainer) -> None:
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


def why_not_xla(trainer: Trainer) -> str | None:
    """Return why XLA can't compile the replica's step; None if no reason is known."""
    if isinstance(trainer.strategy, tf.distribute.TPUStrategy):
        return "on a TPU everything is already compiled"
    if trainer.has_coordinator:
        return "the workers of a parameter server run independently"
    if distributed_gradients.has_lazy_rows(trainer.optimizer):
        return "XLA can't update single rows of a table, which the optimizer's `lazy_rows` requires"
    return _why_wrong_in_xla(trainer)


def why_not_xla_loop(trainer: Trainer) -> str | None:
    """Return why many steps can't become one XLA program; None if no reason is known."""
    if reason := why_not_xla(trainer):
        return reason
    if trainer.strategy.num_replicas_in_sync > 1:
        return "XLA can't exchange gradients between replicas within a program"
    if not trainer.train_options.use_tf_while_loop:
        return "`trainer.train_tf_while_loop` is off"
    reasons = map(xla_loops.why_not_stackable, tf.nest.flatten(trainer.train_dataset))
    return next(filter(None, reasons), None)


def _why_wrong_in_xla(trainer: Trainer) -> str | None:
    """Return why XLA would compute something else than a graph; None if no reason is known."""
    # A crop has a size that XLA does not know, and the layer resizes it. XLA then fills it up with
    # zeros and resizes these, too.
    models = getattr(trainer.model, "sub_tasks", {"": trainer.model}).values()
    for model in models:
        for layer in model._flatten_layers() if isinstance(model, keras.Layer) else ():
            if isinstance(layer, keras.layers.RandomCrop):
                return f"XLA computes wrong images in the layer `{layer.name}`, a RandomCrop"
    return None
