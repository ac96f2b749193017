"""Matching of the state of an optimizer in a checkpoint to the variables of an optimizer.

TensorFlow restores the variables of an optimizer by position, which fits only the same model. A
checkpoint also holds the lists in which an optimizer keeps its slots, such as the moments of Adam,
and the list of the weights that it trains, in the same order. A slot is therefore found by the
weight that it belongs to.
"""

import collections
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras

from official_lite.checkpoint import commit, keras2_checkpoint, keras2_restore
from official_lite.common import errors
from official_lite.modeling import distributed_gradients

__all__ = ["REMEDY", "match"]

_Node = keras2_checkpoint.Node
_Tensor = keras2_checkpoint.Tensor

REMEDY = "To load only weights, set `task.init_checkpoint_optimizer` to `none`."

_VARIABLES, _WEIGHTS, _RATE = "_variables", "_trainable_variables", "_learning_rate"
_AVERAGE = "average"


def match(
    optimizer: keras.optimizers.Optimizer,
    checkpoint: keras2_checkpoint.Keras2Checkpoint,
    weights: Mapping[int, _Tensor | None],
    *,
    with_counters: bool,
) -> tuple[list[tuple[Any, _Tensor | None]], list[_Tensor]]:
    """Match the variables of an optimizer to the tensors of a checkpoint; assign none.

    Args:
        optimizer: The optimizer, whose variables must exist.
        checkpoint: The checkpoint.
        weights: The weights whose slots and averages are wanted, by their `id`, with their tensors
            in the checkpoint; None for a weight that the checkpoint lacks.
        with_counters: Whether variables that do not belong to a weight are wanted.

    Returns:
        The wanted variables, each with its tensor, which is None if it is missing and may have
        another shape; and the slots and averages of the checkpoint that belong to none of them.
        Moving averages, and what a wrapper such as that for the loss scale counts, are not wanted
        if the checkpoint has none of them.

    Raises:
        errors.CheckpointError: The checkpoint has no optimizer, or one of another kind.
    """
    top = checkpoint.node(0).all_children.get("optimizer")
    if top is None:
        raise errors.CheckpointError(f"{checkpoint.prefix} contains no optimizer. {REMEDY}")
    chain = list(distributed_gradients.wrapped_optimizers(optimizer))
    _require_same_class(chain[-1], checkpoint)
    known = {key: tensor for key, tensor in weights.items() if tensor}
    found: dict[int, _Tensor] = {}
    if checkpoint.is_of_keras2:
        found, unused, _ = keras2_restore.match_optimizer(optimizer, top, checkpoint, known)
    else:
        nodes = {_kind(node.all_children): node for node in _chain_of(top)}
        for one in chain:
            if node := nodes.get(_kind(vars(one))):
                found |= _tensors_of(one, node, checkpoint, known)
        taken = {tensor.key for tensor in found.values()}
        saved = [tensor for node in nodes.values() for tensor in _saved_slots(node)]
        unused = [tensor for tensor in saved if tensor.key not in taken]
    places = [place for one in chain for place in _places(one)]
    _require_all_places(chain, places)
    of_weights = [place for place in places if id(place.weight) in weights]
    slots = [place for place in of_weights if place.name != _AVERAGE]
    if known and slots and not any(id(slot.variable) in found for slot in slots):
        raise errors.CheckpointError(
            f"{checkpoint.prefix} contains none of the slots of {type(chain[-1]).__name__}, so it "
            f"was saved with an optimizer of another kind. {REMEDY}"
        )
    optional = [[place for place in of_weights if place.name == _AVERAGE]]
    if with_counters:
        optional += [[place for place in _places(one) if place.weight is None] for one in chain]
    wanted = slots + [
        place
        for group in optional
        if any(id(place.variable) in found for place in group)
        for place in group
    ]
    return [(place.variable, found.get(id(place.variable))) for place in wanted], unused


class _Place(NamedTuple):
    """Where an optimizer keeps a variable.

    Attributes:
        variable: The variable.
        name: The attribute that holds the variable, or a list of such variables; `average` for a
            moving average of a weight; empty for a variable that is in no such attribute.
        weight: The weight that the variable belongs to; None if it belongs to none.
    """

    variable: Any
    name: str
    weight: Any


def _places(optimizer: Any) -> list[_Place]:
    """Return the places of an optimizer's own variables except the learning rate."""
    weights = optimizer._trainable_variables
    found = [_Place(v, _AVERAGE, weight) for weight, v in getattr(optimizer, "shadows", ())]
    for name, value in vars(optimizer).items():
        if isinstance(value, keras.Variable):
            found.append(_Place(value, name, None))
        elif isinstance(value, list) and name not in (_VARIABLES, _WEIGHTS):
            slots = zip(value, weights, strict=False)
            found += [_Place(v, name, w) for v, w in slots if isinstance(v, keras.Variable)]
    own_slots = keras2_restore.own_slots(optimizer).items()
    found += [_Place(v, "", weights[index]) for (index, _), v in own_slots]
    known = {id(place.variable) for place in found}
    found += [_Place(v, "", None) for v in optimizer._variables if id(v) not in known]
    return [place for place in found if place.name != _RATE]


