import json
import os
import shutil

import numpy as np
import pytest

from official_lite import pipeline
from official_lite.checkpoint import warm_start
from official_lite.common import errors
from official_lite.tools import checkpoint_average, loaded_run
from tests import rounding

# Keras itself triggers this warning with NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

EMA = "trainer.optimizer_config.ema.average_decay=0.5"


@pytest.fixture
def weights(read_run, trained):
    """Return a function that reads the weights used to evaluate a checkpoint, in float64."""

    def read(path, run_dir=trained):
        with loaded_run.built(read_run(run_dir).params) as (ctx, _):
            loaded_run.load_weights(ctx, loaded_run.find_checkpoint(path))
            return {w.path: w.numpy().astype(np.float64) for w in ctx.model.weights}

    return read


def _paths(run_dir, *steps):
    return [os.path.join(run_dir, f"ckpt-{step}") for step in steps]


def test_average_is_written_as_a_checkpoint_of_the_last_averaged_step(
    read_run, trained, weights, tmp_path
):
    params, paths, output = read_run(trained).params, _paths(trained, 2, 4, 6), str(tmp_path)
    written = checkpoint_average.write_average(params, paths, output)
    assert written == os.path.join(output, "ckpt-6")
    assert json.loads((tmp_path / "info.json").read_text()) == {
        "global_step": 6,
        "checkpoints": paths,
    }
    singles = [list(weights(path).values()) for path in paths]
    for average, *each in zip(weights(written).values(), *singles, strict=True):
        np.testing.assert_array_equal(average, np.mean(each, axis=0).astype(np.float32))
    # The average can be evaluated and can initialize a model, like a checkpoint of a run.
    _, logs = pipeline.RunPipeline(params, "eval", output).run()
    assert np.isfinite(logs["validation_loss"])
    with loaded_run.built(params) as (ctx, _):
        report = warm_start.load_weights(ctx.model, output)
    assert not report.missing


def test_keras_files_contain_the_same_average_as_a_checkpoint(read_run, trained, weights, tmp_path):
    params, paths = read_run(trained).params, _paths(trained, 2, 6)
    checkpoint = checkpoint_average.write_average(params, paths, str(tmp_path / "average"))
    path = str(tmp_path / "files" / "mean.weights.h5")
    assert checkpoint_average.write_average(params, paths, path) == path
    with loaded_run.built(params) as (ctx, _):
        ctx.model.load_weights(path)
        loaded = [w.numpy() for w in ctx.model.weights]
    for one, other in zip(loaded, weights(checkpoint).values(), strict=True):
        np.testing.assert_array_equal(one, other)
    archive = str(tmp_path / "mean.keras")
    assert checkpoint_average.write_average(params, paths, archive) == archive
    assert os.path.getsize(archive) > 1000


def test_recalibration_computes_batch_norm_statistics_for_the_averaged_weights(
    read_run, trained, weights, tmp_path
):
    params, paths = read_run(trained).params, _paths(trained, 2, 6)
    written = checkpoint_average.write_average(params, paths, str(tmp_path), recalibration_steps=6)
    data = np.random.default_rng(0).normal(3.0, 2.0, (48, 5)).astype(np.float32)
    found = weights(written)
    (mean,) = [value for name, value in found.items() if name.endswith("moving_mean")]
    # The mean covers all 48 examples. Two features of the embedding follow these five.
    rounding.assert_close(mean[:5], data.mean(axis=0), roundings=len(data))


def test_written_average_also_replaces_the_ema_weights(read_run, train_run, weights, tmp_path):
    run_dir = train_run(EMA)
    params, paths = read_run(run_dir).params, _paths(run_dir, 4, 6)
    written = checkpoint_average.write_average(params, paths, str(tmp_path))
    evaluated = weights(written, run_dir)
    with loaded_run.built(params) as (ctx, _):
        warm_start.load_weights(ctx.model, written)
        stored = [w.numpy() for w in ctx.model.weights]
    for one, other in zip(stored, evaluated.values(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_averaging_different_models_raises_and_names_the_first_variable_that_differs(
    read_run, trained, train_run, tmp_path
):
    paths = [*_paths(trained, 6), *_paths(train_run("task.units=2"), 6)]
    with pytest.raises(
        errors.CheckpointError,
        match=r"different models: .*kernel` of shape \[7, 3\] .*kernel` of shape \[7, 2\]",
    ):
        checkpoint_average.write_average(read_run(trained).params, paths, str(tmp_path))
    assert os.listdir(tmp_path) == []


def test_writing_the_average_into_a_run_directory_raises(read_run, trained, tmp_path):
    params, paths = read_run(trained).params, _paths(trained, 2, 6)
    with pytest.raises(errors.ConfigValueError, match="Use another directory"):
        checkpoint_average.write_average(params, paths, trained)


def test_find_checkpoints_returns_each_checkpoint_once_and_rejects_damaged_ones(trained, tmp_path):
    find = checkpoint_average.find_checkpoints
    assert find([trained]) == _paths(trained, 2, 4, 6)
    assert find([trained], 2) == _paths(trained, 4, 6)
    assert find([*_paths(trained, 2), trained], 1) == _paths(trained, 2, 6)
    with pytest.raises(errors.CheckpointError, match=r"only .*ckpt-6; expected at least two"):
        find([trained], 1)
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    os.remove(tmp_path / "ckpt-4.index")
    with pytest.raises(errors.CheckpointError, match=r"ckpt-4 is damaged: ckpt-4.index is missing"):
        find([str(tmp_path)])
