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
from official_lite.core import input_reader
from official_lite.data import position

__all__ = [
    "Features",
    "Ratings",
    "build_evaluation",
    "build_next_items",
    "build_pairs",
    "build_positives",
    "build_windows",
    "load_item_features",
    "load_ratings",
    "load_user_features",
    "multi_hot",
    "read_table",
    "split_at_random",
    "split_by_time",
]

# The fraction of a user's ratings in the validation split, and also in the test split.
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


class Features(NamedTuple):
    """Categorical features of all users, or of all items.

    Attributes:
        values: The numbers of the values, from 1, int32 of shape (rows, n). Value 0 is none: the
            file lacks the row, or the row has fewer values than others.
        num_values: The largest number of a value, plus 1.
    """

    values: np.ndarray
    num_values: int


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


def load_user_features(directory: str) -> Features:
    """Read the decade of life, the gender and the occupation of each user from `ml-100k.user`."""
    table = read_table(directory, "user", ("user_id", "age", "gender", "occupation"))
    decades = [age[:-1] + "x" for age in table["age"]]
    rows = zip(decades, table["gender"], table["occupation"], strict=True)
    return _number(table["user_id"], [list(row) for row in rows], load_ratings(directory).user_ids)


def load_item_features(directory: str) -> Features:
    """Read the decade and the genres of each movie from `ml-100k.item`."""
    table = read_table(directory, "item", ("item_id", "release_year", "class"))
    rows = [
        [year[:-1] + "x", *genres.split()]
        for year, genres in zip(table["release_year"], table["class"], strict=True)
    ]
    return _number(table["item_id"], rows, load_ratings(directory).item_ids)


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
    # For each rating, the number of its user's ratings from this one to the last one.
    place = np.cumsum(counts)[users] - np.arange(len(users))
    part = (place <= 2 * num_held[users]).astype(int) + (place <= num_held[users])
    return {
        split: _select(ratings, order[part == index]) for index, split in enumerate(configs.SPLITS)
    }


@functools.lru_cache(maxsize=1)
def split_by_time(directory: str) -> Mapping[str, Ratings]:
    """Split the ratings of each user by leaving the last one for the test.

    The one before is for validation. Users with fewer than three ratings only train. Ratings of the
    same time keep their order in the file.

    Returns:
        The ratings of `train`, `validation` and `test`, by user and time.
    """
    ratings = load_ratings(directory)
    order = np.lexsort((ratings.timestamps, ratings.users))
    users = ratings.users[order]
    counts = np.bincount(users)
    # For each rating, the number of its user's ratings from this one to the last one.
    place = np.cumsum(counts)[users] - np.arange(len(users))
    is_split = counts[users] >= 3
    part = ((place <= 2) & is_split).astype(int) + ((place == 1) & is_split)
    return {
        split: _select(ratings, order[part == index]) for index, split in enumerate(configs.SPLITS)
    }


def multi_hot(ratings: Ratings) -> np.ndarray:
    """Return a table of whether a user has rated an item, bool of shape (users, items)."""
    table = np.zeros((len(ratings.user_ids), len(ratings.item_ids)), bool)
    table[ratings.users, ratings.items] = True
    return table


def build_positives(
    params: configs.Ml100kDataConfig,
    ratings: Ratings,
    input_context: tf.distribute.InputContext | None = None,
) -> tf.data.Dataset:
    """Build batches of ratings: `user` and `item`, both of shape (batch,)."""
    return _batches_of({"user": ratings.users, "item": ratings.items}, params, input_context)


