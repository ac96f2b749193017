"""Initialization of a model with the weights of another run, and a report of the result.

::

    report = warm_start.load_weights(model, "runs/pretrain", modules="backbone")
    report = warm_start.load_optimizer(optimizer, model, "runs/pretrain", modules="backbone")
"""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from official_lite.checkpoint import (
    commit,
    keras2_converter,
    latest,
    matching,
    model_state,
    saved_graph,
)
from official_lite.common import errors, files, keras_variables, suggestions
from official_lite.modeling.optimization import ema_optimizer

__all__ = [
    "ALL",
    "WarmStartReport",
    "find_checkpoint",
    "load_averages",
    "load_optimizer",
    "load_weights",
    "remedy",
]

WarmStartReport = saved_graph.ConversionReport

ALL = "all"

_Pairs = Mapping[int, matching.Pair]


def find_checkpoint(path: str) -> str | None:
    """Return the checkpoint prefix at `path`, a prefix or a directory; None if there is none."""
    path = files.expand_home(path)
    if tf.io.gfile.isdir(path):
        return latest.latest_checkpoint(path)
    prefix = path.removesuffix(".index")
    return prefix if tf.io.gfile.exists(f"{prefix}.index") else None


def load_weights(
    model: keras.Model | tf.Module,
    path: str,
    *,
    modules: str | Sequence[str] = ALL,
    strict: bool = True,
) -> WarmStartReport:
    """Load the weights of a checkpoint into a model, and log a report.

    The checkpoint may come from a run, or from a `tf.train.Checkpoint` of `model.checkpoint_items`
    or `model_state.weight_items(model)`. Its optimizer, counters and random state are ignored.
    Layers that have moved are matched by name, and weights that were saved with another precision
    are cast; in these cases, weights are loaded, but lookup tables are not. A checkpoint of
    Keras 2, such as one of the Model Garden, is converted.

    Args:
        model: The model, whose variables must exist. If it has `checkpoint_items`, these are
            loaded.
        path: The prefix of a checkpoint, or a directory, whose latest checkpoint is read.
        modules: `all`, or the names of `checkpoint_items`, of layers, or of attributes that hold a
            layer. A string may name several, separated by commas.
        strict: Whether to raise an error if a weight is missing or has another shape, or if the
            length of a list of layers has changed and the layers cannot be identified by name.
            Otherwise, such a weight keeps its initial value, and such layers are matched by
            position.

    Returns:
        A report of what was and was not loaded.

    Raises:
        errors.CheckpointError: There is no checkpoint, the model has no weights yet, `strict` is
            set and something is missing, or no weight matches. The model is unchanged.
        errors.UnknownNameError: The model has no part with a name in `modules`.
    """
    found = _match_model(model, path, modules)
    report, pairs, checkpoint = found.report, found.pairs, found.checkpoint
    if found.wanted and not report.matched:
        raise errors.CheckpointError(_explain_misfit(report, found.items, checkpoint))
    if strict:
        _require_all(report, [pairs[id(v)] for v in found.wanted if id(v) in pairs])
    # A Keras 2 checkpoint has no counterpart of `adapted_layers`.
    adapted = None if found.is_converted else _adapted_layers(model, modules)
    if adapted is not None:
        _load_adapted(adapted, checkpoint.prefix, strict)
    is_moved = any(pair.is_moved for pair in pairs.values())
    is_cast = any(pair.tensor.dtype != tf.as_dtype(pair.variable.dtype) for pair in pairs.values())
    keys = model_state.dict_keys(model)
    is_moved |= any(id(v) in keys and id(v) not in pairs for v in found.wanted)
    if found.is_whole and not (report.mismatched or is_moved or is_cast or found.is_converted):
        # Reading with TensorFlow also restores state other than weights, such as lookup tables.
        tf.train.Checkpoint(**found.items).read(checkpoint.prefix).expect_partial()
    _assign([pairs[id(v)] for v in found.wanted if id(v) in pairs], checkpoint)
    model_state.follow_statistics(model)
    logging.info("Initialized the weights from %s", report)
    return report


