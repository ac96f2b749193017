"""Brings the weights of Keras 2 into a Keras 3 model.

Keras 3 keeps a model's variables in another place than Keras 2 did, so `tf.train.Checkpoint` can't
restore what the Model Garden saved.

::

    report = restore_keras2_checkpoint(model, "gs://pretrained/ckpt-1000")
    restore_keras2_checkpoint(model.backbone, "gs://pretrained/ckpt-1000", root="backbone")
"""

import collections
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from official_lite.checkpoint import conversion_report, keras2_checkpoint, keras2_matching
from official_lite.common import errors

__all__ = ["restore_keras2_checkpoint"]


def restore_keras2_checkpoint(
    model: Any,
    path: str,
    *,
    root: str | None = None,
    renamed: Mapping[str, str] | None = None,
    strict: bool = True,
) -> conversion_report.ConversionReport:
    """Assigns the weights that tf_keras saved to the variables of the same Keras 3 model.

    Optimizers, counters, metrics and random states in the checkpoint are passed over.

    Args:
        model: A model, or any object whose attributes hold layers. Its variables must exist: a
            subclassed model has to be called once before.
        path: A checkpoint prefix (`.../ckpt-100`), or a folder, whose latest checkpoint is read;
            from `tf.train.Checkpoint`, from `save_weights` without `.h5`, or of TensorFlow 1.
        root: What to read of a checkpoint that holds several objects, such as `backbone` or
            `model/_encoder`. By default `model`, or the whole checkpoint if it has none.
        renamed: What is called differently now: attribute or layer names in the checkpoint, to
            names in the model. A leading underscore makes no difference.
        strict: Whether to insist that every variable is filled and every tensor of `root` used.

    Returns:
        What was assigned and what was left.

    Raises:
        CheckpointError: There is no checkpoint, the model has no variables yet, or `strict` and the
            two don't fit; the message then holds the report, and no variable has been touched.
    """
    checkpoint = keras2_checkpoint.Keras2Checkpoint(path)
    weights = keras2_matching.weights_of(model)
    if not weights:
        raise errors.CheckpointError(
            "The model has no variables yet, so there is nothing to restore into. "
            "Call it once on an input of the right shape before."
        )
    if checkpoint.has_graph:
        node = checkpoint.root(root)
        tensors = list(node.tensors())
        candidates = keras2_matching.match_structure(model, node, renamed=renamed or {})
    else:
        tensors = checkpoint.named_tensors()
        candidates = keras2_matching.match_names(weights, tensors)
    chosen = _unambiguous(candidates)
    report = _report(checkpoint.prefix, weights, tensors, candidates, chosen)
    if strict and not report.is_complete:
        raise errors.CheckpointError(_complaint(report, checkpoint))
    for variable in weights:
        tensor = chosen.get(id(variable))
        if tensor and tensor.shape == tuple(variable.shape):
            variable.assign(checkpoint.read(tensor))
    return report


def _unambiguous(
    candidates: keras2_matching.Candidates,
) -> dict[int, keras2_checkpoint.Tensor]:
    """The pairs in which neither side has another partner."""
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
    candidates: keras2_matching.Candidates,
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


def _match(variable: Any, tensor: keras2_checkpoint.Tensor) -> conversion_report.Match:
    return conversion_report.Match(
        variable=variable.path,
        variable_shape=tuple(variable.shape),
        key=tensor.key,
        key_shape=tensor.shape,
    )


def _leftover(
    variable: Any, tensors: Iterable[keras2_checkpoint.Tensor]
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
        "The checkpoint and the model don't fit, so nothing was restored. Use `renamed=` for what "
        "is called differently now, `root=` for another object of the checkpoint"
        f"{f' ({objects})' if objects else ''}, or `strict=False` to take what fits.\n{report}"
    )
