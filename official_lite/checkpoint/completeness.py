"""Checks before a restore that the checkpoint holds a value for every variable that needs one.

`tf.train.Checkpoint.restore` assigns the values that it finds and silently leaves all other
variables at their initial values. From a checkpoint of another model, or of Keras 2, it would
restore nothing.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from official_lite.checkpoint import saved_graph
from official_lite.common import errors, files, keras_variables, suggestions

__all__ = ["OPTIONAL_ITEMS", "enumerate_first", "require_complete"]

_Node = saved_graph.Node

# Bookkeeping that checkpoints of older versions or of other tools lack. Hooks may change, too.
OPTIONAL_ITEMS = frozenset(
    {
        *("batches_read", "hidden_names", "hook_attributes", "hooks", "micro_batches"),
        *("save_counter", "skipped_batches"),
    }
)
_MAX_NAMED = 5
_CONVERTER = (
    "load it with `official_lite.checkpoint.keras2_converter`; see docs/coming_from_tfm.md."
)


def require_complete(
    checkpoint: tf.train.Checkpoint, path: str, *, optional: Iterable[Any] = ()
) -> None:
    """Check that `checkpoint.restore(path)` would assign every variable, without assigning any.

    Variables that do not exist yet and objects without variables, such as Keras metrics, are not
    checked. Neither is bookkeeping that older checkpoints lack.

    Args:
        checkpoint: The checkpoint object to restore into.
        path: The prefix of the checkpoint files.
        optional: Variables that may be missing in the files.

    Raises:
        errors.CheckpointError: A variable is missing, was saved with another shape, or belongs to a
            list that had another length. The message names the first of these variables.
    """
    if not files.exists(f"{path}.index"):
        # The restore itself reports missing files.
        return
    saved = saved_graph.SavedGraph(path)
    found = _compare(checkpoint, saved)
    optional_ids = {id(variable) for variable in optional}
    missing = [each for each in found.missing() if id(each.value) not in optional_ids]
    misshapen = [each for each in found.misshapen() if id(each.value) not in optional_ids]
    unequal = [] if missing or misshapen else found.unequal_lists(optional_ids)
    if not (missing or misshapen or unequal):
        return
    total = sum(id(place.value) not in optional_ids for place in found.values.values())
    problems = [
        enumerate_first(f"{len(missing)} of {total} values are missing", missing),
        enumerate_first("saved with a different shape", misshapen),
        enumerate_first("lists of a different length", unequal),
    ]
    raise errors.CheckpointError(
        f"{path} can't be restored; nothing was changed. The checkpoint is intact, but it does "
        f"not match this run: {'; '.join(filter(None, problems))}. {_remedy(saved, missing)}"
    )


@dataclasses.dataclass(eq=False)
class _Place:
    """A variable or `PythonState`, and all objects that were saved under names that lead to it."""

    value: Any
    key: str
    nodes: list[_Node] = dataclasses.field(default_factory=list)

    @property
    def is_saved(self) -> bool:
        return any(_holds_value(node) for node in self.nodes)

    @property
    def saved_shapes(self) -> list[tuple[int, ...]]:
        return [node.tensor.shape for node in self.nodes if node.tensor]

    def __str__(self) -> str:
        if not keras_variables.is_variable(self.value):
            return f"`{self.key}`"
        shape = tuple(self.value.shape)
        was = [saved for saved in self.saved_shapes if saved != shape]
        shapes = (
            f"{list(was[0])} in the checkpoint, {list(shape)} in this run"
            if was
            else f"{list(shape)}"
        )
        return f"`{keras_variables.path_of(self.value)}` ({self.key}: {shapes})"


@dataclasses.dataclass(eq=False)
class _List:
    """The elements of a list in the program and in the checkpoint."""

    key: str
    current: Mapping[str, Any]
    saved: Mapping[str, _Node]

    def __str__(self) -> str:
        return (
            f"`{self.key}` ({len(self.saved)} in the checkpoint, {len(self.current)} in this run)"
        )


@dataclasses.dataclass
class _Comparison:
    values: dict[int, _Place] = dataclasses.field(default_factory=dict)
    lists: list[_List] = dataclasses.field(default_factory=list)

    def missing(self) -> list[_Place]:
        return [place for place in self.values.values() if not place.is_saved]

    def misshapen(self) -> list[_Place]:
        return [
            place
            for place in self.values.values()
            if keras_variables.is_variable(place.value)
            and any(shape != tuple(place.value.shape) for shape in place.saved_shapes)
        ]

    def unequal_lists(self, optional: set[int]) -> list[_List]:
        """Return lists of layers or variables that changed length and were not fully restored.

        Positions in such lists are meaningless.
        """
        restored = {
            node.tensor.key for place in self.values.values() for node in place.nodes if node.tensor
        }
        return [
            each
            for each in self.lists
            if not all(id(part) in optional for part in each.current.values())
            and any(t.key not in restored for node in each.saved.values() for t in node.tensors())
        ]


def _compare(checkpoint: tf.train.Checkpoint, saved: saved_graph.SavedGraph) -> _Comparison:
    """Traverse the objects to restore and the saved objects in parallel, matched by name."""
    found = _Comparison()
    seen: set[tuple[int, int]] = set()
    top = saved.node(0) if saved.has_graph else None
    pending: list[tuple[Any, _Node | None, str]] = [(checkpoint, top, "")]
    while pending:
        part, node, key = pending.pop()
        if (id(part), node.index if node else -1) in seen:
            continue
        seen.add((id(part), node.index if node else -1))
        if keras_variables.is_variable(part) or isinstance(part, tf.train.experimental.PythonState):
            place = found.values.setdefault(id(part), _Place(part, key))
            place.nodes += [node] if node else []
            continue
        current = dict(tf.train.TrackableView.children(part))
        children = node.all_children if node else {}
        elements = {name: child for name, child in current.items() if name.isdigit()}
        saved_elements = {name: child for name, child in children.items() if name.isdigit()}
        if node and len(elements) != len(saved_elements):
            found.lists.append(_List(key, elements, saved_elements))
        # The last item pushed is visited first. Visit the model first, because an optimizer also
        # refers to its weights.
        names = sorted(current, key=lambda name: name != "model")
        for name in reversed(names):
            if part is not checkpoint or name not in OPTIONAL_ITEMS:
                below = f"{key}/{name}" if key else name
                pending.append((current[name], children.get(name), below))
    return found


def _holds_value(node: _Node) -> bool:
    return node.tensor is not None or node.has_state


def enumerate_first(title: str, places: Sequence[object]) -> str:
    """Return a title and the first of these places; an empty text if there are none."""
    if not places:
        return ""
    rest = len(places) - _MAX_NAMED
    more = f" and {rest} more" if rest > 0 else ""
    return f"{title}: {', '.join(map(str, places[:_MAX_NAMED]))}{more}"


def _remedy(saved: saved_graph.SavedGraph, missing: list[_Place]) -> str:
    if saved.is_of_keras2:
        return f"Keras 2 wrote it, as the Model Garden does: {_CONVERTER}"
    remedy = (
        "It was saved by a different model, optimizer or trainer. To use the original ones, apply "
        f"the config of the run: {suggestions.config_file('params.yaml')}. To load only the "
        "matching weights, start in another directory with `task.init_checkpoint` and "
        "`task.init_checkpoint_strict: false`."
    )
    if any(place.key.startswith("model/") for place in missing):
        return f"{remedy} If Keras 2 or the Model Garden wrote it, {_CONVERTER}"
    return remedy
