"""Tests of `load_run`, which opens a run in Python, and of the parts that other commands use."""

import contextlib
import json
import os
import pathlib
import shutil

import gin
import keras
import numpy as np
import pytest
import tensorflow as tf

import official_lite
from official_lite.checkpoint import commit, model_state
from official_lite.common import errors, plugins
from official_lite.modeling import hyperparams
from official_lite.tools import loaded_run

BEST = (
    "trainer.best_checkpoint_export_subdir=best_ckpt",
    "trainer.best_checkpoint_eval_metric=validation_loss",
    "trainer.validation_interval=2",
)
EMA = "trainer.optimizer_config.ema.average_decay=0.5"
INPUTS = {"x": np.ones((2, 5), np.float32), "row": np.arange(2)}


def test_load_run_returns_config_task_model_and_record_of_the_latest_checkpoint(trained) -> None:
    run = official_lite.load_run(trained)
    assert (run.step, run.checkpoint) == (6, os.path.join(trained, "ckpt-6"))
    assert run.params.task.units == 3
    assert type(run.task).__name__ == "Task"
    assert run.record.status == "done"
    assert run.model(INPUTS)["logits"].shape == (2, 3)


def test_load_run_accepts_a_checkpoint_path(trained) -> None:
    steps = [official_lite.load_run(os.path.join(trained, f"ckpt-{step}")).step for step in (2, 4)]
    assert steps == [2, 4]


@pytest.mark.parametrize("freeze", [(), ("trainer.freeze=[embeddings]",)])
def test_load_run_loads_the_averaged_weights_of_an_ema_optimizer(train_run, freeze) -> None:
    run_dir = train_run(EMA, *freeze)
    bias = official_lite.load_run(run_dir).model.blocks[1].bias.numpy()
    reader = tf.train.load_checkpoint(os.path.join(run_dir, "ckpt-6"))
    saved = [
        reader.get_tensor(name)
        for name, shape in reader.get_variable_to_shape_map().items()
        if shape == [3] and name.startswith("optimizer/")
    ]
    trained = official_lite.load_run(train_run(*freeze)).model.blocks[1].bias.numpy()
    assert any((bias == each).all() for each in saved)
    assert (bias != trained).any()


def test_load_run_prefers_the_best_checkpoint_and_loads_the_latest_on_request(train_run) -> None:
    run_dir = train_run(*BEST, mode="train_and_eval")
    best = official_lite.load_run(run_dir)
    assert best.record.best is not None
    assert best.step == best.record.best.step
    assert os.path.dirname(best.checkpoint) == os.path.join(run_dir, "best_ckpt")
    assert official_lite.load_run(run_dir, checkpoint="latest").step == 6


def test_load_run_executes_code_named_in_the_config_only_if_trust_is_true(
    trained, tmp_path: pathlib.Path
) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(trained, run_dir)
    code = tmp_path / "other_stage.py"
    code.write_text(
        f"import pathlib\npathlib.Path({str(tmp_path / 'ran')!r}).touch()\n"
        "from official_lite import pipeline\nclass Other(pipeline.Build):\n    pass\n"
    )
    config = hyperparams.read_yaml_to_params_dict(str(run_dir / "params.yaml"))
    config.override({"pipeline": {"build": str(code)}})
    hyperparams.save_params_dict_to_yaml(config, str(run_dir / "params.yaml"))
    with pytest.raises(errors.ConfigValueError, match="pass trust=True"):
        official_lite.load_run(str(run_dir))
    assert plugins.restriction() is None
    assert not (tmp_path / "ran").exists()
    assert official_lite.load_run(str(run_dir), trust=True).step == 6
    assert (tmp_path / "ran").exists()


def test_load_run_requires_the_experiment_if_the_record_does_not_name_it(trained, tmp_path) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(trained, run_dir)
    record = json.loads((run_dir / "run.json").read_text())
    for argv in (["fit.py"], ["train.py", "--experiment=other.py:make"]):
        (run_dir / "run.json").write_text(json.dumps({**record, "argv": argv}))
        with pytest.raises(errors.ConfigValueError, match="as `experiment`"):
            official_lite.load_run(str(run_dir))
    assert official_lite.load_run(str(run_dir), experiment="tests/tools").step == 6


