"""The changes that `task.compression` makes to a new model and to each step."""

from typing import TYPE_CHECKING

from official_lite.compression import configs

if TYPE_CHECKING:
    import keras

__all__ = ["compress", "synchronize"]


def compress(model: "keras.Model", config: configs.CompressionConfig | None) -> "keras.Model":
    """Compress a new model as its config says; without a config, return it unchanged.

    Call this in the strategy's scope, before the model is trained or restored.

    Raises:
        errors.ConfigValueError: If the model can't be compressed in this way.
    """
    if config is None:
        return model
    if config.quantization is not None:
        from official_lite.compression import quantization

        quantization.quantize(model, config.quantization)
    return model


def synchronize(model: "keras.Model", config: configs.CompressionConfig | None) -> None:
    """Exchange the statistics of compression between the replicas, at the end of a step.

    Call this in every replica.
    """
    if config is not None and config.quantization is not None:
        from official_lite.compression import quantization

        quantization.synchronize_ranges(model)
