"""Hand-written TensorFlow: no Keras, no framework, every op written out.

python -m benchmarks.steps.tf_worker --model=tiny_mlp --execution=graph
"""

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from benchmarks.steps import models, worker

Weights = dict[str, tf.Variable]

# The number of batches in one program of `xla_loop`.
STACKED = 100


def mlp(w: Weights, x: tf.Tensor) -> tf.Tensor:
    return dense(w, "logits", tf.nn.relu(dense(w, "hidden", x)))


def convnet(w: Weights, x: tf.Tensor) -> tf.Tensor:
    for index in range(len(models.CONVNET_FILTERS)):
        strides = 1 if index == 0 else 2
        x = tf.nn.conv2d(x, w[f"conv_{index}/kernel"], strides, "SAME")
        x = tf.nn.relu(tf.nn.bias_add(x, w[f"conv_{index}/bias"]))
    return dense(w, "logits", tf.reduce_mean(x, (1, 2)))


def transformer(w: Weights, tokens: tf.Tensor) -> tf.Tensor:
    x = tf.gather(w["tokens/embeddings"], tokens) + w["positions/embeddings"]
    for index in range(models.NUM_BLOCKS):
        block = f"block_{index}"
        attended = attention(dense(w, f"{block}_qkv", layer_norm(w, f"{block}_norm_1", x)))
        x += dense(w, f"{block}_project", attended)
        hidden = tf.nn.relu(dense(w, f"{block}_up", layer_norm(w, f"{block}_norm_2", x)))
        x += dense(w, f"{block}_down", hidden)
    return dense(w, "logits", layer_norm(w, "norm", x))


def ctr(w: Weights, x: tf.Tensor, categorical: tf.Tensor) -> tf.Tensor:
    embedded = [
        tf.gather(w[f"table_{index}/embeddings"], categorical[:, index])
        for index in range(models.NUM_TABLES)
    ]
    x = tf.concat([x, *embedded], -1)
    for index in range(len(models.CTR_UNITS)):
        x = tf.nn.relu(dense(w, f"dense_{index}", x))
    return tf.squeeze(dense(w, "logits", x), -1)


def dense(w: Weights, name: str, x: tf.Tensor) -> tf.Tensor:
    kernel = w[f"{name}/kernel"]
    if x.shape.rank == 2:
        return tf.nn.bias_add(x @ kernel, w[f"{name}/bias"])
    rows = tf.nn.bias_add(tf.reshape(x, (-1, x.shape[-1])) @ kernel, w[f"{name}/bias"])
    return tf.reshape(rows, (-1, *x.shape[1:-1], kernel.shape[-1]))


def layer_norm(w: Weights, name: str, x: tf.Tensor) -> tf.Tensor:
    mean, variance = tf.nn.moments(x, -1, keepdims=True)
    return tf.nn.batch_normalization(
        x, mean, variance, w[f"{name}/beta"], w[f"{name}/gamma"], models.LAYER_NORM_EPSILON
    )


def attention(qkv: tf.Tensor) -> tf.Tensor:
    """Return causal attention of `NUM_HEADS` heads, from queries, keys and values side by side."""
    length, size = qkv.shape[1], qkv.shape[2] // 3
    d_head = size // models.NUM_HEADS
    heads = tf.reshape(qkv, (-1, length, 3, models.NUM_HEADS, d_head))
    query, key, value = tf.unstack(tf.transpose(heads, (2, 0, 3, 1, 4)))
    scores = tf.matmul(query, key, transpose_b=True) * d_head**-0.5
    mask = tf.linalg.band_part(tf.ones((length, length)), -1, 0)
    weights = tf.nn.softmax(scores + (mask - 1) * 1e9)
    return tf.reshape(tf.transpose(weights @ value, (0, 2, 1, 3)), (-1, length, size))


FORWARD: dict[str, Callable[..., tf.Tensor]] = {
    "tiny_mlp": mlp,
    "convnet": convnet,
    "transformer": transformer,
    "ctr": ctr,
}


