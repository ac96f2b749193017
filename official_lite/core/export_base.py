"""The export of models for serving: the base class of export modules, and SavedModel export."""

import abc
import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from official_lite import telemetry
from official_lite.checkpoint import fallback, latest, model_state, warm_start
from official_lite.common import errors, nests
from official_lite.core import config_definitions
from official_lite.modeling.optimization import ema_optimizer

__all__ = ["ExportModule", "export", "get_timestamped_export_dir"]

MAX_DIRECTORY_CREATION_ATTEMPTS = 10


class ExportModule(tf.Module, abc.ABC):
    """Base class of export modules, which combine a model with its serving functions.

    Subclasses implement `serve`, usually with `preprocessor`, `inference_step` and
    `postprocessor`, and return its concrete functions from `get_inference_signatures`.

    Args:
        params: Any parameters that the subclass needs.
        model: The object that holds the weights.
        inference_step: A function called as `inference_step(inputs, model=model)`; by default
            `model(inputs, training=False)`.
        preprocessor: A function or `tf.Module` that creates the model inputs.
        postprocessor: A function or `tf.Module` that turns model outputs into results.
    """

    def __init__(
        self,
        params: config_definitions.ExperimentConfig,
        model: tf.Module | keras.Model,
        inference_step: Callable[..., Any] | None = None,
        *,
        preprocessor: Callable[..., Any] | None = None,
        postprocessor: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__(name=None)
        self.params = params
        self.model = model
        self.inference_step = functools.partial(inference_step or _infer, model=model)
        self.preprocessor = preprocessor
        self.postprocessor = postprocessor

    @abc.abstractmethod
    def serve(self) -> Mapping[str, tf.Tensor]:
        """Run the model on tensors given as keyword arguments, and return tensors by name."""

    @abc.abstractmethod
    def get_inference_signatures(self, function_keys: dict[str, str]) -> Mapping[str, Any]:
        """Return the concrete functions, keyed by the names under which they are served.

        Args:
            function_keys: A mapping of each function's own name to its serving name.
        """


def export(
    export_module: ExportModule,
    function_keys: list[str] | dict[str, str],
    export_savedmodel_dir: str,
    checkpoint_path: str | None = None,
    timestamped: bool = True,
    save_options: tf.saved_model.SaveOptions | None = None,
    checkpoint: tf.train.Checkpoint | None = None,
    optimizer: keras.optimizers.Optimizer | None = None,
) -> str:
    """Write `export_module` as a SavedModel, with weights from a checkpoint if one is given.

    Args:
        export_module: The module to export.
        function_keys: A mapping of each function's own name to its serving name, or a list with
            exactly one function, which becomes the default signature.
        export_savedmodel_dir: The directory to write to.
        checkpoint_path: A checkpoint, or a directory whose latest checkpoint is used.
        timestamped: Whether to write to a new subdirectory named after the current time.
        save_options: Options for `tf.saved_model.save`.
        checkpoint: The checkpoint object to restore; by default a checkpoint of the model.
        optimizer: The optimizer of the model, with its variables. If it averages the weights, the
            averages, which evaluations measure, are exported.

    Returns:
        The directory that was written.

    Raises:
        CheckpointError: (a `ValueError`) If there is no checkpoint at `checkpoint_path`, or if it
            lacks a variable.
        ConfigValueError: If `function_keys` is a list of several functions or has an unsafe name.
    """
    keys = _checked_keys(function_keys)
    _check_path(export_savedmodel_dir)
    if checkpoint_path:
        checkpoint = checkpoint or tf.train.Checkpoint(
            **model_state.weight_items(export_module.model)
        )
        path = _newest_checkpoint(checkpoint_path)
        fallback.restore(checkpoint, path, is_partial=True)
        if optimizer is not None:
            # If the checkpoint has no average of a weight, the weight itself is exported.
            ema_optimizer.follow_weights(optimizer)
            warm_start.load_averages(optimizer, export_module.model, path, is_whole=True)
    export_dir = export_savedmodel_dir
    if timestamped:
        export_dir = get_timestamped_export_dir(export_savedmodel_dir)
    # Mute the event storage. Otherwise a model that writes scalars to the storage would be saved
    # together with the storage.
    muted = telemetry.get_event_storage().muted()
    with muted, ema_optimizer.averaged_weights(optimizer):
        signatures = export_module.get_inference_signatures(keys)
        tf.saved_model.save(export_module, export_dir, signatures=signatures, options=save_options)
    return export_dir


def get_timestamped_export_dir(export_dir_base: str) -> str:
    """Return the path of a new subdirectory of `export_dir_base`, without creating it.

    The subdirectory is named after the current time in seconds, because serving systems treat the
    largest number as the latest version. If that name is taken, the next second is used.

    Raises:
        RuntimeError: If the names of the next ten seconds are all taken.
    """
    now = int(time.time())
    for timestamp in range(now, now + MAX_DIRECTORY_CREATION_ATTEMPTS):
        export_dir = tf.io.gfile.join(export_dir_base, str(timestamp))
        if not tf.io.gfile.exists(export_dir):
            return export_dir
    raise RuntimeError(
        f"Failed to obtain a unique export directory name in {export_dir_base!r} after "
        f"{MAX_DIRECTORY_CREATION_ATTEMPTS} attempts. Export to another directory, or try again "
        "later."
    )


def _infer(inputs: nests.Nest, model: keras.Model) -> nests.Nest:
    # Don't use `model.call`, which would skip building, autocasting and masks.
    return model(inputs, training=False)


def _checked_keys(function_keys: list[str] | dict[str, str]) -> dict[str, str]:
    if isinstance(function_keys, list):
        if len(function_keys) != 1:
            raise errors.ConfigValueError(
                f"A list of `function_keys` must contain exactly one element; got {function_keys}. "
                "To export several functions, pass a dict that maps their names to serving names."
            )
        function_keys = {function_keys[0]: tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY}
    for name in [*function_keys, *function_keys.values()]:
        if not name or not name.isprintable():
            raise errors.ConfigValueError(
                f"{name!r} is not a valid name for a served function; expected printable text."
            )
    return function_keys


def _check_path(path: str) -> None:
    if not path.isprintable():
        raise errors.ConfigValueError(
            f"The export path {path!r} contains control characters. Use only printable characters."
        )


def _newest_checkpoint(checkpoint_path: str) -> str:
    found: str | None = checkpoint_path
    if tf.io.gfile.isdir(checkpoint_path):
        found = latest.latest_checkpoint(checkpoint_path)
    if not found or not tf.io.gfile.exists(f"{found}.index"):
        raise errors.CheckpointError(
            f"There is no checkpoint at {checkpoint_path!r}, so the export would contain "
            "untrained weights. Pass a directory of checkpoints or a prefix such as "
            "`model_dir/ckpt-1000`."
        )
    return found
