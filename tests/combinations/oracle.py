"""A handwritten training loop in float64, without the framework and without Keras.

It starts from the same weights as `experiment.py`, reads the same examples, and returns the
training reports, evaluation reports and final weights that a run must produce.
"""

import dataclasses
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from tests.combinations.dimensions import Row

NUM_EXAMPLES = 24
# One example fewer, so that the last batch of an epoch is incomplete on the last replica.
NUM_UNEVEN_EXAMPLES = 23
NUM_VALIDATION_EXAMPLES = 21
BATCH_SIZE = 8
STEPS = 6
INTERVAL = 3

LEARNING_RATE = 0.1
MOMENTUM = 0.9
CLIP_NORM = 0.1
AVERAGE_DECAY = 0.8
STATISTICS_DECAY = 0.9
NORM_EPSILON = 0.1
THRESHOLD = 0.5

NUM_FEATURES = 3
NUM_HIDDEN = 4
NUM_OUTPUTS = 3
NUM_IDS = 5
TASK_WEIGHTS = {"a": 1.0, "b": 0.5}

Arrays: TypeAlias = dict[str, Any]


def examples(name: str, count: int) -> Arrays:
    """Return examples that depend only on `name`: features, labels, masks and weights."""
    numbers = np.random.default_rng(zlib.crc32(name.encode()))
    x = numbers.normal(size=(count, NUM_FEATURES)).astype(np.float32)
    labels = (x + numbers.normal(size=x.shape) > 0).astype(np.float32)
    mask = (numbers.random(labels.shape) < 0.6).astype(np.float32)
    # Each example has at least one token, so that the mean over any part of a batch is defined.
    mask[:, 0] = 1.0
    return {
        "x": x,
        "ids": numbers.integers(0, NUM_IDS, count).astype(np.int32),
        "labels": labels,
        "mask": mask,
        "weights": numbers.uniform(0.5, 2.0, count).astype(np.float32),
    }


def initial(path: str, shape: Sequence[int]) -> np.ndarray[Any, Any]:
    """Return the initial value of a weight, which depends only on its path."""
    if path.endswith(("gamma", "moving_variance")):
        return np.ones(shape, np.float32)
    if path.endswith(("beta", "moving_mean", "statistics/mean", "bias")):
        return np.zeros(shape, np.float32)
    numbers = np.random.default_rng(zlib.crc32(path.encode()))
    return numbers.normal(scale=0.5, size=shape).astype(np.float32)


def part_of(batch: Arrays, rows: slice) -> Arrays:
    return {name: value[rows] for name, value in batch.items()}


def train_batches(row: Row, task: str) -> Iterator[Arrays]:
    """Yield the training batches: all examples in order, repeated without end."""
    uneven = row["data"] == "uneven"
    data = examples(f"{task}/train", NUM_UNEVEN_EXAMPLES if uneven else NUM_EXAMPLES)
    while True:
        for first in range(0, len(data["x"]), BATCH_SIZE):
            yield part_of(data, slice(first, first + BATCH_SIZE))


@dataclasses.dataclass
class Result:
    """The results that a run must produce.

    Attributes:
        weights: The final weights, by path.
        evaluated: The weights of each evaluation, by step.
        reports: The training reports, by step.
        evaluations: The evaluation reports, by step.
    """

    weights: Arrays = dataclasses.field(default_factory=dict)
    evaluated: dict[int, Arrays] = dataclasses.field(default_factory=dict)
    reports: dict[int, dict[str, Any]] = dataclasses.field(default_factory=dict)
    evaluations: dict[int, dict[str, Any]] = dataclasses.field(default_factory=dict)


def task_names(row: Row) -> list[str]:
    return list(TASK_WEIGHTS) if row["trainer"] in ("joint", "interleaving") else ["a"]


def compute(
    row: Row, batches: Mapping[str, Iterator[Arrays]] | None = None, *, error: float = 0.0
) -> Result:
    """Train and evaluate with the features of a row.

    Args:
        row: The features of the run.
        batches: The batches of each task; by default, those of `train_batches`.
        error: The largest rounding error of an output. Metrics that depend on a threshold are None
            if an output is at most this far from the threshold.
    """
    return _Training(row, batches, error).run()


