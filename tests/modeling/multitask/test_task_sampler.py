import numpy as np
import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.modeling.multitask import configs, task_sampler
from tests import rounding

WEIGHTS = {"a": 1.0, "b": 2.0, "c": 3.0}


def _cumulative(config: dict, step: int = 0, weights: dict = WEIGHTS) -> np.ndarray:
    sampler = task_sampler.get_task_sampler(configs.TaskSamplingConfig(config), weights)
    return sampler.task_cumulative_distribution(tf.constant(step, tf.int64)).numpy()


ANNEALING = {"type": "annealing", "annealing": {"steps_per_epoch": 6, "total_steps": 18}}


@pytest.mark.parametrize(
    ("config", "step", "alpha"),
    [
        ({"type": "uniform"}, 0, 0.0),
        ({"type": "proportional", "proportional": {"alpha": 2.0}}, 0, 2.0),
        *((ANNEALING, step, alpha) for step, alpha in ((5, 1.0), (6, 0.6), (12, 0.2), (99, 0.2))),
        # In a single epoch, alpha does not change.
        ({**ANNEALING, "annealing": {"steps_per_epoch": 6, "total_steps": 6}}, 0, 1.0),
    ],
)
def test_task_probability_is_proportional_to_a_power_of_its_weight(
    config: dict, step: int, alpha: float
) -> None:
    sizes = np.array(list(WEIGHTS.values())) ** alpha
    expected = np.cumsum(sizes) / sizes.sum()
    rounding.assert_close(_cumulative(config, step), expected, roundings=len(WEIGHTS))


def test_task_probabilities_sum_to_exactly_one() -> None:
    weights = {str(i): 1.0 for i in range(49)}
    # A plain float32 sum of forty-nine forty-ninths is not 1.
    assert np.cumsum(np.full(49, 1 / 49, np.float32))[-1] != 1.0
    assert _cumulative({"type": "uniform"}, weights=weights)[-1] == 1.0


def test_task_with_zero_weight_is_never_drawn() -> None:
    config = {"type": "proportional", "proportional": {"alpha": 0.0}}
    weights = {"a": 0.0, "b": 2.0, "c": 0.0}
    np.testing.assert_array_equal(_cumulative(config, weights=weights), [0.0, 1.0, 1.0])


@pytest.mark.parametrize("weights", [{}, {"a": 0.0}, {"a": 1.0, "b": -1.0}])
def test_task_weights_that_are_missing_negative_or_all_zero_are_refused(weights: dict) -> None:
    with pytest.raises(errors.ConfigValueError, match="weights"):
        task_sampler.UniformTaskSampler(weights)


def test_multitask_config_without_a_sampler_is_refused() -> None:
    with pytest.raises(errors.ConfigValueError, match="proportional"):
        _cumulative({})
