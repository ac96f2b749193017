"""Factory that builds a learning rate and an optimizer from an `OptimizationConfig`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import gin
import keras
import tensorflow as tf
from absl import logging

from official_lite.common import errors, suggestions
from official_lite.modeling import distributed_gradients, embedding_lookups
from official_lite.modeling.hyperparams import base_config
from official_lite.modeling.optimization import (
    adamw,
    ema_optimizer,
    lamb,
    lars,
    lr_schedule,
)
from official_lite.modeling.optimization.configs import optimization_config, optimizer_config

__all__ = ["OptimizerFactory", "follow_weights", "register_optimizer_cls", "prepare_optimizer"]


LearningRate: TypeAlias = "keras.optimizers.schedules.LearningRateSchedule | float"

OPTIMIZERS_CLS: dict[str, Callable[..., Any]] = {
    "sgd": keras.optimizers.SGD,
    "sgd_experimental": keras.optimizers.SGD,
    "adam": keras.optimizers.Adam,
    "adam_experimental": keras.optimizers.Adam,
    "adamw": adamw.AdamWeightDecay,
    "adamw_experimental": keras.optimizers.AdamW,
    "lamb": lamb.LAMB,
    "rmsprop": keras.optimizers.RMSprop,
    "lars": lars.LARS,
    "adagrad": keras.optimizers.Adagrad,
    "adafactor": keras.optimizers.Adafactor,
    "adafactor_keras": keras.optimizers.Adafactor,
    "lion": keras.optimizers.Lion,
    "muon": keras.optimizers.Muon,
    "nadam": keras.optimizers.Nadam,
    "adamax": keras.optimizers.Adamax,
    "ftrl": keras.optimizers.Ftrl,
    "adadelta": keras.optimizers.Adadelta,
    "schedule_free_adamw": adamw.ScheduleFreeAdamW,
}

# Keras has removed the legacy optimizers, so these names refer to the same table.
LEGACY_OPTIMIZERS_CLS = OPTIMIZERS_CLS

NEW_OPTIMIZERS_CLS = OPTIMIZERS_CLS


def _of_config(schedule_cls: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `schedule_cls` with the fields of its config, without ratios.

    Model Garden subclasses of the factory call the function with `**config.as_dict()`, which
    includes the ratio fields. Their values are None once they are converted to steps.
    """

    def build(*args: Any, **fields: Any) -> Any:
        fields = {name: value for name, value in fields.items() if name not in _RATIOS}
        return schedule_cls(*args, **fields)

    return build


_RATIOS = frozenset({"boundary_ratios", "decay_ratio", "warmup_ratio"})

LR_CLS: dict[str, Callable[..., Any]] = {
    "stepwise": _of_config(lr_schedule.PiecewiseConstantDecayWithOffset),
    "polynomial": _of_config(lr_schedule.PolynomialDecayWithOffset),
    "exponential": _of_config(lr_schedule.ExponentialDecayWithOffset),
    "cosine": _of_config(lr_schedule.CosineDecayWithOffset),
    "power": lr_schedule.DirectPowerDecay,
    "power_linear": _of_config(lr_schedule.PowerAndLinearDecay),
    "power_with_offset": lr_schedule.PowerDecayWithOffset,
    "step_cosine_with_offset": _of_config(lr_schedule.StepCosineDecayWithOffset),
}

WARMUP_CLS: dict[str, Callable[..., Any]] = {
    "linear": _of_config(lr_schedule.LinearWarmup),
    "polynomial": _of_config(lr_schedule.PolynomialWarmUp),
}

# Config fields that optimizers no longer accept, each with its no-op value.
_DEAD_FIELDS: dict[str, Any] = {"jit_compile": False}

_MAY_BE_NONE = ("staircase",)

_MUST_BE_POSITIVE = ("decay_steps", "total_decay_steps")

# Maps the argument names of the Adafactor authors to the argument names in Keras.
_ADAFACTOR_NAMES = {
    "decay_rate": "beta_2_decay",
    "clipping_threshold": "clip_threshold",
    "epsilon1": "epsilon_1",
    "epsilon2": "epsilon_2",
}

_ADAFACTOR_FIXED = (
    "factored",
    "multiply_by_parameter_scale",
    "beta1",
    "step_offset",
    "min_dim_size_to_factor",
    "include_in_weight_decay",
)


def register_optimizer_cls(
    key: str, optimizer_config_cls: Callable[..., Any], use_legacy_optimizer: bool = True
) -> None:
    """Register an optimizer that a config can select by name.

    Args:
        key: The name. A subclass of `OptimizerConfig` also needs a field with this name.
        optimizer_config_cls: The optimizer class (not its config class). It is called with the
            fields of its config and `learning_rate`.
        use_legacy_optimizer: Ignored; there is only one kind of optimizer.

    Raises:
        ConfigValueError: The name is already registered.
    """
    if key in OPTIMIZERS_CLS:
        raise errors.ConfigValueError(
            # The Model Garden's own test expects these words.
            f"{key} already registered as {OPTIMIZERS_CLS[key]!r}. Choose another name."
        )
    OPTIMIZERS_CLS[key] = optimizer_config_cls


