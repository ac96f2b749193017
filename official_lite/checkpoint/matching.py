"""Matching of the tensors in a checkpoint to the variables of a model and of its optimizer.

Attributes identify objects: the saved `model.head` belongs to `model.head`. The layers of a
functional or sequential model, and layers in lists, are saved by position, and positions change
when a layer is added or removed. Such layers are therefore matched by the names of their variables
as far as the names are informative: Keras numbers layers without an explicit name across the whole
process, so `dense_2` may be `dense` in another process.

TensorFlow restores the variables of an optimizer by position, which fits only the same model. A
checkpoint also holds the lists in which an optimizer keeps its slots, such as the moments of Adam,
and the list of the weights that it trains, in the same order. A slot is therefore found by the
weight that it belongs to.
"""

import collections
import dataclasses
import enum
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import keras
import tensorflow as tf

from official_lite.checkpoint import commit, keras2_converter, model_state, saved_graph
from official_lite.common import errors, keras_variables
from official_lite.modeling import distributed_gradients
from official_lite.modeling.optimization import ema_optimizer

__all__ = ["REMEDY", "Evidence", "Pair", "match_averages", "match_optimizer", "pair"]

_T = TypeVar("_T")

_Node = saved_graph.Node
_Tensor = saved_graph.Tensor

REMEDY = "To load only weights, set `task.init_checkpoint_optimizer` to `none`."

_VARIABLES, _WEIGHTS, _RATE = "_variables", "_trainable_variables", "_learning_rate"
_AVERAGE = "average"


class Evidence(enum.IntEnum):
    """The evidence that a variable and a tensor belong together, the strongest first."""

    NAME = 0
    POSITION = 1
    DOUBTFUL_POSITION = 2
    """The position in a list whose saved length differs from its current length."""


@dataclasses.dataclass(frozen=True)
class Pair:
    """A variable, its tensor and the evidence for the match."""

    variable: Any
    tensor: _Tensor
    evidence: Evidence
    is_moved: bool = False
    """Whether the variable's position in the model differs from its position in the checkpoint."""


_Pairs = dict[int, Pair]


def pair(
    model: keras.Model | tf.Module,
    items: Mapping[str, Any],
    hidden: Sequence[Any],
    checkpoint: saved_graph.SavedGraph,
) -> _Pairs:
    """Match variables to tensors; return the pairs by the `id` of the variable.

    Args:
        model: The model, whose layer classes show which names Keras generated.
        items: The objects that may have been saved at the top of the checkpoint, by name.
        hidden: The `hidden_weights` of the model, or of the model of each task in turn.
        checkpoint: The checkpoint.
    """
    saved = checkpoint.node(0).children
    common = [name for name in items if name in saved and not name.startswith("hidden_")]
    places: _Pairs = {}
    for name in common:
        for found in _walk(items[name], saved[name]):
            known = places.get(id(found.variable))
            if known is None or found.evidence < known.evidence:
                places[id(found.variable)] = found
    # Hidden weights, which TensorFlow does not find through the model (such as those of layers in
    # lists), are saved once for the whole model, even if `items` contains only some of its layers.
    in_list = _hidden_tensors(checkpoint)
    keys = model_state.dict_keys(model) if any(tensor.dict_key for tensor in in_list) else {}
    keys = {id(v): keys[id(v)] for v in hidden if id(v) in keys}
    places = _pair_list(hidden, in_list, keys) | places
    variables = {id(v): v for name in common for v in keras_variables.variables_of(items[name])}
    variables |= {id(v): v for v in hidden if in_list}
    tensors = [tensor for name in common for tensor in saved[name].tensors()] + in_list
    return _settle(model, variables, list(dict.fromkeys(tensors)), places, keys)


def _walk(part: object, node: _Node) -> Iterator[Pair]:
    """Traverse the model's objects and the saved objects in parallel, matching them by name."""
    # Wrap lists and dicts in the same way as `tf.train.Checkpoint`.
    root = tf.train.Checkpoint(part=part).part
    seen: set[tuple[int, int, Evidence]] = set()
    pending: list[tuple[Any, _Node, Evidence]] = [(root, node, Evidence.NAME)]
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
    checkpoint: saved_graph.SavedGraph,
) -> list[_Tensor]:
    """Return the tensors of the saved `hidden_weights`, named by the saved `hidden_names`."""
    saved = checkpoint.node(0).children
    by_task = saved["hidden_items"].children.values() if "hidden_items" in saved else ()
    places = [saved, *(task.children for task in by_task)]
    return [tensor for place in places for tensor in _tensors_in_list(place, checkpoint)]


