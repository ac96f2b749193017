"""Low-rank adapters on the layers of a built model: enabling, freezing, merging.

::

    adapter = lora.enable(model, configs.AdaptersConfig(rank=4, include=["attention"]))
    ...                 # train: only the adapter has trainable weights
    adapter.merge()     # the model has its original weights again, with new values

The layers of Keras compute with the adapter, by their `enable_lora`
(LoRA, https://arxiv.org/abs/2106.09685).
"""

import hashlib
import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from official_lite.adapters import configs
from official_lite.checkpoint import model_state
from official_lite.common import errors, suggestions
from official_lite.modeling import freezing

__all__ = ["Adapter", "enable"]

# The weight that an adapter is added to, by the class of the layer.
_WEIGHT_OF: Mapping[type[keras.Layer], str] = {
    keras.layers.Dense: "kernel",
    keras.layers.EinsumDense: "kernel",
    keras.layers.Embedding: "embeddings",
}
_KINDS = tuple(_WEIGHT_OF)
_EXPECTED = "`Dense`, `EinsumDense` or `Embedding` layer"


class Adapter:
    """The adapter of a model: the weights that training may change, and a fingerprint of the rest.

    Args:
        model: The model, in whose layers the adapter is enabled.
        config: The config with which it was enabled.
        layers: The layers with a low-rank adapter.

    Attributes:
        config: The config.
        layers: The layers with a low-rank adapter.
        weights: The weights to save, in the order of `model.weights`: those that are trained, and
            all statistics, which layers may update.
        base: The SHA-256 checksum of the shapes and values of all other weights.
    """

    def __init__(
        self,
        model: keras.Model,
        config: configs.AdaptersConfig,
        layers: Sequence[keras.Layer],
    ) -> None:
        self._model = model
        self.config = config
        self.layers = list(layers)
        statistics = {
            id(variable)
            for layer in model._flatten_layers()
            for variable in layer._non_trainable_variables
        }
        self.weights: list[Any] = [
            weight for weight in model.weights if weight.trainable or id(weight) in statistics
        ]
        own = {id(weight) for weight in self.weights}
        self.base = _checksum([weight for weight in model.weights if id(weight) not in own])

    @property
    def base_variables(self) -> list[Any]:
        """The variables of the model that an adapter's checkpoint leaves out."""
        own = {id(weight) for weight in self.weights}
        return [variable for variable in self._model.variables if id(variable) not in own]

    def describe(self) -> dict[str, Any]:
        """Return what a reader of the saved weights must know, as JSON-serializable values."""
        return {
            "config": self.config.as_dict(),
            "base_sha256": self.base,
            "weights": [weight.path for weight in self.weights],
        }

    def checkpoint_items(self) -> dict[str, Any]:
        """Return the items that a checkpoint holds in place of the model."""
        random_state = model_state.hidden_items(self._model).get("random_state")
        return {
            "adapter": _Description(self),
            model_state.ADAPTER_WEIGHTS: self.weights,
            **({"random_state": random_state} if random_state else {}),
        }

    def require_same_base(self, saved: Mapping[str, Any]) -> None:
        """Check that a saved adapter belongs to the weights of this model.

        Args:
            saved: The result of `describe` when it was saved.

        Raises:
            errors.CheckpointError: It was trained on other weights, or with another config.
        """
        now = self.config.as_dict()
        changed = [
            f"`{name}` was {value}, and is {now.get(name)}"
            for name, value in saved["config"].items()
            if value != now.get(name)
        ]
        if changed:
            raise errors.CheckpointError(
                f"The adapter was saved with another config: {'; '.join(changed)}."
            )
        if saved["base_sha256"] != self.base:
            raise errors.CheckpointError(
                "The adapter was trained on another base: the weights of the model have the "
                f"checksum {self.base[:12]}…, but expected {saved['base_sha256'][:12]}…. Set "
                "`task.init_checkpoint` to the checkpoint that the adapter was trained on."
            )

    def merge(self) -> None:
        """Add the adapter to the weights of its layers, and remove it from the model.

        The model then has the variables that it had before, and computes the same outputs up to
        rounding.
        """
        for layer in self.layers:
            attribute = _attribute(layer)
            a, b = (f"lora_{attribute}_{name}" for name in "ab")
            delta = keras.ops.matmul(getattr(layer, a), getattr(layer, b))
            scale = layer.lora_alpha / layer.lora_rank
            layer.lora_enabled = False
            weight = getattr(layer, attribute)
            weight.assign(keras.ops.cast(weight + scale * delta, weight.dtype))
            weight.trainable = True
            delattr(layer, a)
            delattr(layer, b)
            layer.lora_rank = layer.lora_alpha = None
        logging.info("Merged the adapters of %d layers into their weights.", len(self.layers))
        self.layers = []


def _checksum(weights: Sequence[Any]) -> str:
    checksum = hashlib.sha256()
    for weight in weights:
        value = weight.numpy()
        checksum.update(f"{value.dtype} {value.shape};".encode())
        checksum.update(value.tobytes())
    return checksum.hexdigest()