def load_optimizer(
    optimizer: keras.optimizers.Optimizer,
    model: keras.Model | tf.Module,
    path: str,
    *,
    modules: str | Sequence[str] = ALL,
    strict: bool = True,
    with_counters: bool = False,
) -> WarmStartReport:
    """Load the state of an optimizer for the weights that `load_weights` loads, and log a report.

    A slot, such as a moment of Adam, or the moving average of a weight is found by the weight that
    it belongs to, so the model may have more or fewer layers than the saved model. Hyperparameters
    such as the learning rate are never loaded, because the config sets them.

    Args:
        optimizer: The optimizer, whose variables must exist.
        model: The model that it trains.
        path: The prefix of a checkpoint, or a directory, whose latest checkpoint is read.
        modules: As for `load_weights`; slots of other weights keep their initial values.
        strict: Whether to raise an error if a slot is missing or has another shape. Otherwise, it
            keeps its initial value. Moving averages may be missing altogether.
        with_counters: Whether to load the optimizer's step count and other variables that do not
            belong to a weight, such as the loss scale.

    Returns:
        A report of what was and was not loaded.

    Raises:
        errors.CheckpointError: The checkpoint has no optimizer or one of another kind, or `strict`
            is set and something is missing. The optimizer is unchanged.
    """
    found = _match_model(model, path, modules)
    weights = {id(v): None for v in found.wanted} | found.tensors
    matched, unused = matching.match_optimizer(
        optimizer, found.checkpoint, weights, with_counters=with_counters
    )
    by_weight = matching.Evidence.NAME
    loaded = {id(v): matching.Pair(v, tensor, by_weight) for v, tensor in matched if tensor}
    report = _report(
        found.checkpoint, [v for v, _ in matched], loaded, unused if found.is_whole else []
    )
    if strict and (report.missing or report.mismatched):
        raise errors.CheckpointError(
            f"The checkpoint does not contain the whole state of the optimizer.\n{report}\nSet "
            "`task.init_checkpoint_strict` to false to load only what matches. "
            f"{matching.REMEDY}"
        )
    _assign(loaded.values(), found.checkpoint)
    logging.info("Initialized the optimizer from %s", report)
    return report


def load_averages(
    optimizer: keras.optimizers.Optimizer,
    model: keras.Model | tf.Module,
    path: str,
    *,
    modules: str | Sequence[str] = ALL,
    is_whole: bool = False,
) -> list[Any]:
    """Load the averages of the weights that `load_weights` loads, as far as the checkpoint has any.

    Args:
        optimizer: The optimizer, whose variables must exist. If it keeps no averages, nothing
            happens.
        model: The model that it trains.
        path: The prefix of a checkpoint, or a directory, whose latest checkpoint is read.
        modules: As for `load_weights`.
        is_whole: Whether to load the averages of all weights, even if the model has
            `checkpoint_items`.

    Returns:
        The averages that were loaded.
    """
    if not ema_optimizer.keeps_averages(optimizer):
        return []
    found = _match_model(model, path, modules, is_whole=is_whole)
    matched = matching.match_averages(optimizer, found.checkpoint, found.tensors)
    _assign([matching.Pair(v, t, matching.Evidence.NAME) for v, t in matched], found.checkpoint)
    if matched:
        logging.info(
            "Initialized %d averages of the weights from %s", len(matched), found.checkpoint.prefix
        )
    else:
        logging.info(
            "%s contains no averaged weights. The optimizer's averages keep their current values.",
            found.checkpoint.prefix,
        )
    return [average for average, _ in matched]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Matched:
    """The entries of a checkpoint that match weights of a model.

    Attributes:
        items: The objects that may have been saved at the top of the checkpoint, by name.
        is_whole: Whether all parts of the model are to be loaded.
        wanted: The variables to load.
        pairs: The matches of variables and tensors, by the `id` of the variable.
        is_converted: Whether Keras 2 wrote the checkpoint.
    """

    checkpoint: saved_graph.SavedGraph
    items: Mapping[str, Any]
    is_whole: bool
    wanted: Sequence[Any]
    pairs: _Pairs
    report: WarmStartReport
    is_converted: bool

    @property
    def tensors(self) -> dict[int, saved_graph.Tensor]:
        """The tensors of the variables to load, by the `id` of the variable."""
        pairs = self.pairs
        return {id(v): pairs[id(v)].tensor for v in self.wanted if id(v) in pairs}


