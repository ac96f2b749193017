"""The state of a model that `tf.train.Checkpoint` omits, or restores into the wrong variables.

TensorFlow finds variables through attributes. It does not find the layers that Keras 3 keeps in
lists and dicts (`self.blocks = [...]`), the seed generators of dropout, or the state that a layer
learned by `adapt`. `assert_existing_objects_matched` does not report them either. Save a model as::

    tf.train.Checkpoint(model=model, **model_state.hidden_items(model))

Keras computes with copies of the state that a layer learned by `adapt`, in constants and tables. A
`Normalization` layer would not normalize its inputs if only its variables were restored.

TensorFlow restores the variables of an optimizer by position. It silently restores the variables of
Adam into AdamW, or the variables of one layer into another of the same shape. Descriptions of the
optimizer class and of the paths of the variables are therefore compared before a restore.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from official_lite.checkpoint import chain
from official_lite.common import errors, keras_variables
from official_lite.modeling import distributed_gradients, replica_state

__all__ = [
    "AdaptedLayers",
    "HiddenNames",
    "checkpoint_items",
    "describe",
    "dict_keys",
    "find_adaptable_layers",
    "find_new_items",
    "follow_statistics",
    "groups_of_items",
    "hidden_items",
    "recurrent_items",
    "plain_containers",
    "require_same",
    "warn_of_inexact_state",
    "weight_items",
]

# The maximum number of variables that a description lists. A longer list is represented only by its
# length and its checksum.
_MAX_LISTED = 1000


class HiddenNames(tf.train.experimental.PythonState):
    """The names of weights that are saved in a list, in which their positions may change.

    The weights may also be the elements of variables, such as one for each option of a choice.

    Args:
        names: The paths of the weights.
        keys: The names by which the weights must be restored, such as their `dict_keys`; empty for
            weights that may be renamed.
    """

    def __init__(self, names: Sequence[str], keys: Sequence[str]) -> None:
        self._names, self._keys = list(names), list(keys)

    def serialize(self) -> str:
        return json.dumps({"names": self._names, "keys": self._keys})

    def deserialize(self, string_value: str) -> None:
        """Ignore the saved names and keep the names of this model."""

    @staticmethod
    def read(text: str | bytes) -> list[tuple[str, str]]:
        """Return the saved names and keys of the weights; older versions did not save the keys."""
        saved = json.loads(text)
        if isinstance(saved, list):
            return [(name, "") for name in saved]
        return list(zip(saved["names"], saved["keys"], strict=True))

    def find_other_keys(self, text: str | bytes) -> list[tuple[str, str]]:
        """Return each saved key whose weight would be restored by another key, and that key."""
        pairs = zip((key for _, key in self.read(text)), self._keys, strict=False)
        return list(dict.fromkeys((old, new) for old, new in pairs if old and new and old != new))


def checkpoint_items(model: keras.Model | tf.Module) -> dict[str, Any]:
    """Return the model's `checkpoint_items`, with all containers converted to plain containers."""
    items = getattr(model, "checkpoint_items", None) or {}
    return {name: plain_containers(item) for name, item in items.items()}


