"""Magnitude pruning: the smallest weights of each kernel are 0, and stay 0.

The sparsity follows the polynomial of Zhu and Gupta (2017), "To prune, or not to prune". With
`sparsity_m_by_n`, only the `m` smallest weights of each block of `n` may be pruned.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from absl import logging

from official_lite.common import errors
from official_lite.common.keras_variables import local_values
from official_lite.compression import configs
from official_lite.compression.kernels import Kernel
from official_lite.compression.weight_projection import WeightProjection

__all__ = ["MagnitudePruning", "sparsity_at", "update_steps"]

_Array = npt.NDArray[Any]


class MagnitudePruning(WeightProjection):
    """Keeps weights at 0 by a mask for each kernel, which is true where a weight remains.

    Create it in the strategy's scope.

    Args:
        config: The config.
        kernels: The kernels.

    Raises:
        errors.ConfigValueError: No kernel consists of whole blocks of `sparsity_m_by_n`.
    """

    def __init__(self, config: configs.PruningConfig, kernels: Sequence[Kernel]) -> None:
        self._config = config
        kernels = _in_whole_blocks(kernels, config.sparsity_m_by_n)
        masks = [{"mask": tf.Variable(tf.ones(k.variable.shape, tf.bool))} for k in kernels]
        super().__init__(kernels, masks, update_steps(config))

    def _choose(self, kernel: Kernel, value: _Array, step: int) -> Mapping[str, _Array]:
        if self._config.schedule == "existing_zeros":
            return {"mask": value != 0}
        count = round(sparsity_at(step, self._config) * value.size)
        sizes = np.abs(value)
        if self._config.sparsity_m_by_n is not None:
            m, n = self._config.sparsity_m_by_n
            sizes = np.where(_smallest_of_blocks(sizes, m, n, kernel.input_axis), sizes, np.inf)
        # A stable sort, so that equal weights are pruned in one order everywhere.
        order = np.argsort(sizes, axis=None, kind="stable")
        mask = np.ones(value.size, bool)
        mask[order[:count]] = False
        return {"mask": mask.reshape(value.shape)}

    def _projected(self, value: tf.Tensor, *state: tf.Variable) -> tf.Tensor:
        (mask,) = state
        return tf.where(mask, value, tf.zeros_like(value))

    def _numbers(self, kernels: Sequence[Kernel]) -> dict[str, float]:
        values = [local_values(kernel.variable)[0].numpy() for kernel in kernels]
        zeros = sum(int(np.count_nonzero(value == 0)) for value in values)
        return {"sparsity": zeros / sum(value.size for value in values)}


def update_steps(config: configs.PruningConfig) -> list[int]:
    """Return the steps after which the masks change."""
    if config.schedule == "existing_zeros":
        return [0]
    if config.schedule == "constant":
        return [config.begin_step]
    return [*range(config.begin_step, config.end_step, config.frequency), config.end_step]


def sparsity_at(step: int, config: configs.PruningConfig) -> float:
    """Return the share of zeros that the schedule wants after a step."""
    if step < config.begin_step:
        return 0.0
    if config.schedule == "constant" or step >= config.end_step:
        return config.final_sparsity
    progress = (step - config.begin_step) / (config.end_step - config.begin_step)
    change = config.initial_sparsity - config.final_sparsity
    return float(config.final_sparsity + change * (1 - progress) ** config.power)


def _in_whole_blocks(
    kernels: Sequence[Kernel], sparsity_m_by_n: Sequence[int] | None
) -> Sequence[Kernel]:
    if sparsity_m_by_n is None:
        return kernels
    _, size = sparsity_m_by_n
    whole = [k for k in kernels if k.variable.shape[k.input_axis] % size == 0]
    others = ", ".join(k.layer_path for k in kernels if k not in whole)
    if not whole:
        raise errors.ConfigValueError(
            f"`compression.pruning.sparsity_m_by_n` is {list(sparsity_m_by_n)}, but the number of "
            f"inputs is not a multiple of {size} in any of the layers: {others}."
        )
    if others:
        logging.info("Not pruned, because their inputs are no multiple of %d: %s.", size, others)
    return whole


def _smallest_of_blocks(sizes: _Array, m: int, n: int, axis: int) -> _Array:
    """Return where the `m` smallest elements of each `n` along an axis are."""
    blocks = np.moveaxis(sizes, axis, -1)
    ranks = blocks.reshape(*blocks.shape[:-1], -1, n)
    ranks = ranks.argsort(axis=-1, kind="stable").argsort(axis=-1, kind="stable")
    return np.moveaxis((ranks < m).reshape(blocks.shape), -1, axis)
