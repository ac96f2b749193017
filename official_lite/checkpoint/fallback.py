"""Restoration of the latest intact checkpoint, which must have a value for every variable.

`tf.train.Checkpoint.restore` assigns the values that it finds and silently leaves all other
variables at their initial values. From a checkpoint of another model, or of Keras 2, it would
restore nothing. This module therefore checks that all values are present before it restores any.
"""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from official_lite.checkpoint import (
    chain,
    commit,
    inspection,
    keras2_converter,
    model_state,
    saved_graph,
)
from official_lite.common import errors, files, keras_variables

__all__ = [
    "DAMAGED_DIR",
    "find_unreadable",
    "require_complete",
    "restore",
    "restore_newest",
    "set_aside",
]

DAMAGED_DIR = "damaged"

_CONVERTER = (
    "load it with `official_lite.checkpoint.keras2_converter`; see docs/coming_from_tfm.md."
)

# The name under which an optimizer keeps the list of the weights that it trains.
_WEIGHTS = "_trainable_variables"

# Errors that a restore raises if the files are damaged or belong to another model.
_UNUSABLE = (ValueError, IndexError, tf.errors.OpError)
# Subclasses of `OpError` that do not indicate damaged files or another model.
_PASSING = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.PermissionDeniedError,
    tf.errors.ResourceExhaustedError,
    tf.errors.UnauthenticatedError,
    tf.errors.UnavailableError,
)


def restore_newest(
    checkpoint: tf.train.Checkpoint,
    paths: Sequence[str],
    *,
    check: Callable[[str, Mapping[str, Any]], None] = lambda path, state: None,
    optional: Callable[[], Iterable[Any]] | None = None,
) -> tuple[str | None, list[str]]:
    """Restore the last of `paths` that is intact, and report the damaged ones.

    An intact checkpoint of another model is an error: an older checkpoint would not match either,
    and silently restoring an older state was not requested. If values from a damaged checkpoint
    have reached variables, the next restore overwrites them.

    Args:
        checkpoint: The checkpoint object to restore into.
        paths: The checkpoints, from the oldest to the latest.
        check: Called before a restore with the path and the description of the run in the commit
            file.
        optional: Returns the variables that a checkpoint may lack; see `require_complete`.

    Returns:
        The restored path, or None if no checkpoint is intact, and the damaged checkpoints, latest
        first.

    Raises:
        errors.CheckpointError: An intact checkpoint does not match the checkpoint object.
    """
    damaged: list[str] = []
    for path in reversed(paths):
        damage = _try(checkpoint, path, check, optional)
        if damage is None:
            for other in damaged:
                logging.error("%s is damaged. Restoring %s instead.", other, path)
            return path, damaged
        logging.error("%s is damaged: %s.", path, damage)
        damaged.append(path)
    return None, damaged


def restore(
    checkpoint: tf.train.Checkpoint,
    path: str,
    *,
    optional: Iterable[Any] | None = None,
    is_partial: bool = False,
) -> None:
    """Restore a checkpoint that has a value for every variable; convert it if Keras 2 wrote it.

    Args:
        checkpoint: The checkpoint object to restore into.
        path: The prefix of the checkpoint files.
        optional: Variables that may be missing in the files; see `require_complete`.
        is_partial: Whether the files are expected to hold more, such as an optimizer.

    Raises:
        errors.CheckpointError: The checkpoint does not match. No variable has been changed.
    """
    if keras2_converter.is_keras2(path):
        keras2_converter.restore_run(checkpoint, path, optional=optional or ())
        return
    with require_complete(checkpoint, path, optional=optional):
        status = checkpoint.restore(path)
    if is_partial:
        status.expect_partial()


def find_unreadable(path: str) -> str | None:
    """Read all tensors of a checkpoint and return the first error, or None if there is none."""
    try:
        reader = tf.train.load_checkpoint(path)
        for key in reader.get_variable_to_shape_map():
            reader.get_tensor(key)
    except _PASSING:
        raise
    except _UNUSABLE as error:
        return inspection.in_short(error)
    return None


