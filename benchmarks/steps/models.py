"""The four models as numbers: shapes, initial weights and data, shared by all contestants.

Requires only NumPy, so every environment can import it.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

__all__ = ["MODELS", "Batches", "Model", "Parameters", "auc", "intervals"]

LEARNING_RATE = 1e-3
WEIGHT_DECAY = 0.01
EPSILON = 1e-7
INITIAL_ACCUMULATOR = 0.1
NUM_BINS = 200

# The maximum number of steps between two reports: the default of frameworks that have one.
STEPS_PER_REPORT = 1000

# The axes of every array begin with batch and example. Features are a tuple of one or two arrays.
Batches = tuple[tuple[np.ndarray, ...], np.ndarray]
# Arrays by `layer/weight`, in the order in which Keras lists a layer's weights.
Parameters = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Model:
    """A model that all contestants train.

    Attributes:
        name: The name on the command line.
        batch_size: The number of examples in a batch.
        steps: The default number of steps in a round.
        make_batches: A function that returns the data, cut into batches that are repeated.
        make_parameters: A function that returns the initial weights.
        optimizer: `adamw` (decay 0.01) or `adagrad`, both with the learning rate 0.001.
        metric: The metric reported besides the mean loss: `accuracy` or `auc`.
    """

    name: str
    batch_size: int
    steps: int
    make_batches: Callable[[], Batches]
    make_parameters: Callable[[], Parameters]
    optimizer: str = "adamw"
    metric: str = "accuracy"


MLP_UNITS = 32
MLP_CLASSES = 10

CONVNET_IMAGE = (32, 32, 3)
CONVNET_FILTERS = (24, 48, 96)
CONVNET_CLASSES = 10

LENGTH = 64
VOCABULARY = 1000
D_MODEL = 128
NUM_HEADS = 4
NUM_BLOCKS = 2
D_FEEDFORWARD = 512
LAYER_NORM_EPSILON = 1e-6

NUM_DENSE = 13
NUM_TABLES = 26
TABLE_ROWS = 10_000
D_EMBEDDING = 16
CTR_UNITS = (256, 128)


def intervals(steps: int) -> list[int]:
    """Split a round into intervals, each of which ends with a report."""
    whole, rest = divmod(steps, STEPS_PER_REPORT)
    return [STEPS_PER_REPORT] * whole + [rest] * bool(rest)


def layers(parameters: Mapping[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    """Return the weights of each layer, by its name."""
    grouped: dict[str, list[Any]] = {}
    for path, weight in parameters.items():
        grouped.setdefault(path.rsplit("/", 1)[0], []).append(weight)
    return iter(grouped.items())


def auc(positives: np.ndarray, negatives: np.ndarray) -> float:
    """Return the area under the ROC curve.

    Args:
        positives: The number of positive examples in each bin of predictions, in rising order.
        negatives: The number of negative examples in each of these bins.
    """
    above = np.cumsum(positives[::-1])[::-1] - positives
    ranked = np.sum(negatives * (above + positives / 2))
    return float(ranked / max(positives.sum() * negatives.sum(), 1))


def _mlp_batches() -> Batches:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(100, 32, MLP_UNITS)).astype(np.float32)
    teacher = rng.normal(size=(MLP_UNITS, MLP_CLASSES))
    return (x,), np.argmax(x @ teacher, axis=-1).astype(np.int32)


def _mlp_parameters() -> Parameters:
    init = _Init()
    return {
        **init.dense("hidden", MLP_UNITS, MLP_UNITS),
        **init.dense("logits", MLP_UNITS, MLP_CLASSES),
    }


def _convnet_batches() -> Batches:
    rng = np.random.default_rng(2)
    labels = rng.integers(0, CONVNET_CLASSES, (10, 64)).astype(np.int32)
    means = rng.normal(size=(CONVNET_CLASSES, *CONVNET_IMAGE))
    images = means[labels] + rng.normal(size=(10, 64, *CONVNET_IMAGE))
    return (images.astype(np.float32),), labels


def _convnet_parameters() -> Parameters:
    init = _Init()
    parameters: Parameters = {}
    channels = CONVNET_IMAGE[-1]
    for index, filters in enumerate(CONVNET_FILTERS):
        parameters |= init.weights(f"conv_{index}", (3, 3, channels, filters))
        channels = filters
    return parameters | init.dense("logits", channels, CONVNET_CLASSES)


def _transformer_batches() -> Batches:
    rng = np.random.default_rng(3)
    follows = rng.integers(0, VOCABULARY, VOCABULARY)
    tokens = np.empty((10, 16, LENGTH + 1), np.int32)
    tokens[..., 0] = rng.integers(0, VOCABULARY, (10, 16))
    for position in range(LENGTH):
        noise = rng.integers(0, VOCABULARY, (10, 16))
        is_noise = rng.random((10, 16)) < 0.3
        tokens[..., position + 1] = np.where(is_noise, noise, follows[tokens[..., position]])
    return (tokens[..., :-1],), np.ascontiguousarray(tokens[..., 1:])


def _transformer_parameters() -> Parameters:
    init = _Init()
    parameters = {
        "tokens/embeddings": init.normal((VOCABULARY, D_MODEL), 0.02),
        "positions/embeddings": init.normal((LENGTH, D_MODEL), 0.02),
    }
    for index in range(NUM_BLOCKS):
        block = f"block_{index}"
        parameters |= init.layer_norm(f"{block}_norm_1", D_MODEL)
        parameters |= init.dense(f"{block}_qkv", D_MODEL, 3 * D_MODEL)
        parameters |= init.dense(f"{block}_project", D_MODEL, D_MODEL)
        parameters |= init.layer_norm(f"{block}_norm_2", D_MODEL)
        parameters |= init.dense(f"{block}_up", D_MODEL, D_FEEDFORWARD)
        parameters |= init.dense(f"{block}_down", D_FEEDFORWARD, D_MODEL)
    parameters |= init.layer_norm("norm", D_MODEL)
    return parameters | init.dense("logits", D_MODEL, VOCABULARY)


def _ctr_batches() -> Batches:
    rng = np.random.default_rng(4)
    dense = rng.normal(size=(20, 512, NUM_DENSE)).astype(np.float32)
    # Square the random numbers, because ids in real data are not equally frequent.
    categorical = (rng.random((20, 512, NUM_TABLES)) ** 2 * TABLE_ROWS).astype(np.int32)
    score = dense @ rng.normal(size=NUM_DENSE) + (categorical[..., 0] % 2) * 2 - 1
    labels = (score + rng.logistic(size=score.shape) > 0).astype(np.int32)
    return (dense, categorical), labels


def _ctr_parameters() -> Parameters:
    init = _Init()
    parameters = {
        f"table_{index}/embeddings": init.normal((TABLE_ROWS, D_EMBEDDING), 0.01)
        for index in range(NUM_TABLES)
    }
    size = NUM_DENSE + NUM_TABLES * D_EMBEDDING
    for index, units in enumerate(CTR_UNITS):
        parameters |= init.dense(f"dense_{index}", size, units)
        size = units
    return parameters | init.dense("logits", size, 1)


class _Init:
    """A source of initial weights with the same seed for every model."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)

    def normal(self, shape: tuple[int, ...], scale: float) -> np.ndarray:
        return (self._rng.normal(size=shape) * scale).astype(np.float32)

    def weights(self, name: str, shape: tuple[int, ...]) -> Parameters:
        kernel = self.normal(shape, np.sqrt(2 / np.prod(shape[:-1])))
        return {f"{name}/kernel": kernel, f"{name}/bias": np.zeros(shape[-1], np.float32)}

    def dense(self, name: str, inputs: int, units: int) -> Parameters:
        return self.weights(name, (inputs, units))

    def layer_norm(self, name: str, size: int) -> Parameters:
        return {
            f"{name}/gamma": np.ones(size, np.float32),
            f"{name}/beta": np.zeros(size, np.float32),
        }


MODELS: Mapping[str, Model] = {
    model.name: model
    for model in (
        Model("tiny_mlp", 32, 2000, _mlp_batches, _mlp_parameters),
        Model("convnet", 64, 50, _convnet_batches, _convnet_parameters),
        Model("transformer", 16, 40, _transformer_batches, _transformer_parameters),
        Model("ctr", 512, 100, _ctr_batches, _ctr_parameters, optimizer="adagrad", metric="auc"),
    )
}
