"""Restoring of a run from a checkpoint that Keras 2 wrote, such as one of the Model Garden.

The weights are matched as `keras2_converter` does. The optimizer of Keras 2 stores its slots, such
as the moments of Adam, either by the variable that they belong to (legacy optimizers) or by the
name of that variable. Both identify the weight, so no slot is matched by its position.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from official_lite.checkpoint import (
    adapted_layers,
    commit,
    completeness,
    keras2_checkpoint,
    keras2_converter,
)
from official_lite.common import errors, keras_variables
from official_lite.modeling import distributed_gradients, replica_state

__all__ = ["is_keras2", "match_optimizer", "own_slots", "restore"]

_Tensor = keras2_checkpoint.Tensor
# Maps the key of a weight and the name of a slot to the slot.
_Slots = dict[tuple[str, str], _Tensor]

# Maps the attribute in which an optimizer of Keras 3 keeps slots to their names in Keras 2.
_SLOT_NAMES = {
    "_momentums": ("m", "momentum"),
    "momentums": ("momentum", "m"),
    "_velocities": ("v", "rms", "velocity"),
    "_velocity_hats": ("vhat", "velocity_hat"),
    "_average_gradients": ("mg", "average_gradient"),
    "_accumulators": ("accumulator",),
}
_AVERAGE = "average"
_MAX_NAMED = 5


def is_keras2(path: str) -> bool:
    """Return whether Keras 2 wrote a checkpoint; False if the checkpoint can't be read."""
    try:
        found = commit.read(path)
        if found is not None and found.state:
            # A run of this package describes itself in the commit file.
            return False
        return keras2_checkpoint.Keras2Checkpoint(path).is_of_keras2
    except (ValueError, IndexError, tf.errors.OpError):
        return False


def restore(checkpoint: tf.train.Checkpoint, path: str, *, optional: Iterable[Any] = ()) -> None:
    """Convert a checkpoint of Keras 2 and restore it, like `checkpoint.restore`.

    The state of random generators, which Keras 2 does not save, keeps its present value. So do
    hyperparameters, which the config sets. The files are not changed.

    Args:
        checkpoint: The checkpoint object to restore into, with the `model` or parts of it and, to
            resume, the `optimizer` and the `global_step`.
        path: The prefix of the checkpoint files.
        optional: Variables that may be missing in the files.

    Raises:
        errors.CheckpointError: A variable has no counterpart of the same shape, or a weight or a
            slot in the checkpoint is not used. No variable has been changed.
    """
    saved = keras2_checkpoint.Keras2Checkpoint(path)
    items = dict(tf.train.TrackableView.children(checkpoint))
    top = saved.node(0).all_children
    # Other parts of the model share its weights.
    roots = ["model"] if "model" in items else list(items)
    parts = {name: items[name] for name in roots if isinstance(items[name], keras.Layer)}
    if not parts or not parts.keys() <= top.keys():
        objects = ", ".join(f"`{name}`" for name in top)
        raise errors.CheckpointError(
            f"{path} can't be restored; nothing was changed. Keras 2 wrote it. It contains "
            f"{objects}; the checkpoint to restore into has the layers {', '.join(parts) or '-'}. "
            "To load other parts, use `official_lite.checkpoint.keras2_converter`."
        )
    found = {
        key: tensor
        for name, part in parts.items()
        for key, tensor in keras2_converter.match(part, saved, root=name).items()
    }
    optional_ids = {id(variable) for variable in optional}
    optimizer = items.get("optimizer")
    if isinstance(optimizer, keras.optimizers.Optimizer) and not optimizer.built:
        # In a program that restores by hand, the first step would build it.
        optimizer.build([v for part in parts.values() for v in part.trainable_variables])
    trains = not any(id(v) in optional_ids for v in _optimizer_state(optimizer))
    slots: dict[int, _Tensor] = {}
    unused: list[_Tensor] = []
    if isinstance(optimizer, keras.optimizers.Optimizer):
        slots, unused, fresh = match_optimizer(optimizer, top.get("optimizer"), saved, found)
        optional_ids |= fresh
        # A run that only evaluates needs no slots.
        unused = unused if trains else []
    others = {
        id(item): tensor
        for name, item in items.items()
        if name in top and keras_variables.is_variable(item) and (tensor := top[name].tensor)
    }
    pairs = others | slots | found
    variables = {id(v): v for v in _needed(items)}
    missing = [v for key, v in variables.items() if key not in pairs and key not in optional_ids]
    misshapen = [
        v for key, v in variables.items() if key in pairs and pairs[key].shape != tuple(v.shape)
    ]
    if missing or misshapen or unused:
        raise errors.CheckpointError(_explain(path, missing, misshapen, unused))
    for key, variable in variables.items():
        if key in pairs:
            variable.assign(saved.read(pairs[key]))
    for part in parts.values():
        if isinstance(part, keras.Model):
            adapted_layers.follow_statistics(part)
    logging.info(
        "Converted %s, which Keras 2 wrote: %d of %d weights, %d of %d variables of the optimizer. "
        "Hyperparameters are those of the config. The state of random generators is not in the "
        "checkpoint.",
        path,
        len(found),
        len(found),
        len(slots),
        len({id(variable) for variable in _optimizer_state(optimizer)}),
    )


