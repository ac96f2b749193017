import json
import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorboard.plugins.hparams import plugin_data_pb2

from official_lite import orbit
from official_lite.checkpoint import commit
from official_lite.common import errors
from official_lite.core import input_reader, predictor, train_lib
from tests import rounding
from tests.line_experiment import NUM_EXAMPLES


def _run(params, task, mode, model_dir, **kwargs):
    return train_lib.run_experiment(None, task, mode, params, str(model_dir), **kwargs)


def _steps(model_dir, split, name="metrics.json") -> list[int]:
    records = map(json.loads, (model_dir / name).read_text().splitlines())
    return [r["step"] for r in records if r["split"] == split]


@pytest.mark.parametrize(
    ("mode", "evaluated"),
    [("train", []), ("train_and_eval", [4, 8]), ("train_and_post_eval", [8])],
)
def test_training_mode_determines_at_which_steps_the_run_evaluates(
    experiment, make_task, tmp_path, mode, evaluated
) -> None:
    params = experiment()
    model, logs = _run(params, make_task(params), mode, tmp_path)
    assert _steps(tmp_path, "train") == [4, 8]
    assert _steps(tmp_path, "validation") == evaluated
    assert bool(logs) == (mode == "train_and_post_eval")
    assert isinstance(model, keras.Model)
    assert tf.train.latest_checkpoint(str(tmp_path)).endswith("ckpt-8")


def test_eval_mode_evaluates_the_last_checkpoint(experiment, make_task, tmp_path) -> None:
    params = experiment()
    _, trained = _run(params, make_task(params), "train_and_post_eval", tmp_path)
    _, logs = _run(params, make_task(params), "eval", tmp_path, run_post_eval=True)
    rounding.assert_close(
        logs["validation_loss"], trained["validation_loss"], roundings=NUM_EXAMPLES
    )
    assert _steps(tmp_path, "validation") == [8]
    assert _steps(tmp_path, "validation", "metrics.eval.json") == [8]


def test_eval_mode_without_a_checkpoint_raises(experiment, make_task, tmp_path) -> None:
    params = experiment()
    with pytest.raises(errors.CheckpointError, match="random weights"):
        _run(params, make_task(params), "eval", tmp_path)


def test_continuous_eval_mode_evaluates_every_checkpoint(experiment, make_task, tmp_path) -> None:
    params = experiment()
    _run(params, make_task(params), "train", tmp_path)
    _run(params, make_task(params), "continuous_eval", tmp_path)
    assert _steps(tmp_path, "validation", "metrics.continuous_eval.json") == [4, 8]


def test_training_writes_its_hyperparameters_for_tensorboard(
    experiment, make_task, tmp_path
) -> None:
    params = experiment()
    _run(params, make_task(params), "train", tmp_path)
    [path] = tmp_path.glob("events*")
    [value] = [v for e in tf.compat.v1.train.summary_iterator(str(path)) for v in e.summary.value]
    content = plugin_data_pb2.HParamsPluginData.FromString(value.metadata.plugin_data.content)
    hparams = content.session_start_info.hparams
    assert hparams["trainer.train_steps"].number_value == 8
    _run(params, make_task(params), "eval", tmp_path)
    assert list(tmp_path.glob("events*")) == [path]