def _match_model(
    model: keras.Model | tf.Module,
    path: str,
    modules: str | Sequence[str],
    *,
    is_whole: bool = False,
) -> _Matched:
    """Match a model's weights to a checkpoint.

    If `is_whole` is set, the model's `checkpoint_items` are ignored.
    """
    checkpoint = saved_graph.SavedGraph(path)
    if isinstance(model, keras.Model) and not model.weights:
        # Keras would create the weights later, without reading the checkpoint.
        raise errors.CheckpointError(
            "The model has no weights yet, so nothing can be loaded. Call it once first."
        )
    whole = model_state.weight_items(model)
    whole.pop("adapted_layers", None)
    items = (not is_whole and model_state.checkpoint_items(model)) or whole
    names = _names_of(modules)
    wanted = _wanted(model, items, names)
    hidden = _hidden_weights(whole)
    pairs: _Pairs = matching.pair(
        model, items if names == [ALL] else items | whole, hidden, checkpoint
    )
    saved = checkpoint.node(0).children
    listed = [saved[name] for name in items if name in saved] if names == [ALL] else []
    taken = {pair.tensor.key for pair in pairs.values()}
    below = itertools.chain.from_iterable(node.tensors() for node in listed)
    unused = [tensor for tensor in dict.fromkeys(below) if tensor.key not in taken]
    report = _report(checkpoint, wanted, pairs, unused)
    converted = _find_keras2(model, items, names, wanted, checkpoint, report)
    if converted:
        report, pairs = converted
    return _Matched(
        checkpoint=checkpoint,
        items=items,
        is_whole=names == [ALL],
        wanted=wanted,
        pairs=pairs,
        report=report,
        is_converted=converted is not None,
    )


def _hidden_weights(items: Mapping[str, Any]) -> list[Any]:
    by_task = items.get("hidden_items", {}).values()
    return [weight for part in (items, *by_task) for weight in part.get("hidden_weights", [])]


def _find_keras2(
    model: keras.Model | tf.Module,
    items: Mapping[str, Any],
    names: Sequence[str],
    wanted: Sequence[Any],
    checkpoint: saved_graph.SavedGraph,
    report: WarmStartReport,
) -> tuple[WarmStartReport, _Pairs] | None:
    """Match the weights to a checkpoint of Keras 2; return None for any other checkpoint.

    If a subclassed model was saved without an optimizer, the checkpoint does not show which version
    of Keras wrote it. It is then treated as a Keras 2 checkpoint only if weights would otherwise be
    missing and the conversion matches every weight and every tensor.
    """
    is_sure = checkpoint.is_of_keras2
    may_be = (
        report.missing
        and not checkpoint.is_of_keras3
        and not files.exists(commit.path_of(checkpoint.prefix))
    )
    if not isinstance(model, keras.Model) or not (is_sure or may_be):
        return None
    top = checkpoint.node(0).children
    if names != [ALL]:
        known = _parts(model)
        parts: Mapping[str, Any] = {name: known[name] for name in names}
    else:
        parts = {"model": model} if "model" in top else items
    below = top["model"].children if "model" in top else {}
    roots = {name: name if name in top else f"model/{name}" for name in parts}
    if not all(name in top or name in below for name in parts):
        return None
    found = [
        keras2_converter.compare(part, checkpoint, root=roots[name]) for name, part in parts.items()
    ]
    if not is_sure and not all(each.is_complete for each, _ in found):
        return None
    tensors = {key: tensor for _, chosen in found for key, tensor in chosen.items()}
    pairs = {
        id(v): matching.Pair(v, tensors[id(v)], matching.Evidence.NAME)
        for v in wanted
        if id(v) in tensors
    }
    title = f"{checkpoint.prefix} (converted from Keras 2)"
    return WarmStartReport.merged(title, [one for one, _ in found]), pairs


def _adapted_layers(
    model: keras.Model | tf.Module, modules: str | Sequence[str]
) -> model_state.AdaptedLayers | None:
    """Return the adaptable layers of a Keras model, set to restore only those in `modules`."""
    if not isinstance(model, keras.Layer):
        return None
    layers = restored = model_state.find_adaptable_layers(model)
    names = _names_of(modules)
    if names != [ALL]:
        known = _parts(model)
        restored = [
            layer
            for part in keras_variables.parts_of([known[name] for name in names])
            if isinstance(part, keras.Layer)
            for layer in model_state.find_adaptable_layers(part)
        ]
    return model_state.AdaptedLayers(layers, restored) if restored else None


def _load_adapted(adapted: model_state.AdaptedLayers, prefix: str, strict: bool) -> None:
    try:
        tf.train.Checkpoint(adapted_layers=adapted).read(prefix).expect_partial()
    except errors.CheckpointError as error:
        if strict:
            raise errors.CheckpointError(
                f"{error} To keep the current state of the model's adapted layers instead, set "
                "`task.init_checkpoint_strict` to false."
            ) from error
        logging.warning("%s The model's adapted layers keep their current state.", error)