def _tensors_of(
    optimizer: Any,
    node: _Node,
    checkpoint: keras2_checkpoint.Keras2Checkpoint,
    weights: Mapping[int, _Tensor],
) -> dict[int, _Tensor]:
    """Return the saved tensors of an optimizer's own variables by the `id` of the variable."""
    trained = [tensor.key for tensor in _listed(node, _WEIGHTS)]
    positions = {key: str(position) for position, key in enumerate(trained)}
    averages = _averages(node, checkpoint)
    found: dict[int, _Tensor | None] = {}
    for variable, name, weight in _places(optimizer):
        saved_weight = weights.get(id(weight))
        if weight is None:
            found[id(variable)] = _child(node, name)
        elif saved_weight and name == _AVERAGE:
            found[id(variable)] = averages.get(saved_weight.key)
        elif saved_weight and name in node.all_children:
            position = positions.get(saved_weight.key, "")
            found[id(variable)] = _child(node.all_children[name], position)
    tensors = {key: tensor for key, tensor in found.items() if tensor}
    own = [weights.get(id(weight)) for weight in optimizer._trainable_variables]
    if [tensor and tensor.key for tensor in own] == trained:
        # The weights are the same, so a variable that is in no list has the same position.
        taken = {tensor.key for tensor in [*tensors.values(), _child(node, _RATE)] if tensor}
        wanted = {id(place.variable) for place in _places(optimizer)} - tensors.keys()
        rest = [v for v in optimizer._variables if id(v) in wanted]
        left = [tensor for tensor in _listed(node, _VARIABLES) if tensor.key not in taken]
        if len(rest) == len(left):
            tensors |= {id(v): tensor for v, tensor in zip(rest, left, strict=True)}
    return tensors


def _averages(node: _Node, checkpoint: keras2_checkpoint.Keras2Checkpoint) -> dict[str, _Tensor]:
    """Return the saved moving averages by the key of the weight."""
    averages = _saved_slots(node)
    trained = _listed(node, _WEIGHTS)
    if [tensor.shape for tensor in averages] == [tensor.shape for tensor in trained]:
        return {weight.key: average for weight, average in zip(trained, averages, strict=True)}
    # If other weights are averaged, too, an average has the name of its weight.
    weights = list(checkpoint.node(0).tensors())
    names = [f"{weight.full_name.replace('/', '_')}_{_AVERAGE}" for weight in weights]
    counts = collections.Counter(names)
    by_name = {average.full_name.partition("/")[2]: average for average in averages}
    return {
        weight.key: by_name[name]
        for weight, name in zip(weights, names, strict=True)
        if name in by_name and counts[name] == 1
    }


def _require_same_class(
    optimizer: keras.optimizers.Optimizer, checkpoint: keras2_checkpoint.Keras2Checkpoint
) -> None:
    """Check the class of the innermost optimizer, if the commit file of the checkpoint names it."""
    try:
        found = commit.read(checkpoint.prefix)
    except ValueError:
        return
    described = found.state.get("optimizer", {}).get("class", "") if found else ""
    saved, own = described.rpartition(" ")[2], type(optimizer).__name__
    if saved and saved != own:
        raise errors.CheckpointError(
            f"{checkpoint.prefix} was saved with the optimizer {saved}; this run uses {own}. "
            f"{REMEDY}"
        )


def _require_all_places(chain: Sequence[Any], places: Sequence[_Place]) -> None:
    """Check that no variable is in a place that this module does not know."""
    known = {id(place.variable) for place in places}
    known |= {id(getattr(one, _RATE, None)) for one in chain}
    if any(id(variable) not in known for variable in chain[0].variables):
        raise errors.CheckpointError(
            f"The state of a {type(chain[-1]).__name__} can't be loaded into a new run. {REMEDY}"
        )


def _kind(attributes: Collection[str]) -> str:
    """Return what an optimizer does, given the names of its attributes or saved children."""
    if "inner_optimizer" not in attributes:
        return "update"
    return "scale the loss" if "dynamic_scale" in attributes else _AVERAGE


def _chain_of(node: _Node) -> Iterator[_Node]:
    """Yield a saved optimizer, then each one that it wraps, from the outside in."""
    yield node
    if "inner_optimizer" in node.all_children:
        yield from _chain_of(node.all_children["inner_optimizer"])


def _saved_slots(node: _Node) -> list[_Tensor]:
    """Return the tensors of a saved optimizer that are neither counters nor the learning rate."""
    counters = {child.index for child in node.all_children.values()}
    children = _children(node, _VARIABLES)
    return [child.tensor for child in children if child.tensor and child.index not in counters]


def _listed(node: _Node, name: str) -> list[_Tensor]:
    return [child.tensor for child in _children(node, name) if child.tensor]


def _children(node: _Node, name: str) -> list[_Node]:
    """Return the elements of a saved list in order."""
    saved = node.all_children.get(name)
    elements = saved.all_children if saved else {}
    return [elements[position] for position in sorted(elements, key=int)]


def _child(node: _Node, name: str) -> _Tensor | None:
    child = node.all_children.get(name)
    return child.tensor if child else None
