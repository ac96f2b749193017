import numpy as np
import pytest

from experiments.recommendation.criteo import generator


@pytest.fixture(scope="module")
def examples() -> generator.Examples:
    return generator.generate(0, "train", 50_000)


def test_generated_dataset_is_a_prefix_of_a_longer_one_and_differs_between_seeds_and_splits(
    examples,
) -> None:
    more = generator.generate(0, "train", 70_000)
    for column, longer in zip(examples, more, strict=True):
        np.testing.assert_array_equal(column, longer[:50_000])
    for seed, split in ((0, "validation"), (1, "train")):
        others = generator.generate(seed, split, 100)
        assert not np.array_equal(others.integers, examples.integers[:100], equal_nan=True)


def test_labels_are_drawn_with_the_true_probabilities(examples) -> None:
    probabilities = 1 / (1 + np.exp(-examples.logits))
    for part in np.array_split(np.argsort(probabilities), 10):
        expected, seen = probabilities[part].mean(), examples.labels[part].mean()
        assert abs(seen - expected) < 4 * np.sqrt(expected * (1 - expected) / len(part))


def test_generated_data_have_the_statistics_of_criteo(examples) -> None:
    truth = generator.Truth(0)
    assert 0.15 < examples.labels.mean() < 0.4
    assert 0.05 < np.isnan(examples.integers).mean() < 0.2
    assert np.nanmin(examples.integers[:, 1]) < 0
    categories = truth.category_of_token[examples.values]
    assert (categories == np.arange(generator.NUM_CATEGORIES)).all()
    assert {len(token) for token in truth.tokens} == {0, 8}


def test_noisy_scores_have_a_lower_auc_than_the_true_logits(examples) -> None:
    best = examples.best_possible_auc()
    noise = np.random.default_rng(0).normal(scale=0.3, size=len(examples.logits))
    assert 0.7 < best < 0.9
    assert generator.area_under_curve(examples.labels, examples.logits + noise) < best


def test_area_under_curve_is_the_share_of_correctly_ordered_pairs() -> None:
    labels, scores = np.array([0, 1, 0, 1, 1]), np.array([0.1, 0.4, 0.35, 0.8, 0.2])
    pairs = scores[labels == 1][:, None] > scores[labels == 0]
    assert generator.area_under_curve(labels, scores) == pairs.mean()
