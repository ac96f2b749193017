"""MovieLens-100k in RecBole's atomic files, its splits, and the datasets of the models."""

import functools
import os
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from experiments.recommendation.ml100k import configs
from official_lite.common import errors, suggestions
from official_lite.data import arrays, position

__all__ = [
    "Ratings",
    "build_evaluation",
    "build_pairs",
    "load_ratings",
    "multi_hot",
    "read_table",
    "split_at_random",
]

# The share of a user's ratings in the validation split, and in the test split.
_HELD_OUT_SHARE = 0.1


class Ratings(NamedTuple):
    """Ratings in rows; users and items are numbered from 0 in the order of their ids.

    Attributes:
        users: The user of each rating, int32.
        items: The item of each rating, int32.
        timestamps: The time of each rating in seconds since 1970, int64.
        user_ids: The id of each user in the files.
        item_ids: The id of each item in the files.
    """

    users: np.ndarray
    items: np.ndarray
    timestamps: np.ndarray
    user_ids: np.ndarray
    item_ids: np.ndarray


@functools.lru_cache(maxsize=1)
def load_ratings(directory: str) -> Ratings:
    """Read `ml-100k.inter`.

    Raises:
        ConfigValueError: If no directory is given.
        DataError: If the file is missing or is not one of RecBole's.
    """
    table = read_table(directory, "inter", ("user_id", "item_id", "timestamp"))
    user_ids, users = np.unique(table["user_id"], return_inverse=True)
    item_ids, items = np.unique(table["item_id"], return_inverse=True)
    return Ratings(
        users=users.astype(np.int32),
        items=items.astype(np.int32),
        timestamps=table["timestamp"].astype(np.float64).astype(np.int64),
        user_ids=user_ids,
        item_ids=item_ids,
    )


def read_table(directory: str, suffix: str, wanted: tuple[str, ...]) -> Mapping[str, np.ndarray]:
    """Return columns of `ml-100k.<suffix>` by their names, as strings.

    Args:
        directory: The directory of the file.
        suffix: `inter`, `user` or `item`.
        wanted: The names of the columns, without their types.

    Raises:
        ConfigValueError: If no directory is given.
        DataError: If the file is missing, or lacks a column or a cell.
    """
    if not directory:
        raise errors.ConfigValueError(
            "No data are configured. Set `task.input_path` to the directory of `ml-100k.inter`, "
            "such as --set=task.input_path=/data/ml-100k."
        )
    path = pathlib.Path(os.path.expanduser(directory)) / f"ml-100k.{suffix}"
    if not path.is_file():
        raise errors.DataError(
            f"`task.input_path` is {directory!r}, which has no file {path.name!r}. The file is in "
            "`recbole/dataset_example/ml-100k` of RecBole's wheel: `pip download --no-deps "
            "recbole==1.2.1`, then `unzip` it. Its data are those of "
            "https://grouplens.org/datasets/movielens/100k, in RecBole's format: tab-separated, "
            "with a header such as `user_id:token`."
        )
    header, *rows = path.read_text(encoding="utf-8").splitlines()
    names = [name.partition(":")[0] for name in header.split("\t")]
    for name in wanted:
        if name not in names:
            raise errors.DataError(
                f"{path} has no column `{name}`. {suggestions.did_you_mean(name, names)}"
            )
    cells = [row.split("\t") for row in rows]
    for number, row in enumerate(cells, start=2):
        if len(row) != len(names):
            raise errors.DataError(
                f"Line {number} of {path} has {len(row)} columns; expected {len(names)}: "
                f"{', '.join(names)}."
            )
    columns = np.array(cells).reshape(-1, len(names)).T
    return {name: columns[names.index(name)] for name in wanted}


