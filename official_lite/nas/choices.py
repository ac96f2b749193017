"""The choices of a model: layers with several candidates, one of which is chosen later.

A choice is part of a model like any other layer. Its resolver, which a trainer sets, defines what
it computes. Within `fixed_arch` the constructor returns the chosen layer, and the model contains no
choice at all::

    conv = nas.LayerChoice(
        {"conv3": lambda: keras.layers.Conv2D(16, 3, padding="same"),
         "skip": keras.layers.Identity},
        label="conv",
    )
    x = conv(x)
"""

from __future__ import annotations

import abc
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from official_lite.common import errors, nests, suggestions
from official_lite.nas import architecture

__all__ = ["Cell", "Choice", "ChosenInputs", "InputChoice", "LayerChoice", "Repeat", "ValueChoice"]

Candidates: TypeAlias = Mapping[str, keras.layers.Layer | Callable[[], keras.layers.Layer]]
Block: TypeAlias = (
    Callable[[int], keras.layers.Layer] | list[keras.layers.Layer] | tuple[keras.layers.Layer, ...]
)

# The maximum number of input sets of a choice. Each set is a separate option.
_MAX_SETS_OF_INPUTS = 128
_REDUCTIONS = ("sum", "mean", "concat", "none")


class Choice(keras.layers.Layer, abc.ABC):
    """The base class of all choices.

    Attributes:
        label: The name of the choice. Choices with the same label are one decision.
        options: The options, as they are written to `arch.json`.
        prior: The initial probability of each option; None if all are equally probable.
        input_shape_built: The input shape for which the choice was built; None for choices with
            several inputs.
    """

    options: list[Any]
    prior: list[float] | None
    input_shape_built: Any

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if architecture.is_fixed():
            return cls._chosen(*args, **kwargs)
        return super().__new__(cls, *args, **kwargs)

    def __init__(self, label: str, options: Sequence[Any], **kwargs: Any) -> None:
        architecture.require_label(label)
        super().__init__(**kwargs)
        self.label = label
        # Bypass the attribute tracking of Keras, which would wrap the list.
        self.__dict__["options"] = list(options)
        self.__dict__["prior"] = None
        self.__dict__["_resolver"] = None
        self.__dict__["input_shape_built"] = None

    @classmethod
    def _chosen(cls, *args: Any, **kwargs: Any) -> Any:
        """Return the object that replaces the choice if an architecture is fixed."""
        return super().__new__(cls, *args, **kwargs)

    def set_resolver(self, resolver: Callable[..., Any] | None) -> None:
        """Set the function that computes the choice: `resolver(choice, inputs, training)`."""
        # Bypass Keras' attribute tracking: the resolver's variables are not part of the model.
        self.__dict__["_resolver"] = resolver

    @abc.abstractmethod
    def branch(self, index: int, inputs: nests.Nest) -> Any:
        """Return the output of one option."""

    def outputs(self, inputs: nests.Nest) -> list[Any]:
        """Return the output of each option."""
        return [self.branch(index, inputs) for index in range(len(self.options))]

    @abc.abstractmethod
    def layers_of(self, index: int) -> list[keras.layers.Layer]:
        """Return the layers that one option uses."""

    def call(self, inputs: nests.Nest, training: bool | None = None) -> Any:
        if self._resolver is None:
            raise errors.ConfigValueError(
                f"The choice {self.label!r} is still open. Set `task.arch` (and build the model "
                "within `nas.fixed_arch(task_config.arch)`), or use a trainer that searches, such "
                "as `trainer.name: darts`."
            )
        return self._resolver(self, inputs, training)

    def _require_same(self, specs: Mapping[Any, Any]) -> Any:
        """Return the common output spec of all options, or raise if their shapes differ."""
        (first, wanted), *others = specs.items()
        for option, spec in others:
            if tuple(spec.shape) != tuple(wanted.shape):
                raise errors.ConfigValueError(
                    f"The options of the choice {self.label!r} have different output shapes: "
                    f"`{first}` {tuple(wanted.shape)}, `{option}` {tuple(spec.shape)}. Make all "
                    "options return the same shape."
                )
        # Return a new tensor: the input itself would create a cycle in a functional model.
        return keras.KerasTensor(wanted.shape, dtype=wanted.dtype)