class Training:
    """Weights, slots and metrics, and a step that updates them."""

    def __init__(self, model: models.Model, execution: str) -> None:
        self._forward = FORWARD[model.name]
        self._adagrad = model.optimizer == "adagrad"
        self._is_auc = model.metric == "auc"
        self._densify = execution != "graph"
        self.weights = {path: tf.Variable(value) for path, value in model.make_parameters().items()}
        weights = self.weights.values()
        if self._adagrad:
            self._slots: list[tuple[tf.Variable, ...]] = [
                (tf.Variable(tf.fill(one.shape, models.INITIAL_ACCUMULATOR)),) for one in weights
            ]
        else:
            self._slots = [
                (tf.Variable(tf.zeros_like(one)), tf.Variable(tf.zeros_like(one)))
                for one in weights
            ]
        self._num_updates = tf.Variable(0.0)
        self._loss = tf.Variable(0.0)
        self._count = tf.Variable(0.0)
        # Hits and misses, or the numbers of positives and negatives in each bin.
        self._scores = tf.Variable(tf.zeros((2, models.NUM_BINS if self._is_auc else 1)))

    def step(self, features: tuple[tf.Tensor, ...], labels: tf.Tensor) -> None:
        weights = list(self.weights.values())
        with tf.GradientTape() as tape:
            logits = self._forward(self.weights, *features)
            loss = self._mean_loss(labels, logits)
        gradients = tape.gradient(loss, weights)
        self._num_updates.assign_add(1.0)
        update: Callable[..., None] = self._update_adagrad if self._adagrad else self._update_adamw
        for weight, slots, gradient in zip(weights, self._slots, gradients, strict=True):
            update(weight, *slots, gradient)
        self._loss.assign_add(loss)
        self._count.assign_add(1.0)
        self._scores.assign_add(self._score(labels, logits))

    def take_report(self) -> dict[str, float]:
        """Return mean loss and metric since the last report, and reset them."""
        loss = float(self._loss / self._count)
        first, second = self._scores.numpy()
        metric = (
            models.auc(first, second) if self._is_auc else float(first[0] / (first + second)[0])
        )
        for variable in (self._loss, self._count, self._scores):
            variable.assign(tf.zeros_like(variable))
        return {"loss": loss, "metric": metric}

    def _mean_loss(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        if self._is_auc:
            floats = tf.cast(labels, tf.float32)
            return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(floats, logits))
        return tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        )

    def _score(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        if self._is_auc:
            bins = tf.cast(tf.sigmoid(logits) * (models.NUM_BINS - 1e-3), tf.int32)
            positive = tf.cast(labels, tf.float32)
            return tf.stack(
                [
                    tf.math.unsorted_segment_sum(share, bins, models.NUM_BINS)
                    for share in (positive, 1 - positive)
                ]
            )
        hits = tf.cast(tf.argmax(logits, -1, tf.int32) == labels, tf.float32)
        return tf.stack([[tf.reduce_sum(hits)], [tf.reduce_sum(1 - hits)]])

    def _update_adamw(
        self, weight: tf.Variable, mean: tf.Variable, square: tf.Variable, gradient: Any
    ) -> None:
        gradient = tf.convert_to_tensor(gradient)
        rate = models.LEARNING_RATE * tf.sqrt(1 - tf.pow(0.999, self._num_updates))
        rate /= 1 - tf.pow(0.9, self._num_updates)
        mean.assign_add((gradient - mean) * 0.1)
        square.assign_add((tf.square(gradient) - square) * 0.001)
        decay = models.LEARNING_RATE * models.WEIGHT_DECAY * weight
        weight.assign_sub(decay + rate * mean / (tf.sqrt(square) + models.EPSILON))

    def _update_adagrad(self, weight: tf.Variable, accumulator: tf.Variable, gradient: Any) -> None:
        if isinstance(gradient, tf.IndexedSlices) and not self._densify:
            self._update_adagrad_rows(weight, accumulator, gradient)
            return
        gradient = tf.convert_to_tensor(gradient)
        accumulator.assign_add(tf.square(gradient))
        weight.assign_sub(models.LEARNING_RATE * gradient / tf.sqrt(accumulator + models.EPSILON))

    def _update_adagrad_rows(
        self, weight: tf.Variable, accumulator: tf.Variable, gradient: tf.IndexedSlices
    ) -> None:
        """Update only the rows in the batch; XLA can't, because their number varies."""
        rows, places = tf.unique(gradient.indices)
        summed = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(rows))
        accumulator.scatter_add(tf.IndexedSlices(tf.square(summed), rows))
        rate = models.LEARNING_RATE / tf.sqrt(tf.gather(accumulator, rows) + models.EPSILON)
        weight.scatter_sub(tf.IndexedSlices(rate * summed, rows))


def create_train_fn(training: Training, execution: str) -> Callable[[Iterator[Any], Any], None]:
    """Return a compiled `train(iterator, num_calls)`; `xla_loop` runs `STACKED` steps per call."""
    step = training.step
    if execution == "xla":
        step = tf.function(training.step, jit_compile=True)
    if execution == "xla_loop":

        @tf.function(jit_compile=True)
        def step(features: tuple[tf.Tensor, ...], labels: tf.Tensor) -> None:
            for index in tf.range(STACKED):
                training.step(tuple(part[index] for part in features), labels[index])

    @tf.function
    def train(iterator: Iterator[Any], num_calls: tf.Tensor) -> None:
        for _ in tf.range(num_calls):
            step(*next(iterator))

    return train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--execution", choices=["graph", "xla", "xla_loop"], default="graph")
    args = worker.parse_args(parser)
    stacked = STACKED if args.execution == "xla_loop" else 1
    dataset = tf.data.Dataset.from_tensor_slices(args.model.make_batches()).repeat()
    if stacked > 1:
        dataset = dataset.batch(stacked, drop_remainder=True)
    iterator = iter(dataset.prefetch(2))
    training = Training(args.model, args.execution)
    train = create_train_fn(training, args.execution)

    def train_steps(num_steps: int) -> dict[str, float]:
        if num_steps % stacked:
            raise SystemExit(
                f"--steps={args.steps}: expected a multiple of {stacked} for "
                f"--execution={args.execution}."
            )
        train(iterator, tf.constant(num_steps // stacked))
        return training.take_report()

    worker.run_rounds(args, train_steps)


if __name__ == "__main__":
    main()
