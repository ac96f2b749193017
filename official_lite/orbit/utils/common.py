"""Helpers for the step counter, distributed input, and reading tensor values."""

import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from official_lite.common import errors, nested_dict, nests, plugins
from official_lite.data import tf_data_options
from official_lite.modeling import distributed_gradients


def create_global_step() -> tf.Variable:
    """Create a counter of training steps: an int64 scalar that starts at 0.

    A trainer adds 1 to it at the end of each step, independently of its optimizers. An optimizer's
    own `iterations` would not count the steps that loss scaling skips, and there may be several
    optimizers. Create the counter in the strategy's scope. With several replicas, only the first
    replica updates it.
    """
    return tf.Variable(
        0,
        dtype=tf.int64,
        name="global_step",
        trainable=False,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )


def make_distributed_dataset(
    strategy: tf.distribute.Strategy | None,
    dataset_or_fn: tf.data.Dataset | Callable[..., tf.data.Dataset],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Distribute a dataset over the replicas of a strategy.

    Args:
        strategy: The strategy. `None` means the current strategy.
        dataset_or_fn: A dataset of global batches, which is split and sharded, or a function that
            returns a dataset of per-replica batches. If the function has a parameter
            `input_context`, keyword-only or not, or `**kwargs`, it receives the
            `tf.distribute.InputContext` of its worker.
        *args: Passed to the function.
        **kwargs: Passed to the function, except `input_options`, a `tf.distribute.InputOptions` for
            the strategy.

    Returns:
        A `tf.distribute.DistributedDataset`. For a single replica on a CPU, where distribution
        would only cost time, the dataset itself.

    Raises:
        errors.ConfigValueError: `dataset_or_fn` is neither a dataset nor a function.
    """
    strategy = strategy or tf.distribute.get_strategy()
    input_options = kwargs.pop("input_options", None)
    is_single = _has_one_cpu(strategy)
    if isinstance(dataset_or_fn, tf.data.Dataset):
        dataset = tf_data_options.without_idle_autotuner(dataset_or_fn)
        if is_single:
            return dataset
        return strategy.experimental_distribute_dataset(dataset, input_options)
    if not callable(dataset_or_fn):
        raise errors.ConfigValueError(
            f"`dataset_or_fn` is a {type(dataset_or_fn).__name__}; pass a `tf.data.Dataset` or a "
            "function that returns one."
        )
    dataset_fn = bind_dataset_fn(dataset_or_fn, *args, **kwargs)
    if is_single:
        return dataset_fn(tf.distribute.InputContext())
    return strategy.distribute_datasets_from_function(dataset_fn, input_options)


def bind_dataset_fn(
    dataset_fn: Callable[..., tf.data.Dataset], *args: Any, **kwargs: Any
) -> Callable[[tf.distribute.InputContext], tf.data.Dataset]:
    """Return a function of an `InputContext` alone.

    Args:
        dataset_fn: A function that returns a dataset. If it has a parameter `input_context`, or
            `**kwargs`, it receives the context.
        *args: Passed to the function.
        **kwargs: Passed to the function.

    Raises:
        errors.ConfigTypeError: The function can't be called with these arguments, has an optional
            parameter of another name for the context, or returns something other than a dataset.
    """
    signature = inspect.signature(dataset_fn)
    parameters = signature.parameters
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    takes_context = takes_any or "input_context" in parameters
    try:
        signature.bind(*args, **kwargs, **({"input_context": None} if takes_context else {}))
    except TypeError as error:
        raise errors.ConfigTypeError(
            f"{plugins.described(dataset_fn)} can't be called with {len(args)} argument(s): "
            f"{error}. In a task, define `build_inputs(self, params, input_context=None)`."
        ) from error
    if not takes_context:
        _refuse_other_names(dataset_fn, list(parameters.values()), len(args), kwargs)

    def build(input_context: tf.distribute.InputContext) -> tf.data.Dataset:
        context = {"input_context": input_context} if takes_context else {}
        dataset = dataset_fn(*args, **kwargs, **context)
        # Reject only common mistakes, because a function may return a custom object that reads
        # data.
        if dataset is None or isinstance(dataset, np.ndarray | list | tuple | Generator):
            got = "None" if dataset is None else f"a {type(dataset).__name__}"
            remedy = (
                "Does it end with `return dataset`?"
                if dataset is None
                else "Use `data.arrays.from_arrays` for arrays, `from_generator` for generators."
            )
            raise errors.ConfigTypeError(
                f"{plugins.described(dataset_fn)} returned {got}; expected a "
                f"`tf.data.Dataset`. {remedy}"
            )
        return tf_data_options.without_idle_autotuner(dataset)

    return build


def _refuse_other_names(
    dataset_fn: Callable[..., tf.data.Dataset],
    parameters: Sequence[inspect.Parameter],
    num_args: int,
    kwargs: Mapping[str, Any],
) -> None:
    """Raise an error for a parameter that seems to be a misnamed `input_context`.

    The parameter would never receive the context, and each replica would read a whole global batch.
    """
    for place, parameter in enumerate(parameters):
        is_free = place >= num_args and parameter.name not in kwargs
        is_next = place == num_args and parameter.default is None
        if is_free and (is_next or "context" in parameter.name or parameter.name == "ctx"):
            raise errors.ConfigTypeError(
                f"{plugins.described(dataset_fn)} has the parameter `{parameter.name}`, which is "
                "never passed; expected `input_context`. Rename it if it takes the "
                "`tf.distribute.InputContext`, or give it a default other than None."
            )


def _has_one_cpu(strategy: tf.distribute.Strategy) -> bool:
    if not isinstance(strategy, tf.distribute.MirroredStrategy | tf.distribute.OneDeviceStrategy):
        return False
    devices = strategy.extended.worker_devices
    return len(devices) == 1 and "/device:CPU:" in devices[0]


def get_value(x: nests.Nest) -> Any:
    """Return the NumPy value of a TensorFlow tensor or variable, or any other value unchanged."""
    return x.numpy() if tf.is_tensor(x) else x


def as_tf_variable(variable: keras.Variable | tf.Variable) -> tf.Variable:
    """Return the TensorFlow variable inside a Keras variable, or a TensorFlow variable itself.

    Raises:
        errors.ConfigValueError: The argument is neither.
    """
    if isinstance(variable, keras.Variable):
        return variable.value
    if isinstance(variable, tf.Variable):
        return variable
    raise errors.ConfigValueError(
        f"{variable!r} is a {type(variable).__name__}; pass a `tf.Variable` or a "
        "`keras.Variable`, such as `orbit.utils.create_global_step()`."
    )


def current_learning_rate(
    optimizer: keras.optimizers.Optimizer, global_step: tf.Variable
) -> tf.Tensor | float:
    """Return the learning rate of the next update.

    Args:
        optimizer: An optimizer whose `learning_rate` is a value, as in Keras, or a schedule. The
            warm-up of a `ScheduleFreeAdamW` is included.
        global_step: The step at which to evaluate the schedule if the optimizer has no
            `iterations`.
    """
    rate = optimizer.learning_rate
    if callable(rate):
        rate = rate(getattr(optimizer, "iterations", global_step))
    *_, innermost = distributed_gradients.wrapped_optimizers(optimizer)
    return rate * innermost.warmup_factor() if hasattr(innermost, "warmup_factor") else rate


def learning_rates(
    optimizer: keras.optimizers.Optimizer, global_step: tf.Variable
) -> dict[str, tf.Tensor | float]:
    """Return the learning rates of the next update by the names under which they are reported.

    The name is `learning_rate`, or `learning_rate/<name>` for each optimizer of a
    `keras.optimizers.MultiOptimizer`, which has no learning rate of its own.

    Args:
        optimizer: The optimizer.
        global_step: See `current_learning_rate`.
    """
    *_, innermost = distributed_gradients.wrapped_optimizers(optimizer)
    if not hasattr(innermost, "optimizers"):
        return {"learning_rate": current_learning_rate(optimizer, global_step)}
    names = nested_dict.unique_keys([one.name for one in innermost.optimizers])
    return {
        f"learning_rate/{name}": current_learning_rate(one, global_step)
        for name, one in zip(names, innermost.optimizers, strict=True)
    }
