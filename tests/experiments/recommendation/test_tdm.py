import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from experiments.recommendation.tdm import configs, data, model, startup, tree
from official_lite import pipeline
from official_lite.common import errors
from tests.experiments import evaluations

NUM_ITEMS = 40


@pytest.fixture
def matcher() -> model.TreeMatcher:
    """Build a matcher for 40 items, whose tree of depth 6 has the items in a random order."""
    matcher = model.TreeMatcher(configs.TdmModelConfig(num_negatives=4), NUM_ITEMS)
    matcher.plant(tree.plant(np.random.default_rng(0).normal(size=(NUM_ITEMS, 5))))
    return matcher


def _history(batch_size: int) -> tf.Tensor:
    rng = np.random.default_rng(1)
    return tf.constant(rng.integers(NUM_ITEMS, size=(batch_size, 10)), tf.int32)


@pytest.mark.parametrize("num_items", [2, 40, 64])
def test_every_item_is_at_exactly_one_leaf_of_the_item_tree(num_items: int) -> None:
    item_of_leaf = tree.plant(np.random.default_rng(0).normal(size=(num_items, 5)))
    assert len(item_of_leaf) == 2 ** tree.depth_for(num_items) < 2 * num_items + 1
    items = item_of_leaf[item_of_leaf != tree.VACANT]
    assert sorted(items) == list(range(num_items))


def test_items_of_the_same_topic_are_neighbors_in_the_item_tree() -> None:
    histories = data.load_split("train", 5000, 4)
    item_of_leaf = tree.plant(tree.item_vectors(histories.items, 80))
    topics = np.empty(80, int)
    topics[np.random.default_rng(0).permutation(80)] = np.arange(80) // data.ITEMS_PER_TOPIC
    quarters = [q[q != tree.VACANT] for q in np.split(item_of_leaf, 4)]
    shares = [np.bincount(topics[quarter]).max() / len(quarter) for quarter in quarters]
    assert min(shares) > 0.8


def test_item_path_leads_from_the_root_of_the_tree_to_the_leaf_of_the_item(matcher) -> None:
    path = matcher.path_to(tf.range(NUM_ITEMS)).numpy()
    assert path.shape == (NUM_ITEMS, 6)
    assert (path[:, 0] // 2 == 1).all()
    assert (path[:, 1:] // 2 == path[:, :-1]).all()
    leaves = path[:, -1] - 2**6
    np.testing.assert_array_equal(matcher.item_of_leaf.numpy()[leaves], np.arange(NUM_ITEMS))


def test_negative_nodes_are_on_the_tree_level_of_their_path_node_and_not_on_the_path(
    matcher,
) -> None:
    path = matcher.path_to(tf.range(NUM_ITEMS))[..., tf.newaxis]
    others = matcher._draw_others(path).numpy()
    assert others.shape == (NUM_ITEMS, 6, 4)
    assert (np.log2(others).astype(int) == np.arange(1, 7)[:, None]).all()
    assert (others != path.numpy()).all()


def test_beam_search_as_wide_as_the_tree_finds_the_best_items(matcher) -> None:
    history = _history(5)
    leaves = tf.tile(tf.range(2**6, 2**7)[tf.newaxis], [5, 1])
    scores = matcher.score(history, leaves).numpy()
    scores[:, matcher.item_of_leaf.numpy() == tree.VACANT] = -np.inf
    best = np.argsort(-scores, axis=1)[:, :10]
    expected = matcher.item_of_leaf.numpy()[best]
    np.testing.assert_array_equal(matcher.recommend(history, 10, beam_width=64), expected)
    assert matcher.recommend(history, 10, beam_width=10).shape == (5, 10)


def test_num_recommended_above_the_beam_width_is_refused() -> None:
    with pytest.raises(errors.ConfigValueError, match=r"`num_recommended` is 21.*20"):
        configs.TdmConfig(num_recommended=21).validate()


def _train(model_dir: pathlib.Path, train_steps: int) -> Any:
    """Train on a small dataset and return the model."""
    params = configs.tdm()
    params.task.num_topics = 4
    params.task.train_data.override({"num_generated": 1000, "global_batch_size": 50})
    params.trainer.train_steps = train_steps
    params.runtime.execution = "graph"
    trained, _ = pipeline.RunPipeline(params, "train", str(model_dir)).run()
    return trained


@pytest.mark.slow
def test_startup_stage_builds_an_item_tree_that_a_resumed_run_keeps(tmp_path: pathlib.Path) -> None:
    _, resumed = evaluations.assert_resumes_exactly(
        lambda name, train_steps: _train(tmp_path / name, train_steps), 12, 20
    )
    in_order = model.TreeMatcher(configs.TdmModelConfig(), 80)
    assert not np.array_equal(resumed.item_of_leaf.numpy(), in_order.item_of_leaf.numpy())


def test_startup_stage_refuses_item_trees_that_differ_between_workers(two_replicas) -> None:
    item_of_leaf = np.arange(8, dtype=np.int32)
    startup._require_same(two_replicas, item_of_leaf)
    own = iter([item_of_leaf, item_of_leaf[::-1]])

    class OtherSums:
        num_replicas_in_sync = 2

        def run(self, _):
            return next(own) + next(own)

        def experimental_local_results(self, value):
            return [value]

    with pytest.raises(errors.DataError, match="different trees"):
        startup._require_same(OtherSums(), item_of_leaf)


@pytest.mark.slow
def test_recall_is_at_least_five_times_the_recall_of_recommending_popular_items(
    tmp_path: pathlib.Path,
) -> None:
    evaluations.train_by_command("recommendation/tdm", tmp_path)
    last = evaluations.validations(tmp_path)[-1]
    assert last["recall"] >= 5 * last["popularity_recall"]
