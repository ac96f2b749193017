"""Execution modes: the mode of a config, its executor, and the modes that a trainer supports."""

from typing import Any

import keras
import tensorflow as tf

from official_lite.common import errors
from official_lite.core import config_definitions
from official_lite.execution import executors
from official_lite.execution.virtual_replicas import VirtualReplicasExecutor
from official_lite.modeling import distributed_gradients, hyperparams
from official_lite.orbit import xla_loops

__all__ = [
    "check",
    "check_virtual_replicas",
    "check_overrides",
    "create_executor",
    "execution_of",
    "get_runtime_options",
    "why_not_xla",
    "why_not_xla_loop",
]


def execution_of(runtime: config_definitions.RuntimeConfig) -> str:
    """Return the execution mode of a runtime config; `auto` if the mode is not chosen yet."""
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
    mode: str,
    strategy: tf.distribute.Strategy,
    options: tf.distribute.RunOptions | None = None,
    num_private_threads: int | None = None,
    virtual_replicas: int = 0,
) -> executors.GraphExecutor:
    """Create the executor of a mode.

    Args:
        mode: `eager`, `graph`, `xla` or `xla_loop`; without effect under a
            `ParameterServerStrategy`, which has its own executor.
        strategy: The strategy of the trainer.
        options: Options for `strategy.run`.
        num_private_threads: See `RuntimeConfig.dataset_num_private_threads`.
        virtual_replicas: See `TrainerConfig`.

    Raises:
        errors.ConfigValueError: If the strategy or the mode does not support the virtual replicas.
    """
    if virtual_replicas:
        check_virtual_replicas(virtual_replicas, mode, strategy)
        return VirtualReplicasExecutor(
            strategy, mode, options, num_private_threads, virtual_replicas
        )
    executor = executors.GraphExecutor
    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        executor = executors.ParameterServerExecutor
    elif mode in ("xla", "xla_loop"):
        executor = executors.XlaExecutor
    return executor(strategy, mode, options, num_private_threads)


def check_virtual_replicas(count: int, execution: str, strategy: tf.distribute.Strategy) -> None:
    """Check that the execution mode and the strategy support virtual replicas.

    Raises:
        errors.ConfigValueError: If the execution mode or the strategy does not support them.
    """
    what = f"`trainer.virtual_replicas` is {count}"
    unsupported = {
        "parameter_server": tf.distribute.ParameterServerStrategy,
        "tpu": tf.distribute.TPUStrategy,
        "central_storage": tf.distribute.experimental.CentralStorageStrategy,
    }
    for name, strategy_cls in unsupported.items():
        if isinstance(strategy, strategy_cls):
            raise errors.ConfigValueError(
                f"{what}, which the strategy `{name}` does not support. Use `mirrored` or "
                "`multi_worker_mirrored`, or set the field to 0."
            )
    if execution not in ("graph", "xla"):
        raise errors.ConfigValueError(
            f"{what}, but `runtime.execution` is {execution}. Use `graph` or `xla`."
        )
    if count % strategy.num_replicas_in_sync:
        raise errors.ConfigValueError(
            f"{what}; expected a multiple of the number of replicas "
            f"({strategy.num_replicas_in_sync}), because all replicas compute the same number of "
            "virtual replicas."
        )


def check_overrides(
    config: config_definitions.TrainerConfig, trainer_cls: type, base: type, *, train: bool
) -> None:
    """Check that a trainer class does not override the steps that the config divides.

    Args:
        config: The config of the trainer.
        trainer_cls: The trainer class.
        base: The base class, whose steps are divided into micro-batches and virtual replicas.
        train: Whether the trainer will train.

    Raises:
        errors.ConfigValueError: If `trainer_cls` overrides such a step, or the steps of virtual
            replicas are not compiled.
    """
    count = config.virtual_replicas
    for field in ("train_tf_function", "eval_tf_function"):
        if count and not getattr(config, field):
            raise errors.ConfigValueError(
                f"`trainer.virtual_replicas` is {count}, but `trainer.{field}` is false. Virtual "
                "replicas require compiled functions. Set the field to true, or set "
                "`trainer.virtual_replicas` to 0."
            )
    divided: dict[str, tuple[str, ...]] = {}
    if count:
        divided["virtual_replicas"] = ("train_step", "eval_step", "replica_train_step")
    if train and config.grad_accum_steps > 1:
        divided["grad_accum_steps"] = ("train_step", "replica_train_step")
    if train and config.fit_memory:
        divided["fit_memory"] = ("train_step", "replica_train_step")
    for field, steps in divided.items():
        for name in steps:
            if getattr(trainer_cls, name) is not getattr(base, name):
                raise errors.ConfigValueError(
                    f"`trainer.{field}` is {getattr(config, field)}, but {trainer_cls.__name__} "
                    f"overrides `{name}`, and its override does not divide the batches. Set the "
                    "field to its default, or override the task's `train_step` or "
                    "`validation_step` instead."
                )


def check(execution: str, trainer: Any) -> None:
    """Check that a trainer supports the requested execution mode.

    Raises:
        errors.ConfigValueError: If the trainer does not support the mode.
    """
    if execution != "graph" and trainer.has_coordinator:
        raise errors.ConfigValueError(
            f"`runtime.execution` is {execution}, but parameter server training supports "
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


def why_not_xla(trainer: Any) -> str | None:
    """Return why XLA can't compile the replica's step; None if no reason is known."""
    if isinstance(trainer.strategy, tf.distribute.TPUStrategy):
        return "all steps on a TPU are already compiled"
    if trainer.has_coordinator:
        return "the workers of a parameter server run independently"
    if distributed_gradients.has_lazy_rows(trainer.optimizer):
        return "XLA can't update single rows of a table, which the optimizer's `lazy_rows` requires"
    return _why_wrong_in_xla(trainer)


def why_not_xla_loop(trainer: Any) -> str | None:
    """Return why many steps can't become one XLA program; None if no reason is known."""
    if reason := why_not_xla(trainer):
        return reason
    if trainer.strategy.num_replicas_in_sync > 1:
        return "XLA can't exchange gradients between replicas within a program"
    if not trainer.train_options.use_tf_while_loop:
        return "`trainer.train_tf_while_loop` is off"
    reasons = map(xla_loops.why_not_stackable, tf.nest.flatten(trainer.train_dataset))
    return next(filter(None, reasons), None)


def _why_wrong_in_xla(trainer: Any) -> str | None:
    """Return why XLA would compute different results than a graph; None if no reason is known."""
    # `RandomCrop` resizes a crop whose size is unknown to XLA. XLA pads the crop with zeros and
    # then resizes the zeros, too.
    models = getattr(trainer.model, "sub_tasks", {"": trainer.model}).values()
    for model in models:
        for layer in model._flatten_layers() if isinstance(model, keras.Layer) else ():
            if isinstance(layer, keras.layers.RandomCrop):
                return f"XLA computes wrong images in the layer `{layer.name}`, a RandomCrop"
    return None
