import itertools
import json
import pathlib
from collections.abc import Callable, Mapping

import keras
import numpy as np
import pytest
import tensorflow as tf

from experiments.recommendation.ml100k import configs, data, model, ranking, task
from official_lite import pipeline
from official_lite.common import errors
from official_lite.core import config_definitions as cfg
from official_lite.data import position
from tests import downloads
from tests.experiments import evaluations

ML_100K, needs_ml_100k = downloads.needs("ml-100k")

NUM_USERS, NUM_ITEMS = 24, 40
FACTORIES = (configs.ml100k_bpr, configs.ml100k_two_tower, configs.ml100k_sasrec)


@pytest.fixture
def directory(tmp_path: pathlib.Path) -> str:
    """Write MovieLens-100k files for users who like either the first or the last items."""
    rng = np.random.default_rng(0)
    lines = ["user_id:token\titem_id:token\trating:float\ttimestamp:float"]
    for user in range(NUM_USERS):
        half = NUM_ITEMS // 2
        liked = rng.permutation(half)[: 10 + user % 5] + half * (user % 2)
        times = rng.integers(1000, size=len(liked))
        for item, time in zip(liked, times, strict=True):
            lines.append(f"{user + 1}\t{item + 1}\t3\t{time}")
    lines[1:] = rng.permutation(lines[1:]).tolist()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "ml-100k.inter").write_text("\n".join(lines) + "\n")
    users = ["user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token"]
    users += [f"{user}\t{20 + user}\t{'MF'[user % 2]}\twriter\t12345" for user in range(1, 24)]
    (tmp_path / "data" / "ml-100k.user").write_text("\n".join(users) + "\n")
    items = ["item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq"]
    items += [
        f"{item}\tTitle\t1995\t{'Drama War' if item > 20 else 'War'}" for item in range(1, 41)
    ]
    (tmp_path / "data" / "ml-100k.item").write_text("\n".join(items) + "\n")
    return str(tmp_path / "data")


def _experiment(
    directory: str, train_steps: int, factory: Callable[[], cfg.ExperimentConfig]
) -> cfg.ExperimentConfig:
    params = factory()
    params.override(
        {
            "task": {"input_path": directory, "train_data": {"global_batch_size": 16}},
            "trainer": {
                "train_steps": train_steps,
                "validation_interval": 4,
                "checkpoint_interval": 3,
                "steps_per_loop": 100,
                "writers": ["jsonl"],
                "optimizer_config": {"learning_rate": {"constant": {"learning_rate": 0.1}}},
            },
            "runtime": {"execution": "graph"},
        }
    )
    return params


def _pairs_of(ratings: data.Ratings) -> set[tuple[int, int]]:
    return set(zip(ratings.users.tolist(), ratings.items.tolist(), strict=True))