class OptimizerFactory:
    """Factory for the optimizer and the learning rate described by an `OptimizationConfig`.

    ::

        factory = OptimizerFactory(config)
        optimizer = factory.build_optimizer(factory.build_learning_rate())

    Args:
        config: The config; `optimizer.type` and `learning_rate.type` must be set.

    Raises:
        ConfigValueError: The type of the optimizer or of the learning rate is not set.
    """

    def __init__(self, config: optimization_config.OptimizationConfig) -> None:
        choices = {"optimizer": config.optimizer, "learning_rate": config.learning_rate}
        missing = [
            f"`{name}.type` of `trainer.optimizer_config` is not set. {choice.choices()}"
            for name, choice in choices.items()
            if choice.get() is None
        ]
        if missing:
            raise errors.ConfigValueError(" ".join(missing))
        self._optimizer_type = config.optimizer.type or ""
        self._optimizer_config = config.optimizer.get()
        self._lr_type = config.learning_rate.type or ""
        self._lr_config = config.learning_rate.get()
        self._warmup_type = config.warmup.type or ""
        self._warmup_config = config.warmup.get()
        self._ema_config = config.ema
        # Model Garden subclasses that average the weights themselves set `_use_ema` to False.
        self._use_ema = config.ema is not None

    def build_learning_rate(self) -> LearningRate:
        """Return the learning-rate schedule, including the warm-up, or a float if it is constant.

        Raises:
            ConfigValueError: A field that the schedule requires is not set or is invalid.
            UnknownNameError: No schedule is registered under the config's type.
        """
        learning_rate: LearningRate
        if self._lr_type == "constant":
            learning_rate = float(self._lr_config.learning_rate)
        else:
            path = f"learning_rate.{self._lr_type}"
            learning_rate = _build(LR_CLS, path, _complete(self._lr_config, path))
        if self._warmup_config is None:
            return learning_rate
        path = f"warmup.{self._warmup_type}"
        arguments = _complete(self._warmup_config, path)
        return _build(WARMUP_CLS, path, {"after_warmup_lr_sched": learning_rate, **arguments})

    @gin.configurable
    def build_optimizer(
        self,
        lr: LearningRate,
        gradient_aggregator: distributed_gradients.GradientTransformer | None = None,
        gradient_transformers: Sequence[distributed_gradients.GradientTransformer] | None = None,
        postprocessor: Callable[[keras.optimizers.Optimizer], keras.optimizers.Optimizer]
        | None = None,
        use_legacy_optimizer: bool = True,
    ) -> keras.optimizers.Optimizer:
        """Build an optimizer that sums gradients over replicas before it clips them.

        Args:
            lr: The result of `build_learning_rate`.
            gradient_aggregator: Takes the (gradient, variable) pairs of one replica and returns the
                pairs summed over all replicas. None uses an all-reduce.
            gradient_transformers: Functions applied to the pairs in order, after the sum and before
                clipping.
            postprocessor: Takes the finished optimizer and returns the one to use.
            use_legacy_optimizer: Ignored; there is only one kind of optimizer.

        Raises:
            ConfigValueError: A field has a value that the optimizer does not support.
            UnknownNameError: No optimizer is registered under the config's type.
            TypeError: `postprocessor` returned something other than an optimizer.
        """
        path = f"optimizer.{self._optimizer_type}"
        arguments = _optimizer_arguments(self._optimizer_config, path)
        lr = float(lr) if isinstance(lr, int) else lr
        arguments["learning_rate"] = _with_decay(lr, arguments.pop("decay", 0.0), path)
        lazy_rows = arguments.pop("lazy_rows", False)
        optimizer = _build(OPTIMIZERS_CLS, path, arguments)
        if isinstance(optimizer, keras.optimizers.Optimizer):
            optimizer = distributed_gradients.make_distributed(optimizer, lazy_rows=lazy_rows)
            optimizer.set_gradient_functions(gradient_aggregator, gradient_transformers or ())
        if self._use_ema and self._ema_config is not None:
            optimizer = ema_optimizer.ExponentialMovingAverage(
                optimizer, **self._ema_config.as_dict()
            )
        if postprocessor is not None:
            optimizer = postprocessor(optimizer)
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            raise TypeError(
                "The optimizer's class or the `postprocessor` must return a Keras optimizer, but "
                f"returned {optimizer!r}."
            )
        return optimizer


def _build(
    classes: Mapping[str, Callable[..., Any]], path: str, arguments: Mapping[str, Any]
) -> Any:
    """Instantiate the class that is registered under the last component of `path`."""
    kind, _, name = path.partition(".")
    if name not in classes:
        raise errors.UnknownNameError(
            f"`{kind}.type` is {name!r}, which is not registered. "
            f"{suggestions.did_you_mean(name, classes)}"
        )
    return classes[name](**arguments)


