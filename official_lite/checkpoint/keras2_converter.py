"""Conversion of Keras 2 checkpoints: weights of a Keras 3 model, or the whole state of a run.

The optimizer of Keras 2 stores its slots, such as the moments of Adam, either by the variable that
they belong to (legacy optimizers) or by the name of that variable. Both identify the weight, so no
slot is matched by its position.
"""

import collections
import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from official_lite.checkpoint import commit, model_state, saved_graph
from official_lite.common import errors, keras_variables
from official_lite.modeling import distributed_gradients, replica_state

__all__ = [
    "Candidates",
    "compare",
    "hyperparameters",
    "is_keras2",
    "match_names",
    "match_optimizer",
    "match_structure",
    "own_slots",
    "restore_keras2_checkpoint",
    "restore_run",
    "weights_of",
]


# Maps the `id` of a variable to the tensors that may belong to it.
Candidates = dict[int, list[saved_graph.Tensor]]

_HOLDERS = (keras.Variable, keras.layers.Layer, Mapping, list, tuple)

_Tensor = saved_graph.Tensor
# Maps a weight's key and a slot's name to the slot's tensor.
_Slots = dict[tuple[str, str], _Tensor]

# Maps the slot attributes of Keras 3 optimizers to the names of the same slots in Keras 2.
_SLOT_NAMES = {
    "_momentums": ("m", "momentum"),
    "momentums": ("momentum", "m"),
    "_velocities": ("v", "rms", "velocity"),
    "_velocity_hats": ("vhat", "velocity_hat"),
    "_average_gradients": ("mg", "average_gradient"),
    "_accumulators": ("accumulator",),
}
_AVERAGE = "average"


