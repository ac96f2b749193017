"""Generated histories; every user takes items of two topics."""

import functools
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from experiments.recommendation.tdm import configs
from official_lite.data import arrays

__all__ = ["ITEMS_PER_TOPIC", "Histories", "build_dataset", "load_split", "popularity_recall"]

ITEMS_PER_TOPIC = 20
HISTORY_LENGTH = 10

_TOPICS_OF_A_USER = 2
# The exponent of the power law by which an item's popularity falls with its rank in its topic.
_POPULARITY_EXPONENT = 0.7


class Histories(NamedTuple):
    """Users in rows; n is the number of users.

    Attributes:
        items: The items that each user took, int32 of shape (n, 10).
        next_items: The next item of each user, int32 of shape (n,).
    """

    items: np.ndarray
    next_items: np.ndarray


@functools.lru_cache(maxsize=2)
def load_split(split: str, count: int, num_topics: int) -> Histories:
    """Return the histories of `count` users, which are the same on every call.

    Args:
        split: `train` or `validation`.
        count: The number of users.
        num_topics: The number of topics, with 20 items each.
    """
    item_of = np.random.default_rng(0).permutation(num_topics * ITEMS_PER_TOPIC)
    rng = np.random.default_rng([configs.SPLITS.index(split), num_topics])
    topics = rng.integers(num_topics, size=(count, _TOPICS_OF_A_USER))
    chosen = rng.integers(_TOPICS_OF_A_USER, size=(count, HISTORY_LENGTH + 1))
    popularity = np.arange(1, ITEMS_PER_TOPIC + 1) ** -_POPULARITY_EXPONENT
    ranks = rng.choice(ITEMS_PER_TOPIC, size=chosen.shape, p=popularity / popularity.sum())
    places = np.take_along_axis(topics, chosen, axis=1) * ITEMS_PER_TOPIC + ranks
    items = item_of[places].astype(np.int32)
    return Histories(items[:, :-1], items[:, -1])


def popularity_recall(train: Histories, validation: Histories, count: int) -> float:
    """Return how often the next item is among the `count` most popular ones."""
    most_popular = np.argsort(-np.bincount(train.next_items), kind="stable")[:count]
    return float(np.isin(validation.next_items, most_popular).mean())


def build_dataset(
    params: configs.TdmDataConfig,
    num_topics: int,
    input_context: tf.distribute.InputContext | None = None,
) -> tf.data.Dataset:
    """Build batches of features and labels.

    The features are `history` of shape (batch, 10) and `target` of shape (batch,). The labels are
    the target again.
    """
    histories = load_split(params.split, params.num_generated, num_topics)
    features: dict[str, Any] = {"history": histories.items, "target": histories.next_items}
    return arrays.from_arrays(
        (features, histories.next_items),
        params.global_batch_size,
        # The examples are independent, so they need no shuffling.
        shuffle=False,
        repeat=bool(params.is_training),
        drop_remainder=params.drop_remainder,
        input_context=input_context,
    )