@pytest.mark.parametrize(
    ("path", "checkpoint", "message"),
    [
        ("none", "", "none is not in a model directory"),
        ("run", "bets", "expected 'best' or 'latest'"),
        ("run", "best", "keeps no best checkpoint"),
        ("phases", "", "pass one of .*phases/training"),
        ("run/ckpt-5", "", "ckpt-5 is not in a model directory"),
    ],
)
def test_load_run_error_for_a_missing_run_or_checkpoint_names_the_problem(
    trained, tmp_path, path, checkpoint, message
) -> None:
    (tmp_path / "run").symlink_to(trained)
    (tmp_path / "phases").mkdir()
    (tmp_path / "phases" / "training").symlink_to(trained)
    with pytest.raises(errors.OfficialLiteError, match=message):
        official_lite.load_run(str(tmp_path / path), checkpoint=checkpoint)


def test_load_run_raises_if_the_files_of_the_best_checkpoint_are_lost(train_run, tmp_path) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(train_run(*BEST, mode="train_and_eval"), run_dir)
    for file in (run_dir / "best_ckpt").glob("*ckpt-*"):
        file.unlink()
    with pytest.raises(errors.CheckpointError, match="has lost the files of its best checkpoint"):
        official_lite.load_run(str(run_dir))
    assert official_lite.load_run(str(run_dir), checkpoint="latest").step == 6


def test_load_run_neither_changes_the_numpy_random_state_nor_applies_gin_bindings(trained) -> None:
    np.random.seed(3)
    expected = np.random.random(2)[1]
    np.random.seed(3)
    np.random.random()
    gin.parse_config("task/params.units = 5")
    try:
        assert official_lite.load_run(trained).params.task.units == 3
    finally:
        gin.clear_config()
    assert np.random.random() == expected


def test_load_run_raises_if_recorded_gin_bindings_have_not_been_parsed(trained, tmp_path) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(trained, run_dir)
    record = json.loads((run_dir / "run.json").read_text())
    record["argv"].append("--gin_params=some_function.x = 1")
    (run_dir / "run.json").write_text(json.dumps(record))
    with pytest.raises(errors.ConfigValueError, match=r"some_function.x = 1.* first"):
        official_lite.load_run(str(run_dir))


def test_load_run_loads_a_checkpoint_that_exists_after_the_model_has_been_built(
    trained, tmp_path, monkeypatch
) -> None:
    run_dir = str(shutil.copytree(trained, tmp_path / "run"))
    built = loaded_run.built

    @contextlib.contextmanager
    def built_while_training_removes_a_checkpoint(params):
        with built(params) as found:
            commit.remove_checkpoint(os.path.join(run_dir, "ckpt-6"))
            yield found

    monkeypatch.setattr(loaded_run, "built", built_while_training_removes_a_checkpoint)
    assert official_lite.load_run(run_dir).step == 4


def _kernel(ctx):
    return ctx.model.blocks[1].kernel.numpy()


def test_built_model_loads_the_weights_of_a_checkpoint(read_run, trained):
    with loaded_run.built(read_run(trained).params) as (ctx, _):
        kernels = []
        for step in (2, 6):
            loaded_run.load_weights(ctx, os.path.join(trained, f"ckpt-{step}"))
            kernels.append(_kernel(ctx))
        assert loaded_run.find_checkpoint(trained) == os.path.join(trained, "ckpt-6")
    assert (kernels[0] != kernels[1]).all()


