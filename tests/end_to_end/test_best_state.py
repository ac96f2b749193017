"""Best checkpoints and restored best weights hold the state that was evaluated."""

import json
import pathlib
from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

from official_lite.core import config_definitions, train_lib
from tests import rounding
from tests.line_experiment import NUM_EXAMPLES, LineTask

# Keras itself triggers this warning with NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


class UseEmaTask(LineTask):
    """A task whose Keras optimizer averages the weights."""

    @classmethod
    def create_optimizer(cls, *args: Any, **kwargs: Any) -> keras.optimizers.Optimizer:
        return keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9)


class DivergingTask(LineTask):
    """A task whose training diverges, so that the first evaluation is the best one."""

    @classmethod
    def create_optimizer(cls, *args: Any, **kwargs: Any) -> keras.optimizers.Optimizer:
        optimizer = super().create_optimizer(*args, **kwargs)
        optimizer.learning_rate = 1.4
        return optimizer


class DivergingUseEmaTask(UseEmaTask):
    @classmethod
    def create_optimizer(cls, *args: Any, **kwargs: Any) -> keras.optimizers.Optimizer:
        return keras.optimizers.SGD(1.4, use_ema=True, ema_momentum=0.5)


EMA = {"optimizer_config": {"ema": {"average_decay": 0.9, "dynamic_decay": False}}}


def _run(
    task_cls: type[LineTask],
    params: config_definitions.ExperimentConfig,
    model_dir: pathlib.Path,
    mode: str = "train_and_eval",
    **kwargs: Any,
) -> Any:
    """Return the metrics of the evaluation after the run, if there is one."""
    task = task_cls(params.task)
    return train_lib.run_experiment(None, task, mode, params, str(model_dir), **kwargs)[1]


def _validations(model_dir: pathlib.Path) -> list[float]:
    lines = map(json.loads, (model_dir / "metrics.json").read_text().splitlines())
    return [line["mae"] for line in lines if line["split"] == "validation"]


@pytest.mark.parametrize(("task_cls", "trainer"), [(LineTask, EMA), (UseEmaTask, {})])
def test_restored_best_checkpoints_evaluate_to_the_recorded_best_metric(
    experiment: Callable[..., Any],
    make_trainer: Callable[..., Any],
    tmp_path: pathlib.Path,
    task_cls: type[LineTask],
    trainer: dict[str, Any],
) -> None:
    weights = str(tmp_path / "best.weights.h5")
    hooks = [
        {"name": "best_checkpoint", "metric": "mae", "direction": "minimize", "directory": "hook"},
        {
            "name": "keras_callback",
            "callback": "ModelCheckpoint",
            "filepath": weights,
            "monitor": "val_mae",
            "mode": "min",
            "save_best_only": True,
            "save_weights_only": True,
        },
    ]
    best = {
        "best_checkpoint_eval_metric": "mae",
        "best_checkpoint_export_subdir": "exporter",
        "best_checkpoint_metric_comp": "lower",
    }
    params = experiment(trainer={"writers": ["jsonl"], "hooks": hooks, **best, **trainer})
    _run(task_cls, params, tmp_path / "run")
    recorded = min(_validations(tmp_path / "run"))

    other = make_trainer(experiment(trainer=trainer), task_cls=task_cls)
    model = other.model
    for name in ("exporter/best_ckpt-8", "ema_checkpoints/average_weights-8", "hook/best_ckpt-8"):
        other.checkpoint.restore(str(tmp_path / "run" / name)).expect_partial()
        for _ in range(2):
            assert float(other.evaluate(tf.constant(-1))["mae"]) == recorded
        # The weights equal their averages, so code that does not know of averages uses them, too.
        kernel, average = (v.numpy() for v in _kernel_and_average(other))
        assert kernel.tolist() == average.tolist()
    evaluated = [weight.numpy().tolist() for weight in model.trainable_variables]
    # A Keras weights file contains no averages, so its weights must be the averaged ones.
    model.load_weights(weights)
    assert [weight.numpy().tolist() for weight in model.trainable_variables] == evaluated


def _kernel_and_average(trainer: Any) -> tuple[Any, Any]:
    averages = getattr(trainer.optimizer, "averages", None)
    if averages is None:
        averages = trainer.optimizer._model_variables_moving_average
    return trainer.model.trainable_variables[0], averages[0]


@pytest.mark.parametrize(
    ("task_cls", "trainer"), [(DivergingTask, EMA), (DivergingUseEmaTask, {}), (DivergingTask, {})]
)
def test_restore_best_weights_restores_the_weights_of_the_best_evaluation(
    experiment: Callable[..., Any],
    tmp_path: pathlib.Path,
    task_cls: type[LineTask],
    trainer: dict[str, Any],
) -> None:
    stopping = {
        "name": "keras_callback",
        "callback": "EarlyStopping",
        "monitor": "val_mae",
        "mode": "min",
        "patience": 100,
        "restore_best_weights": True,
    }
    fields = {"train_steps": 12, "recovery_max_trials": -1, "writers": ["jsonl"], **trainer}
    params = experiment(trainer={**fields, "hooks": [stopping]})
    _run(task_cls, params, tmp_path)
    first, *later = _validations(tmp_path)
    assert first < min(later)
    assert _run(task_cls, params, tmp_path, "eval", run_post_eval=True)["mae"] == first


def test_evaluation_with_a_keras_ema_optimizer_matches_keras_fit_and_evaluate(
    experiment: Callable[..., Any], tmp_path: pathlib.Path
) -> None:
    evaluated = _run(UseEmaTask, experiment(), tmp_path, run_post_eval=True)["mae"]

    task = UseEmaTask(experiment().task)
    model = task.build_model()
    model.compile(optimizer=UseEmaTask.create_optimizer(), loss="mse", metrics=["mae"])
    data = task.build_inputs(experiment().task.train_data)
    model.fit(data.repeat(), steps_per_epoch=8, shuffle=False, verbose=0)
    wanted = model.evaluate(data, verbose=0, return_dict=True)["mae"]
    rounding.assert_close(evaluated, wanted, roundings=8 * NUM_EXAMPLES)