def _needed(items: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the variables that the checkpoint has to restore."""
    for name, item in items.items():
        if name in completeness.OPTIONAL_ITEMS | {"random_state"}:
            continue
        if name == "optimizer":
            yield from _optimizer_state(item)
        elif keras_variables.is_variable(item):
            yield item
        else:
            for variable in keras_variables.variables_of(item):
                if not (isinstance(variable, keras.Variable) and replica_state.is_seed(variable)):
                    yield variable


def _optimizer_state(optimizer: Any) -> Iterator[Any]:
    """Yield the variables of an optimizer except its learning rate, which the config sets."""
    chain = list(distributed_gradients.wrapped_optimizers(optimizer))
    rates = {id(getattr(each, "_learning_rate", None)) for each in chain}
    for each in chain:
        yield from (v for v in each.variables if id(v) not in rates)


def match_optimizer(
    optimizer: keras.optimizers.Optimizer,
    node: keras2_checkpoint.Node | None,
    saved: keras2_checkpoint.Keras2Checkpoint,
    weights: Mapping[int, _Tensor],
) -> tuple[dict[int, _Tensor], list[_Tensor], set[int]]:
    """Match the variables of an optimizer to those of one that Keras 2 saved.

    Args:
        optimizer: The optimizer, whose variables must exist.
        node: The saved optimizer; None if there is none.
        saved: The checkpoint.
        weights: The tensors of the weights by the `id` of the weight.

    Returns:
        The tensors by the `id` of the variable, the slots that are left over, and the `id`s of the
        variables that keep their initial value.
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
        for (index, name), variable in own_slots(each).items():
            weight = each._trainable_variables[index]
            _take(found, variable, slots, weights.get(id(weight)), (name,))
    used = {tensor.key for tensor in found.values()}
    return found, [tensor for tensor in slots.values() if tensor.key not in used], fresh


def own_slots(optimizer: Any) -> Mapping[tuple[int, str], Any]:
    """Return what a subclass adds to the slots of Keras, by the index of the weight and a name."""
    slots: Mapping[tuple[int, str], Any] = getattr(optimizer, "_slots", {})
    return slots


def _add_fresh(fresh: set[int], found: Mapping[int, _Tensor], variables: Iterable[Any]) -> None:
    """Add the slots of weights that Keras 2 has never updated, if it has updated others.

    A legacy optimizer creates the slots of a weight with its first gradient.
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
    """Match a variable of the optimizer if exactly one slot of the weight has one of the names."""
    fits = [slots[weight.key, name] for name in names if weight and (weight.key, name) in slots]
    if len(fits) == 1:
        found[id(variable)] = fits[0]


def _with_inner(node: keras2_checkpoint.Node) -> Iterator[keras2_checkpoint.Node]:
    """Yield the optimizer and those that it wraps, from the outside in."""
    yield node
    for name in ("ema_base_optimizer", "base_optimizer", "_optimizer"):
        if name in node.all_children:
            yield from _with_inner(node.all_children[name])


def _legacy_slots(
    nodes: Iterable[keras2_checkpoint.Node], saved: keras2_checkpoint.Keras2Checkpoint
) -> _Slots:
    slots: _Slots = {}
    for node in nodes:
        for slot in saved.graph.nodes[node.index].slot_variables:
            weight = saved.node(slot.original_variable_node_id).tensor
            tensor = saved.node(slot.slot_variable_node_id).tensor
            if weight and tensor:
                slots[weight.key, slot.slot_name] = tensor
    return slots


def _named_slots(
    nodes: Iterable[keras2_checkpoint.Node], weights: Iterable[_Tensor], own_names: set[str]
) -> _Slots:
    """Return slots such as `Adam/m/dense/kernel`; weights that share a name have none."""
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
                # No weight, or several, have the name: a slot that can't be used.
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
        "it was saved with. To load only the weights, start in another directory with "
        f"`task.init_checkpoint={path}`."
    )


def _enumerate(title: str, names: Iterable[str]) -> str:
    listed = [f"`{name}`" for name in names]
    rest = len(listed) - _MAX_NAMED
    more = f" and {rest} more" if rest > 0 else ""
    return f"{title} ({len(listed)}): {', '.join(listed[:_MAX_NAMED])}{more}" if listed else ""
