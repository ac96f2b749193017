"""Tests of `load_run`, which opens a run in Python."""

import contextlib
import json
import os
import pathlib
import shutil

import gin
import numpy as np
import pytest
import tensorflow as tf

import official_lite
from official_lite.checkpoint import commit
from official_lite.common import errors, plugins
from official_lite.modeling import hyperparams
from official_lite.tools import run_model

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
    built = run_model.built

    @contextlib.contextmanager
    def built_while_training_removes_a_checkpoint(params):
        with built(params) as found:
            commit.remove_checkpoint(os.path.join(run_dir, "ckpt-6"))
            yield found

    monkeypatch.setattr(run_model, "built", built_while_training_removes_a_checkpoint)
    assert official_lite.load_run(run_dir).step == 4