class _Description(tf.train.experimental.PythonState):
    """The description of an adapter in a checkpoint; restoring it checks the base."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter

    def serialize(self) -> str:
        return json.dumps(self._adapter.describe())

    def deserialize(self, string_value: str) -> None:
        self._adapter.require_same_base(json.loads(string_value))


def enable(model: keras.Model, config: configs.AdaptersConfig) -> Adapter:
    """Add adapters to the layers that the config selects, and freeze all other weights.

    Layers of which nothing is trained are frozen as a whole, so batch normalization uses its
    statistics without updating them.

    Args:
        model: A Keras model that has its variables, with the weights of the base.
        config: The config.

    Returns:
        The adapter.

    Raises:
        errors.ConfigValueError: A pattern matches nothing, or a layer can't have an adapter.
    """
    if not isinstance(model, keras.Model):
        raise errors.ConfigValueError(
            "`task.adapters` supports only Keras models, but the task's model is a "
            f"{type(model).__name__}."
        )
    paths = [weight.path for weight in model.weights]
    kept = {
        id(model.weights[index])
        for pattern in config.trainable
        for index in _matching(pattern, paths, "trainable", "weight")
    }
    layers = _choose(_find_layers(model), config, kept)
    for layer in layers:
        _enable(layer, config)
    freezing.freeze_weights(model, _frozen(model, layers, kept))
    logging.info(
        "%d layers have adapters; %d of %d values are trained.",
        len(layers),
        sum(math.prod(weight.shape) for weight in model.trainable_weights),
        sum(math.prod(weight.shape) for weight in model.weights),
    )
    return Adapter(model, config, layers)


def _find_layers(model: keras.Model) -> list[keras.Layer]:
    """Return the layers that can have an adapter, once each."""
    layers = {id(layer): layer for layer in model._flatten_layers()}
    return [each for each in layers.values() if isinstance(each, _KINDS) and each.built]


def _attribute(layer: keras.Layer) -> str:
    return next(name for cls, name in _WEIGHT_OF.items() if isinstance(layer, cls))


def _choose(
    layers: Sequence[keras.Layer], config: configs.AdaptersConfig, kept: Collection[int]
) -> list[keras.Layer]:
    if not layers:
        raise errors.ConfigValueError(
            f"`task.adapters` is set, but the model has no {_EXPECTED}, so nothing can have an "
            "adapter."
        )
    paths = [layer.path for layer in layers]
    included = {i for one in config.include for i in _matching(one, paths, "include", _EXPECTED)}
    excluded = {i for one in config.exclude for i in _matching(one, paths, "exclude", _EXPECTED)}
    chosen = [
        layer
        for index, layer in enumerate(layers)
        if index in included - excluded and id(getattr(layer, _attribute(layer))) not in kept
    ]
    if not chosen:
        raise errors.ConfigValueError(
            "`task.adapters` leaves no layer with an adapter: `exclude` and `trainable` match all "
            f"layers that `include` matches. The layers are {', '.join(paths)}."
        )
    return chosen


def _matching(pattern: str, paths: Sequence[str], field: str, kind: str) -> list[int]:
    """Return the positions of the paths that match."""
    found = [index for index, path in enumerate(paths) if re.search(pattern, path)]
    if not found:
        # A typo is compared with the parts of paths, because a pattern is rarely a whole path.
        parts = {part: None for path in paths for part in path.split("/")}
        known = parts if suggestions.nearest(pattern, parts) else paths
        raise errors.ConfigValueError(
            f"`task.adapters.{field}` has {pattern!r}, which matches the path of no {kind}. "
            f"{suggestions.did_you_mean(pattern, known)}"
        )
    return found


def _enable(layer: keras.Layer, config: configs.AdaptersConfig) -> None:
    path = layer.path
    remedy = f"Add {path!r} to `task.adapters.exclude`."
    if layer.lora_enabled:
        raise errors.ConfigValueError(
            f"The layer {path!r} already has a LoRA adapter. Build the model without `lora_rank`, "
            "or call `merge` of its adapter first."
        )
    if layer.quantization_mode:
        raise errors.ConfigValueError(
            f"The layer {path!r} is quantized ({layer.quantization_mode}), so an adapter can't be "
            f"merged into it. {remedy}"
        )
    try:
        layer.enable_lora(config.rank, lora_alpha=config.alpha)
    except (ValueError, NotImplementedError) as error:
        raise errors.ConfigValueError(
            f"The layer {path!r} can't have an adapter: {error} {remedy}"
        ) from error


def _frozen(model: keras.Model, adapted: Sequence[keras.Layer], kept: set[int]) -> list[Any]:
    """Return the weights to freeze.

    The statistics of a layer are included only if nothing of the layer is trained.
    """
    frozen = []
    for layer in model._flatten_layers():
        own = [*layer._trainable_variables, *layer._non_trainable_variables]
        if layer in adapted:
            # Keras has frozen the weight; what is left is a bias.
            lora = [getattr(layer, f"lora_{_attribute(layer)}_{name}") for name in "ab"]
            own = [v for v in own if v.trainable and all(v is not each for each in lora)]
        elif any(id(variable) in kept for variable in own):
            own = [variable for variable in own if variable.trainable]
        frozen += [variable for variable in own if id(variable) not in kept]
    return frozen