def set_aside(prefix: str) -> str:
    """Move the files of a damaged checkpoint to a new directory in `damaged/` and return it."""
    directory, base = os.path.split(prefix)
    folder = _free(os.path.join(directory, DAMAGED_DIR, base))
    files.makedirs(folder)
    for path in [commit.path_of(prefix), *commit.list_files(prefix)]:
        if files.exists(path):
            files.rename(path, os.path.join(folder, os.path.basename(path)))
    logging.warning("Moved the files of %s to %s.", prefix, folder)
    return folder


def _try(
    checkpoint: tf.train.Checkpoint,
    path: str,
    check: Callable[[str, Mapping[str, Any]], None],
    optional: Callable[[], Iterable[Any]] | None,
) -> str | None:
    """Restore a checkpoint; return None on success, or else a description of the damage."""
    damage = commit.find_damage(path)
    if damage is not None:
        return damage
    found = commit.read(path)
    if found is not None:
        check(path, found.state)
    try:
        restore(checkpoint, path, optional=optional and optional())
    except (errors.OfficialLiteError, *_PASSING):
        raise
    except _UNUSABLE as error:
        _forget_deferred(checkpoint)
        damage = find_unreadable(path)
        if damage is None:
            raise errors.CheckpointError(
                f"{path} can't be restored: {inspection.in_short(error)}. The checkpoint is "
                "intact, but it was saved by a different model or optimizer."
                f"{chain.config_of_run(path)}"
            ) from error
    return damage


def _forget_deferred(checkpoint: tf.train.Checkpoint) -> None:
    """Discard deferred restorations left behind by a failed restore.

    Otherwise, objects that are created later, such as the save counter, would first receive values
    from the failed checkpoint, whose files may no longer exist.
    """
    for trackable in tf.train.TrackableView(checkpoint).descendants():
        getattr(trackable, "_deferred_dependencies", {}).clear()


def _free(path: str) -> str:
    candidate, number = path, 1
    while files.exists(candidate):
        number += 1
        candidate = f"{path}.{number}"
    return candidate


def require_complete(
    checkpoint: tf.train.Checkpoint, path: str, *, optional: Iterable[Any] | None = None
) -> contextlib.AbstractContextManager[None]:
    """Check that `checkpoint.restore(path)` would assign every variable, without assigning any.

    Variables that do not exist yet and objects without variables, such as Keras metrics, are not
    checked. Neither is what older checkpoints lack: bookkeeping, the states of recurrent layers,
    and the random and adapted state of the layers of modules. Weights of these layers are checked,
    because a model without them is of no use.

    Args:
        checkpoint: The checkpoint object to restore into.
        path: The prefix of the checkpoint files.
        optional: Variables that may be missing in the files. By default, the attributes of the
            trainer and of its tasks may be missing if the files contain no attribute at all: a loop
            of your own did not save them in earlier versions.

    Returns:
        The context in which to call `restore`. It matters if other weights were frozen when the
        checkpoint was saved.

    Raises:
        errors.CheckpointError: A variable is missing, was saved with another shape, or belongs to a
            list that had another length, to another key of a dict, or to other options of a choice.
            The message names the first of these variables.
    """
    if not files.exists(f"{path}.index"):
        # The restore itself reports missing files.
        return contextlib.nullcontext()
    saved = saved_graph.SavedGraph(path)
    if optional is None:
        optional = saved.find_unsaved_attributes(checkpoint)
    places, lists = _compare(checkpoint, saved)
    is_clear = all(len({node.index for node in place.nodes}) < 2 for place in places)
    if not is_clear:
        with _without_weights_of_optimizers(checkpoint):
            places, lists = _compare(checkpoint, saved)
    optional_ids = {id(variable) for variable in optional} | _find_new_state(checkpoint, places)
    wanted = [place for place in places if id(place.value) not in optional_ids]
    missing = [
        place
        for place in wanted
        if not (place.is_saved or isinstance(place.value, model_state.HiddenNames))
    ]
    moved = [
        f"`{old}` would be restored into `{new}`"
        for place in places
        if isinstance(place.value, model_state.HiddenNames)
        for text in map(saved.read_state, place.nodes)
        if text is not None
        for old, new in place.value.find_other_keys(text)
    ]
    misshapen = [place for place in wanted if place.other_shapes]
    lost = [
        place
        for place in places
        if "hidden_items/" in place.key
        and not (place.is_saved or isinstance(place.value, model_state.HiddenNames))
    ]
    if lost and not missing:
        logging.warning(
            "%s lacks state of layers in modules, which older versions did not save. It keeps its "
            "present values: %s.",
            path,
            saved_graph.enumerate_first(f"{len(lost)} values", lost),
        )
    restored = {node.tensor.key for place in places for node in place.nodes if node.tensor}
    # If a list has changed its length and some saved elements are not restored, elements may be
    # matched at the wrong positions.
    unequal = [
        each
        for each in lists
        if not (missing or misshapen)
        # Weights in lists are optional only if the checkpoint lacks the list.
        and (
            each.key.endswith("hidden_weights")
            or not all(id(part) in optional_ids for part in each.current.values())
        )
        and any(t.key not in restored for node in each.saved.values() for t in node.tensors())
    ]
    if not (missing or misshapen or unequal or moved):
        if is_clear:
            return contextlib.nullcontext()
        unfit = [place.value for place in places if place.other_shapes]
        return _without_weights_of_optimizers(checkpoint, unfit)
    first = saved_graph.enumerate_first
    problems = [
        first(f"{len(missing)} of {len(wanted)} values are missing", missing),
        first("saved with a different shape", misshapen),
        first("lists of a different length", unequal),
        first("keys or options that are not those of the checkpoint, in the same order", moved),
    ]
    raise errors.CheckpointError(
        f"{path} can't be restored; nothing was changed. The checkpoint is intact, but it does "
        f"not match this run: {'; '.join(filter(None, problems))}. {_remedy(saved, missing)}"
    )


