"""The recipe of `vision/fashion_mnist` with Keras' `fit`.

The network, its initial weights, the optimizer, the learning rates and the random flips are the
same, with one small difference: the moving variance of Keras' own batch normalization is that of
the batch, while ours is that of a sample.

python fashion_mnist_keras.py --data_dir=/data/fashion-mnist
"""

import time

# Read the clock before the imports below, which take seconds.
_BEGAN = time.perf_counter()

import argparse
import gzip
import json
import math
import pathlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf

MEAN, DEVIATION = 72.94, 90.02
FILTERS, BLOCKS, EPOCHS = (16, 32, 64), 2, 12
BATCH, EVAL_BATCH = 128, 500
LEARNING_RATE, WARMUP, MOMENTUM, WEIGHT_DECAY, SMOOTHING = 0.1, 0.1, 0.9, 5e-4, 0.1


class WarmupCosine(keras.optimizers.schedules.LearningRateSchedule):
    """A linear warmup to half a cosine that begins at step 0."""

    def __init__(self, num_steps: int) -> None:
        self.num_steps, self.warmup = num_steps, int(WARMUP * num_steps)

    def __call__(self, step: Any) -> Any:
        step = tf.cast(step, tf.float32)
        fraction = tf.maximum(step, float(self.warmup)) / self.num_steps
        cosine = 0.5 * (1.0 + tf.cos(math.pi * fraction))
        return LEARNING_RATE * cosine * tf.minimum(1.0, step / max(self.warmup, 1))


class PrintAccuracy(keras.callbacks.Callback):
    """Print a line of JSON after each epoch."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        seconds = time.perf_counter() - _BEGAN
        value = float(logs["val_accuracy"])
        print(json.dumps({"seconds": seconds, "accuracy": value, "epoch": epoch + 1}), flush=True)


def convolve(x: Any, filters: int, strides: int, kernel_size: int = 3) -> Any:
    x = keras.layers.Conv2D(
        filters,
        kernel_size,
        strides,
        padding="same",
        use_bias=False,
        kernel_initializer="he_normal",
        kernel_regularizer=keras.regularizers.L2(WEIGHT_DECAY / 2),
    )(x)
    return keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x)


def build_model() -> keras.Model:
    inputs = keras.Input((28, 28, 1))
    x = keras.layers.Normalization(mean=MEAN, variance=DEVIATION**2)(inputs)
    x = keras.layers.ReLU()(convolve(x, FILTERS[0], 2))
    for size, filters in enumerate(FILTERS):
        for block in range(BLOCKS):
            strides = 2 if size > 0 and block == 0 else 1
            y = keras.layers.ReLU()(convolve(x, filters, strides))
            y = convolve(y, filters, 1)
            if strides > 1:
                x = convolve(x, filters, strides, kernel_size=1)
            x = keras.layers.ReLU()(keras.layers.Add()([x, y]))
    x = keras.layers.GlobalAveragePooling2D()(x)
    logits = keras.layers.Dense(
        10,
        kernel_initializer="he_normal",
        kernel_regularizer=keras.regularizers.L2(WEIGHT_DECAY / 2),
    )(x)
    return keras.Model(inputs, logits)


def compile_model(model: keras.Model, num_steps: int, **options: Any) -> None:
    """Compile the model with the optimizer and the loss of the recipe.

    Args:
        model: The model.
        num_steps: The number of steps until the learning rate is 0.
        **options: Further options of `compile`.
    """
    model.compile(
        optimizer=keras.optimizers.SGD(WarmupCosine(num_steps), MOMENTUM, nesterov=True),
        loss=keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=SMOOTHING),
        metrics=["accuracy"],
        **options,
    )


def read_idx(path: pathlib.Path) -> np.ndarray:
    content = gzip.decompress(path.read_bytes())
    shape = np.frombuffer(content, ">u4", content[3], 4).astype(int)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * content[3]).reshape(shape)


def build_dataset(data_dir: pathlib.Path, split: str, *, is_training: bool) -> tf.data.Dataset:
    images = tf.constant(read_idx(data_dir / f"{split}-images-idx3-ubyte.gz")[..., np.newaxis])
    labels = read_idx(data_dir / f"{split}-labels-idx1-ubyte.gz")
    one_hot = tf.constant(keras.utils.to_categorical(labels, 10), tf.float32)

    def look_up(rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        batch = tf.cast(tf.gather(images, rows), tf.float32)
        if is_training:
            is_flipped = tf.random.uniform([tf.shape(rows)[0], 1, 1, 1]) < 0.5
            batch = tf.where(is_flipped, tf.reverse(batch, [2]), batch)
        return batch, tf.gather(one_hot, rows)

    # Shuffle row indices and look up whole batches, which is faster than shuffling images.
    rows = tf.data.Dataset.range(len(labels))
    if is_training:
        rows = rows.shuffle(len(labels)).batch(BATCH, drop_remainder=True)
    else:
        rows = rows.batch(EVAL_BATCH)
    return rows.map(look_up).prefetch(2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data_dir", type=pathlib.Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--max_epochs", type=int, help="Stop early; the learning rates stay.")
    parser.add_argument("--jit_compile", action="store_true")
    parser.add_argument("--steps_per_execution", type=int, default=39)
    args = parser.parse_args()
    keras.utils.set_random_seed(args.seed)
    batches = build_dataset(args.data_dir, "train", is_training=True)
    model = build_model()
    compile_model(
        model,
        EPOCHS * len(batches),
        jit_compile=args.jit_compile,
        steps_per_execution=min(args.steps_per_execution, len(batches)),
    )
    model.fit(
        batches,
        epochs=min(EPOCHS, args.max_epochs or EPOCHS),
        validation_data=build_dataset(args.data_dir, "t10k", is_training=False),
        callbacks=[PrintAccuracy()],
        verbose=0,
        shuffle=False,
    )


if __name__ == "__main__":
    main()
