"""A generator of examples in Criteo's format with a known best possible AUC.

A click follows a logistic model: a weight for each integer's logarithm and for each category, and
for some pairs of categories the product of their hidden vectors. All of these are drawn from a
seed. Examples are drawn independently, so their order carries no information.
"""

from typing import NamedTuple

import numpy as np

from experiments.recommendation.criteo import configs

__all__ = [
    "NUM_CATEGORIES",
    "NUM_INTEGERS",
    "Examples",
    "Truth",
    "area_under_curve",
    "generate",
    "log_integers",
]

NUM_INTEGERS = 13
NUM_CATEGORIES = 26

# The number of different values in the first category and in the last one.
_MIN_VALUES, _MAX_VALUES = 4, 400
_ZIPF_EXPONENT = 1.1
# The frequency rank of each category's missing value, which is written as an empty field.
_MISSING_RANK = 2
_MISSING_INTEGERS = 0.1

# The categories whose values have hidden vectors: every third one.
_PAIRED = np.arange(2, NUM_CATEGORIES, 3)
_VECTOR_WIDTH = 4

# The standard deviations of the terms of the logit, and its bias, with which about 30 % of the
# labels are 1.
_INTEGERS_STD, _WEIGHTS_STD, _PAIRS_STD = 0.6, 0.9, 0.9
_BIAS = -1.4

# Examples are drawn in blocks of this size, so that a larger dataset begins with a smaller one.
_BLOCK = 2**14
_TRUTH = 2**32


class Examples(NamedTuple):
    """Examples in columns; n is the number of examples.

    Attributes:
        labels: 0 or 1, int32 of shape (n,).
        integers: float32 of shape (n, 13), NaN for missing integers.
        values: Indexes of the categories' values in `Truth.tokens`, int32 of shape (n, 26).
        logits: The true logits, float64 of shape (n,).
    """

    labels: np.ndarray
    integers: np.ndarray
    values: np.ndarray
    logits: np.ndarray

    def best_possible_auc(self) -> float:
        """Return the AUC of the true probabilities on these labels."""
        return area_under_curve(self.labels, self.logits)


class Truth:
    """The model that labels are drawn from.

    Args:
        seed: The seed from which the model is drawn.

    Attributes:
        tokens: All values of all categories as written in a file: eight hexadecimal digits, or an
            empty string.
        category_of_token: The category of each value.
    """

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng([seed, _TRUTH])
        counts = np.geomspace(_MIN_VALUES, _MAX_VALUES, NUM_CATEGORIES).astype(int)
        self._begins = np.cumsum(counts) - counts
        self._values = np.stack([_value_table(count) for count in counts]) + self._begins[:, None]
        self.category_of_token = np.repeat(np.arange(NUM_CATEGORIES), counts)
        self.tokens = _tokens(counts.sum())
        self.tokens[self._begins + _MISSING_RANK] = ""
        self._integer_means = np.linspace(0.5, 3.0, NUM_INTEGERS)
        self._integer_weights = rng.normal(
            scale=_INTEGERS_STD / NUM_INTEGERS**0.5, size=NUM_INTEGERS
        )
        self._weights = rng.normal(scale=_WEIGHTS_STD / NUM_CATEGORIES**0.5, size=counts.sum())
        num_pairs = len(_PAIRED) * (len(_PAIRED) - 1) / 2
        vector_std = (_PAIRS_STD / (_VECTOR_WIDTH * num_pairs) ** 0.5) ** 0.5
        self._vectors = rng.normal(scale=vector_std, size=(counts.sum(), _VECTOR_WIDTH))

    def draw(self, rng: np.random.Generator, count: int) -> Examples:
        """Draw `count` examples."""
        logs = rng.normal(self._integer_means, size=(count, NUM_INTEGERS))
        integers = np.floor(np.exp(logs)).astype(np.float32)
        # As in Criteo's data, the second integer may be negative.
        integers[:, 1] -= 3
        integers[rng.random(integers.shape, np.float32) < _MISSING_INTEGERS] = np.nan
        draws = rng.integers(self._values.shape[1], size=(count, NUM_CATEGORIES), dtype=np.uint16)
        values = self._values[np.arange(NUM_CATEGORIES), draws].astype(np.int32)
        logits = self._logits(integers, values)
        labels = rng.random(count) < 1.0 / (1.0 + np.exp(-logits))
        return Examples(labels.astype(np.int32), integers, values, logits)

    def _logits(self, integers: np.ndarray, values: np.ndarray) -> np.ndarray:
        linear = (log_integers(integers) - self._integer_means) @ self._integer_weights
        linear += self._weights[values].sum(axis=1)
        vectors = self._vectors[values[:, _PAIRED]]
        sums, squares = vectors.sum(axis=1), (vectors**2).sum(axis=(1, 2))
        return _BIAS + linear + 0.5 * ((sums**2).sum(axis=1) - squares)


def generate(seed: int, split: str, count: int) -> Examples:
    """Return the first `count` examples of a split.

    Args:
        seed: The seed of the truth and of the examples.
        split: `train` or `validation`, which have no example in common.
        count: The number of examples.
    """
    truth = Truth(seed)
    blocks = []
    for number, begin in enumerate(range(0, count, _BLOCK)):
        rng = np.random.default_rng([seed, configs.SPLITS.index(split), number])
        blocks.append(_first(truth.draw(rng, _BLOCK), count - begin))
    return Examples(*(np.concatenate(column) for column in zip(*blocks, strict=True)))


def log_integers(integers: np.ndarray) -> np.ndarray:
    """Return log(1 + n) of each integer n, as models see it; 0 for negative and missing ones."""
    return np.log1p(np.maximum(np.nan_to_num(integers), 0))


def area_under_curve(labels: np.ndarray, scores: np.ndarray) -> float:
    """Return the probability that an example of label 1 scores higher than one of label 0."""
    ranks = np.empty(len(scores))
    ranks[np.argsort(scores)] = np.arange(1, len(scores) + 1)
    positives = np.count_nonzero(labels)
    above = ranks[labels == 1].sum() - positives * (positives + 1) / 2
    return float(above / (positives * (len(labels) - positives)))


def _value_table(count: int) -> np.ndarray:
    """Return a table that contains each value in proportion to its frequency."""
    frequencies = np.arange(1, count + 1) ** -_ZIPF_EXPONENT
    shares = np.cumsum(frequencies) / frequencies.sum()
    places = np.linspace(0, 1, 2**16, endpoint=False)
    return np.searchsorted(shares, places, side="right")


def _tokens(count: int) -> np.ndarray:
    # The factor is odd, so all products modulo 2**32 are different.
    numbers = (np.arange(1, count + 1, dtype=np.uint64) * 2654435761) % 2**32
    return np.array([f"{number:08x}" for number in numbers], dtype=object)


def _first(examples: Examples, count: int) -> Examples:
    return Examples(*(column[:count] for column in examples))