def _find_new_state(checkpoint: tf.train.Checkpoint, places: Collection["_Place"]) -> set[int]:
    """Return the ids of the state, other than weights, that older versions did not save.

    If the checkpoint contains some of the recurrent states, a newer version saved it. The recurrent
    states are then required and not returned.
    """
    saved = {id(place.value) for place in places if place.is_saved}
    found: set[int] = set()
    for name, item in model_state.find_new_items(checkpoint):
        parts = {id(part) for part in tf.train.TrackableView(item).descendants()}
        is_old = name != "recurrent_state" or saved.isdisjoint(parts)
        if name != "hidden_weights" and is_old:
            found |= parts
    return found


@contextlib.contextmanager
def _without_weights_of_optimizers(
    checkpoint: tf.train.Checkpoint, unfit: Iterable[Any] = ()
) -> Iterator[None]:
    """Enter a context in which weights are restored by their place in the model.

    A checkpoint also refers to the trained weights by their position in a list of the optimizer. If
    different weights were frozen when the checkpoint was saved, the same position belongs to
    another weight. In this context, the list contains only variables that no other object refers
    to.

    Use the context only if the paths of a weight lead to different saved variables. Otherwise the
    positions are needed: if a layer without weights was added to the model, a weight may have no
    other path in common with the checkpoint.

    Args:
        checkpoint: The checkpoint object.
        unfit: Variables that the other lists of an optimizer do not contain in the context.
    """
    children = tf.train.TrackableView.children
    unfit_ids = {id(variable) for variable in unfit}
    lists = [
        (optimizer, name, part)
        for optimizer in tf.train.TrackableView(checkpoint).descendants()
        if isinstance(optimizer, keras.optimizers.Optimizer)
        for name, part in children(optimizer).items()
        if name == _WEIGHTS or not unfit_ids.isdisjoint(map(id, children(part).values()))
    ]
    try:
        # Replace the lists instead of removing them, because the order of an object's children
        # decides the order of the objects in the next checkpoint.
        stand_ins = [
            optimizer._track_trackable(tf.Module(), name, overwrite=True)
            for optimizer, name, _ in lists
        ]
        left_out = {id(part) for part in tf.train.TrackableView(checkpoint).descendants()}
        left_out |= unfit_ids
        for stand_in, (_, _, part) in zip(stand_ins, lists, strict=True):
            for index, variable in children(part).items():
                if id(variable) not in left_out:
                    stand_in._track_trackable(variable, index)
        yield
    finally:
        for optimizer, name, part in lists:
            optimizer._track_trackable(part, name, overwrite=True)


