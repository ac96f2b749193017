"""A study of Fashion-MNIST by Optuna alone: Keras `fit`, without pruning, in one process.

The search space, the network, the recipe and the steps of a trial are those of
experiments/vision/fashion_mnist/search.yaml. Batch normalization is Keras' own layer, and images
are flipped by tf.data. Each line of output is the evaluation of a trial on held-out training
images; the last one of a trial is its value.

python fashion_mnist_optuna.py --data_dir=/data/fashion-mnist
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
import optuna
import tensorflow as tf

MEAN, DEVIATION = 72.94, 90.02
FILTERS = (16, 32, 64)
BATCH, EVAL_BATCH = 128, 500
WARMUP, SMOOTHING = 0.1, 0.1


def suggest(trial: optuna.Trial) -> dict[str, float]:
    return {
        "learning_rate": trial.suggest_float("learning_rate", 1e-3, 0.5, log=True),
        "momentum": trial.suggest_float("momentum", 0.5, 0.95),
        "weight_decay": trial.suggest_float("weight_decay", 1e-5, 1e-2, log=True),
        "dropout": trial.suggest_float("dropout", 0.0, 0.5),
    }


def create_sampler(seed: int, trial_number: int) -> optuna.samplers.BaseSampler:
    # Our study derives its seeds in this way, too, so the random trials at the beginning of both
    # try the same values.
    return optuna.samplers.TPESampler(seed=seed * 1_000_003 + trial_number)


def build_model(weight_decay: float, dropout: float) -> keras.Model:
    regularizer = keras.regularizers.L2(weight_decay / 2)

    def convolve(x: Any, filters: int, strides: int, kernel_size: int = 3) -> Any:
        x = keras.layers.Conv2D(
            filters,
            kernel_size,
            strides,
            padding="same",
            use_bias=False,
            kernel_initializer="he_normal",
            kernel_regularizer=regularizer,
        )(x)
        return keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x)

    inputs = keras.Input((28, 28, 1))
    x = keras.layers.Normalization(mean=MEAN, variance=DEVIATION**2)(inputs)
    x = keras.layers.ReLU()(convolve(x, FILTERS[0], 2))
    for size, filters in enumerate(FILTERS):
        strides = 2 if size else 1
        y = keras.layers.ReLU()(convolve(x, filters, strides))
        y = convolve(y, filters, 1)
        x = convolve(x, filters, strides, kernel_size=1) if size else x
        x = keras.layers.ReLU()(keras.layers.Add()([x, y]))
    x = keras.layers.GlobalAveragePooling2D()(x)
    x = keras.layers.Dropout(dropout)(x)
    logits = keras.layers.Dense(10, kernel_initializer="he_normal", kernel_regularizer=regularizer)(
        x
    )
    return keras.Model(inputs, logits)


class WarmupAndCosine(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, rate: float, num_steps: int) -> None:
        self.rate, self.num_steps = rate, num_steps

    def __call__(self, step: Any) -> Any:
        step = keras.ops.cast(step, "float32")
        warmup = max(1, int(WARMUP * self.num_steps))
        progress = keras.ops.maximum(step, warmup) / self.num_steps
        cosine = 0.5 * (1 + keras.ops.cos(math.pi * progress))
        return self.rate * cosine * keras.ops.minimum(1.0, step / warmup)


def read_idx(path: pathlib.Path) -> np.ndarray:
    content = gzip.decompress(path.read_bytes())
    shape = np.frombuffer(content, ">u4", content[3], 4).astype(int)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * content[3]).reshape(shape)


def prepare(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    # Keras smooths only one-hot labels.
    return tf.cast(images, tf.float32), tf.one_hot(labels, 10)


def flip(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.image.random_flip_left_right(images), labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data_dir", type=pathlib.Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--num_trials", type=int, default=16)
    parser.add_argument("--max_epochs", type=int, default=5, help="The epochs of each trial.")
    parser.add_argument("--steps_per_epoch", type=int, default=240)
    parser.add_argument("--num_held_out", type=int, default=5000)
    args = parser.parse_args()
    images = read_idx(args.data_dir / "train-images-idx3-ubyte.gz")[..., np.newaxis]
    labels = read_idx(args.data_dir / "train-labels-idx1-ubyte.gz")
    num_train = len(labels) - args.num_held_out
    held_out = tf.data.Dataset.from_tensor_slices((images[num_train:], labels[num_train:]))
    held_out = held_out.batch(EVAL_BATCH).map(prepare).cache()

    def objective(trial: optuna.Trial) -> float:
        keras.utils.clear_session()
        keras.utils.set_random_seed(args.seed)
        params = suggest(trial)
        train = tf.data.Dataset.from_tensor_slices((images[:num_train], labels[:num_train]))
        train = train.shuffle(num_train).repeat().batch(BATCH).map(flip).map(prepare)
        model = build_model(params["weight_decay"], params["dropout"])
        num_steps = args.max_epochs * args.steps_per_epoch
        model.compile(
            optimizer=keras.optimizers.SGD(
                WarmupAndCosine(params["learning_rate"], num_steps),
                momentum=params["momentum"],
                nesterov=True,
            ),
            loss=keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=SMOOTHING),
            metrics=["accuracy"],
        )

        def report(epoch: int, logs: dict[str, float]) -> None:
            seconds = time.perf_counter() - _BEGAN
            found = {"trial": trial.number, "epoch": epoch + 1, "accuracy": logs["val_accuracy"]}
            print(json.dumps({"seconds": seconds, **found}), flush=True)

        history = model.fit(
            train.prefetch(tf.data.AUTOTUNE),
            epochs=args.max_epochs,
            steps_per_epoch=args.steps_per_epoch,
            validation_data=held_out,
            callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=report)],
            verbose=0,
        )
        return float(history.history["val_accuracy"][-1])

    study = optuna.create_study(direction="maximize")
    for number in range(args.num_trials):
        study.sampler = create_sampler(args.seed, number)
        study.optimize(objective, n_trials=1)


if __name__ == "__main__":
    main()