def test_unknown_mode_raises_before_anything_is_written(experiment, tmp_path) -> None:
    with pytest.raises(errors.UnknownNameError, match="`train`"):
        _run(experiment(), None, "trian", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_validation_and_checkpoint_intervals_need_not_divide_each_other(
    experiment, make_task, tmp_path
) -> None:
    params = experiment(
        trainer={
            "train_steps": 20,
            "steps_per_loop": 100,
            "validation_interval": 7,
            "checkpoint_interval": 9,
            "max_to_keep": 9,
        }
    )
    _run(params, make_task(params), "train_and_eval", tmp_path)
    assert _steps(tmp_path, "validation") == [7, 14, 20]
    saved = {int(p.stem.split("-")[1]) for p in tmp_path.glob("ckpt-*.index")}
    assert saved == {9, 18, 20}


def test_training_recovers_from_a_nan_loss_by_restoring_the_last_checkpoint(
    experiment, make_task, tmp_path
) -> None:
    params = experiment(
        trainer={"train_steps": 12, "checkpoint_interval": 4, "recovery_max_trials": 1}
    )
    task = make_task(params)
    injected = tf.Variable(False)
    build_losses = task.build_losses
    task.build_losses = lambda labels, model_outputs, aux_losses=None: tf.where(
        injected, math.nan, build_losses(labels, model_outputs, aux_losses)
    )

    def inject_once(output) -> None:
        injected.assign(len(seen) == 0)
        seen.append(float(output["training_loss"]))

    seen: list[float] = []
    model, _ = _run(params, task, "train", tmp_path, train_actions=[inject_once])
    assert math.isnan(seen[1])
    assert math.isfinite(seen[-1])
    assert np.isfinite(model.dense.kernel.numpy()).all()


@pytest.mark.usefixtures("short_data_search")
def test_nan_loss_without_recovery_raises_and_no_checkpoint_is_saved(
    experiment, make_task, tmp_path
) -> None:
    params = experiment(trainer={"checkpoint_interval": 1, "steps_per_loop": 100})
    task = make_task(params)
    task.build_losses = lambda labels, model_outputs, aux_losses=None: tf.reduce_mean(
        model_outputs * math.nan
    )
    with pytest.raises(errors.DivergedError, match="nan"):
        _run(params, task, "train", tmp_path)
    assert tf.train.latest_checkpoint(str(tmp_path)) is None
    assert json.loads((tmp_path / "run.json").read_text())["status"] == "failed"


@pytest.mark.usefixtures("bfloat16_kernels")
def test_dtype_policy_is_reset_after_a_run_with_mixed_precision(
    experiment, make_task, tmp_path
) -> None:
    params = experiment(runtime={"mixed_precision_dtype": "bfloat16"})
    model, _ = _run(params, make_task(params), "train", tmp_path)
    assert model.dense.compute_dtype == "bfloat16"
    assert keras.mixed_precision.dtype_policy().name == "float32"


@pytest.mark.usefixtures("float16_kernels")
def test_float16_training_uses_loss_scaling(experiment, make_task, tmp_path) -> None:
    params = experiment(
        runtime={"mixed_precision_dtype": "float16"},
        trainer={"optimizer_config": {"ema": {"average_decay": 0.9}}},
    )
    runner = []

    class Controller(orbit.Controller):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            runner.append(self)

    _run(params, make_task(params), "train_and_eval", tmp_path, controller_cls=Controller)
    optimizer = runner[0].trainer.optimizer
    assert isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    assert list((tmp_path / "ema_checkpoints").glob("*.index"))


def test_trained_weights_are_equal_only_for_equal_seeds(experiment, make_task, tmp_path) -> None:
    def kernel(seed: int, name: str) -> np.ndarray:
        params = experiment(runtime={"seed": seed}, task={"dropout_rate": 0.5})
        task = make_task(params)
        build_model = task.build_model

        def randomly_initialized() -> keras.Model:
            model = build_model()
            model.dense.kernel.assign(keras.random.normal((2, 1)))
            return model

        task.build_model = randomly_initialized
        return _run(params, task, "train", tmp_path / name)[0].dense.kernel.numpy()

    np.testing.assert_array_equal(kernel(1, "a"), kernel(1, "b"))
    assert not np.array_equal(kernel(1, "c"), kernel(2, "d"))


def test_train_and_eval_exports_the_best_checkpoint_and_its_info_file(
    experiment, make_task, tmp_path
) -> None:
    params = experiment(
        trainer={
            "best_checkpoint_export_subdir": "best_ckpt",
            "best_checkpoint_eval_metric": "mae",
            "best_checkpoint_metric_comp": "lower",
        }
    )
    _run(params, make_task(params), "train_and_eval", tmp_path)
    info = json.loads((tmp_path / "best_ckpt" / "info.json").read_text())
    assert info["best_ckpt_global_step"] == 8
    assert list((tmp_path / "best_ckpt").glob("best_ckpt-8.index"))


HIGHEST = {
    "best_checkpoint_export_subdir": "best_ckpt",
    "best_checkpoint_eval_metric": "mae",
    "best_checkpoint_metric_comp": "higher",
}


def test_evaluating_other_data_does_not_replace_the_best_checkpoint_of_a_run(
    experiment, make_task, tmp_path
) -> None:
    def read():
        return {path.name: path.read_bytes() for path in (tmp_path / "best_ckpt").iterdir()}

    params = experiment(trainer=HIGHEST)
    _run(params, make_task(params), "train_and_eval", tmp_path)
    kept = read()
    assert "best_ckpt-4.index" in kept
    # The error on this line is higher than any error in the training.
    other = make_task(experiment(task={"slope": -9.0}))
    _, logs = _run(params, other, "eval", tmp_path, run_post_eval=True)
    assert read() == kept
    assert logs["best_mae"] == json.loads(kept["info.json"])["mae"] < logs["mae"]


@pytest.mark.parametrize(("mode", "best"), [("train", 8), ("train_and_eval", 4)])
def test_continuous_evaluation_exports_the_best_checkpoint_only_if_training_does_not_evaluate(
    experiment, make_task, tmp_path, mode, best
) -> None:
    params = experiment(trainer=HIGHEST)
    _run(params, make_task(params), mode, tmp_path)
    # The training moves the model away from this line.
    _run(params, make_task(experiment(task={"slope": -9.0})), "continuous_eval", tmp_path)
    info = json.loads((tmp_path / "best_ckpt" / "info.json").read_text())
    assert info["best_ckpt_global_step"] == best
    assert (tmp_path / "best_ckpt" / f"best_ckpt-{best}.index").exists()


def test_evaluation_after_training_does_not_replace_the_best_checkpoint_of_a_continuous_evaluation(
    experiment, make_task, tmp_path
) -> None:
    params = experiment(trainer=HIGHEST)
    runner = train_lib.OrbitExperimentRunner(
        None, make_task(params), "train", params, str(tmp_path), run_post_eval=True
    )
    runner.train()
    _run(params, make_task(params), "continuous_eval", tmp_path)
    logs = runner.evaluate()
    runner.close()
    assert [path.name for path in (tmp_path / "best_ckpt").glob("*.index")] == ["best_ckpt-4.index"]
    assert logs["best_mae"] > logs["mae"]


@pytest.fixture
def chief_restores(monkeypatch):
    """Return a function that adds a chief, which has restored a checkpoint of the given name."""

    def add(name):
        columns = {"name": np.array([name.encode()], object)}
        told = predictor.unpack(predictor.pack(columns), columns, 1)
        monkeypatch.setattr(predictor, "create_exchange", lambda _: lambda own: [*told, *own])

    return add


def test_worker_evaluates_the_same_checkpoint_as_the_chief_even_if_it_sees_a_newer_one(
    experiment, make_task, tmp_path, chief_restores
) -> None:
    params = experiment()
    _run(params, make_task(params), "train", tmp_path)
    arguments = (None, make_task(params), "eval", params, str(tmp_path))
    chief_restores("ckpt-4")
    runner = train_lib.OrbitExperimentRunner(*arguments)
    assert runner.controller.step == 4
    runner.close()
    chief_restores("")
    with pytest.raises(errors.CheckpointError, match="Only some workers could restore"):
        train_lib.OrbitExperimentRunner(*arguments)
    commit.remove_checkpoint(str(tmp_path / "ckpt-4"))
    chief_restores("ckpt-4")
    with pytest.raises(errors.CheckpointError, match="Only some workers could restore"):
        train_lib.OrbitExperimentRunner(*arguments)


def test_evaluation_raises_on_a_worker_that_cannot_see_the_checkpoint_restored_by_the_chief(
    experiment, make_task, tmp_path, chief_restores
) -> None:
    params = experiment()
    arguments = (None, make_task(params), "eval", params, str(tmp_path))
    runner = train_lib.OrbitExperimentRunner(*arguments, restore=False)
    chief_restores("ckpt-4")
    with pytest.raises(errors.CheckpointError, match="Only some workers could restore"):
        runner.restore()
    runner.close()


def test_continuous_evaluation_may_begin_while_only_some_workers_see_the_first_checkpoint(
    experiment, make_task, tmp_path, chief_restores
) -> None:
    params = experiment()
    _run(params, make_task(params), "train", tmp_path)
    chief_restores("")
    _run(params, make_task(params), "continuous_eval", tmp_path)
    assert _steps(tmp_path, "validation", "metrics.continuous_eval.json") == [4, 8]


def test_runner_subclass_can_replace_the_checkpoint_manager(
    experiment, make_task, tmp_path
) -> None:
    class Runner(train_lib.OrbitExperimentRunner):
        def _maybe_build_checkpoint_manager(self):
            return tf.train.CheckpointManager(
                self.trainer.checkpoint,
                str(tmp_path / "elsewhere"),
                max_to_keep=1,
                step_counter=self.trainer.global_step,
                checkpoint_interval=2,
            )

    params = experiment()
    Runner(None, make_task(params), "train", params, str(tmp_path)).run()
    assert list((tmp_path / "elsewhere").glob("ckpt-8.index"))


def test_run_does_not_change_the_callers_list_of_train_actions(
    experiment, make_task, tmp_path
) -> None:
    params, mine = experiment(), []
    _run(params, make_task(params), "train", tmp_path, train_actions=mine)
    assert mine == []


def test_misspelled_best_checkpoint_metric_raises(experiment, make_task, tmp_path) -> None:
    params = experiment(
        trainer={
            "best_checkpoint_export_subdir": "best_ckpt",
            "best_checkpoint_eval_metric": "maee",
        }
    )
    with pytest.raises(errors.UnknownNameError, match="`mae`"):
        _run(params, make_task(params), "train_and_eval", tmp_path)


def test_unknown_trainer_raises_before_anything_is_written(experiment, tmp_path) -> None:
    params = experiment(trainer={"name": "nosuch"})
    with pytest.raises(errors.UnknownNameError, match="nosuch"):
        _run(params, None, "train", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_error_for_a_checkpoint_of_another_model_names_the_checkpoint(
    experiment, make_task, tmp_path
) -> None:
    params = experiment()
    _run(params, make_task(params), "train", tmp_path)
    task = make_task(params)
    task.build_model = lambda: keras.Sequential(
        [keras.Input((2,)), keras.layers.Dense(5, name="dense"), keras.layers.Dense(1)]
    )
    with pytest.raises(errors.CheckpointError, match="ckpt-8 contains 2 variables of the model"):
        _run(params, task, "eval", tmp_path)


def test_eval_mode_writes_no_averaged_weights(experiment, make_task, tmp_path) -> None:
    params = experiment(trainer={"optimizer_config": {"ema": {"average_decay": 0.9}}})
    _run(params, make_task(params), "train", tmp_path)
    (saved,) = (tmp_path / "ema_checkpoints").glob("*.index")
    saved.unlink()
    _run(params, make_task(params), "eval", tmp_path)
    assert not list((tmp_path / "ema_checkpoints").glob("*.index"))


def test_run_in_epochs_calls_after_epoch_of_its_hooks_at_each_epoch_end(
    experiment, make_task, tmp_path
) -> None:
    class Epochs(orbit.Hook):
        def after_epoch(self) -> None:
            steps.append(int(self.controller.global_step))

    steps = []
    params = experiment(trainer={"train_epochs": 3.0})
    _run(params, make_task(params), "train", tmp_path, hooks=[Epochs()])
    # 32 examples in batches of 8.
    assert steps == [4, 8, 12]
    assert "train_steps: 12" in (tmp_path / "params.yaml").read_text()


def test_missing_batch_size_in_a_run_of_epochs_raises_an_error_naming_its_field(
    experiment, make_task, tmp_path
) -> None:
    params = experiment(task={"train_data": {"global_batch_size": 0}}, trainer={"train_epochs": 2})

    class Points(type(make_task(params))):
        def build_inputs(self, params, input_context=None):
            arrays = (np.ones((8, 2), "float32"), np.ones((8, 1), "float32"))
            return input_reader.from_arrays(arrays, params, input_context)

    with pytest.raises(errors.ConfigValueError, match=r"`task.train_data.global_batch_size` is 0"):
        _run(params, Points(params.task), "train", tmp_path)


def test_normalization_adapted_in_initialize_is_restored_when_a_run_resumes(
    experiment, make_task, tmp_path
) -> None:
    params = experiment()

    class Adapting(type(make_task(params))):
        def build_model(self):
            layers = keras.layers
            return keras.Sequential([keras.Input((2,)), layers.Normalization(), layers.Dense(1)])

        def initialize(self, model):
            model.layers[0].adapt(np.array([[-1.0, 1.0], [2.0, 5.0]]))

    def finish(model_dir):
        return _run(params, Adapting(params.task), "train_and_post_eval", model_dir)[1]

    unbroken = finish(tmp_path / "unbroken")
    params.trainer.train_steps = 4
    _run(params, Adapting(params.task), "train", tmp_path / "resumed")
    params.trainer.train_steps = 8
    assert finish(tmp_path / "resumed")["validation_loss"] == unbroken["validation_loss"]


class _Exporter:
    """An exporter that exports nothing and records its calls."""

    def __init__(self):
        self.heard = []

    def maybe_export_checkpoint(self, checkpoint, eval_logs, global_step, write_logs=True):
        self.heard.append(f"evaluated {global_step}")

    def rewind(self, step):
        self.heard.append(f"rewind {step}")


@pytest.mark.parametrize(
    ("mode", "heard"),
    [("train", []), ("train_and_eval", ["rewind 0", "evaluated 4", "evaluated 8"])],
)
def test_best_checkpoint_exporter_is_called_only_if_the_mode_evaluates(
    experiment, make_task, tmp_path, mode, heard
) -> None:
    class Runner(train_lib.OrbitExperimentRunner):
        def _build_best_checkpoint_exporter(self):
            return exporter

    params, exporter = experiment(), _Exporter()
    Runner(None, make_task(params), mode, params, str(tmp_path)).run()
    assert exporter.heard == heard