def test_load_weights_loads_the_averaged_weights_of_an_ema_optimizer(read_run, train_run):
    run_dir = train_run(EMA)
    path = os.path.join(run_dir, "ckpt-6")
    with loaded_run.built(read_run(run_dir).params) as (ctx, _):
        loaded_run.load_weights(ctx, path)
        averaged = _kernel(ctx)
        ctx.optimizer.swap_weights()
        swapped = _kernel(ctx)
        items = model_state.weight_items(ctx.model)
        loaded_run.read_checkpoint(tf.train.Checkpoint(**items), path)
        trained = _kernel(ctx)
    np.testing.assert_array_equal(swapped, trained)
    assert (averaged != trained).all()


@pytest.mark.usefixtures("float16_kernels")
def test_averaged_weights_trained_in_float16_are_loaded_into_a_float32_model(read_run, train_run):
    run_dir = train_run(EMA, "runtime.mixed_precision_dtype=float16")
    kernels = []
    for dtype in ("float16", "float32"):
        params = read_run(run_dir, f"--set=runtime.mixed_precision_dtype={dtype}").params
        with loaded_run.built(params) as (ctx, _):
            loaded_run.load_weights(ctx, os.path.join(run_dir, "ckpt-6"))
            kernels.append(_kernel(ctx))
    np.testing.assert_array_equal(*kernels)


def test_checkpoint_without_the_averages_of_the_config_raises_and_names_a_weight(read_run, trained):
    with (
        loaded_run.built(read_run(trained, f"--set={EMA}").params) as (ctx, _),
        pytest.raises(errors.CheckpointError, match="has no average of the weight `"),
    ):
        loaded_run.load_weights(ctx, os.path.join(trained, "ckpt-6"))


def test_mismatched_damaged_or_missing_checkpoint_raises(read_run, trained, train_run, tmp_path):
    with loaded_run.built(read_run(train_run("task.units=2")).params) as (ctx, _):
        with pytest.raises(errors.CheckpointError, match="can't be restored"):
            loaded_run.load_weights(ctx, os.path.join(trained, "ckpt-6"))
        shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
        (tmp_path / "ckpt-6.index").write_bytes(b"")
        with pytest.raises(errors.CheckpointError, match=r"is damaged: .*has 0 bytes"):
            loaded_run.load_weights(ctx, str(tmp_path / "ckpt-6"))
    with pytest.raises(errors.CheckpointError, match="No checkpoint found at"):
        loaded_run.find_checkpoint(str(tmp_path / "none"))


def test_example_inputs_of_a_model_are_recorded_as_its_task_passes_them(read_run, trained):
    with loaded_run.built(read_run(trained).params) as (ctx, _):
        inputs = loaded_run.real_inputs(ctx)
        data, _ = next(iter(loaded_run.evaluation_data(ctx)))
        with pytest.raises(errors.ConfigValueError, match="is not a functional model"):
            loaded_run.random_inputs(ctx.model)
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
    inputs = loaded_run.random_inputs(model)
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
    with loaded_run.built(params) as (ctx, _):
        inputs = loaded_run.real_inputs(ctx)
    assert inputs.signature is None
    assert [(n, a.shape, a.dtype) for n, a in inputs.arrays().items()] == [
        ("image", (8, 8, 8, 1), np.float32)
    ]


def test_recording_example_inputs_raises_if_the_task_does_not_call_its_model(
    read_run, trained, monkeypatch
):
    with loaded_run.built(read_run(trained).params) as (ctx, _):
        monkeypatch.setattr(
            type(ctx.task), "validation_step", lambda self, inputs, model, metrics: {}
        )
        with pytest.raises(errors.ConfigValueError, match="does not call its model"):
            loaded_run.real_inputs(ctx)


def test_inputs_of_a_sequential_model_are_not_renamed() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    batch = tf.zeros([1, 2])
    assert loaded_run.in_own_structure(model, [batch]) == [batch]


def test_error_for_a_checkpoint_that_has_been_removed_says_so(tmp_path):
    with pytest.raises(errors.CheckpointError, match="ckpt-2 no longer exists"):
        loaded_run.read_checkpoint(tf.train.Checkpoint(), str(tmp_path / "ckpt-2"))