def build_pairs(
    params: configs.Ml100kDataConfig,
    ratings: Ratings,
    input_context: tf.distribute.InputContext | None = None,
) -> tf.data.Dataset:
    """Build batches of training ratings, each with an item that the user has not rated.

    The unrated items are drawn uniformly, and differently in each epoch.

    Returns:
        Batches of `user` of shape (batch,), and `items` of shape (batch, 2), the rated one first.
    """
    is_rated = multi_hot(ratings)
    num_unrated = tf.constant((~is_rated).sum(axis=1).astype(np.float32))
    # In the row of each user, the unrated items precede the rated ones.
    unrated = tf.constant(np.argsort(is_rated, axis=1, kind="stable").astype(np.int32))

    def add_unrated(seed: tf.Tensor, batch: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        users = batch["user"]
        shares = tf.random.stateless_uniform(tf.shape(users), seed)
        places = tf.cast(shares * tf.gather(num_unrated, users), tf.int32)
        drawn = tf.gather_nd(unrated, tf.stack([users, places], axis=1))
        return {"user": users, "items": tf.stack([batch["item"], drawn], axis=1)}

    dataset = build_positives(params, ratings, input_context)
    return position.map_batches(dataset, add_unrated, input_context, seed=params.seed).prefetch(2)


def build_windows(
    params: configs.Ml100kDataConfig,
    train: Ratings,
    length: int,
    input_context: tf.distribute.InputContext | None = None,
) -> tf.data.Dataset:
    """Build batches of windows of users' items, and the item that follows each of them.

    The windows of a user follow each other, and each is shifted by up to its length, differently in
    each epoch. On average, each item is predicted once per epoch, from up to `length` items.

    Args:
        params: The config of the data.
        train: The training ratings, by user and time.
        length: The length of a window.
        input_context: The index of this input pipeline and the number of pipelines.

    Returns:
        Batches of `history`, int32 of shape (batch, length), and labels of the same shape. Items
        are numbered from 1; 0 is none.
    """
    ends = np.cumsum(np.bincount(train.users))
    begins = np.concatenate([[0], ends[:-1]])
    # With this number of windows, all items of a user are covered at any shift.
    num_windows = (np.maximum(ends - begins - 2, -1) + length - 1) // length + 1
    user = np.repeat(np.arange(len(ends)), num_windows)
    index = np.arange(len(user)) - np.repeat(np.cumsum(num_windows) - num_windows, num_windows)
    windows = {
        "start": (begins[user] + index * length).astype(np.int32),
        "begin": begins[user].astype(np.int32),
        "end": ends[user].astype(np.int32),
    }
    items = tf.constant(train.items + 1)

    def cut(seed: tf.Tensor, batch: Mapping[str, tf.Tensor]) -> Any:
        shape = [tf.shape(batch["start"])[0], 1]
        shift = tf.random.stateless_uniform(shape, seed, 0, length, tf.int32)
        places = batch["start"][:, tf.newaxis] - shift + tf.range(length + 1)
        is_inside = (places >= batch["begin"][:, tf.newaxis]) & (
            places < batch["end"][:, tf.newaxis]
        )
        found = tf.gather(items, tf.clip_by_value(places, 0, len(train.items) - 1))
        found = tf.where(is_inside, found, 0)
        history, following = found[:, :-1], found[:, 1:]
        return {"history": history}, tf.where(history > 0, following, 0)

    dataset = _batches_of(windows, params, input_context)
    return position.map_batches(dataset, cut, input_context, seed=params.seed).prefetch(2)


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
    is_wanted = multi_hot(splits[params.split.lower()])
    users = np.flatnonzero(is_wanted.any(axis=1)).astype(np.int32)
    is_known = np.zeros_like(is_wanted)
    for split in configs.SPLITS[: configs.SPLITS.index(params.split)]:
        is_known |= multi_hot(splits[split])
    features = {"user": users, "is_known": is_known[users]}
    return _batches_of((features, is_wanted[users]), params, input_context)


def build_next_items(
    params: configs.Ml100kDataConfig,
    splits: Mapping[str, Ratings],
    length: int,
    input_context: tf.distribute.InputContext | None = None,
) -> tf.data.Dataset:
    """Build batches of histories and the items that follow, each of which may be a known one.

    Returns:
        Batches like those of `build_evaluation`, with `history` of shape (batch, length) instead of
        `user`. In `history`, items are numbered from 1, and 0 is padding before the first one.
    """
    split = params.split.lower()
    if split == configs.SPLITS[0]:
        raise errors.ConfigValueError(
            f"`split` is {params.split!r}, before which no ratings are known. Expected one of "
            f"{', '.join(configs.SPLITS[1:])}."
        )
    is_wanted = multi_hot(splits[split])
    users = np.flatnonzero(is_wanted.any(axis=1))
    histories = _last_items(splits, split, length)
    features = {"history": histories[users], "is_known": np.zeros_like(is_wanted[users])}
    return _batches_of((features, is_wanted[users]), params, input_context)


def _batches_of(
    examples: Any,
    params: configs.Ml100kDataConfig,
    input_context: tf.distribute.InputContext | None,
) -> tf.data.Dataset:
    return input_reader.from_arrays(examples, params, input_context)


def _last_items(splits: Mapping[str, Ratings], split: str, length: int) -> np.ndarray:
    """Return each user's last items before a split, int32 of shape (users, length).

    Items are numbered from 1. Shorter histories are padded with 0 on the left.
    """
    earlier = [splits[name] for name in configs.SPLITS[: configs.SPLITS.index(split)]]
    users = np.concatenate([ratings.users for ratings in earlier])
    items = np.concatenate([ratings.items for ratings in earlier])
    by_user = np.argsort(users, kind="stable")
    users, items = users[by_user], items[by_user]
    counts = np.bincount(users, minlength=len(splits[split].user_ids))
    column = length - (np.cumsum(counts)[users] - np.arange(len(users)))
    histories = np.zeros((len(counts), length), np.int32)
    is_recent = column >= 0
    histories[users[is_recent], column[is_recent]] = items[is_recent] + 1
    return histories


def _number(ids: np.ndarray, rows: list[list[str]], wanted: np.ndarray) -> Features:
    """Return the feature values as numbers, with one row for each of the wanted ids."""
    names = sorted({name for row in rows for name in row})
    numbers = {name: number for number, name in enumerate(names, start=1)}
    row_of = dict(zip(ids.tolist(), rows, strict=True))
    values = np.zeros((len(wanted), max(map(len, rows))), np.int32)
    for index, wanted_id in enumerate(wanted.tolist()):
        row = row_of.get(wanted_id, [])
        values[index, : len(row)] = [numbers[name] for name in row]
    return Features(values, 1 + len(names))


def _select(ratings: Ratings, rows: np.ndarray) -> Ratings:
    return ratings._replace(
        users=ratings.users[rows], items=ratings.items[rows], timestamps=ratings.timestamps[rows]
    )