def _complete(config: base_config.Config, path: str) -> dict[str, Any]:
    """Return the fields of a schedule's config, except ratios, as keyword arguments.

    Raises:
        ConfigValueError: A required field is not set or is invalid, or a ratio is not yet converted
            to steps.
    """
    arguments: dict[str, Any] = config.as_dict()
    for ratio in type(config).CLEARS.values():
        if arguments.pop(ratio, None) is not None:
            raise errors.ConfigValueError(
                f"`{path}.{ratio}` is not converted to steps yet. Call `epochs.resolve(params)` "
                "first."
            )
    missing = [n for n, value in arguments.items() if value is None and n not in _MAY_BE_NONE]
    if missing:
        shown = " and ".join(f"`{path}.{name}`" for name in missing)
        raise errors.ConfigValueError(
            f"{shown} {'is' if len(missing) == 1 else 'are'} not set. A schedule requires all of "
            "its fields; set them in `optimizer_config`."
        )
    for name, value in arguments.items():
        if name in _MUST_BE_POSITIVE and value <= 0:
            raise errors.ConfigValueError(
                f"`{path}.{name}` is {value}; expected a positive number of steps."
            )
    return arguments


def _optimizer_arguments(config: base_config.Config, path: str) -> dict[str, Any]:
    arguments: dict[str, Any] = config.as_dict()
    for name, no_effect in _DEAD_FIELDS.items():
        if arguments.pop(name, no_effect) != no_effect:
            logging.warning("`%s.%s` has no effect; remove it.", path, name)
    if isinstance(config, optimizer_config.AdafactorConfig):
        return _adafactor_arguments(arguments, path)
    return arguments


def _with_decay(lr: LearningRate, decay: float, path: str) -> LearningRate:
    """Return a learning rate that decays as in the legacy optimizers of Keras 2."""
    if decay < 0:
        raise errors.ConfigValueError(
            f"`{path}.decay` is {decay}; expected a number that is not negative."
        )
    # Keep a constant rate without decay as it is: callbacks may set it, and checkpoints contain it.
    return lr_schedule.TimeDecay(lr, decay) if decay else lr


def _adafactor_arguments(fields: Mapping[str, Any], path: str) -> dict[str, Any]:
    defaults = optimizer_config.AdafactorConfig().as_dict()
    for name in _ADAFACTOR_FIXED:
        if fields[name] != defaults[name]:
            raise errors.ConfigValueError(
                f"`{path}.{name}` is {fields[name]!r}, but Keras' Adafactor supports only "
                f"{defaults[name]!r}. Remove the setting."
            )
    arguments = {
        _ADAFACTOR_NAMES.get(name, name): value
        for name, value in fields.items()
        if name not in _ADAFACTOR_FIXED
    }
    # Adafactor's authors omit the minus sign of the exponent; Keras expects a signed exponent.
    arguments["beta_2_decay"] *= -1.0
    return arguments | {"relative_step": False}


def prepare_optimizer(
    optimizer: keras.optimizers.Optimizer, model: keras.Model | tf.Module
) -> keras.optimizers.Optimizer:
    """Make the optimizer distributed, create all its variables, and return it.

    The optimizer is built on all variables at once, because an optimizer that was built on some
    variables rejects the others. An object that is not a Keras optimizer is returned unchanged.

    Args:
        optimizer: The optimizer, built from a config or by the task.
        model: Any object with built variables and a `trainable_variables` attribute.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        return optimizer
    average = ema_optimizer.get_moving_average(optimizer)
    if average is not None and not average.has_shadow_copy:
        average.shadow_copy(model)
    is_new = not optimizer.built
    if is_new:
        optimizer.build(list(model.trainable_variables))
    # Do this after `build`, in which a `MultiOptimizer` may create its optimizers.
    optimizer = distributed_gradients.make_distributed(optimizer)
    ema_optimizer.evaluate_averages(optimizer)
    if is_new:
        # Set Keras' own averages (`use_ema`) to the weights; otherwise the averages would be zero
        # until the first update.
        follow_weights(optimizer)
    if distributed_gradients.updates_rows(optimizer):
        embedding_lookups.read_rows_only(model)
        _warn_of_passes_over_tables(optimizer, model)
    return optimizer


def follow_weights(optimizer: keras.optimizers.Optimizer | None) -> None:
    """Set an optimizer's copies of the weights to the current weights, after weights were loaded.

    Args:
        optimizer: The optimizer with built variables; None does nothing.
    """
    if optimizer is not None:
        ema_optimizer.follow_weights(optimizer)
        adamw.restart_averaging(optimizer)


def _warn_of_passes_over_tables(
    optimizer: keras.optimizers.Optimizer, model: keras.Model | tf.Module
) -> None:
    large = [
        table.path for table in embedding_lookups.tables(model) if embedding_lookups.is_large(table)
    ]
    if not large or not ema_optimizer.keeps_averages(optimizer):
        return
    logging.warning(
        "The optimizer updates only some rows of %s in a step, but the moving average of the "
        "weights (`optimizer_config.ema`) updates all of them, which is slow. See "
        "docs/embeddings.md.",
        ", ".join(large),
    )