@functools.lru_cache(maxsize=4)
def split_at_random(directory: str, seed: int) -> Mapping[str, Ratings]:
    """Split the ratings of each user at random, as RecBole does by default.

    A tenth of a user's ratings, rounded down but at least one, is for validation, and as many are
    for the test. Users with fewer than three ratings only train.

    Args:
        directory: The directory of the files.
        seed: The seed of the random order.

    Returns:
        The ratings of `train`, `validation` and `test`.
    """
    ratings = load_ratings(directory)
    order = np.random.default_rng(seed).permutation(len(ratings.users))
    users = ratings.users[order]
    by_user = np.argsort(users, kind="stable")
    order, users = order[by_user], users[by_user]
    counts = np.bincount(users)
    num_held = np.maximum((counts * _HELD_OUT_SHARE).astype(int), 1) * (counts >= 3)
    # How many ratings of the same user follow, including this one.
    place = np.cumsum(counts)[users] - np.arange(len(users))
    part = (place <= 2 * num_held[users]).astype(int) + (place <= num_held[users])
    return {
        split: _select(ratings, order[part == index]) for index, split in enumerate(configs.SPLITS)
    }


def multi_hot(ratings: Ratings) -> np.ndarray:
    """Return a table of whether a user has rated an item, bool of shape (users, items)."""
    table = np.zeros((len(ratings.user_ids), len(ratings.item_ids)), bool)
    table[ratings.users, ratings.items] = True
    return table


def build_pairs(
    params: configs.Ml100kDataConfig,
    ratings: Ratings,
    input_context: tf.distribute.InputContext | None = None,
) -> tf.data.Dataset:
    """Build batches of training ratings, each with an item that the user has not rated.

    Such an item is drawn uniformly, and another one in each epoch.

    Returns:
        Batches of `user` of shape (batch,), and `items` of shape (batch, 2), the rated one first.
    """
    is_rated = multi_hot(ratings)
    num_unrated = tf.constant((~is_rated).sum(axis=1).astype(np.float32))
    # The items that a user has not rated come first in the row of the user.
    unrated = tf.constant(np.argsort(is_rated, axis=1, kind="stable").astype(np.int32))

    def add_unrated(seed: tf.Tensor, batch: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        users = batch["user"]
        shares = tf.random.stateless_uniform(tf.shape(users), seed)
        places = tf.cast(shares * tf.gather(num_unrated, users), tf.int32)
        drawn = tf.gather_nd(unrated, tf.stack([users, places], axis=1))
        return {"user": users, "items": tf.stack([batch["item"], drawn], axis=1)}

    dataset = arrays.from_arrays(
        {"user": ratings.users, "item": ratings.items},
        params.global_batch_size,
        shuffle=bool(params.is_training),
        seed=params.seed,
        repeat=bool(params.is_training),
        drop_remainder=params.drop_remainder,
        input_context=input_context,
    )
    return position.map_batches(dataset, add_unrated, input_context, seed=params.seed).prefetch(2)


def build_evaluation(
    params: configs.Ml100kDataConfig,
    splits: Mapping[str, Ratings],
    input_context: tf.distribute.InputContext | None = None,
) -> tf.data.Dataset:
    """Build batches of users with what they have rated and what a model should recommend.

    Returns:
        Batches of features and labels. The features are `user` of shape (batch,), and `is_known`,
        bool of shape (batch, items): the items of the earlier splits, which are not recommended.
        The labels, also bool of shape (batch, items), are the items of the split.
    """
    is_wanted = multi_hot(splits[params.split])
    earlier = configs.SPLITS[: configs.SPLITS.index(params.split)]
    is_known = np.any([multi_hot(splits[split]) for split in earlier] or [~is_wanted & False], 0)
    users = np.flatnonzero(is_wanted.any(axis=1)).astype(np.int32)
    features: dict[str, Any] = {"user": users, "is_known": is_known[users]}
    return arrays.from_arrays(
        (features, is_wanted[users]),
        params.global_batch_size,
        shuffle=False,
        drop_remainder=params.drop_remainder,
        input_context=input_context,
    )


def _select(ratings: Ratings, rows: np.ndarray) -> Ratings:
    return ratings._replace(
        users=ratings.users[rows], items=ratings.items[rows], timestamps=ratings.timestamps[rows]
    )