def weights_of(target: object) -> list[Any]:
    """Return the variables of a model, or of an object that holds layers, without duplicates.

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
    target: object, node: saved_graph.Node, *, renamed: Mapping[str, str]
) -> Candidates:
    """Traverse a model and a saved tree of objects in parallel and collect candidates.

    Args:
        target: A model, or any object whose attributes hold layers.
        node: The saved counterpart of `target`.
        renamed: Maps attribute or layer names in the checkpoint to names in the model.
    """
    return _Walk(renamed).visit(target, node)


def match_names(weights: list[Any], tensors: list[saved_graph.Tensor]) -> Candidates:
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
    """Compare a variable's path with a saved name, component by component from the end.

    Returns:
        A tuple: the number of equal components at the end, and the negated number of the saved
        name's remaining components. A better match compares greater.
    """
    ours, theirs = path.split("/")[::-1], full_name.split("/")[::-1]
    pairs = zip(ours, theirs, strict=False)
    equal = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    return equal, equal - len(theirs)


class _Walk:
    """A parallel traversal of a model and a saved tree of objects that collects candidates.

    Each pair of objects is visited only once, because layers may be shared.
    """

    def __init__(self, renamed: Mapping[str, str]) -> None:
        self._renamed = renamed
        self._seen: set[tuple[int, int]] = set()
        self._found: Candidates = defaultdict(list)

    def visit(self, target: object, node: saved_graph.Node) -> Candidates:
        if (id(target), node.index) not in self._seen:
            self._seen.add((id(target), node.index))
            if isinstance(target, keras.Variable) and node.tensor:
                self._found[id(target)].append(node.tensor)
            for part, child in self._pairs(target, node):
                self.visit(part, child)
        return self._found

    def _pairs(
        self, target: object, node: saved_graph.Node
    ) -> Iterator[tuple[Any, saved_graph.Node]]:
        if isinstance(target, keras.Model) and node.layers:
            yield from self._layer_pairs(target, node)
        for name, child in node.children.items():
            part = _part(target, self._renamed.get(name, name))
            if part is not None:
                yield part, child

    def _layer_pairs(
        self, model: keras.Model, node: saved_graph.Node
    ) -> Iterable[tuple[Any, saved_graph.Node]]:
        layers = [layer for layer in model.layers if layer.weights]
        names = [self._renamed.get(s.layer_name or "", s.layer_name) for s in node.layers]
        saved = {n: s for n, s in zip(names, node.layers, strict=True) if names.count(n) == 1}
        saved.pop(None, None)
        # Keras numbers default names (`dense_1`) in the order in which a process creates layers, so
        # match by default name only if the model has all saved names.
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
        by_order: Iterable[tuple[Any, saved_graph.Node]]
        by_order = zip(left, left_saved, strict=False)
        if len(left) != len(left_saved):
            # A layer was added or removed, so the order is reliable only up to that layer.
            by_order = itertools.takewhile(_have_equal_shapes, by_order)
        return [*by_name, *by_order]


def _has_default_name(layer: keras.Layer) -> bool:
    """Return whether a layer has a default name, such as `conv2d_3` for a `Conv2D` layer."""
    name = re.sub(r"_\d+$", "", layer.name)
    return name.replace("_", "") == type(layer).__name__.lower()


def _have_equal_shapes(pair: tuple[Any, saved_graph.Node]) -> bool:
    layer, node = pair
    shapes = sorted(tuple(variable.shape) for variable in layer.weights)
    return shapes == sorted(tensor.shape for tensor in node.tensors())


def _part(target: object, name: str) -> Any:
    """Return the child of `target` that Keras 2 would have saved as `name`; None if there is none.

    Attributes are read from `vars`, because calling `getattr` might run a property's code.
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
            # In layers of `official_lite.keras2`, a `tf.Variable` may be the value of a weight.
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
) -> saved_graph.ConversionReport:
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
            and the checkpoint does not match the model. The message then contains the report, and
            no variable has been changed.
    """
    checkpoint = saved_graph.SavedGraph(path)
    report, chosen = compare(model, checkpoint, root=root, renamed=renamed)
    if strict and not report.is_complete:
        raise errors.CheckpointError(_complaint(report, checkpoint))
    for variable in weights_of(model):
        tensor = chosen.get(id(variable))
        if tensor and tensor.shape == tuple(variable.shape):
            variable.assign(checkpoint.read(tensor))
    return report


def compare(
    model: object,
    checkpoint: saved_graph.SavedGraph,
    *,
    root: str | None = None,
    renamed: Mapping[str, str] | None = None,
) -> tuple[saved_graph.ConversionReport, dict[int, saved_graph.Tensor]]:
    """Match the weights of a model without assigning them; see `restore_keras2_checkpoint`.

    Returns:
        A report, and the tensor of each matched weight by the `id` of the weight. The shapes of the
        weight and the tensor may differ.
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
    # Ignore variables that are not weights of the model; a layer may hold such variables.
    ids = {id(variable) for variable in weights}
    candidates = {key: fits for key, fits in candidates.items() if key in ids}
    # Match a variable and a tensor only if neither has another candidate.
    claims = collections.Counter(itertools.chain.from_iterable(candidates.values()))
    chosen = {
        variable: fits[0]
        for variable, fits in candidates.items()
        if len(fits) == 1 and claims[fits[0]] == 1
    }
    taken = set(itertools.chain.from_iterable(candidates.values()))
    report = saved_graph.ConversionReport.of(
        checkpoint.prefix,
        [saved_graph.Match.of(v, chosen[id(v)]) for v in weights if id(v) in chosen],
        missing=[v for v in weights if not candidates.get(id(v))],
        unused=[tensor for tensor in tensors if tensor not in taken],
        ambiguous=[
            saved_graph.Leftover.of(v, [tensor.key for tensor in candidates[id(v)]])
            for v in weights
            if candidates.get(id(v)) and id(v) not in chosen
        ],
    )
    return report, chosen


def _complaint(report: saved_graph.ConversionReport, checkpoint: saved_graph.SavedGraph) -> str:
    objects = ", ".join(f"`{name}`" for name in checkpoint.node(0).children)
    return (
        "The checkpoint does not match the model, so nothing was restored. Use `renamed=` for "
        "renamed variables, `root=` for another object of the "
        f"checkpoint{f' ({objects})' if objects else ''}, or `strict=False` to load only what "
        f"matches.\n{report}"
    )