def _tensors_in_list(
    place: Mapping[str, _Node], checkpoint: saved_graph.SavedGraph
) -> Iterator[_Tensor]:
    if "hidden_weights" not in place:
        return
    nodes = place["hidden_weights"].children
    text = checkpoint.read_state(place["hidden_names"]) if "hidden_names" in place else None
    # Without `hidden_names`, the tensors have only names that TensorFlow generated. These names do
    # not contain the name of the layer, so use empty names instead.
    names = model_state.HiddenNames.read(text) if text else [("", "")] * len(nodes)
    for i, (name, key) in enumerate(names):
        if tensor := nodes[str(i)].tensor:
            yield dataclasses.replace(tensor, full_name=name, dict_key=key)


def _pair_list(
    variables: Sequence[Any], tensors: Sequence[_Tensor], keys: Mapping[int, str]
) -> _Pairs:
    """Match variables to tensors by position, unless different keys of a dict hold them.

    If the lists differ in length, the matches are doubtful. Matching then stops before the first
    variable that has a different shape than its tensor.
    """
    is_alike = len(tensors) == len(variables)
    evidence = Evidence.POSITION if is_alike else Evidence.DOUBTFUL_POSITION
    pairs: _Pairs = {}
    for variable, tensor in zip(variables, tensors, strict=False):
        if not is_alike and tensor.shape != tuple(variable.shape):
            break
        key = keys.get(id(variable), "")
        if not key or tensor.dict_key in ("", key):
            pairs[id(variable)] = Pair(variable, tensor, evidence)
    return pairs


def _settle(
    model: keras.Model | tf.Module,
    variables: Mapping[int, Any],
    tensors: Sequence[_Tensor],
    places: _Pairs,
    keys: Mapping[int, str],
) -> _Pairs:
    """Return `places` plus matches by unique name, which replace matches by position."""
    pairs = {key: found for key, found in places.items() if found.evidence == Evidence.NAME}
    certain = {found.tensor.key for found in pairs.values()}
    open_variables = [v for key, v in variables.items() if key not in pairs]
    open_tensors = [tensor for tensor in tensors if tensor.key not in certain]
    names = _Names(model, open_variables, open_tensors, keys)
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
    """Return the items by name; leave out empty names and names that several items share."""
    counts = collections.Counter(name_of_item(item) for item in items)
    named = {name_of_item(item): item for item in items}
    return {name: item for name, item in named.items() if name and counts[name] == 1}


class _Names:
    """The names of variables and tensors in a form that is the same for all models of a class.

    The name of the model and the numbers that Keras appends to layer names are removed. The names
    of weights that a dict holds begin with its key.
    """

    def __init__(
        self,
        model: keras.Model | tf.Module,
        variables: Sequence[Any],
        tensors: Sequence[_Tensor],
        keys: Mapping[int, str],
    ) -> None:
        self._keys = keys
        layers = model._flatten_layers() if isinstance(model, keras.Layer) else []
        self._kinds = {_snake_case(type(layer).__name__) for layer in layers}
        self._model_name = _first_part([keras_variables.path_of(v) for v in variables])
        self._saved_model_name = _first_part([tensor.full_name for tensor in tensors])
        if self._model_name != getattr(model, "name", "") or not self._saved_model_name:
            self._model_name = self._saved_model_name = ""

    def of_variable(self, variable: keras.Variable | tf.Variable) -> str:
        name = keras_variables.path_of(variable).removesuffix(":0")
        name = self._without_numbers(name.removeprefix(f"{self._model_name}/"))
        return _with_key(name, self._keys.get(id(variable), ""))

    def of_tensor(self, tensor: _Tensor) -> str:
        name = tensor.full_name.removeprefix(f"{self._saved_model_name}/")
        return _with_key(self._without_numbers(name), tensor.dict_key)

    def _without_numbers(self, name: str) -> str:
        return "/".join(self._kind(part) or part for part in name.split("/"))

    def _kind(self, name: str) -> str | None:
        """Return the snake-case class name if Keras generated this layer name; None otherwise."""
        stem = re.sub(r"_\d+$", "", name)
        return stem if stem in self._kinds else None


def _with_key(name: str, key: str) -> str:
    return f"{key}: {name}" if key else name


def _first_part(names: Sequence[str]) -> str:
    """Return the first path component, such as a model name, if all names share it, else ""."""
    firsts = {name.partition("/")[0] for name in names}
    return firsts.pop() if len(firsts) == 1 else ""


