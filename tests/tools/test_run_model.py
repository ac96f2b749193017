import os
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.checkpoint import model_state
from official_lite.common import errors
from official_lite.tools import run_model

EMA = "trainer.optimizer_config.ema.average_decay=0.5"


def _kernel(ctx):
    return ctx.model.blocks[1].kernel.numpy()


def test_built_model_loads_the_weights_of_a_checkpoint(read_run, trained):
    with run_model.built(read_run(trained).params) as (ctx, _):
        kernels = []
        for step in (2, 6):
            run_model.load_weights(ctx, os.path.join(trained, f"ckpt-{step}"))
            kernels.append(_kernel(ctx))
        assert run_model.find_checkpoint(trained) == os.path.join(trained, "ckpt-6")
    assert (kernels[0] != kernels[1]).all()


def test_load_weights_loads_the_averaged_weights_of_an_ema_optimizer(read_run, train_run):
    run_dir = train_run(EMA)
    path = os.path.join(run_dir, "ckpt-6")
    with run_model.built(read_run(run_dir).params) as (ctx, _):
        run_model.load_weights(ctx, path)
        averaged = _kernel(ctx)
        ctx.optimizer.swap_weights()
        swapped = _kernel(ctx)
        items = model_state.weight_items(ctx.model)
        run_model.read_checkpoint(tf.train.Checkpoint(**items), path)
        trained = _kernel(ctx)
    np.testing.assert_array_equal(swapped, trained)
    assert (averaged != trained).all()


@pytest.mark.usefixtures("float16_kernels")
def test_averaged_weights_trained_in_float16_are_loaded_into_a_float32_model(read_run, train_run):
    run_dir = train_run(EMA, "runtime.mixed_precision_dtype=float16")
    kernels = []
    for dtype in ("float16", "float32"):
        params = read_run(run_dir, f"--set=runtime.mixed_precision_dtype={dtype}").params
        with run_model.built(params) as (ctx, _):
            run_model.load_weights(ctx, os.path.join(run_dir, "ckpt-6"))
            kernels.append(_kernel(ctx))
    np.testing.assert_array_equal(*kernels)


def test_checkpoint_without_the_averages_of_the_config_raises_and_names_a_weight(read_run, trained):
    with (
        run_model.built(read_run(trained, f"--set={EMA}").params) as (ctx, _),
        pytest.raises(errors.CheckpointError, match="has no average of the weight `"),
    ):
        run_model.load_weights(ctx, os.path.join(trained, "ckpt-6"))


def test_mismatched_damaged_or_missing_checkpoint_raises(read_run, trained, train_run, tmp_path):
    with run_model.built(read_run(train_run("task.units=2")).params) as (ctx, _):
        with pytest.raises(errors.CheckpointError, match="can't be restored"):
            run_model.load_weights(ctx, os.path.join(trained, "ckpt-6"))
        shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
        (tmp_path / "ckpt-6.index").write_bytes(b"")
        with pytest.raises(errors.CheckpointError, match=r"is damaged: .*has 0 bytes"):
            run_model.load_weights(ctx, str(tmp_path / "ckpt-6"))
    with pytest.raises(errors.CheckpointError, match="No checkpoint found at"):
        run_model.find_checkpoint(str(tmp_path / "none"))


def test_example_inputs_of_a_model_are_recorded_as_its_task_passes_them(read_run, trained):
    with run_model.built(read_run(trained).params) as (ctx, _):
        inputs = run_model.real_inputs(ctx)
        data, _ = next(iter(run_model.evaluation_data(ctx)))
        with pytest.raises(errors.ConfigValueError, match="is not a functional model"):
            run_model.random_inputs(ctx.model)
        assert "call" not in ctx.model.__dict__
    assert [*inputs.arrays()] == ["row", "x"]
    # The inputs are a few examples as the task passes them to its model.
    np.testing.assert_array_equal(inputs.args[0]["x"], 2.0 * data["x"][:8])
    assert inputs.args[0]["row"].dtype == np.int32
    (signature,) = inputs.signature
    assert signature["x"] == tf.TensorSpec([None, 5], tf.float32, "x")
    assert signature["row"] == tf.TensorSpec([None], tf.int32, "row")


def test_random_inputs_have_the_names_types_and_shapes_of_a_functional_model():
    layers = keras.layers
    words = layers.Input((None,), dtype="int32", name="words")
    length = layers.Input((2,), name="length")
    x = layers.GlobalAveragePooling1D()(layers.Embedding(2, 3)(words))
    model = keras.Model({"words": words, "length": length}, layers.Concatenate()([x, length]))
    inputs = run_model.random_inputs(model)
    assert inputs.signature is None
    assert {name: array.dtype for name, array in inputs.arrays().items()} == {
        "length": np.float32,
        "words": np.int32,
    }
    assert set(np.unique(inputs.arrays()["words"])) <= {0, 1}
    assert model(*inputs.args).shape == (4, 5)


@pytest.mark.usefixtures("bfloat16_kernels")
def test_example_inputs_of_a_functional_model_have_the_names_of_its_inputs(read_run):
    params = read_run("vision/digits_mlp", "--set=runtime.mixed_precision_dtype=bfloat16").params
    with run_model.built(params) as (ctx, _):
        inputs = run_model.real_inputs(ctx)
    assert inputs.signature is None
    assert [(n, a.shape, a.dtype) for n, a in inputs.arrays().items()] == [
        ("image", (8, 8, 8, 1), np.float32)
    ]


def test_recording_example_inputs_raises_if_the_task_does_not_call_its_model(
    read_run, trained, monkeypatch
):
    with run_model.built(read_run(trained).params) as (ctx, _):
        monkeypatch.setattr(
            type(ctx.task), "validation_step", lambda self, inputs, model, metrics: {}
        )
        with pytest.raises(errors.ConfigValueError, match="does not call its model"):
            run_model.real_inputs(ctx)


def test_inputs_of_a_sequential_model_are_not_renamed() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    batch = tf.zeros([1, 2])
    assert run_model.in_own_structure(model, [batch]) == [batch]


def test_error_for_a_checkpoint_that_has_been_removed_says_so(tmp_path):
    with pytest.raises(errors.CheckpointError, match="ckpt-2 no longer exists"):
        run_model.read_checkpoint(tf.train.Checkpoint(), str(tmp_path / "ckpt-2"))