def is_keras2(path: str) -> bool:
    """Return whether Keras 2 wrote a checkpoint; False if the checkpoint can't be read."""
    try:
        found = commit.read(path)
        if found is not None and found.state:
            # Only checkpoints of this package have a description in their commit file.
            return False
        return saved_graph.SavedGraph(path).is_of_keras2
    except (ValueError, IndexError, tf.errors.OpError):
        return False


def restore_run(
    checkpoint: tf.train.Checkpoint,
    path: str,
    *,
    optional: Iterable[Any] = (),
    with_save_counter: bool = True,
) -> None:
    """Convert a checkpoint of Keras 2 and restore it, like `checkpoint.restore`.

    The state of random generators, which Keras 2 does not save, keeps its present value. So do
    hyperparameters, which the config sets, and attributes of the trainer and of its tasks, unless
    the files contain any. The files are not changed.

    Args:
        checkpoint: The checkpoint object to restore into, with the `model` or parts of it and, to
            resume, the `optimizer` and the `global_step`.
        path: The prefix of the checkpoint files.
        optional: Variables that may be missing in the files.
        with_save_counter: Whether the next save continues the numbering of the checkpoint.
            `checkpoint.read`, unlike `checkpoint.restore`, does not continue it.

    Raises:
        errors.CheckpointError: A variable has no counterpart of the same shape, or a weight or a
            slot in the checkpoint is not used. No variable has been changed.
    """
    saved = saved_graph.SavedGraph(path)
    items = dict(tf.train.TrackableView.children(checkpoint))
    top = saved.node(0).all_children
    # If one item is the whole model, match weights only through that item: layers in other items
    # are parts of the model and share its weights.
    roots = ["model"] if "model" in items else list(items)
    parts = {name: items[name] for name in roots if isinstance(items[name], keras.Layer)}
    if not parts or not parts.keys() <= top.keys():
        objects = ", ".join(f"`{name}`" for name in top)
        raise errors.CheckpointError(
            f"{path} can't be restored; nothing was changed. Keras 2 wrote it. It contains "
            f"{objects}; the checkpoint to restore into has the layers {', '.join(parts) or '-'}. "
            "To load other parts, use `official_lite.checkpoint.keras2_converter`."
        )
    found: dict[int, _Tensor] = {}
    for name, part in parts.items():
        report, chosen = compare(part, saved, root=name)
        if not report.is_complete:
            raise errors.CheckpointError(_complaint(report, saved))
        found |= chosen
    optional_ids = {id(variable) for variable in optional}
    optimizer = items.get("optimizer")
    if isinstance(optimizer, keras.optimizers.Optimizer) and not optimizer.built:
        # In a custom training loop, the optimizer is not built until the first step.
        optimizer.build([v for part in parts.values() for v in part.trainable_variables])
    trains = not any(id(v) in optional_ids for v in _optimizer_state(optimizer))
    slots: dict[int, _Tensor] = {}
    unused: list[_Tensor] = []
    if isinstance(optimizer, keras.optimizers.Optimizer):
        slots, unused, fresh = match_optimizer(optimizer, top.get("optimizer"), saved, found)
        optional_ids |= fresh
        # A run that only evaluates needs no slots, so do not report saved slots as unused.
        unused = unused if trains else []
    others = {
        id(item): tensor
        for name, item in items.items()
        if name in top and keras_variables.is_variable(item) and (tensor := top[name].tensor)
    }
    pairs = others | slots | found
    attributes = {id(part) for part in saved.find_unsaved_attributes(checkpoint)}
    variables = {id(v): v for v in _needed(items)}
    kept = [v for key, v in variables.items() if key in attributes and key not in pairs]
    optional_ids |= set(map(id, kept))
    missing = [v for key, v in variables.items() if key not in pairs and key not in optional_ids]
    misshapen = [
        v for key, v in variables.items() if key in pairs and pairs[key].shape != tuple(v.shape)
    ]
    if missing or misshapen or unused:
        raise errors.CheckpointError(_explain(path, missing, misshapen, unused))
    for key, variable in variables.items():
        if key in pairs:
            variable.assign(saved.read(pairs[key]))
    counter = top["save_counter"].tensor if "save_counter" in top else None
    if with_save_counter and counter:
        checkpoint.save_counter.assign(saved.read(counter))
    for part in parts.values():
        if isinstance(part, keras.Model):
            model_state.follow_statistics(part)
    if kept:
        logging.warning(
            "%s contains no attributes of the trainer and of its tasks. They keep their present "
            "values: %s.",
            path,
            _enumerate("variables", map(keras_variables.path_of, kept)),
        )
    logging.info(
        "Converted %s, which Keras 2 wrote: %d of %d weights, %d of %d optimizer variables. "
        "Hyperparameters are taken from the config. The state of random generators keeps its "
        "present value, because the checkpoint does not contain it.",
        path,
        len(found),
        len(found),
        len(slots),
        len({id(variable) for variable in _optimizer_state(optimizer)}),
    )


