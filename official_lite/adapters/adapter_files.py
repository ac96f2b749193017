"""Reading and writing of adapters: from the checkpoints of a run, and as safetensors.

::

    task.initialize(model)                                   # the base
    adapter = adapter_files.load(model, "runs/austen")       # its adapter is active
    adapter_files.assign(adapter, "runs/kjv.safetensors")    # another one takes its place
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import keras
import numpy.typing as npt

from official_lite.adapters import configs, lora
from official_lite.checkpoint import (
    commit,
    keras2_checkpoint,
    model_state,
    safetensors_files,
    warm_start,
)
from official_lite.common import errors

__all__ = ["SavedAdapter", "assign", "load", "read", "save"]

_DESCRIPTION = "adapter"


@dataclasses.dataclass(frozen=True)
class SavedAdapter:
    """An adapter on disk.

    Attributes:
        path: The checkpoint or file.
        description: The result of `lora.Adapter.describe` when it was saved.
        arrays: The values of the weights, in the order of the description.
    """

    path: str
    description: Mapping[str, Any]
    arrays: list[npt.NDArray[Any]]

    @property
    def config(self) -> configs.AdaptersConfig:
        """The config with which the adapter was trained."""
        return configs.AdaptersConfig(**self.description["config"])


def read(path: str) -> SavedAdapter:
    """Read an adapter.

    From a checkpoint, the weights are read that were trained. A moving average of them, if the
    optimizer kept one, is what `tools weights --adapter_only` writes.

    Args:
        path: A model directory or a checkpoint of a run with `task.adapters`, or a safetensors
            file that `save` wrote.

    Raises:
        errors.CheckpointError: There is no adapter at the path, or it is damaged.
    """
    if safetensors_files.is_safetensors(path):
        return _read_safetensors(path)
    prefix = warm_start.find_checkpoint(path)
    if prefix is None:
        raise errors.CheckpointError(
            f"No adapter found at {path}. Expected a run with `task.adapters`, one of its "
            "checkpoints, or a safetensors file."
        )
    if damage := commit.find_damage(prefix):
        raise errors.CheckpointError(f"{prefix} is damaged: {damage}.")
    checkpoint = keras2_checkpoint.Keras2Checkpoint(prefix)
    saved = checkpoint.node(0).children
    if model_state.ADAPTER_WEIGHTS not in saved:
        raise errors.CheckpointError(
            f"{prefix} holds no adapter: its run was trained without `task.adapters`."
        )
    nodes = saved[model_state.ADAPTER_WEIGHTS].children
    tensors = [nodes[str(index)].tensor for index in range(len(nodes))]
    return SavedAdapter(
        prefix,
        json.loads(checkpoint.read_state(saved[_DESCRIPTION]) or b"{}"),
        [checkpoint.read(tensor) for tensor in tensors if tensor],
    )


def save(adapter: lora.Adapter, path: str) -> None:
    """Write an adapter to a safetensors file, with its config and the checksum of its base.

    Raises:
        errors.ConfigValueError: The path has another extension, or `safetensors` is not installed.
    """
    arrays = [(w.path, w.numpy()) for w in adapter.weights]
    safetensors_files.write(path, arrays, {_DESCRIPTION: json.dumps(adapter.describe())})


def load(model: keras.Model, path: str) -> lora.Adapter:
    """Enable an adapter in a model that has the weights of the base.

    Args:
        model: A model with its variables and without adapters.
        path: See `read`.

    Returns:
        The adapter, to be merged or exchanged.

    Raises:
        errors.CheckpointError: The adapter belongs to another base or to another model.
        errors.ConfigValueError: The model can't have the adapter.
    """
    saved = read(path)
    adapter = lora.enable(model, saved.config)
    _assign(adapter, saved)
    return adapter


def assign(adapter: lora.Adapter, path: str) -> None:
    """Replace the values of an adapter by those of another one on the same base.

    Args:
        adapter: The adapter of a model.
        path: An adapter with the same config; see `read`.

    Raises:
        errors.CheckpointError: The adapter at the path has another config or another base.
    """
    _assign(adapter, read(path))


def _assign(adapter: lora.Adapter, saved: SavedAdapter) -> None:
    try:
        adapter.require_same_base(saved.description)
    except errors.CheckpointError as error:
        raise errors.CheckpointError(f"{saved.path} does not fit the model. {error}") from error
    shapes = [tuple(weight.shape) for weight in adapter.weights]
    if shapes != [array.shape for array in saved.arrays]:
        raise errors.CheckpointError(
            f"{saved.path} has weights of other shapes than the adapter of the model. Expected "
            f"{shapes}; got {[array.shape for array in saved.arrays]}."
        )
    for weight, array in zip(adapter.weights, saved.arrays, strict=True):
        weight.assign(array)


def _read_safetensors(path: str) -> SavedAdapter:
    file = safetensors_files.SafetensorsFile(path)
    if _DESCRIPTION not in file.metadata:
        raise errors.CheckpointError(
            f"{path} holds no adapter. To load the weights of a whole model, set "
            "`task.init_checkpoint` to it."
        )
    description = json.loads(file.metadata[_DESCRIPTION])
    tensors = {tensor.key: tensor for tensor in file.tensors}
    arrays = [file.read(tensors[name]) for name in description["weights"]]
    return SavedAdapter(path, description, arrays)