@keras.saving.register_keras_serializable("official_lite")
class LayerChoice(Choice):
    """A choice between several layers.

    Args:
        candidates: Layers by name, or functions without arguments that create them. All candidates
            must accept the same input shape and return the same output shape. If they are
            functions, only the chosen layer is created once the architecture is fixed.
        label: The name of the choice.
        prior: The initial probability of each candidate, in the order of `candidates`.
    """

    @classmethod
    def _chosen(cls, candidates: Candidates, *, label: str, **kwargs: Any) -> Any:
        creators = [functools.partial(_create, candidate) for candidate in candidates.values()]
        chosen = creators.pop(architecture.ask_for(label, list(candidates)))
        architecture.add_unchosen(creators)
        return chosen()

    def __init__(
        self,
        candidates: Candidates,
        *,
        label: str,
        prior: Sequence[float] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(label, list(candidates), **kwargs)
        self.candidates = {name: _create(candidate) for name, candidate in candidates.items()}
        self.__dict__["prior"] = _checked_prior(prior, label, len(candidates))

    def build(self, input_shape: Sequence[int | None]) -> None:
        self.__dict__["input_shape_built"] = tuple(input_shape)
        for candidate in self.candidates.values():
            # Candidates of a loaded model are already built.
            if not candidate.built:
                candidate.build(input_shape)
        self._output_spec(keras.KerasTensor(input_shape, dtype=self.compute_dtype))

    def compute_output_spec(self, inputs: nests.Nest, training: bool | None = None) -> Any:
        return self._output_spec(inputs)

    def branch(self, index: int, inputs: nests.Nest) -> Any:
        return self.candidates[self.options[index]](inputs)

    def layers_of(self, index: int) -> list[keras.layers.Layer]:
        return [self.candidates[self.options[index]]]

    def get_config(self) -> dict[str, Any]:
        candidates = {
            name: keras.saving.serialize_keras_object(layer)
            for name, layer in self.candidates.items()
        }
        own = {"candidates": candidates, "label": self.label, "prior": self.prior}
        return {**super().get_config(), **own}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        candidates = {
            name: keras.saving.deserialize_keras_object(layer)
            for name, layer in config["candidates"].items()
        }
        return cls(**{**config, "candidates": candidates})

    def _output_spec(self, inputs: nests.Nest) -> Any:
        return self._require_same(
            {name: layer.compute_output_spec(inputs) for name, layer in self.candidates.items()}
        )


@keras.saving.register_keras_serializable("official_lite")
class Repeat(Choice):
    """A choice of how many times a block is repeated.

    Args:
        block: Function that creates the block at an index, or a list of blocks. All depths must
            return the same output shape, so blocks usually keep the shape of their input.
        depth: The smallest and the largest number of blocks.
        label: The name of the choice.
    """

    @classmethod
    def _chosen(cls, block: Block, depth: tuple[int, int], *, label: str, **kwargs: Any) -> Any:
        depths = _depths(depth, label)
        chosen = depths[architecture.ask_for(label, depths)]
        creators = [functools.partial(_create_block, block, index) for index in range(depths[-1])]
        architecture.add_unchosen(creators[chosen:])
        blocks = [create() for create in creators[:chosen]]
        if len(blocks) == 1:
            return blocks[0]
        return keras.Sequential(blocks) if blocks else keras.layers.Identity()

    def __init__(self, block: Block, depth: tuple[int, int], *, label: str, **kwargs: Any) -> None:
        depths = _depths(depth, label)
        super().__init__(label, depths, **kwargs)
        self.blocks = [_create_block(block, index) for index in range(depths[-1])]

    def build(self, input_shape: Sequence[int | None]) -> None:
        self.__dict__["input_shape_built"] = tuple(input_shape)
        spec = keras.KerasTensor(input_shape, dtype=self.compute_dtype)
        for block in self.blocks:
            if not block.built:
                block.build(spec.shape)
            spec = block.compute_output_spec(spec)
        self._output_spec(keras.KerasTensor(input_shape, dtype=self.compute_dtype))

    def compute_output_spec(self, inputs: nests.Nest, training: bool | None = None) -> Any:
        return self._output_spec(inputs)

    def branch(self, index: int, inputs: nests.Nest) -> Any:
        for block in self.layers_of(index):
            inputs = block(inputs)
        return inputs

    def outputs(self, inputs: nests.Nest) -> list[Any]:
        # Compute each block once: a deeper option continues from the output of the previous depth.
        prefixes = [inputs]
        for block in self.blocks:
            prefixes.append(block(prefixes[-1]))
        return [prefixes[depth] for depth in self.options]

    def layers_of(self, index: int) -> list[keras.layers.Layer]:
        return list(self.blocks[: self.options[index]])

    def get_config(self) -> dict[str, Any]:
        blocks = [keras.saving.serialize_keras_object(block) for block in self.blocks]
        depth = [self.options[0], self.options[-1]]
        return {**super().get_config(), "block": blocks, "depth": depth, "label": self.label}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        blocks = [keras.saving.deserialize_keras_object(block) for block in config["block"]]
        return cls(**{**config, "block": blocks})

    def _output_spec(self, inputs: nests.Nest) -> Any:
        specs = {0: inputs}
        for depth, block in enumerate(self.blocks, start=1):
            specs[depth] = block.compute_output_spec(specs[depth - 1])
        return self._require_same({depth: specs[depth] for depth in self.options})


def ValueChoice(values: Sequence[Any], *, label: str) -> Any:
    """Return the chosen one of several values, such as a number of units, while a model is built.

    Use this in models that are searched trial by trial. The trainers of this package can't search
    it, because a layer can't have several sizes at once.

    Args:
        values: The possible values.
        label: The name of the choice.

    Raises:
        errors.ConfigValueError: If no architecture is fixed.
    """
    if not architecture.is_fixed():
        raise errors.ConfigValueError(
            f"No value is chosen for {label!r}, and one-shot trainers such as `darts` and `spos` "
            "can't search it. Set `task.arch`, or search trial by trial."
        )
    return values[architecture.ask_for(label, list(values))]


def _create(candidate: keras.layers.Layer | Callable[[], keras.layers.Layer]) -> keras.layers.Layer:
    return candidate if isinstance(candidate, keras.layers.Layer) else candidate()


def _create_block(block: Block, index: int) -> keras.layers.Layer:
    return _create(block[index] if isinstance(block, list | tuple) else lambda: block(index))


def _checked_prior(prior: Sequence[float] | None, label: str, count: int) -> list[float] | None:
    if prior is None:
        return None
    weights = [float(weight) for weight in prior]
    if len(weights) != count or min(weights) <= 0:
        raise errors.ConfigValueError(
            f"The prior of {label!r} is {weights}; expected {count} positive numbers."
        )
    return [weight / sum(weights) for weight in weights]


def _depths(depth: Sequence[int], label: str) -> list[int]:
    least, most = depth
    if not 0 <= least <= most or most < 1:
        raise errors.ConfigValueError(
            f"`depth` of {label!r} is {tuple(depth)}; expected the minimum and the maximum number "
            "of blocks."
        )
    return list(range(least, most + 1))


@keras.saving.register_keras_serializable("official_lite")
class InputChoice(Choice):
    """A choice of some of several inputs. Call the layer with the list of all inputs.

    Args:
        n_candidates: Number of inputs.
        n_chosen: Number of inputs to choose; None allows any number of at least 1.
        reduction: How the chosen inputs are combined: `sum`, `mean`, `concat` (along the last axis)
            or `none`, which returns them as a list. With `sum`, `mean` and `concat`, a single
            chosen input is returned as it is. Trainers that search within one training run support
            only `sum` and `mean`.
        label: The name of the choice.
    """

    @classmethod
    def _chosen(
        cls,
        n_candidates: int,
        n_chosen: int | None = 1,
        reduction: str = "sum",
        *,
        label: str,
        **kwargs: Any,
    ) -> Any:
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
                f"The choice {self.label!r} expects a list of {self.n_candidates} inputs, got "
                f"{given} inputs."
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
            f"Unknown `reduction` {reduction!r}. {suggestions.did_you_mean(reduction, _REDUCTIONS)}"
        )