def _needed(items: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the variables that must be restored from the checkpoint."""
    for name, item in items.items():
        if name in saved_graph.BOOKKEEPING | {"random_state", "recurrent_state"}:
            continue
        if name == "optimizer":
            yield from _optimizer_state(item)
        elif keras_variables.is_variable(item):
            yield item
        else:
            for variable in keras_variables.variables_of(item):
                if not replica_state.is_random_state(keras_variables.raw(variable)):
                    yield variable


def _optimizer_state(optimizer: Any) -> Iterator[Any]:
    """Yield the variables of an optimizer except its hyperparameters, which the config sets."""
    chain = list(distributed_gradients.wrapped_optimizers(optimizer))
    set_by_config = {id(v) for each in chain for v in hyperparameters(each).values()}
    for each in chain:
        yield from (v for v in each.variables if id(v) not in set_by_config)


def match_optimizer(
    optimizer: keras.optimizers.Optimizer,
    node: saved_graph.Node | None,
    saved: saved_graph.SavedGraph,
    weights: Mapping[int, _Tensor],
) -> tuple[dict[int, _Tensor], list[_Tensor], set[int]]:
    """Match the variables of an optimizer to the tensors of an optimizer that Keras 2 saved.

    Args:
        optimizer: The optimizer, whose variables must exist.
        node: The saved optimizer; None if there is none.
        saved: The checkpoint.
        weights: The tensors of the weights by the `id` of the weight.

    Returns:
        The tensors by the `id` of the variable, the slots in the checkpoint that match no variable,
        and the `id`s of the variables that keep their initial value.
    """
    if node is None:
        return {}, [], set()
    nodes = list(_with_inner(node))
    chain = list(distributed_gradients.wrapped_optimizers(optimizer))
    own_names = {name for each in chain for _, name in own_slots(each)}
    slots = _legacy_slots(nodes, saved) | _named_slots(nodes, weights.values(), own_names)
    counters = [
        each.all_children[name].tensor
        for each in nodes
        for name in ("iter", "_iterations")
        if name in each.all_children
    ]
    found: dict[int, _Tensor] = {}
    fresh: set[int] = set()
    for each in chain:
        if counters and counters[0]:
            found[id(each._iterations)] = counters[0]
        for weight, average in getattr(each, "shadows", ()):
            _take(found, average, slots, weights.get(id(weight)), (_AVERAGE,))
        for attribute, names in _SLOT_NAMES.items():
            variables = getattr(each, attribute, None) or ()
            for weight, variable in zip(each._trainable_variables, variables, strict=False):
                if variable is not None:
                    _take(found, variable, slots, weights.get(id(weight)), names)
            _add_fresh(fresh, found, variables)
        by_slot = defaultdict(list)
        for (index, name), variable in own_slots(each).items():
            weight = each._trainable_variables[index]
            _take(found, variable, slots, weights.get(id(weight)), (name,))
            by_slot[name].append(variable)
        for variables in by_slot.values():
            _add_fresh(fresh, found, variables)
    used = {tensor.key for tensor in found.values()}
    return found, [tensor for tensor in slots.values() if tensor.key not in used], fresh


def own_slots(optimizer: Any) -> Mapping[tuple[int, str], Any]:
    """Return the slots that a subclass adds to Keras' own, by weight index and slot name."""
    slots: Mapping[tuple[int, str], Any] = getattr(optimizer, "_slots", {})
    return slots


def hyperparameters(optimizer: Any) -> dict[str, keras.Variable]:
    """Return the variables that hold an optimizer's constant hyperparameters, by name.

    Only the optimizers of `keras2` have others than the learning rate.
    """
    values = {"learning_rate": getattr(optimizer, "_learning_rate", None)}
    values |= getattr(optimizer, "_hyper", {})
    return {name: value for name, value in values.items() if isinstance(value, keras.Variable)}


def _add_fresh(fresh: set[int], found: Mapping[int, _Tensor], variables: Iterable[Any]) -> None:
    """Add the variables without a slot to `fresh`, unless none of the variables has a slot.

    A legacy optimizer creates the slots of a weight when it first updates the weight, so weights
    that were never updated have no slots in the checkpoint.
    """
    missing = {id(v) for v in variables if v is not None and id(v) not in found}
    if any(id(v) in found for v in variables):
        fresh |= missing


def _take(
    found: dict[int, _Tensor],
    variable: Any,
    slots: _Slots,
    weight: _Tensor | None,
    names: Iterable[str],
) -> None:
    """Match an optimizer variable to the only slot of its weight that has one of the names."""
    fits = [slots[weight.key, name] for name in names if weight and (weight.key, name) in slots]
    if len(fits) == 1:
        found[id(variable)] = fits[0]


def _with_inner(node: saved_graph.Node) -> Iterator[saved_graph.Node]:
    """Yield a saved optimizer and its inner optimizers, from the outermost to the innermost."""
    yield node
    for name in ("ema_base_optimizer", "base_optimizer", "_optimizer"):
        if name in node.all_children:
            yield from _with_inner(node.all_children[name])


def _legacy_slots(nodes: Iterable[saved_graph.Node], saved: saved_graph.SavedGraph) -> _Slots:
    slots: _Slots = {}
    for node in nodes:
        for slot in saved.graph.nodes[node.index].slot_variables:
            weight = saved.node(slot.original_variable_node_id).tensor
            tensor = saved.node(slot.slot_variable_node_id).tensor
            if weight and tensor:
                slots[weight.key, slot.slot_name] = tensor
    return slots


def _named_slots(
    nodes: Iterable[saved_graph.Node], weights: Iterable[_Tensor], own_names: set[str]
) -> _Slots:
    """Return the slots whose names contain the name of a weight, such as `Adam/m/dense/kernel`.

    A slot is listed under its own key if no weight or more than one weight has the name.
    """
    names = own_names.union(*_SLOT_NAMES.values())
    by_name: dict[str, list[_Tensor]] = {}
    for weight in weights:
        by_name.setdefault(weight.full_name, []).append(weight)
    slots: _Slots = {}
    for node in nodes:
        listed = node.all_children.get("_variables")
        for child in listed.all_children.values() if listed else ():
            if child.tensor is None:
                continue
            _, _, rest = child.tensor.full_name.partition("/")
            slot, _, name = rest.partition("/")
            if slot in names and len(by_name.get(name, [])) == 1:
                slots[by_name[name][0].key, slot] = child.tensor
            elif slot in names:
                # List the slot, so that it is reported as unused.
                slots[child.tensor.key, slot] = child.tensor
    return slots


def _explain(path: str, missing: list[Any], misshapen: list[Any], unused: list[_Tensor]) -> str:
    problems = [
        _enumerate("missing in the checkpoint", map(keras_variables.path_of, missing)),
        _enumerate("saved with a different shape", map(keras_variables.path_of, misshapen)),
        _enumerate("slots without a variable in this run", (tensor.key for tensor in unused)),
    ]
    return (
        f"{path} can't be restored; nothing was changed. Keras 2 wrote it, and its conversion does "
        f"not match this run: {'; '.join(filter(None, problems))}. Use the model and the optimizer "
        "of the checkpoint. To load only the weights, start in another directory with "
        f"`task.init_checkpoint={path}`."
    )


def _enumerate(title: str, names: Iterable[str]) -> str:
    listed = [f"`{name}`" for name in names]
    return saved_graph.enumerate_first(f"{title} ({len(listed)})", listed)
