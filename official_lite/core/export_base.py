"""Writes a model for serving: a module that says how it is called, and the SavedModel of it."""

import abc
import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from official_lite import telemetry
from official_lite.checkpoint import completeness, latest, model_state
from official_lite.common import errors

__all__ = ["ExportModule", "export", "get_timestamped_export_dir"]

MAX_DIRECTORY_CREATION_ATTEMPTS = 10


class ExportModule(tf.Module, abc.ABC):
    """A model and the functions under which it is served.

    Subclasses write `serve` with `preprocessor`, `inference_step` and `postprocessor` as they
    need, and give its concrete functions in `get_inference_signatures`.
    """

    def __init__(
        self,
        params: Any,
        model: tf.Module | keras.Model,
        inference_step: Callable[..., Any] | None = None,
        *,
        preprocessor: Callable[..., Any] | None = None,
        postprocessor: Callable[..., Any] | None = None,
    ) -> None:
        """Keeps the model and how to run it.

        Args:
            params: Whatever the subclass needs to know.
            model: What holds the weights.
            inference_step: Called as `inference_step(inputs, model=model)`; by default it is
                `model(inputs, training=False)`.
            preprocessor: A function or `tf.Module` that makes model inputs.
            postprocessor: A function or `tf.Module` that makes results of model outputs.
        """
        super().__init__(name=None)
        self.params = params
        self.model = model
        self.inference_step = functools.partial(inference_step or _infer, model=model)
        self.preprocessor = preprocessor
        self.postprocessor = postprocessor

    @abc.abstractmethod
    def serve(self) -> Mapping[str, tf.Tensor]:
        """Runs the model on tensors that come as keyword arguments; returns tensors by name."""

    @abc.abstractmethod
    def get_inference_signatures(self, function_keys: dict[str, str]) -> Mapping[str, Any]:
        """Concrete functions by the names that they are served under.

        Args:
            function_keys: The name to serve each function under, by the function's own name.
        """


def export(
    export_module: ExportModule,
    function_keys: list[str] | dict[str, str],
    export_savedmodel_dir: str,
    checkpoint_path: str | None = None,
    timestamped: bool = True,
    save_options: tf.saved_model.SaveOptions | None = None,
    checkpoint: tf.train.Checkpoint | None = None,
) -> str:
    """Writes `export_module` as a SavedModel, with weights from a checkpoint if one is given.

    Args:
        export_module: What to write.
        function_keys: The name to serve each function under, by the function's own name; or a
            list of exactly one function, which becomes the default signature.
        export_savedmodel_dir: Where to write.
        checkpoint_path: A checkpoint, or a directory whose newest is taken.
        timestamped: Whether to write to a new subdirectory that is named after the time.
        save_options: For `tf.saved_model.save`.
        checkpoint: What to restore; by default the model, as `model`.

    Returns:
        The directory that was written.

    Raises:
        CheckpointError: (a `ValueError`) There is no checkpoint at `checkpoint_path`, or it lacks a
            variable.
        ConfigValueError: A list of several functions, or an unsafe name.
    """
    keys = _checked_keys(function_keys)
    _check_path(export_savedmodel_dir)
    if checkpoint_path:
        checkpoint = checkpoint or tf.train.Checkpoint(
            **model_state.weight_items(export_module.model)
        )
        path = _newest_checkpoint(checkpoint_path)
        completeness.require_complete(checkpoint, path)
        checkpoint.read(path).expect_partial()
    export_dir = export_savedmodel_dir
    if timestamped:
        export_dir = get_timestamped_export_dir(export_savedmodel_dir)
    # A model that puts numbers into the event storage would be saved with the storage.
    with telemetry.get_event_storage().muted():
        signatures = export_module.get_inference_signatures(keys)
        tf.saved_model.save(export_module, export_dir, signatures=signatures, options=save_options)
    return export_dir


def get_timestamped_export_dir(export_dir_base: str) -> str:
    """A new subdirectory of `export_dir_base`, named after the time in seconds; not made yet.

    Serving systems take the largest number for the newest. If the name of this second is taken,
    that of the next one is used.

    Raises:
        RuntimeError: The names of the next ten seconds are all taken.
    """
    now = int(time.time())
    for timestamp in range(now, now + MAX_DIRECTORY_CREATION_ATTEMPTS):
        export_dir = tf.io.gfile.join(export_dir_base, str(timestamp))
        if not tf.io.gfile.exists(export_dir):
            return export_dir
    raise RuntimeError(
        f"Failed to obtain a unique export directory name in {export_dir_base!r} after "
        f"{MAX_DIRECTORY_CREATION_ATTEMPTS} attempts."
    )


def _infer(inputs: Any, model: Any) -> Any:
    # Not `model.call`: that would skip building, autocasting and masks.
    return model(inputs, training=False)


def _checked_keys(function_keys: list[str] | dict[str, str]) -> dict[str, str]:
    if isinstance(function_keys, list):
        if len(function_keys) != 1:
            raise errors.ConfigValueError(
                "If the function_keys is a list, it must contain a single element; to export "
                f"several functions, give a dict of their served names. Got {function_keys}."
            )
        function_keys = {function_keys[0]: tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY}
    for name in [*function_keys, *function_keys.values()]:
        if not name or not name.isprintable():
            raise errors.ConfigValueError(f"{name!r} can't be the name of a served function.")
    return function_keys


def _check_path(path: str) -> None:
    if not path.isprintable():
        raise errors.ConfigValueError(f"{path!r} has control characters: it can't be exported to.")


def _newest_checkpoint(checkpoint_path: str) -> str:
    found: str | None = checkpoint_path
    if tf.io.gfile.isdir(checkpoint_path):
        found = latest.latest_checkpoint(checkpoint_path)
    if not found or not tf.io.gfile.exists(f"{found}.index"):
        raise errors.CheckpointError(
            f"There is no checkpoint at {checkpoint_path!r}; exporting would write untrained "
            "weights. Give a directory of checkpoints or a prefix such as `model_dir/ckpt-1000`."
        )
    return found
