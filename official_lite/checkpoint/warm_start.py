"""Starts a model from the weights of another run, and says what came of it.

::

    report = warm_start.load_weights(model, "runs/pretrain", modules="backbone")
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from official_lite.checkpoint import conversion_report, keras2_checkpoint, model_state
from official_lite.common import errors, suggestions

__all__ = ["ALL", "WarmStartReport", "find_checkpoint", "load_weights"]

WarmStartReport = conversion_report.ConversionReport

ALL = "all"

# A variable of the model, by identity -> it, and the tensor saved in its place.
_Pairs = dict[int, tuple[Any, keras2_checkpoint.Tensor]]


def find_checkpoint(path: str) -> str | None:
    """The prefix of the checkpoint files at `path`, a prefix or a directory; None if none is."""
    if tf.io.gfile.isdir(path):
        return tf.train.latest_checkpoint(path)
    prefix = path.removesuffix(".index")
    return prefix if tf.io.gfile.exists(f"{prefix}.index") else None


def load_weights(
    model: Any, path: str, *, modules: str | Sequence[str] = ALL, strict: bool = True
) -> WarmStartReport:
    """Loads the weights of a checkpoint into a model, and logs which.

    The checkpoint is one of a run, or of `tf.train.Checkpoint` over `model.checkpoint_items` or
    `model_state.weight_items(model)`. Optimizer, counters and random state in it are passed over.

    Args:
        model: The model, with its variables. If it has `checkpoint_items`, they are what is loaded.
        path: The prefix of a checkpoint, or a directory, whose latest is read.
        modules: `all`, or names of `checkpoint_items`, of layers, or of attributes that hold one;
            separated by commas if they are one text.
        strict: Whether a weight that is missing, or has another shape, is an error; otherwise it
            keeps its initial value.

    Returns:
        What was loaded and what was left.

    Raises:
        errors.CheckpointError: If no checkpoint is there, if `strict` and something is missing, or
            if nothing fits at all. The model is as it was then.
        errors.UnknownNameError: If the model has no part of a name in `modules`.
    """
    checkpoint = keras2_checkpoint.Keras2Checkpoint(path)
    if isinstance(model, keras.Model) and not model.weights:
        # Keras would create them later without a look at the checkpoint.
        raise errors.CheckpointError(
            "The model has no weights yet, so there is nothing to load into. Call it once before."
        )
    whole = model_state.weight_items(model)
    items = dict(getattr(model, "checkpoint_items", None) or whole)
    names = _names_of(modules)
    wanted = _wanted(model, items, names)
    pairs = _pair(items if names == [ALL] else items | whole, checkpoint)
    # Also of a part, the weights in lists are saved as those of the model.
    pairs = _pair_list(whole.get("hidden_weights", []), checkpoint) | pairs
    report = _report(checkpoint, items if names == [ALL] else {}, wanted, pairs)
    if wanted and not report.matched:
        raise errors.CheckpointError(_explain_misfit(report, items, checkpoint))
    if strict and (report.missing or report.mismatched):
        raise errors.CheckpointError(
            f"The checkpoint does not hold all weights of the model.\n{report}\n"
            "Set `task.init_checkpoint_strict` to false to load what fits. If Keras 2 wrote it, "
            "`official_lite.checkpoint.keras2_converter` can load it."
        )
    if names == [ALL] and not report.mismatched:
        # TensorFlow's way also reaches what is no weight, such as a lookup table.
        tf.train.Checkpoint(**items).read(checkpoint.prefix).expect_partial()
    _assign(wanted, pairs, checkpoint)
    logging.info("Weights initialized from %s", report)
    return report


def _names_of(modules: str | Sequence[str]) -> list[str]:
    if isinstance(modules, str):
        modules = [name.strip() for name in modules.split(",")]
    return [ALL] if ALL in modules else list(modules)


def _wanted(model: Any, items: Mapping[str, Any], names: Sequence[str]) -> list[Any]:
    """The variables to load, once each."""
    if names == [ALL]:
        return _weights_in(model, items.values())
    parts = _parts(model)
    for name in names:
        if name not in parts:
            raise errors.UnknownNameError(
                f"`init_checkpoint_modules` has {name!r}, which the model does not have. "
                f"{suggestions.did_you_mean(name, [ALL, *parts])}"
            )
    return _weights_in(model, [parts[name] for name in names])


def _parts(model: Any) -> dict[str, Any]:
    """What `modules` can name."""
    layers = {layer.name: layer for layer in getattr(model, "layers", [])}
    attributes = {
        name: child
        for name, child in tf.train.TrackableView.children(model).items()
        if isinstance(child, keras.Layer) and not name.startswith("_")
    }
    return layers | attributes | dict(getattr(model, "checkpoint_items", None) or {})


def _weights_in(model: Any, parts: Iterable[Any]) -> list[Any]:
    """The variables below the parts; of a Keras model those that are weights."""
    found: dict[int, Any] = {}
    for part in parts:
        for variable in _variables_of(part):
            found[id(variable)] = variable
    if isinstance(model, keras.Model):
        weights = {id(weight) for weight in model.weights}
        return [variable for key, variable in found.items() if key in weights]
    return list(found.values())


def _variables_of(part: Any) -> Iterator[Any]:
    if isinstance(part, keras.Layer):
        # Also those in lists, which the walk below does not reach.
        yield from part.weights
    elif isinstance(part, list | tuple):
        for element in part:
            yield from _variables_of(element)
    elif isinstance(part, Mapping):
        for element in part.values():
            yield from _variables_of(element)
    else:
        nodes = tf.train.TrackableView(part).descendants()
        yield from (node for node in nodes if _is_variable(node))


def _pair(items: Mapping[str, Any], checkpoint: keras2_checkpoint.Keras2Checkpoint) -> _Pairs:
    """Walks down the objects of the model and those that were saved, by the same names."""
    pairs: _Pairs = {}
    saved = checkpoint.node(0).children
    for name, item in items.items():
        if name in saved and name != "hidden_weights":
            _descend(item, saved[name], pairs)
    return pairs


def _descend(part: Any, node: keras2_checkpoint.Node, pairs: _Pairs) -> None:
    # A checkpoint wraps lists and dicts the same way.
    root = tf.train.Checkpoint(part=part).part
    seen: set[tuple[int, int]] = set()
    pending: list[tuple[Any, keras2_checkpoint.Node]] = [(root, node)]
    while pending:
        trackable, node = pending.pop()
        if (id(trackable), node.index) in seen:
            continue
        seen.add((id(trackable), node.index))
        if _is_variable(trackable):
            if node.tensor:
                pairs.setdefault(id(trackable), (trackable, node.tensor))
            continue
        for name, child in tf.train.TrackableView.children(trackable).items():
            if name in node.children:
                pending.append((child, node.children[name]))


def _pair_list(variables: Sequence[Any], checkpoint: keras2_checkpoint.Keras2Checkpoint) -> _Pairs:
    """Pairs the `hidden_weights` by position, which means little in lists of unlike length.

    There, what comes from the first unlike shape on is left alone.
    """
    node = checkpoint.node(0).children.get("hidden_weights")
    count = len(node.children) if node else 0
    saved = [node.children[str(i)].tensor for i in range(count)] if node else []
    pairs: _Pairs = {}
    for variable, tensor in zip(variables, saved, strict=False):
        if tensor is None:
            break
        if len(saved) != len(variables) and tensor.shape != tuple(variable.shape):
            break
        pairs[id(variable)] = (variable, tensor)
    return pairs


def _report(
    checkpoint: keras2_checkpoint.Keras2Checkpoint,
    items: Mapping[str, Any],
    wanted: Sequence[Any],
    pairs: _Pairs,
) -> WarmStartReport:
    found = [_match(v, pairs[id(v)][1]) for v in wanted if id(v) in pairs]
    saved = checkpoint.node(0).children
    taken = {tensor for _, tensor in pairs.values()}
    below = itertools.chain.from_iterable(saved[i].tensors() for i in items if i in saved)
    unexpected = [tensor for tensor in dict.fromkeys(below) if tensor not in taken]
    return WarmStartReport(
        checkpoint=checkpoint.prefix,
        matched=tuple(match for match in found if match.variable_shape == match.key_shape),
        mismatched=tuple(match for match in found if match.variable_shape != match.key_shape),
        missing=tuple(_missing(v, unexpected) for v in wanted if id(v) not in pairs),
        unexpected=tuple(
            conversion_report.Leftover(name=tensor.key, shape=tensor.shape) for tensor in unexpected
        ),
    )


def _match(variable: Any, tensor: keras2_checkpoint.Tensor) -> conversion_report.Match:
    return conversion_report.Match(
        variable=_name_of(variable),
        variable_shape=tuple(variable.shape),
        key=tensor.key,
        key_shape=tensor.shape,
    )


def _missing(
    variable: Any, unexpected: Sequence[keras2_checkpoint.Tensor]
) -> conversion_report.Leftover:
    name, shape = _name_of(variable), tuple(variable.shape)
    alike = [tensor.key for tensor in unexpected if tensor.shape == shape]
    return conversion_report.Leftover(
        name=name,
        shape=shape,
        candidates=tuple(suggestions.nearest(name, alike) or alike),
    )


def _assign(
    wanted: Sequence[Any], pairs: _Pairs, checkpoint: keras2_checkpoint.Keras2Checkpoint
) -> None:
    for variable in wanted:
        _, tensor = pairs.get(id(variable), (None, None))
        if tensor and tensor.shape == tuple(variable.shape):
            variable.assign(checkpoint.read(tensor))


def _explain_misfit(
    report: WarmStartReport,
    items: Mapping[str, Any],
    checkpoint: keras2_checkpoint.Keras2Checkpoint,
) -> str:
    top = ", ".join(f"`{name}`" for name in checkpoint.node(0).children)
    return (
        f"Nothing in the checkpoint fits the model. Wanted {' or '.join(map(repr, items))} at its "
        f"top, which has {top or 'no objects'}. If Keras 2 wrote it, "
        f"`official_lite.checkpoint.keras2_converter` can load it.\n{report}"
    )


def _is_variable(trackable: Any) -> bool:
    return isinstance(trackable, keras.Variable | tf.Variable)


def _name_of(variable: Any) -> str:
    return str(getattr(variable, "path", None) or variable.name)