def _sets_of_inputs(count: int, chosen: int | None, label: str) -> list[list[int]]:
    if chosen is not None and not 1 <= chosen <= count:
        raise errors.ConfigValueError(
            f"`n_chosen` of {label!r} is {chosen}; expected 1 to {count}, or None."
        )
    sizes = range(1, count + 1) if chosen is None else [chosen]
    num_sets = sum(math.comb(count, size) for size in sizes)
    if num_sets > _MAX_SETS_OF_INPUTS:
        raise errors.ConfigValueError(
            f"The choice {label!r} has {num_sets} possible sets of inputs; expected at most "
            f"{_MAX_SETS_OF_INPUTS}. Use several choices of one input each."
        )
    return [list(one) for size in sizes for one in itertools.combinations(range(count), size)]


def _reduce(tensors: Sequence[Any], reduction: str) -> Any:
    if reduction == "none":
        return list(tensors)
    if len(tensors) == 1:
        # Return a new tensor, because a branch of a conditional can't return its input itself.
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


class Cell:
    """The search space of DARTS and ENAS: a sequence of nodes that sum operations on earlier nodes.

    The operations and their inputs are choices. A cell is not a layer: it adds layers to a
    functional model, so the final model contains only Keras layers. Cells with the same label share
    their choices but not their weights::

        cell = nas.Cell({"conv3": ..., "skip": ...}, num_nodes=4, label="normal")
        x = cell([before_last, last])

    Args:
        candidates: Operations by name, as functions that create a layer. All operations must keep
            the shape of their input.
        num_nodes: Number of nodes, not counting the inputs of the cell.
        num_ops_per_node: Number of operations that each node sums.
        num_predecessors: Number of inputs of the cell.
        merge: Output of the cell: `concat` concatenates all nodes along the last axis; `last`
            returns the last node.
        label: Prefix of the labels of the cell's choices, which are `<label>/op_<node>_<number>`
            and `<label>/input_<node>_<number>`.
    """

    def __init__(
        self,
        candidates: Mapping[str, Callable[[], keras.layers.Layer]],
        *,
        num_nodes: int,
        num_ops_per_node: int = 2,
        num_predecessors: int = 2,
        merge: str = "concat",
        label: str,
    ) -> None:
        self._candidates = candidates
        self._num_nodes = num_nodes
        self._num_ops = num_ops_per_node
        self._num_predecessors = num_predecessors
        self._merge = merge
        self._label = label

    def __call__(self, inputs: Sequence[Any]) -> Any:
        """Return the output of the cell for a list of `num_predecessors` inputs."""
        states = list(inputs)
        nodes = [self._add_node(number, states) for number in range(self._num_nodes)]
        if self._merge == "last" or len(nodes) == 1:
            return nodes[-1]
        return keras.layers.Concatenate()(nodes)

    def _add_node(self, number: int, states: list[Any]) -> Any:
        results = []
        for op in range(self._num_ops):
            place = f"{number + self._num_predecessors}_{op}"
            source = InputChoice(len(states), label=f"{self._label}/input_{place}")
            operation = LayerChoice(self._candidates, label=f"{self._label}/op_{place}")
            results.append(operation(source(states)))
        node = keras.layers.Add()(results) if len(results) > 1 else results[0]
        states.append(node)
        return node