class _Training:
    def __init__(
        self, row: Row, batches: Mapping[str, Iterator[Arrays]] | None, error: float
    ) -> None:
        self.row = row
        self.error = error
        self.tasks = task_names(row)
        self.batches = dict(batches or {name: train_batches(row, name) for name in self.tasks})
        self.validation = {
            name: examples(f"{name}/validation", NUM_VALIDATION_EXAMPLES) for name in self.tasks
        }
        weights = _initial_weights(row, self.tasks)
        self.states = {k: v for k, v in weights.items() if _is_statistic(k)}
        self.weights = {k: v for k, v in weights.items() if k not in self.states}
        self.trained = [
            k for k in self.weights if row["model"] != "frozen" or not k.startswith("hidden")
        ]
        averaged = weights if row["average"] == "all" else self.trained
        self.average = {k: weights[k] for k in averaged}
        # The number of parts into which a batch is divided; each part is computed separately.
        self.num_parts = row["virtual"] or row["replicas"]
        self.momenta: list[Arrays] = [
            {k: np.zeros_like(self.weights[k]) for k in self.trained} for _ in range(2)
        ]
        self.result = Result()
        # The size of the last batch that was read.
        self.num_examples = 0

    def run(self) -> Result:
        losses: dict[str, list[tuple[float, int]]] = {}
        outputs: dict[str, list[tuple[Any, Any]]] = {}
        for step in range(STEPS):
            for name, loss in self._step(step, outputs).items():
                # Each loss is a mean over the examples of its batch.
                losses.setdefault(name, []).append((loss, self.num_examples))
            if (step + 1) % INTERVAL == 0:
                self.result.reports[step + 1] = self._report(losses, outputs)
                losses, outputs = {}, {}
                self._evaluate(step + 1)
        self.result.weights = self.weights | self.states
        return self.result

    def _step(self, step: int, outputs: dict[str, list[Any]]) -> dict[str, float]:
        # Each replica has separate statistics until the end of the step.
        replicas = [dict(self.states) for _ in range(self.num_parts)]
        trainer = self.row["trainer"]
        if trainer == "two optimizers":
            # A compiled model has its own metrics, which both batches update.
            compiled = self.row["loss"] in ("compiled", "weighted")
            seen = outputs if compiled and self.row["evaluation"] != "aggregate_logs" else {}
            gradients, _ = self._gradients({"a": 1.0}, replicas, seen)
            self._update(gradients, step, self.momenta[1])
        shares = {name: TASK_WEIGHTS[name] for name in self.tasks}
        if trainer == "interleaving":
            shares = {_drawn_task(step): 1.0}
        gradients, losses = self._gradients(shares, replicas, outputs)
        self._update(gradients, step, self.momenta[0])
        self.states = {
            k: np.mean([replica[k] for replica in replicas], axis=0) for k in self.states
        }
        self._move_average(step)
        total = sum(shares[name] * loss for name, loss in losses.items())
        return {"training_loss": total} | (
            {f"{name}/training_loss": loss for name, loss in losses.items()}
            if len(self.tasks) > 1
            else {}
        )

    def _gradients(
        self,
        shares: Mapping[str, float],
        replicas: Sequence[Arrays],
        outputs: dict[str, list[Any]],
    ) -> tuple[Arrays, dict[str, float]]:
        """Return the gradients and the losses of a batch, as means over its replicas."""
        # A step changes neither the heads of other tasks nor their momentum.
        heads = tuple(f"head_{name}/" for name in shares)
        trained = [k for k in self.trained if not k.startswith("head_") or k.startswith(heads)]
        total = {k: np.zeros_like(self.weights[k]) for k in trained}
        losses = dict.fromkeys(shares, 0.0)
        size = BATCH_SIZE // (len(replicas) * self.row["accumulation"])
        batch = {name: next(self.batches[name]) for name in shares}
        self.num_examples = max(len(one["x"]) for one in batch.values())
        for micro_batch in range(self.row["accumulation"]):
            for number, state in enumerate(replicas):
                for name, share in shares.items():
                    first = (micro_batch * len(replicas) + number) * size
                    part = part_of(batch[name], slice(first, first + size))
                    # As in `fit`, replicas have equal weights, and the parts of a replica are
                    # weighted by their numbers of examples. Parts of virtual replicas are added
                    # before they are weighted.
                    strides = range(number * size, BATCH_SIZE, len(replicas) * size)
                    of_replica = [part_of(batch[name], slice(i, i + size)) for i in strides]
                    weight = len(part["x"]) / sum(len(one["x"]) for one in of_replica)
                    if self.row["virtual"]:
                        begin = micro_batch * len(replicas) * size
                        added = part_of(batch[name], slice(begin, begin + len(replicas) * size))
                        weight = len(added["x"]) / len(batch[name]["x"])
                    weight /= len(replicas)
                    with tf.GradientTape() as tape:
                        weights = {k: tf.constant(v) for k, v in self.weights.items()}
                        for k in trained:
                            tape.watch(weights[k])
                        predicted = _forward(self.row, weights, state, part, name, training=True)
                        loss = _loss(self.row["loss"], predicted, part)
                    found = tape.gradient(loss, [weights[k] for k in trained])
                    for k, gradient in zip(trained, found, strict=True):
                        if gradient is not None:
                            gradient = tf.convert_to_tensor(gradient).numpy()
                            total[k] = total[k] + share * weight * gradient
                    losses[name] += len(part["x"]) / len(batch[name]["x"]) * float(loss)
                    outputs.setdefault(name, []).append((predicted.numpy(), part["labels"]))
        return total, losses

    def _update(self, gradients: Arrays, step: int, momenta: Arrays) -> None:
        """Clip the gradients of the whole batch, and take a step with momentum."""
        norms = {k: math.sqrt(float(np.sum(g**2))) for k, g in gradients.items()}
        if self.row["clipping"] == "global norm":
            norm = math.sqrt(sum(norm**2 for norm in norms.values()))
            norms = dict.fromkeys(norms, norm)
        rate = 0.5 * LEARNING_RATE * (1.0 + math.cos(math.pi * step / STEPS))
        for k, gradient in gradients.items():
            if self.row["clipping"] != "none" and norms[k] > CLIP_NORM:
                gradient = gradient * (CLIP_NORM / norms[k])
            momenta[k] = MOMENTUM * momenta[k] - rate * gradient
            self.weights[k] = self.weights[k] + momenta[k]

    def _move_average(self, step: int) -> None:
        kept = AVERAGE_DECAY
        if self.row["average"] in ("ours", "all"):
            # The framework counts updates from 0, and its decay grows from 2/11.
            kept = min(AVERAGE_DECAY, (2.0 + step) / (11.0 + step))
        elif step == 0:
            kept = 0.0
        current = self.weights | self.states
        for k, average in self.average.items():
            self.average[k] = kept * average + (1.0 - kept) * current[k]

    def _report(
        self, losses: Mapping[str, list[tuple[float, int]]], outputs: Mapping[str, list[Any]]
    ) -> dict[str, Any]:
        report: dict[str, Any] = {
            name: float(np.average([loss for loss, _ in each], weights=[n for _, n in each]))
            for name, each in losses.items()
        }
        for name, pairs in outputs.items():
            predicted, labels = (np.concatenate(each) for each in zip(*pairs, strict=True))
            found = self._metrics(predicted, labels)
            report |= {self._named(name, metric): value for metric, value in found.items()}
        return report

    def _evaluate(self, step: int) -> None:
        averaged = {} if self.row["average"] == "none" else self.average
        weights = self.weights | self.states | averaged
        self.result.evaluated[step] = weights
        report: dict[str, Any] = {}
        for name in self.tasks:
            data = self.validation[name]
            loss, predicted, labels = 0.0, [], []
            for part in self._validation_parts(data):
                tensors = {k: tf.constant(v) for k, v in weights.items()}
                outputs = _forward(self.row, tensors, weights, part, name, training=False)
                share = len(part["x"]) / len(data["x"])
                loss += float(_loss(self.row["loss"], outputs, part)) * share
                predicted.append(outputs.numpy())
                labels.append(part["labels"])
            values = {"validation_loss": loss}
            pair = np.concatenate(predicted), np.concatenate(labels)
            if self.row["evaluation"] != "aggregate_logs":
                values |= self._metrics(*pair)
            if self.row["evaluation"] != "metrics":
                values["median_error"] = float(np.median(np.abs(np.subtract(*pair))))
            report |= {self._named(name, metric): value for metric, value in values.items()}
        self.result.evaluations[step] = report

    def _validation_parts(self, data: Arrays) -> Iterator[Arrays]:
        # Virtual replicas read alternate examples; other replicas divide each batch.
        pipelines, size = self.row["virtual"] or 1, BATCH_SIZE // self.num_parts
        for first in range(pipelines):
            own = part_of(data, slice(first, None, pipelines))
            for begin in range(0, len(own["x"]), size):
                yield part_of(own, slice(begin, begin + size))

    def _metrics(
        self, outputs: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]
    ) -> dict[str, Any]:
        return metric_values(self.row["metrics"], outputs, labels, self.error)

    def _named(self, task: str, metric: str) -> str:
        return f"{task}/{metric}" if len(self.tasks) > 1 else metric


