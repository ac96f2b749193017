"""Matching of the tensors in a checkpoint to the variables of a model.

Attributes identify objects: the saved `model.head` belongs to `model.head`. The layers of a
functional or sequential model, and layers in lists, are saved by position, and positions change
when a layer is added or removed. Such layers are therefore matched by the names of their variables
as far as the names are informative: Keras numbers layers without an explicit name across the whole
process, so `dense_2` may be `dense` in another process.
"""

import collections
import dataclasses
import enum
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import keras
import tensorflow as tf

from official_lite.checkpoint import keras2_checkpoint
from official_lite.common import keras_variables

__all__ = ["Evidence", "Pair", "pair"]

_T = TypeVar("_T")


class Evidence(enum.IntEnum):
    """The evidence that a variable and a tensor belong together, the strongest first."""

    NAME = 0
    POSITION = 1
    DOUBTFUL_POSITION = 2
    """The position in a list that had another length."""


@dataclasses.dataclass(frozen=True)
class Pair:
    """A variable, its tensor and the evidence for the match."""

    variable: Any
    tensor: keras2_checkpoint.Tensor
    evidence: Evidence
    is_moved: bool = False
    """Whether the variable has another position in the model than in the checkpoint."""


_Pairs = dict[int, Pair]


def pair(
    model: keras.Model | tf.Module,
    items: Mapping[str, Any],
    hidden: Sequence[Any],
    checkpoint: keras2_checkpoint.Keras2Checkpoint,
) -> _Pairs:
    """Match variables to tensors; return the pairs by the `id` of the variable.

    Args:
        model: The model, whose layer classes show which names Keras generated.
        items: The objects that may have been saved at the top of the checkpoint, by name.
        hidden: The `hidden_weights` of the model.
        checkpoint: The checkpoint.
    """
    saved = checkpoint.node(0).children
    common = [name for name in items if name in saved and name != "hidden_weights"]
    places: _Pairs = {}
    for name in common:
        for found in _walk(items[name], saved[name]):
            known = places.get(id(found.variable))
            if known is None or found.evidence < known.evidence:
                places[id(found.variable)] = found
    # Even for a part of the model, the weights in lists are saved as those of the whole model.
    in_list = _hidden_tensors(checkpoint)
    places = _pair_list(hidden, in_list) | places
    variables = {id(v): v for name in common for v in keras_variables.variables_of(items[name])}
    variables |= {id(v): v for v in hidden if in_list}
    tensors = [tensor for name in common for tensor in saved[name].tensors()] + in_list
    return _settle(model, variables, list(dict.fromkeys(tensors)), places)


def _walk(part: object, node: keras2_checkpoint.Node) -> Iterator[Pair]:
    """Traverse the objects of the model and the saved objects in parallel, by name."""
    # Wrap lists and dicts in the same way as a checkpoint does.
    root = tf.train.Checkpoint(part=part).part
    seen: set[tuple[int, int, Evidence]] = set()
    pending: list[tuple[Any, keras2_checkpoint.Node, Evidence]] = [(root, node, Evidence.NAME)]
    while pending:
        trackable, node, evidence = pending.pop()
        if (id(trackable), node.index, evidence) in seen:
            continue
        seen.add((id(trackable), node.index, evidence))
        if keras_variables.is_variable(trackable):
            if node.tensor:
                yield Pair(trackable, node.tensor, evidence)
            continue
        children = tf.train.TrackableView.children(trackable)
        by_position = max(evidence, _evidence_of_places(children, node.children))
        for name, child in children.items():
            if name in node.children:
                below = by_position if name.isdigit() else evidence
                pending.append((child, node.children[name], below))


def _evidence_of_places(first: Mapping[str, Any], second: Mapping[str, Any]) -> Evidence:
    counts = [sum(name.isdigit() for name in names) for names in (first, second)]
    return Evidence.POSITION if counts[0] == counts[1] else Evidence.DOUBTFUL_POSITION


def _hidden_tensors(
    checkpoint: keras2_checkpoint.Keras2Checkpoint,
) -> list[keras2_checkpoint.Tensor]:
    """Return the saved `hidden_weights` with the names that were saved for them."""
    saved = checkpoint.node(0).children
    if "hidden_weights" not in saved:
        return []
    nodes = saved["hidden_weights"].children
    tensors = [nodes[str(i)].tensor for i in range(len(nodes))]
    text = checkpoint.read_state(saved["hidden_names"]) if "hidden_names" in saved else None
    # Without `hidden_names`, only names made up by TensorFlow exist, which lack the layer.
    names = json.loads(text) if text else [""] * len(tensors)
    return [
        dataclasses.replace(tensor, full_name=name)
        for tensor, name in zip(tensors, names, strict=True)
        if tensor
    ]