def test_splits_are_disjoint_and_hold_out_a_tenth_of_the_ratings_of_each_user(directory) -> None:
    ratings, splits = data.load_ratings(directory), data.split_at_random(directory, 0)
    parts = [_pairs_of(splits[split]) for split in configs.SPLITS]
    assert set.union(*parts) == _pairs_of(ratings)
    assert sum(map(len, parts)) == len(ratings.users)
    counts = np.bincount(ratings.users)
    for split in ("validation", "test"):
        np.testing.assert_array_equal(np.bincount(splits[split].users), counts // 10)


def test_ratings_of_users_with_few_ratings_are_split_as_in_recbole(tmp_path: pathlib.Path) -> None:
    lines = ["user_id:token\titem_id:token\ttimestamp:float"]
    lines += [f"{count}\t{item}\t0" for count in (1, 3, 9, 19, 20) for item in range(count)]
    (tmp_path / "ml-100k.inter").write_text("\n".join(lines))
    splits = data.split_at_random(str(tmp_path), 0)
    user_of = {user: number for number, user in enumerate(splits["train"].user_ids.tolist())}
    for split in ("validation", "test"):
        held_out = np.bincount(splits[split].users, minlength=5)
        found = [held_out[user_of[str(count)]] for count in (1, 3, 9, 19, 20)]
        assert found == [0, 1, 1, 1, 2]


def test_random_split_of_the_ratings_depends_only_on_its_seed(directory: str) -> None:
    one, other = (_pairs_of(data.split_at_random(directory, seed)["test"]) for seed in (0, 1))
    data.split_at_random.cache_clear()
    assert _pairs_of(data.split_at_random(directory, 0)["test"]) == one != other


def test_missing_or_malformed_rating_files_are_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "ml-100k.inter"
    header = "user_id:token\titem_id:token\ttimestamp:float\n"
    for content, error, named in (
        (None, errors.DataError, r"pip download --no-deps recbole==1\.2\.1"),
        ("user:token\titem_id:token\ttimestamp:float\n", errors.DataError, "no column `user_id`"),
        (f"{header}1\t2\t3\n1\t2\n", errors.DataError, "Line 3 .* 2 columns; expected 3"),
    ):
        if content is not None:
            path.write_text(content)
        with pytest.raises(error, match=named):
            data.read_table(str(tmp_path), "inter", ("user_id", "item_id", "timestamp"))
    with pytest.raises(errors.ConfigValueError, match=r"--set=task\.input_path="):
        data.load_ratings("")


def test_negative_items_are_sampled_uniformly_from_the_items_a_user_has_not_rated(
    directory,
) -> None:
    train = data.split_at_random(directory, 0)["train"]
    params = configs.Ml100kConfig().train_data.replace(global_batch_size=1000)
    rated, drawn = _pairs_of(train), np.zeros((NUM_USERS, NUM_ITEMS))
    with position.begin_at(0, seed=3):
        batches = data.build_pairs(params, train)
    for batch in batches.take(60).as_numpy_iterator():
        users, items = batch["user"], batch["items"]
        assert set(zip(users.tolist(), items[:, 0].tolist(), strict=True)) <= rated
        np.add.at(drawn, (users, items[:, 1]), 1)
    is_rated = data.multi_hot(train)
    assert not drawn[is_rated].any()
    shares = np.where(is_rated, 0, drawn) / drawn.sum(axis=1, keepdims=True)
    expected = np.where(is_rated, 0, 1) / (~is_rated).sum(axis=1, keepdims=True)
    # Each share is estimated from about 2,500 draws, so its standard deviation is below 0.004.
    np.testing.assert_allclose(shares, expected, atol=0.02)


def test_negative_items_after_a_resume_equal_those_of_an_uninterrupted_run(directory: str) -> None:
    train = data.split_at_random(directory, 0)["train"]
    params = configs.Ml100kConfig().train_data.replace(global_batch_size=16)

    def read(first: int, count: int) -> list[np.ndarray]:
        with position.begin_at(first, seed=3):
            batches = data.build_pairs(params, train).take(count)
            return [batch["items"] for batch in batches.as_numpy_iterator()]

    unbroken = read(0, 40)
    np.testing.assert_array_equal(read(25, 15), unbroken[25:])
    assert not np.array_equal(unbroken[0], unbroken[1])


@pytest.mark.parametrize("split", ["validation", "test"])
def test_items_that_a_user_rated_in_an_earlier_split_are_not_recommended(
    directory: str, split: str
) -> None:
    splits = data.split_at_random(directory, 0)
    params = configs.Ml100kConfig().validation_data.replace(split=split)
    ((features, labels),) = data.build_evaluation(params, splits).as_numpy_iterator()
    earlier = {"validation": ["train"], "test": ["train", "validation"]}[split]
    known = set.union(*(_pairs_of(splits[name]) for name in earlier))
    rows, items = np.nonzero(features["is_known"])
    assert set(zip(features["user"][rows].tolist(), items.tolist(), strict=True)) == known
    rows, items = np.nonzero(labels)
    wanted = set(zip(features["user"][rows].tolist(), items.tolist(), strict=True))
    assert wanted == _pairs_of(splits[split])
    scores = tf.random.stateless_normal(features["is_known"].shape, (1, 2))
    recommended = ranking.recommend(scores, features["is_known"], 10).numpy()
    assert not np.take_along_axis(features["is_known"], recommended, axis=1).any()


def _reference_metrics(
    scores: np.ndarray, is_known: np.ndarray, is_wanted: np.ndarray, k: int
) -> Mapping[str, float]:
    """Compute the metrics user by user, as RecBole's documentation defines them."""
    values: dict[str, list[float]] = {}
    for of_user, known, wanted in zip(scores, is_known, is_wanted, strict=True):
        order = [item for item in np.argsort(-of_user, kind="stable") if not known[item]][:k]
        hits = [bool(wanted[item]) for item in order]
        first = hits.index(True) + 1 if any(hits) else np.inf
        gain = sum(1 / np.log2(rank + 1) for rank, hit in enumerate(hits, start=1) if hit)
        best = sum(1 / np.log2(rank + 1) for rank in range(1, min(k, wanted.sum()) + 1))
        of_this = {
            "recall": sum(hits) / wanted.sum(),
            "mrr": 1 / first,
            "ndcg": gain / best,
            "hit": float(any(hits)),
            "precision": sum(hits) / k,
        }
        for name, value in of_this.items():
            values.setdefault(name, []).append(value)
    return {name: float(np.mean(value)) for name, value in values.items()}


@pytest.mark.parametrize("k", [1, 3, 10])
def test_ranking_metrics_match_a_reference_loop_over_users(k: int) -> None:
    rng = np.random.default_rng(k)
    scores = rng.normal(size=(50, 30)).astype(np.float32)
    is_known = rng.random((50, 30)) < 0.3
    # The number of wanted items ranges from one to more than the number of recommended items.
    is_wanted = (rng.random((50, 30)) < np.linspace(0, 1, 50)[:, None]) & ~is_known
    is_wanted[np.arange(50), np.argmin(is_known, axis=1)] = True
    metrics = ranking.build_metrics()
    for rows in (slice(0, 20), slice(20, 50)):
        recommended = ranking.recommend(tf.constant(scores[rows]), is_known[rows], k)
        for metric in metrics:
            metric.update_state(tf.constant(is_wanted[rows]), recommended)
    expected = _reference_metrics(scores, is_known, is_wanted, k)
    found = {metric.name: float(metric.result()) for metric in metrics}
    assert found == pytest.approx(expected, rel=1e-5)


def test_last_two_items_of_each_user_are_for_validation_and_test(directory: str) -> None:
    ratings, splits = data.load_ratings(directory), data.split_by_time(directory)
    for user in range(NUM_USERS):
        own = ratings.users == user
        items = ratings.items[own][np.argsort(ratings.timestamps[own], kind="stable")].tolist()
        found = [splits[split].items[splits[split].users == user] for split in configs.SPLITS]
        assert [part.tolist() for part in found] == [items[:-2], items[-2:-1], items[-1:]]


def test_training_windows_use_each_next_item_as_a_label_about_once_per_epoch(directory) -> None:
    train = data.split_by_time(directory)["train"]
    counts, length, num_epochs = np.bincount(train.users), 5, 300
    num_windows = int(((counts - 2 + length - 1) // length + 1).sum())
    params = configs.Ml100kConfig().train_data.replace(global_batch_size=num_windows)
    with position.begin_at(0, seed=3):
        batches = data.build_windows(params, train, length)
    own = [train.items[train.users == user] + 1 for user in range(NUM_USERS)]
    following = {tuple(pair) for items in own for pair in itertools.pairwise(items)}
    predicted = np.zeros(NUM_ITEMS + 1)
    for features, labels in batches.take(num_epochs).as_numpy_iterator():
        history = features["history"]
        has_label = labels > 0
        assert set(zip(history[has_label], labels[has_label], strict=True)) <= following
        # The labels are the history, shifted by one item.
        np.testing.assert_array_equal(
            labels[:, :-1][history[:, :-1] > 0], history[:, 1:][history[:, :-1] > 0]
        )
        predicted += np.bincount(labels[has_label], minlength=NUM_ITEMS + 1)
    expected = np.bincount(np.concatenate([items[1:] for items in own]), minlength=NUM_ITEMS + 1)
    # An item may be a label for up to 12 users, between 0 and 2 times per user and epoch.
    np.testing.assert_allclose(predicted / num_epochs, expected, atol=0.6)


def test_held_out_item_is_predicted_from_the_latest_items_of_its_user(directory: str) -> None:
    splits = data.split_by_time(directory)
    params = configs.Ml100kConfig().validation_data.replace(split="test")
    ((features, labels),) = data.build_next_items(params, splits, 11).as_numpy_iterator()
    assert not features["is_known"].any()
    for user in range(NUM_USERS):
        parts = [splits[split].items[splits[split].users == user] for split in configs.SPLITS]
        last = (np.concatenate(parts[:2])[-11:] + 1).tolist()
        assert features["history"][user].tolist() == [0] * (11 - len(last)) + last
        assert np.flatnonzero(labels[user]) == parts[2]


def test_self_attention_ignores_later_items_and_padding(directory: str) -> None:
    config = configs.SasRecModelConfig(seq_length=6, hidden_size=8, initializer_range=0.5)
    built = model.SelfAttentiveModel(config, NUM_ITEMS)
    history = np.array([[0, 0, 3, 4, 5, 6], [0, 0, 3, 4, 7, 8]], np.int32)
    first, second = built({"history": history}).numpy()
    # The outputs at padding positions are not used.
    np.testing.assert_allclose(first[2:4], second[2:4], rtol=1e-4, atol=1e-5)
    assert not np.allclose(first[4:], second[4:], atol=1e-3)
    # No item may attend to the embedding vector of padding.
    embeddings = built.embedding.embeddings
    embeddings.assign(tf.concat([embeddings[:1] + 10.0, embeddings[1:]], axis=0))
    again = built({"history": history})[0, 2:, 1:]
    np.testing.assert_allclose(again, first[2:, 1:], rtol=1e-4, atol=1e-5)


def test_users_absent_from_the_feature_file_have_missing_features(directory: str) -> None:
    users, items = data.load_user_features(directory), data.load_item_features(directory)
    ratings = data.load_ratings(directory)
    is_missing = ratings.user_ids == "24"
    assert not users.values[is_missing].any()
    assert users.values[~is_missing].all()
    # Each item has a decade and one or two genres.
    expected = [3 if int(item) > 20 else 2 for item in ratings.item_ids]
    assert (items.values > 0).sum(axis=1).tolist() == expected
    assert (users.num_values, items.num_values) == (1 + users.values.max(), 4)


def test_in_batch_loss_matches_a_reference_loop_over_ratings(directory: str) -> None:
    trained = task.TwoTowerTask(configs.TwoTowerConfig(input_path=directory))
    train = trained.splits["train"]
    rows = np.random.default_rng(0).integers(len(train.users), size=30)
    users, items = train.users[rows], train.items[rows]
    scores = np.random.default_rng(1).normal(size=(30, 30)).astype(np.float32)
    is_rated, popularity = data.multi_hot(train), np.bincount(train.items, minlength=NUM_ITEMS)
    losses = []
    for row in range(30):
        others = [i for i in range(30) if i == row or not is_rated[users[row], items[i]]]
        logits = {i: scores[row, i] - np.log(popularity[items[i]]) for i in others}
        losses.append(np.log(sum(np.exp(logit) for logit in logits.values())) - logits[row])
    loss = trained.build_losses({"user": users, "item": items}, tf.constant(scores))
    assert float(loss) == pytest.approx(np.mean(losses), rel=1e-5)


@pytest.mark.parametrize(
    "factory",
    [
        configs.ml100k_bpr,
        pytest.param(configs.ml100k_two_tower, marks=pytest.mark.slow),
        pytest.param(configs.ml100k_sasrec, marks=pytest.mark.slow),
    ],
)
def test_resumed_training_has_the_weights_of_an_uninterrupted_run(
    directory: str, tmp_path: pathlib.Path, factory: Callable[[], cfg.ExperimentConfig]
) -> None:
    def train(name: str, train_steps: int) -> keras.Model:
        params = _experiment(directory, train_steps, factory)
        params.phases = []
        return pipeline.RunPipeline(params, "train_and_eval", str(tmp_path / name)).run()[0]

    evaluations.assert_resumes_exactly(train, 4, 9)


def test_metrics_on_the_test_split_are_computed_with_the_best_validation_checkpoint(
    directory: str, tmp_path: pathlib.Path
) -> None:
    params = _experiment(directory, 40, configs.ml100k_bpr)
    trained, logs = pipeline.RunPipeline(params, "train_and_eval", str(tmp_path / "run")).run()
    best = json.loads((tmp_path / "run" / "training" / "best_ckpt" / "info.json").read_text())
    validations = evaluations.validations(tmp_path / "run" / "training")
    assert best["mrr"] == max(record["mrr"] for record in validations)
    splits = data.split_at_random(directory, 0)
    test = configs.Ml100kConfig().validation_data.replace(split="test")
    ((features, labels),) = data.build_evaluation(test, splits).as_numpy_iterator()
    scores = trained.score_all({"user": features["user"]}).numpy()
    expected = _reference_metrics(scores, features["is_known"], labels, 10)
    assert {name: float(logs[name]) for name in expected} == pytest.approx(expected, rel=1e-5)
    # Ten random items of about thirty new ones would hit the wanted item of one user in three.
    assert expected["hit"] > 0.6


@pytest.mark.slow
@pytest.mark.parametrize("factory", FACTORIES)
def test_final_evaluation_after_training_gives_the_same_metrics_as_eval_mode(
    directory: str, tmp_path: pathlib.Path, factory: Callable[[], cfg.ExperimentConfig]
) -> None:
    params = _experiment(directory, 4, factory)
    params.phases = []
    evaluations.assert_equal_to_mode_eval(params, tmp_path / "run")


@pytest.mark.slow
@needs_ml_100k
def test_movielens_experiment_reaches_the_mean_reciprocal_rank_in_its_readme(
    tmp_path: pathlib.Path,
) -> None:
    flag = f"--set=task.input_path={ML_100K}"
    evaluations.train_by_command("recommendation/ml100k_bpr", tmp_path, flag)
    (record,) = evaluations.validations(tmp_path / "test", "eval")
    assert record["mrr"] > 0.42
