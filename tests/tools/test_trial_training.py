"""Tests of the short training runs that compare learning rates and batch sizes."""

import argparse
import math
import os
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

from experiments.vision.digits import configs, task
from official_lite.common import errors
from official_lite.tools import sources, trial_training


def test_temporary_training_run_is_built_as_configured_and_leaves_no_files(
    monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    params = configs.digits_mlp()
    params.override({"trainer": {"hooks": ["no_such_hook"]}, "task": {"model": {"units": [4]}}})
    seen = []

    def run(ctx):
        seen.append((ctx.global_step, ctx.trainer.global_batch_size, ctx.runner.trains))
        seen.append((ctx.model_dir, os.path.isdir(ctx.model_dir)))

    trial_training.train(
        params, run, trainer={"train_steps": 7}, task={"train_data": {"global_batch_size": 8}}
    )
    directory, existed = seen[1]
    assert seen[0] == (0, 8, True)
    assert (directory.startswith(str(tmp_path)), existed) == (True, True)
    assert os.listdir(tmp_path) == []
    assert capsys.readouterr().out == ""
    assert params.trainer.train_steps == 600


def test_temporary_training_run_of_an_experiment_with_phases_raises():
    params = configs.digits_mlp()
    params.phases = [{"name": "one"}]
    with pytest.raises(errors.ConfigValueError, match="Pass the model directory of one phase"):
        trial_training.train(params, lambda ctx: None, trainer={})


def _curve(rate):
    """Return a loss that is flat, falls around a rate of 0.001 and diverges above 1."""
    return 2.0 - 1.5 / (1.0 + (0.001 / rate) ** 2) + 20.0 * max(0.0, math.log10(rate))


def _params(units=(8,)):
    params = configs.digits_mlp()
    params.override({"task": {"model": {"units": list(units)}}})
    return params


def test_suggested_learning_rate_is_the_rate_at_which_the_loss_falls_fastest():
    rates = [1e-6 * 10 ** (step / 20) for step in range(140)]
    sweep = trial_training.analyze(rates, [_curve(rate) for rate in rates])
    assert sweep.has_diverged
    assert sweep.suggestion == pytest.approx(0.001, rel=0.3)
    assert "fastest at the learning rate" in sweep.describe()
    assert sweep.some_points()[-1][0] == rates[-1]


def test_suggested_learning_rate_ignores_loss_decreases_after_the_lowest_loss():
    steps = np.arange(100)
    # The loss falls fastest from 8 to 3, but only after it has risen.
    losses = np.interp(steps, [0, 40, 60, 66, 99], [2.0, 1.0, 8.0, 3.0, 3.0])
    rates = 1e-6 * 10 ** (steps / 20)
    assert trial_training.analyze(rates, losses.tolist()).suggestion <= rates[40]


CURVES = [
    ([1.0] * 20, False),
    ([1.0] * 19 + [math.nan], True),
    ([2.0 - 0.1 * step for step in range(20)], False),
    # The loss rises further above its first value than it had fallen below that value.
    ([1.0] * 5 + [0.2] * 10 + [1.9] * 5, True),
    # Losses that are negative or far from 0.
    ([-100.0] * 5 + [-101.0] * 10 + [-99.5] * 5, False),
    ([-1.0] * 10 + [-0.4] * 5, True),
]


def test_learning_rate_sweep_has_diverged_only_if_the_loss_is_not_finite_or_rises_enough() -> None:
    for losses, has_diverged in CURVES:
        rates = [10.0**-step for step in range(len(losses), 0, -1)]
        assert trial_training.analyze(rates, losses).has_diverged is has_diverged, losses


def test_learning_rate_sweep_with_a_rising_loss_suggests_no_rate():
    sweep = trial_training.analyze([0.1 * n for n in range(1, 31)], [1.0 * n for n in range(30)])
    assert sweep.suggestion is None
    assert "never decreased" in sweep.describe()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_learning_rate_sweep_ends_where_the_loss_diverges_and_can_be_plotted(tmp_path):
    pytest.importorskip("matplotlib")
    optimizer = {"trainer": {"optimizer_config": {"optimizer": {"type": "sgd"}}}}
    params = _params().replace(**optimizer)
    sweep = trial_training.run_sweep(params, min_rate=1e-3, max_rate=1e9, num_steps=60)
    assert sweep.has_diverged
    assert len(sweep.losses) < 60, "the sweep must end where the loss diverges"
    ratios = [b / a for a, b in zip(sweep.learning_rates, sweep.learning_rates[1:], strict=False)]
    assert ratios == pytest.approx([10 ** (12 / 59)] * len(ratios), rel=1e-3)
    assert 1e-3 < sweep.suggestion < 1e3
    for name in ("rates.png", "rates.svg"):
        trial_training.draw(sweep, str(tmp_path / "plots" / name), title="digits")
        assert (tmp_path / "plots" / name).stat().st_size > 1000
    with pytest.raises(errors.ConfigValueError, match=r"must end in \.png or \.svg"):
        trial_training.draw(sweep, str(tmp_path / "rates.gif"))


def test_learning_rate_sweep_ignores_the_schedule_of_the_experiment():
    schedule = {"decay_steps": 5, "decay_rate": 0.5, "offset": 1000, "staircase": True}
    schedule["initial_learning_rate"] = 0.1
    rate = {"type": "exponential", "exponential": schedule}
    params = _params().replace(trainer={"optimizer_config": {"learning_rate": rate}})
    sweep = trial_training.run_sweep(params, min_rate=1e-4, max_rate=1e-2, num_steps=30)
    rates = sweep.learning_rates
    assert (rates[0], rates[-1]) == pytest.approx((1e-4, 1e-2), rel=1e-3)
    assert len(set(rates)) == 30


def test_learning_rate_sweep_ignores_the_warmup_of_a_schedule_free_optimizer():
    optimizer = {"type": "schedule_free_adamw", "schedule_free_adamw": {"warmup_steps": 1000}}
    params = _params().replace(trainer={"optimizer_config": {"optimizer": optimizer}})
    rates = trial_training.run_sweep(
        params, min_rate=1e-4, max_rate=1e-2, num_steps=30
    ).learning_rates
    assert (rates[0], rates[-1]) == pytest.approx((1e-4, 1e-2), rel=1e-3)


def test_learning_rate_sweep_of_a_hot_start_begins_at_its_first_rate(tmp_path):
    def save(ctx):
        ctx.trainer.train(tf.constant(5))
        ctx.runner.controller.save_checkpoint()
        shutil.copytree(ctx.model_dir, tmp_path / "run")

    params = _params()
    trial_training.train(params, save, trainer={})
    task_fields = {"init_checkpoint": str(tmp_path / "run"), "init_checkpoint_optimizer": "all"}
    params = params.replace(task=task_fields)
    rates = trial_training.run_sweep(
        params, min_rate=1e-4, max_rate=1e-2, num_steps=30
    ).learning_rates
    assert (rates[0], rates[-1]) == pytest.approx((1e-4, 1e-2), rel=1e-3)


def test_learning_rate_sweep_of_a_task_with_a_fixed_learning_rate_raises(monkeypatch):
    def fixed(cls, optimizer_config, runtime_config=None):
        return keras.optimizers.SGD(0.01)

    monkeypatch.setattr(task.DigitsTask, "create_optimizer", classmethod(fixed))
    with pytest.raises(errors.ConfigValueError, match=r"0\.01 in all steps, because DigitsTask"):
        trial_training.run_sweep(_params(), min_rate=1e-3, max_rate=1.0, num_steps=30)


def test_learning_rate_sweep_with_invalid_rates_or_too_few_steps_raises():
    for wrong in ({"min_rate": 0.0}, {"max_rate": 1e-4}, {"num_steps": 3}):
        arguments = {"min_rate": 1e-3, "max_rate": 1.0, "num_steps": 100, **wrong}
        with pytest.raises(errors.ConfigValueError, match="requires 0 < min_rate < max_rate"):
            trial_training.run_sweep(None, **arguments)


def _args(*arguments):
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    sources.add_arguments(parser)
    return parser.parse_args(["vision/digits_mlp", "--set=task.model.units=[4]", *arguments])


def test_batch_size_probe_trains_and_leaves_no_files(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(trial_training, "_SECONDS", 0.05)
    found = trial_training.probe(_args("--set=trainer.grad_accum_steps=2"), 32)
    assert found.examples_per_second > 0
    assert found.memory > 10**7
    assert (found.unit, found.problem, found.is_exhausted) == (2, "", False)
    assert os.listdir(tmp_path) == []


def test_batch_size_probe_counts_virtual_replicas(monkeypatch):
    monkeypatch.setattr(trial_training, "_SECONDS", 0.05)
    sets = ["--set=trainer.virtual_replicas=4", "--set=trainer.grad_accum_steps=2"]
    found = trial_training.probe(_args(*sets), 32)
    assert (found.unit, found.problem) == (8, "")


def test_batch_size_probe_accepts_an_experiment_whose_length_is_given_in_epochs(monkeypatch):
    monkeypatch.setattr(trial_training, "_SECONDS", 0.05)
    sets = ["trainer.train_epochs=2", "trainer.validate_every_epochs=1"]
    sets.append("task.train_data.num_examples=1437")
    found = trial_training.probe(_args(*(f"--set={one}" for one in sets)), 512)
    assert (found.problem, found.examples_per_second > 0) == ("", True)


def test_batch_size_probe_reports_a_batch_size_that_contradicts_the_config():
    found = trial_training.probe(_args("--set=trainer.grad_accum_steps=2"), 33)
    assert "expected a multiple of 2" in found.problem
    assert found.is_of_config


def test_batch_size_probe_reports_exhausted_memory_instead_of_a_config_error(monkeypatch):
    def exhaust(ctx, batch_size):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating")

    monkeypatch.setattr(trial_training, "_measure", exhaust)
    assert trial_training.probe(_args(), 32).is_exhausted


pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")