def _require_all(report: WarmStartReport, pairs: Sequence[matching.Pair]) -> None:
    if report.missing or report.mismatched or report.ambiguous:
        problem = "The checkpoint does not contain all weights of the model."
    elif any(pair.evidence == matching.Evidence.DOUBTFUL_POSITION for pair in pairs):
        problem = (
            "The model has more or fewer layers than the checkpoint, and they can't be matched by "
            "name."
        )
    else:
        return
    raise errors.CheckpointError(
        f"{problem}\n{report}\nSet `task.init_checkpoint_strict` to false to load only what "
        "matches. If Keras 2 wrote the checkpoint, load it with "
        "`official_lite.checkpoint.keras2_converter`."
    )


def _names_of(modules: str | Sequence[str]) -> list[str]:
    if isinstance(modules, str):
        modules = [name.strip() for name in modules.split(",")]
    return [ALL] if ALL in modules else list(modules)


def _wanted(
    model: keras.Model | tf.Module, items: Mapping[str, Any], names: Sequence[str]
) -> list[Any]:
    """Return the variables to load, without duplicates."""
    if names == [ALL]:
        return _weights_in(model, items.values())
    parts = _parts(model)
    for name in names:
        if name not in parts:
            raise errors.UnknownNameError(
                f"`init_checkpoint_modules` names {name!r}, but the model has no such part. "
                f"{suggestions.did_you_mean(name, [ALL, *parts])}"
            )
    return _weights_in(model, [parts[name] for name in names])


def _parts(model: keras.Model | tf.Module) -> dict[str, Any]:
    """Return the parts of the model that `modules` may select, by name."""
    layers: dict[str, Any] = {}
    for layer in getattr(model, "layers", []):
        # A name that several layers share selects all of them.
        layers[layer.name] = [layers[layer.name], layer] if layer.name in layers else layer
    attributes = {
        name: child
        for name, child in tf.train.TrackableView.children(model).items()
        if isinstance(child, keras.Layer) and not name.startswith("_")
    }
    return layers | attributes | model_state.checkpoint_items(model)


def _weights_in(model: keras.Model | tf.Module, parts: Iterable[Any]) -> list[Any]:
    """Return the variables in the given parts; for a Keras model, only those that are weights."""
    found: dict[int, Any] = {}
    for part in parts:
        for variable in keras_variables.variables_of(part):
            found[id(variable)] = variable
    if isinstance(model, keras.Model):
        weights = {id(weight) for weight in model.weights}
        return [variable for key, variable in found.items() if key in weights]
    return list(found.values())


def _report(
    checkpoint: saved_graph.SavedGraph,
    wanted: Sequence[Any],
    pairs: _Pairs,
    unexpected: Sequence[saved_graph.Tensor],
) -> WarmStartReport:
    found = [_match(pairs[id(v)]) for v in wanted if id(v) in pairs]
    missing = [v for v in wanted if id(v) not in pairs]
    return WarmStartReport.of(checkpoint.prefix, found, missing, unexpected)


def _match(pair: matching.Pair) -> saved_graph.Match:
    is_by_position = pair.evidence != matching.Evidence.NAME
    return saved_graph.Match.of(
        pair.variable,
        pair.tensor,
        saved_name=pair.tensor.full_name if is_by_position or pair.is_moved else "",
        is_by_position=is_by_position,
    )


def _assign(pairs: Iterable[matching.Pair], checkpoint: saved_graph.SavedGraph) -> None:
    for pair in pairs:
        if pair.tensor.shape == tuple(pair.variable.shape):
            pair.variable.assign(checkpoint.read(pair.tensor))


def _explain_misfit(
    report: WarmStartReport,
    items: Mapping[str, Any],
    checkpoint: saved_graph.SavedGraph,
) -> str:
    top = ", ".join(f"`{name}`" for name in checkpoint.node(0).children)
    return (
        "No weight in the checkpoint matches the model. Expected the object "
        f"{' or '.join(map(repr, items))}, but the checkpoint contains {top or 'no objects'}. If "
        "Keras 2 wrote the checkpoint, load it with `official_lite.checkpoint.keras2_converter`.\n"
        f"{report}"
    )


def remedy(path: str) -> str:
    """Return a remedy for a path without a checkpoint, as a sentence that starts with a space."""
    if path.endswith((".keras", ".h5", ".hdf5")):
        return (
            " This is a Keras file. Load it in the task: call `keras.models.load_model(path)` in "
            "`build_model`, or `model.load_weights(path)` in `initialize`."
        )
    return " Pass a directory with a checkpoint, or a path such as `dir/ckpt-1000`."
