import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.data import mixing
from official_lite.modeling.hyperparams import base_config


@dataclasses.dataclass
class MixConfig(base_config.Config):
    input_path: base_config.Config | str | None = None
    weights: base_config.Config | None = None
    stop_on_empty_dataset: bool | None = None
    seed: int | None = None


def datasets(count=4000):
    return {
        name: tf.data.Dataset.from_tensors(value).repeat(count)
        for name, value in (("zeros", 0), ("ones", 1))
    }


def draw(combine_fn, **kwargs):
    return np.array(list(combine_fn(datasets(**kwargs)).as_numpy_iterator()))


def test_shares_are_the_weights_by_name():
    combine_fn = mixing.build_weighted_sampling_combine_fn({"ones": 3, "zeros": 1}, seed=0)
    assert draw(combine_fn).mean() == pytest.approx(0.75, abs=0.02)


def test_a_seed_fixes_the_draws():
    build = mixing.build_weighted_sampling_combine_fn
    draws = [draw(build({"ones": 1, "zeros": 1}, seed=seed), count=50) for seed in (1, 1, 2)]
    np.testing.assert_array_equal(draws[0], draws[1])
    assert draws[0].tolist() != draws[2].tolist()


def test_the_rest_goes_on_if_the_mixture_may_outlast_a_source():
    combine_fn = mixing.build_weighted_sampling_combine_fn(
        {"ones": 1, "zeros": 1}, stop_on_empty_dataset=False
    )
    assert len(draw(combine_fn, count=20)) == 40


@pytest.mark.parametrize("weights", [{"ones": -1, "zeros": 2}, {"ones": 0, "zeros": 0}])
def test_weights_that_mean_nothing_are_refused(weights):
    with pytest.raises(errors.ConfigValueError, match="at least one must be positive; got"):
        mixing.build_weighted_sampling_combine_fn(weights)


def test_a_config_becomes_a_mixture():
    params = MixConfig(
        input_path=base_config.Config({"ones": "a", "zeros": "b"}),
        weights=base_config.Config({"ones": 1, "zeros": 0}),
        seed=5,
    )
    assert draw(mixing.create_combine_fn(params), count=10).tolist() == [1] * 10


def test_no_weights_are_no_mixture():
    assert mixing.create_combine_fn(MixConfig(input_path="a")) is None


@pytest.mark.parametrize(
    ("input_path", "message"),
    [
        ("a", "must both be a Config"),
        (base_config.Config({"onse": "a", "zeros": "b"}), "Input 'onse' .*mean `ones`"),
        (base_config.Config({"ones": "a"}), "Weight 'zeros' does not have"),
    ],
)
def test_weights_and_inputs_must_go_together(input_path, message):
    weights = base_config.Config({"ones": 1, "zeros": 1})
    with pytest.raises(errors.ConfigValueError, match=message):
        mixing.create_combine_fn(MixConfig(input_path=input_path, weights=weights))
