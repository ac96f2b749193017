"""Which callback of Keras a config means, and which events it needs."""

from typing import Any

import keras

from official_lite.common import errors, plugins

__all__ = ["create", "hears_batches", "keras_callbacks"]

_BATCH_EVENTS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")


def create(callback: Any, arguments: dict[str, Any]) -> keras.callbacks.Callback:
    """The callback of a config.

    Args:
      callback: A callback; or the name of a class in `keras.callbacks`, or `module:Class`.
      arguments: For the class.

    Raises:
      errors.ConfigError: There is no such class, or it takes other arguments.
    """
    if isinstance(callback, str):
        return plugins.factory(
            {"name": callback, **arguments},
            registry=keras_callbacks(),
            base=keras.callbacks.Callback,
            kind="Keras callback",
            is_part=True,
        )()
    if not isinstance(callback, keras.callbacks.Callback) or arguments:
        raise errors.ConfigTypeError(
            f"KerasCallback got a {type(callback).__name__} and the arguments {sorted(arguments)}; "
            "wanted a `keras.callbacks.Callback`, or the name of a class and its arguments."
        )
    return callback


def hears_batches(callback: keras.callbacks.Callback) -> bool:
    """Whether it does something at the beginning or the end of batches."""
    # Keras' own sign that the methods are there, but not needed.
    if getattr(callback, "save_freq", None) == "epoch":
        return False
    methods = (getattr(callback, event) for event in _BATCH_EVENTS)
    own = {getattr(keras.callbacks.Callback, event) for event in _BATCH_EVENTS}
    return any(getattr(method, "__func__", method) not in own for method in methods)


def keras_callbacks() -> dict[str, type[keras.callbacks.Callback]]:
    """Return the classes of `keras.callbacks` by their names."""
    public = {name: getattr(keras.callbacks, name) for name in dir(keras.callbacks)}
    return {
        name: found
        for name, found in public.items()
        if isinstance(found, type) and issubclass(found, keras.callbacks.Callback)
    }
