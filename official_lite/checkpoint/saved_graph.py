"""Reading of `tf.train.Checkpoint` files as the tree of objects that was saved.

The key of a tensor is only one of the paths that lead to it. If a model is saved under two names
(`Checkpoint(model=model, backbone=model.backbone)`), its keys may start with either. The object
graph in the checkpoint holds all paths and the variables' own names.

A `ConversionReport` says which of the tensors belong to the variables of a model.
"""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

from official_lite.checkpoint import latest
from official_lite.common import errors, keras_variables, suggestions

__all__ = [
    "ATTRIBUTES",
    "BOOKKEEPING",
    "GRAPH_KEY",
    "VALUE_SUFFIX",
    "ConversionReport",
    "Leftover",
    "Match",
    "Node",
    "SavedGraph",
    "Shape",
    "Tensor",
    "enumerate_first",
    "read_graph",
]

Shape = tuple[int, ...]

_MAX_CANDIDATES = 3
_MAX_NAMED = 5

# Entries that a checkpoint may lack: older versions and other tools do not save them, and the hooks
# of a run may change.
BOOKKEEPING = frozenset(
    {
        *("batch_size", "batches_read", "hidden_names", "hook_attributes", "hooks"),
        *("micro_batches", "save_counter", "skipped_batches"),
    }
)

ATTRIBUTES = ("trainer_attributes", "task_attributes")
"""The names, or their beginnings, of the items with attributes of a trainer and its tasks."""

GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"
"""The key of the object graph. TensorFlow 1 checkpoints, which have only named tensors, lack it."""

VALUE_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"
"""The suffix that TensorFlow adds to the key of a variable."""

# Children of a compiled or exported Keras 2 model that are not weights.
_NOT_WEIGHTS = frozenset(
    {"optimizer", "keras_api", "signatures", "save_counter", "_random_generator"}
)