@dataclasses.dataclass(eq=False)
class _Place:
    """A variable or `PythonState` to restore, and the saved objects at all of its paths."""

    value: Any
    key: str
    nodes: list[saved_graph.Node] = dataclasses.field(default_factory=list)

    @property
    def is_saved(self) -> bool:
        return any(node.tensor is not None or node.has_state for node in self.nodes)

    @property
    def other_shapes(self) -> list[tuple[int, ...]]:
        """The saved shapes that differ from the current shape of the variable."""
        if not keras_variables.is_variable(self.value):
            return []
        saved = (node.tensor.shape for node in self.nodes if node.tensor)
        return [shape for shape in saved if shape != tuple(self.value.shape)]

    def __str__(self) -> str:
        if not keras_variables.is_variable(self.value):
            return f"`{self.key}`"
        shapes = f"{list(self.value.shape)}"
        if was := self.other_shapes:
            shapes = f"{list(was[0])} in the checkpoint, {shapes} in this run"
        return f"`{keras_variables.path_of(self.value)}` ({self.key}: {shapes})"


@dataclasses.dataclass(eq=False)
class _List:
    """The elements of a list in the program and in the checkpoint."""

    key: str
    current: Mapping[str, Any]
    saved: Mapping[str, saved_graph.Node]

    def __str__(self) -> str:
        return (
            f"`{self.key}` ({len(self.saved)} in the checkpoint, {len(self.current)} in this run)"
        )


def _compare(
    checkpoint: tf.train.Checkpoint, saved: saved_graph.SavedGraph
) -> tuple[Collection[_Place], list[_List]]:
    """Traverse the objects to restore and the saved objects in parallel, matched by name.

    Returns:
        All values to restore, and the lists whose saved length differs from the current length.
    """
    places: dict[int, _Place] = {}
    lists: list[_List] = []
    seen: set[tuple[int, int]] = set()
    top = saved.node(0) if saved.has_graph else None
    pending: list[tuple[Any, saved_graph.Node | None, str]] = [(checkpoint, top, "")]
    while pending:
        part, node, key = pending.pop()
        if (id(part), node.index if node else -1) in seen:
            continue
        seen.add((id(part), node.index if node else -1))
        if keras_variables.is_variable(part) or isinstance(part, tf.train.experimental.PythonState):
            place = places.setdefault(id(part), _Place(part, key))
            place.nodes += [node] if node else []
            continue
        current = dict(tf.train.TrackableView.children(part))
        children = node.all_children if node else {}
        elements = {name: child for name, child in current.items() if name.isdigit()}
        saved_elements = {name: child for name, child in children.items() if name.isdigit()}
        if node and len(elements) != len(saved_elements):
            lists.append(_List(key, elements, saved_elements))
        # The last item pushed is visited first. Visit the model before the optimizer, which also
        # refers to the weights, so that messages name the weights by their keys in the model.
        names = sorted(current, key=lambda name: name != "model")
        for name in reversed(names):
            is_checked = name == "hidden_names" or name not in saved_graph.BOOKKEEPING
            if part is not checkpoint or is_checked:
                below = f"{key}/{name}" if key else name
                pending.append((current[name], children.get(name), below))
    return places.values(), lists


def _remedy(saved: saved_graph.SavedGraph, missing: list[_Place]) -> str:
    if saved.is_of_keras2:
        return (
            "The checkpoint was written by Keras 2, which the Model Garden uses. To use its "
            f"weights, {_CONVERTER}"
        )
    remedy = (
        "It was saved by a different model, optimizer or trainer."
        f"{chain.config_of_run(saved.prefix)} To load only the matching weights, start in another "
        "directory with `task.init_checkpoint` and `task.init_checkpoint_strict: false`."
    )
    if any(place.key.startswith("model/") for place in missing):
        return f"{remedy} If Keras 2 or the Model Garden wrote the checkpoint, {_CONVERTER}"
    return remedy
