"""Reading of `tf.train.Checkpoint` files as the tree of objects that was saved.

The key of a tensor is only one of the paths that lead to it. If a model is saved under two names
(`Checkpoint(model=model, backbone=model.backbone)`), its keys may start with either. The object
graph in the checkpoint holds all paths and the variables' own names.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

from official_lite.checkpoint import latest
from official_lite.common import errors, suggestions

__all__ = ["GRAPH_KEY", "VALUE_SUFFIX", "Node", "SavedGraph", "Tensor", "read_graph"]

GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"
"""The key of the saved objects. TensorFlow 1, which saved tensors by name, lacks it."""

VALUE_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"
"""What TensorFlow adds to the key of a variable."""

# Children of a compiled or exported Keras 2 model that are not weights.
_NOT_WEIGHTS = frozenset(
    {"optimizer", "keras_api", "signatures", "save_counter", "_random_generator"}
)

_KERAS3_NAMES = frozenset({"_kernel", "_functional", "_operations"})
_KERAS2_PREFIX = "layer_with_weights-"
_COUNTERS = frozenset({"global_step", "beta1_power", "beta2_power"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tensor:
    """A saved variable: its key without the suffix, its Keras 2 name and its shape."""

    key: str
    full_name: str
    shape: tuple[int, ...]


class Node:
    """A saved object: a layer, a model, a list, a dict or a variable."""

    def __init__(self, checkpoint: "SavedGraph", index: int) -> None:
        self._checkpoint = checkpoint
        self.index = index

    @functools.cached_property
    def children(self) -> Mapping[str, "Node"]:
        """The child objects by each of their local names, without optimizers."""
        return {
            name: child for name, child in self.all_children.items() if name not in _NOT_WEIGHTS
        }

    @functools.cached_property
    def all_children(self) -> Mapping[str, "Node"]:
        """The child objects by each of their local names, including optimizers."""
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
                return Tensor(key=key, full_name=attribute.full_name, shape=shape)
        return None

    @property
    def layers(self) -> list["Node"]:
        """The layers with weights of a functional or sequential model, in order."""
        names = [name for name in self.children if name.startswith(_KERAS2_PREFIX)]
        return [self.children[name] for name in sorted(names, key=_number)]

    @property
    def layer_name(self) -> str | None:
        """The name of a layer, taken from the names of its variables; None if these differ.

        Without variables of its own, it is the name with which those of the inner layers begin.
        """
        names = {
            child.tensor.full_name.rpartition("/")[0].rpartition("/")[2]
            for child in self.children.values()
            if child.tensor
        } or {tensor.full_name.partition("/")[0] for tensor in self.tensors()}
        return names.pop() if len(names) == 1 else None

    def tensors(self) -> Iterator[Tensor]:
        """Yield the tensor of every variable below this object, once each."""
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
        self.graph = read_graph(self._reader)
        self._nodes: dict[int, Node] = {}

    @property
    def has_graph(self) -> bool:
        """Whether objects were saved; false if tensors were saved by name, as in TensorFlow 1."""
        return GRAPH_KEY in self.shapes

    @property
    def is_of_keras2(self) -> bool:
        """Whether the saved objects have names that only Keras 2 uses."""
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
        """Return the node with this index; always the same object."""
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
            Tensor(key=key, full_name=key, shape=shape)
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
