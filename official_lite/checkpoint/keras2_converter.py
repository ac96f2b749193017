"""Conversion of Keras 2 weights to a Keras 3 model."""

import collections
import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

from official_lite.checkpoint import conversion_report, keras2_checkpoint
from official_lite.common import errors

__all__ = [
    "Candidates",
    "compare",
    "match",
    "match_names",
    "match_structure",
    "weights_of",
    "restore_keras2_checkpoint",
]


# Maps the `id` of a variable to the tensors that may belong to it.
Candidates = dict[int, list[keras2_checkpoint.Tensor]]

_HOLDERS = (keras.Variable, keras.layers.Layer, Mapping, list, tuple)


def weights_of(target: object) -> list[Any]:
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
    target: object, node: keras2_checkpoint.Node, *, renamed: Mapping[str, str]
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

    def visit(self, target: object, node: keras2_checkpoint.Node) -> Candidates:
        if (id(target), node.index) not in self._seen:
            self._seen.add((id(target), node.index))
            if isinstance(target, keras.Variable) and node.tensor:
                self._found[id(target)].append(node.tensor)
            for part, child in self._pairs(target, node):
                self.visit(part, child)
        return self._found

    def _pairs(
        self, target: object, node: keras2_checkpoint.Node
    ) -> Iterator[tuple[Any, keras2_checkpoint.Node]]:
        if isinstance(target, keras.Model) and node.layers:
            yield from self._layer_pairs(target, node)
        for name, child in node.children.items():
            part = _part(target, self._renamed.get(name, name))
            if part is not None:
                yield part, child

    def _layer_pairs(
        self, model: keras.Model, node: keras2_checkpoint.Node
    ) -> Iterable[tuple[Any, keras2_checkpoint.Node]]:
        layers = [layer for layer in model.layers if layer.weights]
        names = [self._renamed.get(s.layer_name or "", s.layer_name) for s in node.layers]
        saved = {n: s for n, s in zip(names, node.layers, strict=True) if names.count(n) == 1}
        saved.pop(None, None)
        # Numbers depend on what else was built, unless all of them are there.
        are_equal = saved.keys() <= {layer.name for layer in layers}
        by_name = [
            (layer, saved[layer.name])
            for layer in layers
            if layer.name in saved and (are_equal or not _has_default_name(layer))
        ]
        paired = {id(one) for pair in by_name for one in pair}
        left, left_saved = (
            [one for one in all_of_them if id(one) not in paired]
            for all_of_them in (layers, node.layers)
        )
        by_order: Iterable[tuple[Any, keras2_checkpoint.Node]]
        by_order = zip(left, left_saved, strict=False)
        if len(left) != len(left_saved):
            # A layer was added or removed, so the order is reliable only up to that layer.
            by_order = itertools.takewhile(_have_equal_shapes, by_order)
        return [*by_name, *by_order]


def _has_default_name(layer: keras.Layer) -> bool:
    """Return whether a layer has a name such as `conv2d_3`, which Keras gives to a `Conv2D`."""
    name = re.sub(r"_\d+$", "", layer.name)
    return name.replace("_", "") == type(layer).__name__.lower()


def _have_equal_shapes(pair: tuple[Any, keras2_checkpoint.Node]) -> bool:
    layer, node = pair
    shapes = sorted(tuple(variable.shape) for variable in layer.weights)
    return shapes == sorted(tensor.shape for tensor in node.tensors())


def _part(target: object, name: str) -> Any:
    """Return the part of `target` that Keras 2 would have saved as `name`; None if there is none.

    This reads `vars` and never calls `getattr`, because a property might compute something or
    raise.
    """
    if isinstance(target, list | tuple):
        return target[int(name)] if name.isdigit() and int(name) < len(target) else None
    if isinstance(target, Mapping):
        return next((value for key, value in target.items() if str(key) == name), None)
    own = vars(target) if hasattr(target, "__dict__") else {}
    if isinstance(target, keras.layers.DepthwiseConv1D | keras.layers.DepthwiseConv2D):
        name = "kernel" if name == "depthwise_kernel" else name
    for spelling in (name, f"_{name}", name.removeprefix("_")):
        if isinstance(part := own.get(spelling), _HOLDERS):
            return part
        if isinstance(part, tf.Variable) and isinstance(target, keras.Layer):
            # A layer of `official_lite.keras2` has a weight that shares the variable's value.
            return next((weight for weight in target.weights if weight.value is part), None)
    named = [part for part in own.values() if isinstance(part, keras.Variable)]
    if isinstance(target, keras.Model):
        named += target.layers
    return next((part for part in named if part.name == name), None)


def restore_keras2_checkpoint(
    model: keras.Model,
    path: str,
    *,
    root: str | None = None,
    renamed: Mapping[str, str] | None = None,
    strict: bool = True,
) -> conversion_report.ConversionReport:
    """Assign the weights that tf_keras saved to the variables of the same model in Keras 3.

    Optimizers, counters, metrics and random states in the checkpoint are ignored.

    Args:
        model: A model, or any object whose attributes hold layers. Its variables must exist, so
            call a subclassed model once before.
        path: A checkpoint prefix (`.../ckpt-100`), or a directory, whose latest checkpoint is read.
            Supports checkpoints of `tf.train.Checkpoint`, of `save_weights` without `.h5`, and of
            TensorFlow 1.
        root: The object to read from a checkpoint that holds several, such as `backbone` or
            `model/_encoder`. Defaults to `model`, or to the whole checkpoint if there is no
            `model`.
        renamed: Maps attribute or layer names in the checkpoint to their new names in the model. A
            leading underscore makes no difference.
        strict: Whether every variable must be assigned and every tensor of `root` used.

    Returns:
        A report of what was and was not assigned.

    Raises:
        CheckpointError: There is no checkpoint, the model has no variables yet, or `strict` is set
            and the checkpoint and the model do not fit. The message then contains the report, and
            no variable has been changed.
    """
    checkpoint = keras2_checkpoint.Keras2Checkpoint(path)
    report, chosen = compare(model, checkpoint, root=root, renamed=renamed)
    if strict and not report.is_complete:
        raise errors.CheckpointError(_complaint(report, checkpoint))
    for variable in weights_of(model):
        tensor = chosen.get(id(variable))
        if tensor and tensor.shape == tuple(variable.shape):
            variable.assign(checkpoint.read(tensor))
    return report