def _snake_case(name: str) -> str:
    """Convert a class name to a layer name in the same way as Keras does."""
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", name))
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()


def match_optimizer(
    optimizer: keras.optimizers.Optimizer,
    checkpoint: saved_graph.SavedGraph,
    weights: Mapping[int, _Tensor | None],
    *,
    with_counters: bool,
) -> tuple[list[tuple[Any, _Tensor | None]], list[_Tensor]]:
    """Match the variables of an optimizer to the tensors of a checkpoint; assign none.

    Args:
        optimizer: The optimizer, whose variables must exist.
        checkpoint: The checkpoint.
        weights: The weights whose slots and averages to match: the tensor in the checkpoint by the
            `id` of the weight, or None if the checkpoint lacks the weight.
        with_counters: Whether to match variables that do not belong to a weight.

    Returns:
        The variables to load, each with its tensor, which is None if it is missing and may have
        another shape; and the slots and averages of the checkpoint that match no variable. Moving
        averages, and the counters of a wrapper such as the loss scale optimizer, are left out if
        the checkpoint has none of them.

    Raises:
        errors.CheckpointError: The checkpoint has no optimizer, or an optimizer of another kind.
    """
    top = checkpoint.node(0).all_children.get("optimizer")
    if top is None:
        raise errors.CheckpointError(f"{checkpoint.prefix} contains no optimizer. {REMEDY}")
    chain = list(distributed_gradients.wrapped_optimizers(optimizer))
    _require_same_class(chain[-1], checkpoint)
    known = {key: tensor for key, tensor in weights.items() if tensor}
    found, unused = _find(optimizer, top, checkpoint, known)
    places = [place for one in chain for place in _places(one)]
    _require_all_places(chain, places)
    of_weights = [place for place in places if id(place.weight) in weights]
    slots = [place for place in of_weights if place.name != _AVERAGE]
    if known and slots and not any(id(slot.variable) in found for slot in slots):
        raise errors.CheckpointError(
            f"{checkpoint.prefix} contains none of the slots of {type(chain[-1]).__name__}, so it "
            f"was saved with a different optimizer. {REMEDY}"
        )
    optional = [[place for place in of_weights if place.name == _AVERAGE]]
    if with_counters:
        # The config sets the hyperparameters.
        skipped = {id(v) for one in chain for v in keras2_converter.hyperparameters(one).values()}
        counters = (
            [p for p in _places(one) if p.weight is None and id(p.variable) not in skipped]
            for one in chain
        )
        optional += counters
    wanted = slots + [
        place
        for group in optional
        if any(id(place.variable) in found for place in group)
        for place in group
    ]
    return [(place.variable, found.get(id(place.variable))) for place in wanted], unused


def match_averages(
    optimizer: keras.optimizers.Optimizer,
    checkpoint: saved_graph.SavedGraph,
    weights: Mapping[int, _Tensor],
) -> list[tuple[Any, _Tensor]]:
    """Match the averages that an optimizer keeps of the weights to the tensors of a checkpoint.

    Args:
        optimizer: The optimizer, whose variables must exist.
        checkpoint: The checkpoint, which may have no averages and no optimizer.
        weights: The tensors of the weights in the checkpoint by the `id` of the weight.

    Returns:
        The averages that the checkpoint contains, each with its tensor.
    """
    top = checkpoint.node(0).all_children.get("optimizer")
    averages = [average for _, average in ema_optimizer.weights_and_averages(optimizer)]
    if top is None or not averages:
        return []
    # Matching by position could mistake the slots of an optimizer without averages for averages.
    found, _ = _find(optimizer, top, checkpoint, weights, by_position=False)
    return [(average, found[id(average)]) for average in averages if id(average) in found]


def _find(
    optimizer: keras.optimizers.Optimizer,
    top: _Node,
    checkpoint: saved_graph.SavedGraph,
    weights: Mapping[int, _Tensor],
    *,
    by_position: bool = True,
) -> tuple[dict[int, _Tensor], list[_Tensor]]:
    """Map the `id` of each optimizer variable to its tensor; also return the unused tensors."""
    if checkpoint.is_of_keras2:
        found, unused, _ = keras2_converter.match_optimizer(optimizer, top, checkpoint, weights)
        return found, unused
    found = {}
    nodes = {_kind(node.all_children): node for node in _chain_of(top)}
    for one in distributed_gradients.wrapped_optimizers(optimizer):
        if node := nodes.get(_kind(vars(one))):
            found |= _tensors_of(one, node, checkpoint, weights, by_position=by_position)
    taken = {tensor.key for tensor in found.values()}
    saved = [tensor for node in nodes.values() for tensor in _saved_slots(node)]
    return found, [tensor for tensor in saved if tensor.key not in taken]


