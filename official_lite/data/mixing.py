"""Weighted sampling from several datasets."""

from collections.abc import Callable, Mapping

import tensorflow as tf

from official_lite.common import errors, suggestions
from official_lite.data import position
from official_lite.modeling import hyperparams
from official_lite.modeling.hyperparams import base_config

__all__ = ["build_weighted_sampling_combine_fn", "create_combine_fn"]

CombineFn = Callable[[Mapping[str, tf.data.Dataset]], tf.data.Dataset]


def build_weighted_sampling_combine_fn(
    weights: Mapping[str, float], stop_on_empty_dataset: bool = True, seed: int | None = None
) -> CombineFn:
    """Return a function that draws each example from one of several datasets.

    Args:
        weights: The weight of each dataset, by name. The weights need not add up to 1.
        stop_on_empty_dataset: Whether to stop when the first dataset is exhausted, so that the
            proportions hold to the end. Otherwise the remaining datasets continue.
        seed: Seed of the draws. With None, a training run uses the seed of the run; any other
            reading draws anew each time.

    Raises:
        ConfigValueError: A weight is negative, or no weight is positive. The returned function
            raises it if a dataset has no weight or a weight has no dataset.
    """
    if any(weight < 0 for weight in weights.values()) or not any(weights.values()):
        raise errors.ConfigValueError(
            "`weights` must be non-negative, and at least one must be positive; got "
            f"{dict(weights)}."
        )

    def combine_fn(datasets: Mapping[str, tf.data.Dataset]) -> tf.data.Dataset:
        _check_same_names(list(datasets), list(weights))
        begin = position.current()
        return tf.data.Dataset.sample_from_datasets(
            list(datasets.values()),
            [float(weights[name]) for name in datasets],
            seed=begin.seed if begin and seed is None else seed,
            stop_on_empty_dataset=stop_on_empty_dataset,
        )

    return combine_fn


def create_combine_fn(params: base_config.Config) -> CombineFn | None:
    """Build the `combine_fn` of a data config whose `input_path` and `weights` are `Config`s.

    Args:
        params: A `DataConfig` with the additional field `weights` and optionally
            `stop_on_empty_dataset`, which defaults to True.

    Returns:
        The function, or None if there are no weights.

    Raises:
        ConfigValueError: `input_path` or `weights` is not a `Config`, or their names differ.
    """
    weights = hyperparams.get_by_path(params, "weights")
    if not weights:
        return None
    if not all(isinstance(v, base_config.Config) for v in (params.input_path, weights)):
        raise errors.ConfigValueError(
            "input_path and weights must both be a Config, with the same names, to use weighted "
            f"sampling; got {params.input_path!r} and {weights!r}."
        )
    shares = weights.as_dict()
    _check_same_names(list(params.input_path.as_dict()), list(shares))
    stop = hyperparams.get_by_path(params, "stop_on_empty_dataset", True)
    return build_weighted_sampling_combine_fn(shares, stop_on_empty_dataset=stop, seed=params.seed)


def _check_same_names(sources: list[str], weights: list[str]) -> None:
    for name in sources:
        if name not in weights:
            raise errors.ConfigValueError(
                f"Input {name!r} does not have a corresponding weight. "
                f"{suggestions.did_you_mean(name, weights)}"
            )
    for name in weights:
        if name not in sources:
            raise errors.ConfigValueError(
                f"Weight {name!r} does not have a corresponding input. "
                f"{suggestions.did_you_mean(name, sources)}"
            )