def match(
    model: object, checkpoint: keras2_checkpoint.Keras2Checkpoint, *, root: str | None = None
) -> dict[int, keras2_checkpoint.Tensor]:
    """Return the tensor of each weight of a model by the `id` of the weight; assign none.

    Args:
        model: A model, or any object whose attributes hold layers.
        checkpoint: The checkpoint.
        root: The object to read from the checkpoint; see `restore_keras2_checkpoint`.

    Raises:
        CheckpointError: A weight has no tensor of its shape, or a tensor of the model is not used.
    """
    report, chosen = compare(model, checkpoint, root=root)
    if not report.is_complete:
        raise errors.CheckpointError(_complaint(report, checkpoint))
    return chosen


def compare(
    model: object,
    checkpoint: keras2_checkpoint.Keras2Checkpoint,
    *,
    root: str | None = None,
    renamed: Mapping[str, str] | None = None,
) -> tuple[conversion_report.ConversionReport, dict[int, keras2_checkpoint.Tensor]]:
    """Match the weights of a model, and assign none; see `restore_keras2_checkpoint`.

    Returns:
        A report, and the tensor of each matched weight by the `id` of the weight. Its shape may
        differ.
    """
    weights = weights_of(model)
    if not weights:
        raise errors.CheckpointError(
            "The model has no variables yet, so nothing can be restored. Call it once on an input "
            "of the right shape first."
        )
    if checkpoint.has_graph:
        node = checkpoint.root(root)
        tensors = list(dict.fromkeys(node.tensors()))
        candidates = match_structure(model, node, renamed=renamed or {})
    else:
        tensors = checkpoint.named_tensors()
        candidates = match_names(weights, tensors)
    # A layer may hold a variable that is not one of the model's weights.
    ids = {id(variable) for variable in weights}
    candidates = {key: fits for key, fits in candidates.items() if key in ids}
    chosen = _unambiguous(candidates)
    return _report(checkpoint.prefix, weights, tensors, candidates, chosen), chosen


def _unambiguous(
    candidates: Candidates,
) -> dict[int, keras2_checkpoint.Tensor]:
    """Return the pairs in which neither side has another candidate."""
    claims = collections.Counter(itertools.chain.from_iterable(candidates.values()))
    return {
        variable: tensors[0]
        for variable, tensors in candidates.items()
        if len(tensors) == 1 and claims[tensors[0]] == 1
    }


def _report(
    prefix: str,
    weights: list[Any],
    tensors: list[keras2_checkpoint.Tensor],
    candidates: Candidates,
    chosen: Mapping[int, keras2_checkpoint.Tensor],
) -> conversion_report.ConversionReport:
    taken = set(itertools.chain.from_iterable(candidates.values()))
    unexpected = [tensor for tensor in tensors if tensor not in taken]
    pairs = [_match(v, chosen[id(v)]) for v in weights if id(v) in chosen]
    unclear = [v for v in weights if candidates.get(id(v)) and id(v) not in chosen]
    missing = [v for v in weights if not candidates.get(id(v))]
    return conversion_report.ConversionReport(
        checkpoint=prefix,
        matched=tuple(pair for pair in pairs if pair.variable_shape == pair.key_shape),
        mismatched=tuple(pair for pair in pairs if pair.variable_shape != pair.key_shape),
        ambiguous=tuple(_leftover(v, candidates[id(v)]) for v in unclear),
        missing=tuple(
            _leftover(v, [t for t in unexpected if t.shape == tuple(v.shape)]) for v in missing
        ),
        unexpected=tuple(
            conversion_report.Leftover(name=tensor.key, shape=tensor.shape) for tensor in unexpected
        ),
    )


def _match(variable: keras.Variable, tensor: keras2_checkpoint.Tensor) -> conversion_report.Match:
    return conversion_report.Match(
        variable=variable.path,
        variable_shape=tuple(variable.shape),
        key=tensor.key,
        key_shape=tensor.shape,
    )


def _leftover(
    variable: keras.Variable, tensors: Iterable[keras2_checkpoint.Tensor]
) -> conversion_report.Leftover:
    return conversion_report.Leftover(
        name=variable.path,
        shape=tuple(variable.shape),
        candidates=tuple(tensor.key for tensor in tensors),
    )


def _complaint(
    report: conversion_report.ConversionReport, checkpoint: keras2_checkpoint.Keras2Checkpoint
) -> str:
    objects = ", ".join(f"`{name}`" for name in checkpoint.node(0).children)
    return (
        "The checkpoint does not match the model, so nothing was restored. Use `renamed=` for "
        "renamed variables, `root=` for another object of the "
        f"checkpoint{f' ({objects})' if objects else ''}, or `strict=False` to load only what "
        f"matches.\n{report}"
    )