def _pair_list(variables: Sequence[Any], tensors: Sequence[keras2_checkpoint.Tensor]) -> _Pairs:
    """Match by position, which is doubtful for lists of different length.

    For such lists, matching stops at the first pair of different shapes.
    """
    is_alike = len(tensors) == len(variables)
    evidence = Evidence.POSITION if is_alike else Evidence.DOUBTFUL_POSITION
    pairs: _Pairs = {}
    for variable, tensor in zip(variables, tensors, strict=False):
        if not is_alike and tensor.shape != tuple(variable.shape):
            break
        pairs[id(variable)] = Pair(variable, tensor, evidence)
    return pairs


def _settle(
    model: keras.Model | tf.Module,
    variables: Mapping[int, Any],
    tensors: Sequence[keras2_checkpoint.Tensor],
    places: _Pairs,
) -> _Pairs:
    """Let names decide wherever the only evidence is a position."""
    pairs = {key: found for key, found in places.items() if found.evidence == Evidence.NAME}
    certain = {found.tensor.key for found in pairs.values()}
    open_variables = [v for key, v in variables.items() if key not in pairs]
    open_tensors = [tensor for tensor in tensors if tensor.key not in certain]
    names = _Names(model, open_variables, open_tensors)
    named_variables = _unique(names.of_variable, open_variables)
    named_tensors = _unique(names.of_tensor, open_tensors)
    for name in named_variables.keys() & named_tensors.keys():
        variable, tensor = named_variables[name], named_tensors[name]
        place = places.get(id(variable))
        is_moved = place is None or place.tensor.key != tensor.key
        pairs[id(variable)] = Pair(variable, tensor, Evidence.NAME, is_moved)
    taken = {found.tensor.key for found in pairs.values()}
    for key, found in places.items():
        if key in pairs or found.tensor.key in taken:
            continue
        name, saved_name = names.of_variable(found.variable), names.of_tensor(found.tensor)
        is_agreed = name == saved_name and found.evidence == Evidence.POSITION
        pairs[key] = dataclasses.replace(found, evidence=Evidence.NAME) if is_agreed else found
    return pairs


def _unique(name_of_item: Callable[[_T], str], items: Sequence[_T]) -> dict[str, _T]:
    """Return the items by name, without names that several items share."""
    counts = collections.Counter(name_of_item(item) for item in items)
    named = {name_of_item(item): item for item in items}
    return {name: item for name, item in named.items() if name and counts[name] == 1}


class _Names:
    """Normalized names, without the parts that differ between two models of the same class."""

    def __init__(
        self,
        model: keras.Model | tf.Module,
        variables: Sequence[Any],
        tensors: Sequence[keras2_checkpoint.Tensor],
    ) -> None:
        layers = model._flatten_layers() if isinstance(model, keras.Layer) else []
        self._kinds = {_snake_case(type(layer).__name__) for layer in layers}
        self._model_name = _first_part([keras_variables.path_of(v) for v in variables])
        self._saved_model_name = _first_part([tensor.full_name for tensor in tensors])
        if self._model_name != getattr(model, "name", "") or not self._saved_model_name:
            self._model_name = self._saved_model_name = ""

    def of_variable(self, variable: keras.Variable | tf.Variable) -> str:
        name = keras_variables.path_of(variable).removesuffix(":0")
        return self._without_numbers(name.removeprefix(f"{self._model_name}/"))

    def of_tensor(self, tensor: keras2_checkpoint.Tensor) -> str:
        return self._without_numbers(tensor.full_name.removeprefix(f"{self._saved_model_name}/"))

    def _without_numbers(self, name: str) -> str:
        return "/".join(self._kind(part) or part for part in name.split("/"))

    def _kind(self, name: str) -> str | None:
        """Return the snake-case class name if Keras generated this layer name; None otherwise."""
        stem = re.sub(r"_\d+$", "", name)
        return stem if stem in self._kinds else None


def _first_part(names: Sequence[str]) -> str:
    """Return the first path component that all names share, such as the name of the model."""
    firsts = {name.partition("/")[0] for name in names}
    return firsts.pop() if len(firsts) == 1 else ""


def _snake_case(name: str) -> str:
    """Convert a class name to a layer name in the same way as Keras does."""
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", name))
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()
