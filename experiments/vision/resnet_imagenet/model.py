"""A residual network for photographs."""

import keras

from experiments.vision.resnet_imagenet import configs
from official_lite.common import errors

__all__ = ["build_model"]

# The mean and the standard deviation of each color in the training images.
_MEAN = (123.675, 116.28, 103.53)
_DEVIATION = (58.395, 57.12, 57.375)

# The number of filters in the stem. keras-hub supports only this number for this network.
_FILTERS = 64


def build_model(config: configs.ImageNetResNetConfig) -> keras.Model:
    """Build a model from images in [0, 255] of shape `(batch, *config.input_size, 3)` to logits."""
    inputs = x = keras.Input((*config.input_size, 3), name="image")
    if config.rand_augment.num_ops:
        x = keras.layers.RandAugment(
            (0, 255), num_ops=config.rand_augment.num_ops, factor=config.rand_augment.factor
        )(x)
    variances = [deviation**2 for deviation in _DEVIATION]
    x = keras.layers.Normalization(mean=_MEAN, variance=variances)(x)
    x = _build_backbone(config)(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    # Logits are float32 even under mixed precision, because the loss is sensitive to rounding.
    logits = keras.layers.Dense(
        config.num_classes,
        kernel_initializer=keras.initializers.RandomNormal(stddev=0.01),
        dtype="float32",
        name="logits",
    )(x)
    return keras.Model(inputs, logits, name="resnet")


def _build_backbone(config: configs.ImageNetResNetConfig) -> keras.Model:
    # Imported here because the import takes seconds.
    try:
        import keras_hub
    except ModuleNotFoundError as error:
        raise errors.ConfigValueError(
            "The model requires keras-hub, which is not installed. Run "
            "`pip install 'official-lite[vision]'`."
        ) from error
    num_sizes = len(config.num_blocks)
    return keras_hub.models.ResNetBackbone(
        input_conv_filters=[_FILTERS],
        input_conv_kernel_sizes=[7],
        stackwise_num_filters=[_FILTERS * 2**size for size in range(num_sizes)],
        stackwise_num_blocks=list(config.num_blocks),
        stackwise_num_strides=[1] + [2] * (num_sizes - 1),
        block_type=config.block,
        image_shape=(*config.input_size, 3),
        name="backbone",
    )