_KERAS3_NAMES = frozenset({"_kernel", "_functional", "_operations"})
_KERAS2_PREFIX = "layer_with_weights-"
_COUNTERS = frozenset({"global_step", "beta1_power", "beta2_power"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tensor:
    """A saved variable.

    Attributes:
        key: Its key without the suffix.
        full_name: Its Keras 2 name.
        shape: Its shape.
        dtype: Its dtype.
        dict_key: The key of the dict that held its layer in the model, if the checkpoint names one.
    """

    key: str
    full_name: str
    shape: Shape
    dtype: tf.DType = tf.float32
    dict_key: str = ""


class Node:
    """A saved object: a layer, a model, a list, a dict or a variable."""

    def __init__(self, checkpoint: "SavedGraph", index: int) -> None:
        self._checkpoint = checkpoint
        self.index = index

    @functools.cached_property
    def children(self) -> Mapping[str, "Node"]:
        """The child objects by local name, except optimizers and others that hold no weights."""
        return {
            name: child for name, child in self.all_children.items() if name not in _NOT_WEIGHTS
        }

    @functools.cached_property
    def all_children(self) -> Mapping[str, "Node"]:
        """The child objects by local name, including optimizers."""
        proto = self._checkpoint.graph.nodes[self.index]
        return {child.local_name: self._checkpoint.node(child.node_id) for child in proto.children}

    @property
    def has_state(self) -> bool:
        """Whether the object is a `PythonState` with a value."""
        attributes = self._checkpoint.graph.nodes[self.index].attributes
        return any(attribute.name == "py_state" for attribute in attributes)

    @functools.cached_property
    def tensor(self) -> Tensor | None:
        """The saved tensor of a variable; None for any other object."""
        for attribute in self._checkpoint.graph.nodes[self.index].attributes:
            shape = self._checkpoint.shapes.get(attribute.checkpoint_key)
            if attribute.name == "VARIABLE_VALUE" and shape is not None:
                key = attribute.checkpoint_key.removesuffix(VALUE_SUFFIX)
                dtype = self._checkpoint.dtypes[attribute.checkpoint_key]
                return Tensor(key=key, full_name=attribute.full_name, shape=shape, dtype=dtype)
        return None

    @property
    def layers(self) -> list["Node"]:
        """The layers with weights of a functional or sequential model, in order."""
        names = [name for name in self.children if name.startswith(_KERAS2_PREFIX)]
        return [self.children[name] for name in sorted(names, key=_number)]

    @property
    def layer_name(self) -> str | None:
        """The name of a layer, taken from its variables; None if they name different layers.

        For a layer without variables of its own, this is the first part of the names of the
        variables of its inner layers.
        """
        names = {
            child.tensor.full_name.rpartition("/")[0].rpartition("/")[2]
            for child in self.children.values()
            if child.tensor
        } or {tensor.full_name.partition("/")[0] for tensor in self.tensors()}
        return names.pop() if len(names) == 1 else None

    def tensors(self) -> Iterator[Tensor]:
        """Yield the tensor of every variable below this object, without duplicates."""
        seen, pending = {self.index}, [self]
        while pending:
            node = pending.pop()
            if node.tensor:
                yield node.tensor
            unseen = [child for child in node.children.values() if child.index not in seen]
            seen.update(child.index for child in unseen)
            pending += reversed(unseen)


class SavedGraph:
    """A checkpoint on disk, open for reading.

    Args:
        path: A checkpoint prefix (`.../ckpt-100`), or a directory, whose latest checkpoint is read.

    Raises:
        CheckpointError: There is no checkpoint.
    """

    def __init__(self, path: str) -> None:
        prefix = latest.latest_checkpoint(path) if tf.io.gfile.isdir(path) else path
        if not prefix or not tf.io.gfile.exists(f"{prefix}.index"):
            raise errors.CheckpointError(
                f"There is no checkpoint at `{path}`. Expected a directory that contains one, or "
                "a prefix such as `model_dir/ckpt-100` for which `ckpt-100.index` exists."
            )
        self.prefix = prefix
        self._reader = tf.train.load_checkpoint(self.prefix)
        self.shapes = {
            key: tuple(shape) for key, shape in self._reader.get_variable_to_shape_map().items()
        }
        self.dtypes: dict[str, tf.DType] = self._reader.get_variable_to_dtype_map()
        self.graph = read_graph(self._reader)
        self._nodes: dict[int, Node] = {}

    @property
    def has_graph(self) -> bool:
        """Whether the checkpoint contains an object graph.

        A checkpoint that saves tensors only by name, as `Saver` of TensorFlow 1 does, has none.
        """
        return GRAPH_KEY in self.shapes

    @property
    def is_of_keras2(self) -> bool:
        """Whether the saved objects have slot variables or names that only Keras 2 uses."""
        for node in self.graph.nodes:
            names = {child.local_name for child in node.children}
            is_optimizer = names >= {"iter", "decay"} or (
                {"_variables", "_iterations"} <= names and "_trainable_variables" not in names
            )
            has_layers = any(name.startswith(_KERAS2_PREFIX) for name in names)
            if node.slot_variables or is_optimizer or has_layers:
                return True
        return False

    @property
    def is_of_keras3(self) -> bool:
        """Whether the saved objects have names that only Keras 3 uses."""
        names = (child.local_name for node in self.graph.nodes for child in node.children)
        return not _KERAS3_NAMES.isdisjoint(names)

    def node(self, index: int) -> Node:
        """Return the node with this index; repeated calls return the same object."""
        return self._nodes.setdefault(index, Node(self, index))

    def root(self, path: str | None) -> Node:
        """Return the object saved under `path`; by default `model`, or the top if there is none.

        Raises:
            CheckpointError: No object was saved under this path.
        """
        top = self.node(0)
        if path is None:
            return top.children.get("model", top)
        node = top
        for name in path.split("/"):
            if name not in node.children:
                raise errors.CheckpointError(
                    f"`{self.prefix}` contains no object `{path}`. "
                    f"{suggestions.did_you_mean(name, node.children)}"
                )
            node = node.children[name]
        return node

    def find_unsaved_attributes(self, checkpoint: tf.train.Checkpoint) -> list[Any]:
        """Return the objects that only attributes of the trainer and of its tasks refer to.

        Returns:
            The objects in the program; none if the files contain any such attribute.
        """
        if any(name.startswith(ATTRIBUTES) for name in self.node(0).all_children):
            return []
        others: set[int] = set()
        found: list[Any] = []
        for name, part in tf.train.TrackableView.children(checkpoint).items():
            parts = tf.train.TrackableView(part).descendants()
            if name.startswith(ATTRIBUTES):
                found += parts
            else:
                others |= set(map(id, parts))
        return [part for part in found if id(part) not in others]

    def read_state(self, node: Node) -> bytes | None:
        """Return the saved value of a `PythonState`; None for any other object."""
        for attribute in self.graph.nodes[node.index].attributes:
            if attribute.name == "py_state":
                value: bytes = self._reader.get_tensor(attribute.checkpoint_key)
                return value
        return None

    def named_tensors(self) -> list[Tensor]:
        """Return the tensors of a checkpoint without objects, whose keys are the variable names.

        Optimizer slots, which are named below their variable (`dense/kernel/Adam`), are not
        included.
        """
        return [
            Tensor(key=key, full_name=key, shape=shape, dtype=self.dtypes[key])
            for key, shape in sorted(self.shapes.items())
            if key not in _COUNTERS and key.rpartition("/")[0] not in self.shapes
        ]

    def read(self, tensor: Tensor) -> "np.ndarray[Any, Any]":
        """Return the saved value of a tensor."""
        key = tensor.key + VALUE_SUFFIX if self.has_graph else tensor.key
        return self._reader.get_tensor(key)


def read_graph(reader: Any) -> trackable_object_graph_pb2.TrackableObjectGraph:
    """Return the saved objects of an open checkpoint; none if tensors were saved by name."""
    graph = trackable_object_graph_pb2.TrackableObjectGraph()
    if reader.has_tensor(GRAPH_KEY):
        graph.ParseFromString(reader.get_tensor(GRAPH_KEY))
    return graph


def _number(name: str) -> int:
    return int(name.rpartition("-")[2])


def enumerate_first(title: str, names: Sequence[object]) -> str:
    """Return a title and the first few names as text; an empty string if there are no names."""
    if not names:
        return ""
    rest = len(names) - _MAX_NAMED
    more = f" and {rest} more" if rest > 0 else ""
    return f"{title}: {', '.join(map(str, names[:_MAX_NAMED]))}{more}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Match:
    """A variable of the model and the checkpoint tensor that belongs to it.

    Attributes:
        variable: The path of the variable.
        variable_shape: The shape of the variable.
        key: The key of the tensor in the checkpoint.
        key_shape: The shape of the tensor.
        saved_name: The name of the tensor in the checkpoint, if it is more informative than the
            key.
        is_by_position: Whether the two were matched only by their position in the model.
    """

    variable: str
    variable_shape: Shape
    key: str
    key_shape: Shape
    saved_name: str = ""
    is_by_position: bool = False

    @classmethod
    def of(cls, variable: Any, tensor: Tensor, **fields: Any) -> "Match":
        """Return the match of a variable and a tensor."""
        return cls(
            variable=keras_variables.path_of(variable),
            variable_shape=tuple(variable.shape),
            key=tensor.key,
            key_shape=tensor.shape,
            **fields,
        )

    def __str__(self) -> str:
        text = f"{self.variable} {list(self.variable_shape)} <- {self.key}"
        if self.variable_shape != self.key_shape:
            text += f" {list(self.key_shape)}"
        return f"{text} ({self.saved_name})" if self.saved_name else text


@dataclasses.dataclass(frozen=True, kw_only=True)
class Leftover:
    """A variable without a tensor, or a tensor without a variable.

    Attributes:
        name: The path of the variable or the key of the tensor.
        shape: Its shape.
        candidates: The keys of tensors that may belong to the variable. For an ambiguous variable,
            these are all tensors that claim it; for a missing one, unused tensors of its shape,
            those of a similar name if there are any.
    """

    name: str
    shape: Shape
    candidates: tuple[str, ...] = ()

    @classmethod
    def of(cls, variable: Any, keys: Iterable[str]) -> "Leftover":
        """Return the entry of an unmatched variable, with the keys of tensors that may match it."""
        name = keras_variables.path_of(variable)
        return cls(name=name, shape=tuple(variable.shape), candidates=tuple(keys))

    def __str__(self) -> str:
        text = f"{self.name} {list(self.shape)}"
        if not self.candidates:
            return text
        more = ", …" if len(self.candidates) > _MAX_CANDIDATES else ""
        return f"{text} (might be {', '.join(self.candidates[:_MAX_CANDIDATES])}{more})"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConversionReport:
    """The result for every variable of the model and every tensor of the checkpoint.

    Attributes:
        checkpoint: The prefix of the checkpoint files.
        matched: Pairs of equal shape. Only these are assigned.
        mismatched: Pairs that belong together but differ in shape.
        ambiguous: Variables that more than one tensor may belong to.
        missing: Variables without a tensor.
        unexpected: Tensors of the model in the checkpoint that were not matched to a variable.
    """

    checkpoint: str
    matched: tuple[Match, ...] = ()
    mismatched: tuple[Match, ...] = ()
    ambiguous: tuple[Leftover, ...] = ()
    missing: tuple[Leftover, ...] = ()
    unexpected: tuple[Leftover, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether every variable was assigned and every tensor was used."""
        return not (self.mismatched or self.ambiguous or self.missing or self.unexpected)

    @classmethod
    def of(
        cls,
        checkpoint: str,
        found: Sequence[Match],
        missing: Iterable[Any],
        unused: Sequence[Tensor],
        ambiguous: Iterable[Leftover] = (),
    ) -> "ConversionReport":
        """Return the report on the matches, the variables without a tensor and unused tensors."""
        lost = []
        for variable in missing:
            alike = [tensor.key for tensor in unused if tensor.shape == tuple(variable.shape)]
            nearest = suggestions.nearest(keras_variables.path_of(variable), alike)
            lost.append(Leftover.of(variable, nearest or alike))
        return cls(
            checkpoint=checkpoint,
            matched=tuple(match for match in found if match.variable_shape == match.key_shape),
            mismatched=tuple(match for match in found if match.variable_shape != match.key_shape),
            ambiguous=tuple(ambiguous),
            missing=tuple(lost),
            unexpected=tuple(Leftover(name=t.key, shape=t.shape) for t in unused),
        )

    @classmethod
    def merged(cls, checkpoint: str, reports: Sequence["ConversionReport"]) -> "ConversionReport":
        """Return one report on several parts of a checkpoint."""
        kinds = [field.name for field in dataclasses.fields(cls) if field.name != "checkpoint"]
        entries = {
            kind: tuple(entry for report in reports for entry in getattr(report, kind))
            for kind in kinds
        }
        return cls(checkpoint=checkpoint, **entries)

    def __str__(self) -> str:
        lines = [f"{self.checkpoint}: {len(self.matched)} variables matched"]
        by_position = [match for match in self.matched if match.is_by_position]
        lines += _section("of these, by position", by_position)
        lines += _section("with a different shape", self.mismatched)
        lines += _section("ambiguous", self.ambiguous)
        lines += _section("missing from the checkpoint", self.missing)
        lines += _section("unexpected in the checkpoint", self.unexpected)
        return "\n".join(lines)


def _section(title: str, rows: Iterable[object]) -> list[str]:
    lines = [f"    {row}" for row in rows]
    return [f"  {title} ({len(lines)}):", *lines] if lines else []