def metric_values(
    kind: str, outputs: np.ndarray[Any, Any], labels: np.ndarray[Any, Any], error: float
) -> dict[str, Any]:
    """Return the values of the metrics over all examples, by name; see `compute` for `error`."""
    difference = outputs - labels
    if kind in ("named", "unnamed"):
        name = "error" if kind == "named" else "mean_distance"
        return {name: float(np.mean(np.abs(difference)))}
    if kind == "dictionary":
        return {"bias": float(np.mean(difference)), "spread": float(np.mean(difference**2))}
    if kind == "vector":
        spread = np.sum((labels - labels.mean(0)) ** 2, axis=0)
        return {"r2_score": 1.0 - np.sum(difference**2, axis=0) / spread}
    if np.min(np.abs(outputs - THRESHOLD)) <= error:
        return {"f1_score": None}
    chosen = outputs > THRESHOLD
    hits = float(np.sum(chosen * labels))
    return {"f1_score": 2.0 * hits / float(np.sum(chosen) + np.sum(labels))}


def _initial_weights(row: Row, tasks: Sequence[str]) -> Arrays:
    inputs = NUM_FEATURES + (2 if row["model"] == "embedding" else 0)
    shapes: dict[str, tuple[int, ...]] = {
        "hidden/kernel": (inputs, NUM_HIDDEN),
        "hidden/bias": (NUM_HIDDEN,),
    }
    if row["model"] == "embedding":
        shapes["table/embeddings"] = (NUM_IDS, 2)
    if row["model"] == "batch norm":
        names = ("gamma", "beta", "moving_mean", "moving_variance")
        shapes |= {f"norm/{name}": (NUM_HIDDEN,) for name in names}
    if row["model"] == "own statistics":
        shapes["statistics/mean"] = (NUM_HIDDEN,)
    for name in tasks:
        shapes[f"head_{name}/kernel"] = (NUM_HIDDEN, NUM_OUTPUTS)
        shapes[f"head_{name}/bias"] = (NUM_OUTPUTS,)
    return {path: initial(path, shape).astype(np.float64) for path, shape in shapes.items()}


