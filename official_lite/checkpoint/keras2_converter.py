"""Conversion of Keras 2 weights to a Keras 3 model.

Keras 3 tracks a model's variables under other attributes than Keras 2 did, so `tf.train.Checkpoint`
cannot restore Model Garden checkpoints.

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
