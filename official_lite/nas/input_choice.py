"""A choice of the inputs that a layer uses.

As with the other choices, a resolver computes it while it is open. Within `fixed_arch` the
constructor returns a `ChosenInputs`, which leaves no choice in the model.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from official_lite.common import errors, suggestions
from official_lite.nas import architecture
from official_lite.nas.choices import Choice

__all__ = ["ChosenInputs", "InputChoice"]

# Each set of inputs is an option of its own, so the number of sets must be limited.
_MOST_SETS_OF_INPUTS = 128

_REDUCTIONS = ("sum", "mean", "concat", "none")


@keras.saving.register_keras_serializable("official_lite")
class InputChoice(Choice):
    """A choice of some of several inputs. Call the layer with the list of all inputs.

    Args:
        n_candidates: Number of inputs.
        n_chosen: Number of inputs to choose; None allows any number of at least 1.
        reduction: How the chosen inputs are combined: `sum`, `mean`, `concat` (along the last axis)
            or `none`, which returns them as a list. With `sum`, `mean` and `concat`, a single
            chosen input is returned as it is. Trainers that search within one training support only
            `sum` and `mean`.
        label: The name of the choice.
    """

    def __new__(
        cls,
        n_candidates: int = 0,
        n_chosen: int | None = 1,
        reduction: str = "sum",
        *,
        label: str = "",
        **kwargs: Any,
    ) -> Any:
        if not architecture.is_fixed():
            return super().__new__(cls, n_candidates, n_chosen, reduction, label=label, **kwargs)
        _check_reduction(reduction)
        options = _sets_of_inputs(n_candidates, n_chosen, label)
        return ChosenInputs(options[architecture.ask_for(label, options)], reduction)

    def __init__(
        self,
        n_candidates: int,
        n_chosen: int | None = 1,
        reduction: str = "sum",
        *,
        label: str,
        **kwargs: Any,
    ) -> None:
        _check_reduction(reduction)
        super().__init__(label, _sets_of_inputs(n_candidates, n_chosen, label), **kwargs)
        self.n_candidates = n_candidates
        self.n_chosen = n_chosen
        self.reduction = reduction

    def compute_output_spec(self, inputs: Sequence[tf.Tensor], training: bool | None = None) -> Any:
        self._check_inputs(inputs)
        specs = {
            str(option): _reduce_spec([inputs[i] for i in option], self.reduction)
            for option in self.options
        }
        if self.reduction == "none":
            return next(iter(specs.values()))
        return self._require_same(specs)

    def branch(self, index: int, inputs: Sequence[tf.Tensor]) -> Any:
        self._check_inputs(inputs)
        return _reduce([inputs[i] for i in self.options[index]], self.reduction)

    def layers_of(self, index: int) -> list[keras.layers.Layer]:
        return []

    def get_config(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in ("n_candidates", "n_chosen", "reduction")}
        return {**super().get_config(), **own, "label": self.label}

    def _check_inputs(self, inputs: Sequence[tf.Tensor]) -> None:
        if not isinstance(inputs, list | tuple) or len(inputs) != self.n_candidates:
            given = len(inputs) if isinstance(inputs, list | tuple) else "no list of"
            raise errors.ConfigValueError(
                f"The choice {self.label!r} expects {self.n_candidates} inputs, got {given} inputs."
            )


class ChosenInputs:
    """A decided `InputChoice`: selects the chosen inputs and merges several by a Keras layer.

    Args:
        indices: The indices of the chosen inputs.
        reduction: The reduction of the `InputChoice`.
    """

    def __init__(self, indices: Sequence[int], reduction: str) -> None:
        self._indices = indices
        self._is_list = reduction == "none"
        self._merge: Any = None
        if len(indices) > 1 and not self._is_list:
            layers = keras.layers
            merges = {"sum": layers.Add, "mean": layers.Average, "concat": layers.Concatenate}
            self._merge = merges[reduction]()

    def __call__(self, inputs: Sequence[Any]) -> Any:
        chosen = [inputs[index] for index in self._indices]
        if self._is_list:
            return chosen
        return chosen[0] if self._merge is None else self._merge(chosen)


def _check_reduction(reduction: str) -> None:
    if reduction not in _REDUCTIONS:
        raise errors.ConfigValueError(
            f"`reduction` is {reduction!r}. {suggestions.did_you_mean(reduction, _REDUCTIONS)}"
        )


def _sets_of_inputs(count: int, chosen: int | None, label: str) -> list[list[int]]:
    if not label:
        raise errors.ConfigValueError("A choice needs a `label`, by which it is found again.")
    if chosen is not None and not 1 <= chosen <= count:
        raise errors.ConfigValueError(
            f"`n_chosen` of {label!r} is {chosen}; expected 1 to {count}, or None."
        )
    sizes = range(1, count + 1) if chosen is None else [chosen]
    num_sets = sum(math.comb(count, size) for size in sizes)
    if num_sets > _MOST_SETS_OF_INPUTS:
        raise errors.ConfigValueError(
            f"The choice {label!r} has {num_sets} possible sets of inputs; expected at most "
            f"{_MOST_SETS_OF_INPUTS}. Use several choices of one input each."
        )
    return [list(one) for size in sizes for one in itertools.combinations(range(count), size)]


def _reduce(tensors: Sequence[Any], reduction: str) -> Any:
    if reduction == "none":
        return list(tensors)
    if len(tensors) == 1:
        # Return a new tensor, because a branch can't return its input itself.
        return tf.identity(tensors[0])
    if reduction == "concat":
        return tf.concat(tensors, -1)
    total = tf.add_n(list(tensors))
    return total / len(tensors) if reduction == "mean" else total


def _reduce_spec(specs: Sequence[Any], reduction: str) -> Any:
    if reduction == "none":
        return [keras.KerasTensor(spec.shape, dtype=spec.dtype) for spec in specs]
    shape = tuple(specs[0].shape)
    if reduction == "concat":
        sizes = [spec.shape[-1] for spec in specs]
        shape = (*shape[:-1], None if None in sizes else sum(sizes))
    elif any(tuple(spec.shape) != shape for spec in specs):
        raise errors.ConfigValueError(
            "Inputs to be added must have the same shape, got "
            f"{[tuple(spec.shape) for spec in specs]}."
        )
    return keras.KerasTensor(shape, dtype=specs[0].dtype)
