import math

import keras
import numpy as np
import pytest

from experiments.vision.digits import configs, task
from official_lite.common import errors
from official_lite.tools.tuning import rate_sweep


def _curve(rate):
    """Flat, falling around 0.001, blowing up at 1."""
    return 2.0 - 1.5 / (1.0 + (0.001 / rate) ** 2) + 20.0 * max(0.0, math.log10(rate))


def _params(units=(8,)):
    params = configs.digits_mlp()
    params.override({"task": {"model": {"units": list(units)}}})
    return params


def test_suggestion_is_where_the_loss_falls_the_fastest():
    rates = [1e-6 * 10 ** (step / 20) for step in range(140)]
    sweep = rate_sweep.analyze(rates, [_curve(rate) for rate in rates])
    assert sweep.has_diverged
    assert sweep.suggestion == pytest.approx(0.001, rel=0.3)
    assert "fastest at the learning rate" in sweep.describe()
    assert sweep.some_points()[-1][0] == rates[-1]


def test_fall_after_the_lowest_loss_is_not_suggested():
    steps = np.arange(100)
    # The fall from 8 to 3 is the fastest one, but it comes after the loss has risen.
    losses = np.interp(steps, [0, 40, 60, 66, 99], [2.0, 1.0, 8.0, 3.0, 3.0])
    rates = 1e-6 * 10 ** (steps / 20)
    assert rate_sweep.analyze(rates, losses.tolist()).suggestion <= rates[40]


@pytest.mark.parametrize(
    ("losses", "has_diverged"),
    [
        ([1.0] * 20, False),
        ([1.0] * 19 + [math.nan], True),
        ([2.0 - 0.1 * step for step in range(20)], False),
        # As far above its beginning as it had been below it.
        ([1.0] * 5 + [0.2] * 10 + [1.9] * 5, True),
        # Also where the numbers are far from 0, or below it.
        ([-100.0] * 5 + [-101.0] * 10 + [-99.5] * 5, False),
        ([-1.0] * 10 + [-0.4] * 5, True),
    ],
)
def test_what_blew_up_is_told_from_what_is_only_noisy(losses, has_diverged):
    rates = [10.0**-step for step in range(len(losses), 0, -1)]
    assert rate_sweep.analyze(rates, losses).has_diverged is has_diverged


def test_loss_that_only_rises_has_no_suggestion():
    sweep = rate_sweep.analyze([0.1 * n for n in range(1, 31)], [1.0 * n for n in range(30)])
    assert sweep.suggestion is None
    assert "never decreased" in sweep.describe()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_experiment_is_swept_until_it_blows_up_and_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    optimizer = {"trainer": {"optimizer_config": {"optimizer": {"type": "sgd"}}}}
    params = _params().replace(**optimizer)
    sweep = rate_sweep.run_sweep(params, min_rate=1e-3, max_rate=1e9, num_steps=60)
    assert sweep.has_diverged
    assert len(sweep.losses) < 60, "it ends where the loss has diverged"
    ratios = [b / a for a, b in zip(sweep.learning_rates, sweep.learning_rates[1:], strict=False)]
    assert ratios == pytest.approx([10 ** (12 / 59)] * len(ratios), rel=1e-3)
    assert 1e-3 < sweep.suggestion < 1e3
    for name in ("rates.png", "rates.svg"):
        rate_sweep.draw(sweep, str(tmp_path / "plots" / name), title="digits")
        assert (tmp_path / "plots" / name).stat().st_size > 1000
    with pytest.raises(errors.ConfigValueError, match=r"must end in \.png or \.svg"):
        rate_sweep.draw(sweep, str(tmp_path / "rates.gif"))


def test_schedule_of_the_experiment_is_ignored():
    schedule = {"decay_steps": 5, "decay_rate": 0.5, "offset": 1000, "staircase": True}
    schedule["initial_learning_rate"] = 0.1
    rate = {"type": "exponential", "exponential": schedule}
    params = _params().replace(trainer={"optimizer_config": {"learning_rate": rate}})
    sweep = rate_sweep.run_sweep(params, min_rate=1e-4, max_rate=1e-2, num_steps=30)
    rates = sweep.learning_rates
    assert (rates[0], rates[-1]) == pytest.approx((1e-4, 1e-2), rel=1e-3)
    assert len(set(rates)) == 30


def test_task_that_does_not_take_its_rate_from_the_config_is_told(monkeypatch):
    def fixed(cls, optimizer_config, runtime_config=None):
        return keras.optimizers.SGD(0.01)

    monkeypatch.setattr(task.DigitsTask, "create_optimizer", classmethod(fixed))
    with pytest.raises(errors.ConfigValueError, match=r"0\.01 in all steps, because DigitsTask"):
        rate_sweep.run_sweep(_params(), min_rate=1e-3, max_rate=1.0, num_steps=30)


def test_sweep_that_is_none_is_refused():
    for wrong in ({"min_rate": 0.0}, {"max_rate": 1e-4}, {"num_steps": 3}):
        arguments = {"min_rate": 1e-3, "max_rate": 1.0, "num_steps": 100, **wrong}
        with pytest.raises(errors.ConfigValueError, match="requires 0 < min_rate < max_rate"):
            rate_sweep.run_sweep(None, **arguments)