class _Place(NamedTuple):
    """An optimizer variable with its attribute and its weight.

    Attributes:
        variable: The variable.
        name: The attribute that holds the variable or a list that contains it; `average` for a
            moving average of a weight; empty for a variable that is in no such attribute.
        weight: The weight that the variable belongs to; None if it belongs to none.
    """

    variable: Any
    name: str
    weight: Any


def _places(optimizer: Any) -> list[_Place]:
    """Return a `_Place` for each of an optimizer's own variables except the learning rate."""
    weights = optimizer._trainable_variables
    found = [_Place(v, _AVERAGE, weight) for weight, v in getattr(optimizer, "shadows", ())]
    for name, value in vars(optimizer).items():
        if isinstance(value, keras.Variable):
            found.append(_Place(value, name, None))
        elif isinstance(value, list) and name not in (_VARIABLES, _WEIGHTS):
            slots = zip(value, weights, strict=False)
            found += [_Place(v, name, w) for v, w in slots if isinstance(v, keras.Variable)]
    own_slots = keras2_converter.own_slots(optimizer).items()
    found += [_Place(v, "", weights[index]) for (index, _), v in own_slots]
    known = {id(place.variable) for place in found}
    found += [_Place(v, "", None) for v in optimizer._variables if id(v) not in known]
    return [place for place in found if place.name != _RATE]


def _tensors_of(
    optimizer: Any,
    node: _Node,
    checkpoint: saved_graph.SavedGraph,
    weights: Mapping[int, _Tensor],
    *,
    by_position: bool,
) -> dict[int, _Tensor]:
    """Map the `id` of each of the optimizer's own variables to its saved tensor.

    Variables that are in no slot list are matched only if `by_position` is set.
    """
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
    if by_position and [tensor and tensor.key for tensor in own] == trained:
        # The saved optimizer and this one train the same weights. Both therefore created the
        # variables that are in no slot list in the same order.
        taken = {tensor.key for tensor in [*tensors.values(), _child(node, _RATE)] if tensor}
        wanted = {id(place.variable) for place in _places(optimizer)} - tensors.keys()
        rest = [v for v in optimizer._variables if id(v) in wanted]
        left = [tensor for tensor in _listed(node, _VARIABLES) if tensor.key not in taken]
        if len(rest) == len(left):
            tensors |= {id(v): tensor for v, tensor in zip(rest, left, strict=True)}
    return tensors


def _averages(node: _Node, checkpoint: saved_graph.SavedGraph) -> dict[str, _Tensor]:
    """Return the saved moving averages by the keys of their weights."""
    averages = _saved_slots(node)
    trained = _listed(node, _WEIGHTS)
    if [tensor.shape for tensor in averages] == [tensor.shape for tensor in trained]:
        return {weight.key: average for weight, average in zip(trained, averages, strict=True)}
    # If there are also averages of weights that are not trained, match each average by its name,
    # which contains the name of its weight.
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
    optimizer: keras.optimizers.Optimizer, checkpoint: saved_graph.SavedGraph
) -> None:
    """Check that the innermost optimizer has the class that the commit file names, if any."""
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
    """Check that `places` contains all optimizer variables except the learning rates."""
    known = {id(place.variable) for place in places}
    known |= {id(getattr(one, _RATE, None)) for one in chain}
    if any(id(variable) not in known for variable in chain[0].variables):
        raise errors.CheckpointError(
            f"The state of a {type(chain[-1]).__name__} can't be loaded into a new run, because "
            f"the optimizer has variables of an unknown kind. {REMEDY}"
        )


def _kind(attributes: Collection[str]) -> str:
    """Classify an optimizer or wrapper by the names of its attributes or saved children."""
    if "inner_optimizer" not in attributes:
        return "update"
    return "scale the loss" if "dynamic_scale" in attributes else _AVERAGE


def _chain_of(node: _Node) -> Iterator[_Node]:
    """Yield a saved optimizer and its inner optimizers, from the outermost to the innermost."""
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
    """Return the elements of the saved list `name`, in order; empty if there is no such list."""
    saved = node.all_children.get(name)
    elements = saved.all_children if saved else {}
    return [elements[position] for position in sorted(elements, key=int)]


def _child(node: _Node, name: str) -> _Tensor | None:
    child = node.all_children.get(name)
    return child.tensor if child else None
