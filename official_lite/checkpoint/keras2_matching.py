"""Matching of the tensors in a Keras 2 checkpoint to the variables of a Keras 3 model.

The structure of the user's model is common to Keras 2 and Keras 3, so it determines the matches.
The layers of a functional or sequential model are matched by name if both sides have the same
names, and otherwise by order. Everything else is matched by the attribute that holds it. Shapes do
not influence the matches, so that a wrong shape is detected.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import keras

from official_lite.checkpoint import keras2_checkpoint

__all__ = ["Candidates", "match_names", "match_structure", "weights_of"]

# Maps the `id` of a variable to the tensors that may belong to it.
Candidates = dict[int, list[keras2_checkpoint.Tensor]]

_HOLDERS = (keras.Variable, keras.layers.Layer, Mapping, list, tuple)


def weights_of(target: Any) -> list[Any]:
    """Return the variables of a model, or of an object that holds layers, once each.

    Metrics and random states, which Keras 2 did not save as weights, are not included.
    """
    if isinstance(target, keras.Variable):
        return [target]
    if isinstance(target, keras.layers.Layer):
        return list(target.weights)
    if isinstance(target, Mapping):
        parts: Iterable[Any] = target.values()
    elif isinstance(target, list | tuple):
        parts = target
    else:
        parts = vars(target).values()
    found = [v for part in parts if isinstance(part, _HOLDERS) for v in weights_of(part)]
    return list({id(variable): variable for variable in found}.values())


def match_structure(
    target: Any, node: keras2_checkpoint.Node, *, renamed: Mapping[str, str]
) -> Candidates:
    """Traverse a model and a saved tree of objects in parallel and collect candidates.

    Args:
        target: A model, or any object whose attributes hold layers.
        node: The saved counterpart of `target`.
        renamed: Maps attribute or layer names in the checkpoint to names in the model.
    """
    return _Walk(renamed).visit(target, node)


def match_names(weights: list[Any], tensors: list[keras2_checkpoint.Tensor]) -> Candidates:
    """Match variables to the tensors whose names share the longest ending of at least two parts.

    This is for checkpoints of TensorFlow 1, which contain only names and no objects.
    """
    likeness = {(id(v), t): _likeness(v.path, t.full_name) for v in weights for t in tensors}
    nearest: dict[Any, tuple[int, int]] = {}
    for pair, value in likeness.items():
        for side in pair:
            nearest[side] = max(nearest.get(side, value), value)
    found: Candidates = defaultdict(list)
    for (variable, tensor), value in likeness.items():
        if value[0] >= 2 and value == nearest[variable] == nearest[tensor]:
            found[variable].append(tensor)
    return found


def _likeness(path: str, full_name: str) -> tuple[int, int]:
    """Return the number of equal trailing parts and, negated, of other parts in `full_name`."""
    ours, theirs = path.split("/")[::-1], full_name.split("/")[::-1]
    pairs = zip(ours, theirs, strict=False)
    equal = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    return equal, equal - len(theirs)


class _Walk:
    """A traversal that records visited pairs, because layers may be shared."""

    def __init__(self, renamed: Mapping[str, str]) -> None:
        self._renamed = renamed
        self._seen: set[tuple[int, int]] = set()
        self._found: Candidates = defaultdict(list)

    def visit(self, target: Any, node: keras2_checkpoint.Node) -> Candidates:
        if (id(target), node.index) not in self._seen:
            self._seen.add((id(target), node.index))
            if isinstance(target, keras.Variable) and node.tensor:
                self._found[id(target)].append(node.tensor)
            for part, child in self._pairs(target, node):
                self.visit(part, child)
        return self._found

    def _pairs(
        self, target: Any, node: keras2_checkpoint.Node
    ) -> Iterator[tuple[Any, keras2_checkpoint.Node]]:
        if isinstance(target, keras.Model) and node.layers:
            yield from self._layer_pairs(target, node)
        for name, child in node.children.items():
            part = _part(target, self._renamed.get(name, name))
            if part is not None:
                yield part, child

    def _layer_pairs(
        self, model: Any, node: keras2_checkpoint.Node
    ) -> Iterable[tuple[Any, keras2_checkpoint.Node]]:
        layers = [layer for layer in model.layers if layer.weights]
        saved = {self._renamed.get(s.layer_name or "", s.layer_name): s for s in node.layers}
        if len(saved) == len(node.layers) and {layer.name for layer in layers} == set(saved):
            return [(layer, saved[layer.name]) for layer in layers]
        pairs = list(zip(layers, node.layers, strict=False))
        if len(layers) == len(node.layers):
            return pairs
        # A layer was added or removed, so the order is reliable only up to that layer.
        return itertools.takewhile(_have_equal_shapes, pairs)


def _have_equal_shapes(pair: tuple[Any, keras2_checkpoint.Node]) -> bool:
    layer, node = pair
    shapes = sorted(tuple(variable.shape) for variable in layer.weights)
    return shapes == sorted(tensor.shape for tensor in node.tensors())


def _part(target: Any, name: str) -> Any:
    """Return the part of `target` that Keras 2 would have saved as `name`; None if there is none.

    This reads `vars` and never calls `getattr`, because a property might compute something or
    raise.
    """
    if isinstance(target, list | tuple):
        return target[int(name)] if name.isdigit() and int(name) < len(target) else None
    if isinstance(target, Mapping):
        return next((value for key, value in target.items() if str(key) == name), None)
    own = vars(target) if hasattr(target, "__dict__") else {}
    for spelling in (name, f"_{name}", name.removeprefix("_")):
        if isinstance(own.get(spelling), _HOLDERS):
            return own[spelling]
    named = [part for part in own.values() if isinstance(part, keras.Variable)]
    if isinstance(target, keras.Model):
        named += target.layers
    return next((part for part in named if part.name == name), None)