def _is_statistic(path: str) -> bool:
    return "moving_" in path or path.startswith("statistics/")


def _forward(
    row: Row, weights: Arrays, state: Arrays, part: Arrays, task: str, *, training: bool
) -> Any:
    """Return the outputs for a part of a batch, and update the statistics in training."""
    x = tf.constant(part["x"], tf.float64)
    if row["model"] == "embedding":
        x = tf.concat([x, tf.gather(weights["table/embeddings"], part["ids"])], axis=1)
    hidden = tf.tanh(x @ weights["hidden/kernel"] + weights["hidden/bias"])
    if row["model"] == "batch norm":
        mean, variance = state["norm/moving_mean"], state["norm/moving_variance"]
        if training:
            mean = tf.reduce_mean(hidden, axis=0)
            variance = tf.reduce_mean((hidden - mean) ** 2, axis=0)
            for name, value in (("mean", mean), ("variance", variance)):
                _follow(state, f"norm/moving_{name}", value)
        hidden = (hidden - mean) / tf.sqrt(variance + NORM_EPSILON)
        hidden = hidden * weights["norm/gamma"] + weights["norm/beta"]
    if row["model"] == "own statistics":
        if training:
            _follow(state, "statistics/mean", tf.reduce_mean(hidden, axis=0))
        hidden = hidden - state["statistics/mean"]
    return hidden @ weights[f"head_{task}/kernel"] + weights[f"head_{task}/bias"]


def _follow(state: Arrays, name: str, value: Any) -> None:
    state[name] = STATISTICS_DECAY * state[name] + (1.0 - STATISTICS_DECAY) * value.numpy()


def _mean_of_squares(errors: Any, part: Arrays) -> Any:
    del part
    return tf.reduce_mean(errors)


def _mean_over_tokens(errors: Any, part: Arrays) -> Any:
    mask = tf.constant(part["mask"], tf.float64)
    return tf.reduce_sum(errors * mask) / tf.reduce_sum(mask)


def _weighted_sum(errors: Any, part: Arrays) -> Any:
    weights = tf.constant(part["weights"], tf.float64)
    return tf.reduce_mean(tf.reduce_mean(errors, axis=1) * weights)


_LOSSES: dict[str, Callable[[Any, Arrays], Any]] = {
    "of the task": _mean_of_squares,
    "compiled": _mean_of_squares,
    "masked": _mean_over_tokens,
    "weighted": _weighted_sum,
}


def _loss(kind: str, outputs: Any, part: Arrays) -> Any:
    errors = (outputs - tf.constant(part["labels"], tf.float64)) ** 2
    return _LOSSES[kind](errors, part)


def _drawn_task(step: int) -> str:
    """Return the task of a step, drawn in proportion to the task weights with `step` as seed."""
    number = float(tf.random.stateless_uniform(shape=[], seed=(0, step)))
    return "a" if number < TASK_WEIGHTS["a"] / sum(TASK_WEIGHTS.values()) else "b"