def plain_containers(value: Any) -> Any:
    """Convert the containers in a value to plain lists, tuples and dictionaries, at any depth.

    TensorFlow tracks these, but not the containers to which Keras 3 converts a model's attributes.
    """
    if isinstance(value, Mapping):
        return {key: plain_containers(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        parts = [plain_containers(part) for part in value]
        if hasattr(value, "_fields"):
            # TensorFlow wraps a named tuple in an object whose `__class__` is the tuple's class.
            return value.__class__(*parts)
        return parts if isinstance(value, list) else tuple(parts)
    return value


def hidden_items(model: keras.Model | tf.Module) -> dict[str, Any]:
    """Return the items to save in addition to the model.

    `hidden_weights` and `random_state` are lists of variables in the order of `model.weights` and
    `model.variables`. `hidden_names` holds the paths of `hidden_weights` and the keys of the dicts
    that hold them, and `adapted_layers` the state that layers learned by `adapt`. Empty items are
    left out. For a module, the items of each Keras layer below it are below `hidden_items` and the
    layer's path, those of the models of `sub_tasks` below the name of the task.
    """
    if not isinstance(model, keras.Layer):
        return _by_part(model, hidden_items)
    weights = {id(v) for v in model.weights}
    random_state = [v for v in model.variables if id(v) not in weights and replica_state.is_seed(v)]
    return _hidden_weight_items(model) | ({"random_state": random_state} if random_state else {})


def recurrent_items(*models: keras.Model | tf.Module) -> dict[str, Any]:
    """Return the item that restores the states of recurrent layers with `stateful=True`, if any.

    Layers that the models share are saved once.

    The states belong to the sequences of one training batch, so evaluations do not restore them.
    With several replicas, each replica has states of its own, and they are not saved.
    """
    layers = [layer for model in models for layer in _layers_of(model)]
    found = [state for layer in layers for state in keras_variables.recurrent_states(layer)]
    states = list({id(state): state for state in found}.values())
    if states and tf.distribute.get_strategy().num_replicas_in_sync > 1:
        logging.warning(
            "Checkpoints do not contain the states of recurrent layers with `stateful=True`, "
            "because each replica has its own. In a resumed run, these states start at zero. To "
            "resume exactly, train on one replica."
        )
        return {}
    return {"recurrent_state": states} if states else {}


def groups_of_items(checkpoint: tf.train.Checkpoint) -> Iterator[Mapping[str, Any]]:
    """Yield the items of a checkpoint and of each attribute in it, by name."""
    children = tf.train.TrackableView.children
    yield children(checkpoint)
    for part in tf.train.TrackableView(checkpoint).descendants():
        if isinstance(part, Mapping) and "value" in part:
            yield children(part)


def find_new_items(checkpoint: tf.train.Checkpoint) -> Iterator[tuple[str, Any]]:
    """Yield the items that older versions did not save with a model or an attribute, with names.

    These are the hidden items of the layers of modules, except for the models of tasks, and the
    states of recurrent layers.
    """
    children = tf.train.TrackableView.children
    for items in groups_of_items(checkpoint):
        sub_tasks = getattr(items.get("value", items.get("model")), "sub_tasks", {})
        hidden = items.get("hidden_items")
        layers = children(hidden) if hidden is not None else {}
        for name, part in layers.items():
            if name not in sub_tasks:
                yield from children(part).items()
        if "recurrent_state" in items:
            yield "recurrent_state", items["recurrent_state"]


def weight_items(model: keras.Model | tf.Module) -> dict[str, Any]:
    """Return the items that restore the weights of a model, but not its random state."""
    return {"model": model} | _hidden_weight_items(model)


def _hidden_weight_items(model: keras.Model | tf.Module) -> dict[str, Any]:
    if not isinstance(model, keras.Layer):
        return _by_part(model, _hidden_weight_items)
    items: dict[str, Any] = {}
    if hidden := _hidden_weights(model):
        keys = dict_keys(model)
        names = HiddenNames([v.path for v in hidden], [keys.get(id(v), "") for v in hidden])
        items = {"hidden_weights": hidden, "hidden_names": names}
    return items | _adapted_items(model)


def _by_part(
    module: tf.Module, items_of: Callable[[keras.Layer], dict[str, Any]]
) -> dict[str, Any]:
    """Collect items from the Keras layers in a module, nested under the key `hidden_items`."""
    items = {name: items_of(part) for name, part in _parts(module).items()}
    items = {name: found for name, found in items.items() if found}
    return {"hidden_items": items} if items else {}


def _parts(module: tf.Module) -> dict[str, keras.Layer]:
    """Return the models of `sub_tasks` by task, and the other Keras layers of a module by path."""
    parts: dict[str, keras.Layer] = dict(getattr(module, "sub_tasks", {}))
    known = {key for part in parts.values() for key in _ids_of_state(part)}
    if not isinstance(module, tf.Module):
        return parts
    below = module._flatten(predicate=lambda part: isinstance(part, keras.Layer), with_path=True)
    for path, layer in below:
        state = _ids_of_state(layer)
        # Skip layers whose state is already included. For example, a module may keep a layer as an
        # attribute that also belongs to the model of a task.
        if not state <= known:
            parts[".".join(map(str, path))] = layer
            known |= state
    return parts


def _ids_of_state(layer: keras.Layer) -> set[int]:
    """Return the ids of a layer's variables and adaptable layers; the latter may lack variables."""
    return set(map(id, [*layer.variables, *find_adaptable_layers(layer)]))


def _layers_of(model: keras.Model | tf.Module) -> list[keras.Layer]:
    return [model] if isinstance(model, keras.Layer) else list(_parts(model).values())


def _adapted_items(model: keras.Layer) -> dict[str, Any]:
    layers = find_adaptable_layers(model)
    return {"adapted_layers": AdaptedLayers(layers)} if layers else {}


def _hidden_weights(model: keras.Layer) -> list[Any]:
    found = {id(node) for node in tf.train.TrackableView(model).descendants()}
    return [v for v in model.weights if id(v) not in found]


def dict_keys(model: keras.Model | tf.Module) -> dict[int, str]:
    """Return the keys of the dicts through which Keras layers hold variables.

    Returns:
        The keys, such as `price`, or `price/left` for nested dicts, by the `id` of the variable;
        none for a variable that no dict holds.
    """
    found: dict[int, str] = {}
    seen: set[int] = set()

    def visit(part: Any, keys: tuple[str, ...]) -> None:
        if keras_variables.is_variable(part):
            found.setdefault(id(part), "/".join(keys))
        elif isinstance(part, Mapping):
            for key, value in part.items():
                # Functional models keep their layers in dicts by depth, which is a number.
                visit(value, (*keys, key) if isinstance(key, str) else keys)
        elif isinstance(part, list | tuple):
            for value in part:
                visit(value, keys)
        elif isinstance(part, keras.Layer) and id(part) not in seen:
            seen.add(id(part))
            # Visit the list that Keras keeps of all layers last, because it has no keys.
            attributes = sorted(vars(part).items(), key=lambda item: item[0] == "_layers")
            for _, value in attributes:
                visit(value, keys)

    for layer in _layers_of(model):
        visit(layer, ())
    return {key: text for key, text in found.items() if text}


class AdaptedLayers(tf.train.experimental.PythonState):
    """The checkpointed state of preprocessing layers.

    Args:
        layers: The layers that `find_adaptable_layers` returns. Their state is read when the
            checkpoint is saved.
        restored: The layers whose state is restored. Defaults to all of them.
    """

    def __init__(
        self,
        layers: Sequence[keras.layers.Layer],
        restored: Iterable[keras.layers.Layer] | None = None,
    ) -> None:
        self._layers = list(layers)
        self._restored = {id(layer) for layer in (layers if restored is None else restored)}

    def serialize(self) -> str:
        return json.dumps([(_name(layer), _kind_of(layer).read(layer)) for layer in self._layers])

    def deserialize(self, string_value: str) -> None:
        """Restore the state of each layer.

        Raises:
            errors.CheckpointError: The checkpoint was saved with other layers, or a layer is not
                built.
        """
        states = json.loads(string_value)
        saved, wanted = [name for name, _ in states], [_name(layer) for layer in self._layers]
        if saved != wanted:
            raise errors.CheckpointError(
                f"The adapted layers of the checkpoint are {', '.join(saved)}, but the adapted "
                f"layers of the model are {', '.join(wanted)}. To restore their state, build the "
                "model with the same adapted layers."
            )
        for layer, (_, state) in zip(self._layers, states, strict=True):
            if state is not None and id(layer) in self._restored:
                _kind_of(layer).write(layer, state)


def find_adaptable_layers(model: keras.Layer) -> list[keras.layers.Layer]:
    """Return the layers of a model that learn their state by `adapt`, not from arguments."""
    return [
        layer
        for layer in model._flatten_layers()
        if isinstance(layer, tuple(_KINDS)) and _kind_of(layer).learns(layer)
    ]


def follow_statistics(model: keras.Model | tf.Module) -> None:
    """Make each `Normalization` layer of a model use the current values of its variables."""
    for part in _layers_of(model):
        for layer in part._flatten_layers():
            if isinstance(layer, keras.layers.Normalization):
                layer.finalize_state()


class _Kind(NamedTuple):
    learns: Callable[[Any], bool]
    # Reads the layer's state; returns None if there is nothing to save yet.
    read: Callable[[Any], Any]
    write: Callable[[Any, Any], None]


def _read_statistics(layer: keras.layers.Normalization) -> list[Any] | None:
    if not layer.built:
        return None
    weights = (layer.adapt_mean, layer.adapt_variance)
    return [tf.convert_to_tensor(weight.value).numpy().tolist() for weight in weights]


def _write_statistics(layer: keras.layers.Normalization, state: list[Any]) -> None:
    if not layer.built:
        raise errors.CheckpointError(
            f"The layer {layer.name!r} is not built yet. Call the model once before restoring the "
            "checkpoint."
        )
    for weight, value in zip((layer.adapt_mean, layer.adapt_variance), state, strict=True):
        weight.assign(np.asarray(value, weight.dtype))
    layer.finalize_state()


def _read_vocabulary(layer: Any) -> dict[str, Any] | None:
    if not layer.get_vocabulary(include_special_tokens=False):
        return None
    words = [getattr(word, "item", lambda word=word: word)() for word in layer.get_vocabulary()]
    weights = getattr(layer, "idf_weights", None)
    return {"words": words, "idf_weights": None if weights is None else weights.numpy().tolist()}


def _write_vocabulary(layer: Any, state: dict[str, Any]) -> None:
    if _read_vocabulary(layer) != state:
        layer.set_vocabulary(state["words"], state["idf_weights"])


_VOCABULARY = _Kind(
    # Read a private attribute, because the layer's public config does not show whether the layer
    # has a vocabulary from a file or no vocabulary yet.
    learns=lambda layer: not layer._has_input_vocabulary,
    read=_read_vocabulary,
    write=_write_vocabulary,
)

# `TextVectorization` needs no entry because it contains a `StringLookup`.
_KINDS: dict[type[keras.layers.Layer], _Kind] = {
    keras.layers.Normalization: _Kind(
        learns=lambda layer: layer.input_mean is None,
        read=_read_statistics,
        write=_write_statistics,
    ),
    keras.layers.Discretization: _Kind(
        learns=lambda layer: layer.num_bins is not None,
        read=lambda layer: (
            None if layer.bin_boundaries is None else [float(b) for b in layer.bin_boundaries]
        ),
        write=lambda layer, state: setattr(layer, "bin_boundaries", state),
    ),
    keras.layers.StringLookup: _VOCABULARY,
    keras.layers.IntegerLookup: _VOCABULARY,
}


def _name(layer: keras.layers.Layer) -> str:
    # Use the class name, because the number in a layer name may differ between processes.
    return type(layer).__name__


def _kind_of(layer: keras.layers.Layer) -> _Kind:
    return next(kind for cls, kind in _KINDS.items() if isinstance(layer, cls))


def describe(
    model: keras.Model | tf.Module | None, optimizer: keras.optimizers.Optimizer | None
) -> dict[str, Any]:
    """Return a JSON-serializable description of a model and an optimizer.

    Args:
        model: A Keras model that has its variables. Anything else is left out.
        optimizer: A Keras optimizer that has its variables. Anything else is left out.
    """
    described: dict[str, Any] = {}
    # Prefer `weights`, because `variables` includes the variables of metrics. A resumed run may
    # have other metrics.
    weights = _variables(model, "weights") or _variables(model, "variables")
    if weights:
        described["model"] = _listing(weights)
    if variables := _variables(optimizer, "variables"):
        classes = [
            type(each).__name__ for each in distributed_gradients.wrapped_optimizers(optimizer)
        ]
        described["optimizer"] = {"class": " of ".join(classes), **_listing(variables)}
        # The names of variables are compared without the numbers of layers, which may differ
        # between processes. Only positions tell apart the weights of equal layers. An optimizer
        # without slots has only scalars, which belong to no weight.
        if weights and any(tuple(variable.shape) for variable in variables):
            positions = {id(weight): index for index, weight in enumerate(weights)}
            described["optimizer"]["trained"] = [
                positions.get(id(weight), -1)
                for each in distributed_gradients.innermost_optimizers(optimizer)
                for weight in getattr(each, "_trainable_variables", ())
            ]
    return described


def require_same(saved: Mapping[str, Any], current: Mapping[str, Any], path: str) -> None:
    """Check that a checkpoint is restored into the objects that it was saved from.

    Different shapes are left to TensorFlow, whose error names the variable. Layers may have been
    renamed, as long as their order is unchanged.

    Args:
        saved: The description in the commit file.
        current: The description of the run.
        path: The checkpoint, for the error message.

    Raises:
        errors.CheckpointError: The checkpoint was saved with another optimizer, or with another
            number or order of variables, or trained other weights.
    """
    was, now = saved.get("optimizer"), current.get("optimizer")
    if was and now and was["class"] != now["class"]:
        raise errors.CheckpointError(
            f"{path} was saved with the optimizer {was['class']}; this run uses {now['class']}."
            f"{_way_out(path)}"
        )
    for part in ("optimizer", "model"):
        if saved.get(part) and current.get(part):
            _require_same_order(part, saved[part], current[part], path)
    if was and now:
        _require_same_weights(was, now, path)


def warn_of_inexact_state(saved: Mapping[str, Any], current: Mapping[str, Any], path: str) -> None:
    """Warn about changes that prevent the resumed training from being bit-exact.

    Args:
        saved: The description in the commit file.
        current: The description of the run.
        path: The checkpoint, for the warning.
    """
    was, now = _circumstances(saved), _circumstances(current)
    if was.get("virtual replicas") and was.get("virtual replicas") == now.get("virtual replicas"):
        # The results of virtual replicas do not depend on the number of real replicas, so a change
        # of that number is no reason for a warning.
        if was.pop("replicas", None) != now.get("replicas"):
            logging.info(
                "Training resumes from %s on %s instead of %s replicas.",
                path,
                current["num_replicas"],
                saved["num_replicas"],
            )
    changes = [
        f"{name} {was[name]} → {now[name]}"
        for name in was.keys() & now.keys()
        if was[name] != now[name]
    ]
    if changes:
        logging.warning(
            "Training resumes from %s, but the results will not be bit for bit the same: %s.",
            path,
            ", ".join(sorted(changes)),
        )


def _circumstances(description: Mapping[str, Any]) -> dict[str, Any]:
    named = {
        "replicas": description.get("num_replicas"),
        "virtual replicas": description.get("virtual_replicas"),
        "global batch size": description.get("global_batch_size"),
        **description.get("versions", {}),
    }
    return {name: value for name, value in named.items() if value is not None}


def _require_same_order(
    part: str, was: Mapping[str, Any], now: Mapping[str, Any], path: str
) -> None:
    if was.get("sha256") == now.get("sha256"):
        return
    if was.get("count") != now.get("count"):
        raise errors.CheckpointError(
            f"{path} contains {was.get('count')} variables of the {part}, but this run has "
            f"{now.get('count')}.{_difference(was, now)}{_way_out(path)}"
        )
    old, new = _paths(was), _paths(now)
    if old and old != new and sorted(old) == sorted(new):
        moved = next(i for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b)
        raise errors.CheckpointError(
            f"{path} contains the variables of the {part} in a different order: `{old[moved]}` "
            f"would be restored into `{new[moved]}`.{_way_out(path)}"
        )
    renamed = [f": `{a}` into `{b}`" for a, b in zip(old, new, strict=False) if a != b]
    logging.warning(
        "%s and this run use different names for variables of the %s. These variables are restored "
        "by position%s.",
        path,
        part,
        renamed[0] if renamed else "",
    )


def _require_same_weights(was: Mapping[str, Any], now: Mapping[str, Any], path: str) -> None:
    pairs = zip(was.get("trained", ()), now.get("trained", ()), strict=False)
    if moved := next(((old, new) for old, new in pairs if old != new), None):
        raise errors.CheckpointError(
            f"{path} was saved by an optimizer that trained other weights: its state for "
            f"`model.weights[{moved[0]}]` would be restored for `model.weights[{moved[1]}]`. "
            "To resume, train the same weights, with the same `trainer.freeze`."
            f"{_way_out(path)}"
        )


def _way_out(path: str) -> str:
    return (
        f"{chain.config_of_run(path)} To start a new run from its weights, use another directory "
        "and set `task.init_checkpoint`."
    )


def _difference(was: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    old, new = _paths(was), _paths(now)
    if not old or not new:
        return ""
    gone = [f"`{path}` is missing in this run" for path in old if path not in new]
    come = [f"`{path}` is new" for path in new if path not in old]
    return "".join(f" {each}." for each in [*gone[:2], *come[:2]])


def _listing(variables: Iterable[Any]) -> dict[str, Any]:
    listed = [[_plain(variable), list(variable.shape)] for variable in variables]
    text = json.dumps(listed, separators=(",", ":"))
    listing = {"count": len(listed), "sha256": hashlib.sha256(text.encode()).hexdigest()}
    return listing if len(listed) > _MAX_LISTED else {**listing, "variables": listed}


def _paths(listing: Mapping[str, Any]) -> list[str]:
    return [path for path, _ in listing.get("variables", ())]


def _plain(variable: keras.Variable | tf.Variable) -> str:
    """Return the path of a variable without the numbers that Keras appends to repeated names."""
    path = keras_variables.path_of(variable)
    return re.sub(r"_\d+(?=[_/:]|$)", "", path)


def _variables(item: object, attribute: str) -> list[Any]:
    variables = getattr(item, attribute, None)
    return list(variables) if isinstance(variables, list | tuple) else []
