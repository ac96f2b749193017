"""The custom trainer and launcher in the Model Garden's documentation."""

import importlib.machinery
import importlib.util
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from experiments.vision.digits import configs, data
from experiments.vision.digits.task import DigitsTask
from official_lite.common import errors
from official_lite.core import train_lib
from official_lite.data import arrays, tf_data_options
from tests import commands, rounding

# The metrics are means over 360 examples.
TOLERANCE = rounding.tolerance(roundings=360)
SOURCE = pathlib.Path(__file__).parent / "projects" / "custom_launcher.py.txt"
SHORT = ["--set=trainer.train_steps=40", "--set=trainer.validation_interval=20"]


def _launch(directory: pathlib.Path, *args: str) -> dict[str, float]:
    """Run the launcher and return the metrics that it sent to its channel."""
    script = directory / "launcher.py"
    script.write_text(SOURCE.read_text())
    command = [str(script), "--experiment=vision/digits_mlp"]
    command += ["--mode=train_and_eval", f"--model_dir={directory / 'run'}", *SHORT, *args]
    (directory / "run").mkdir()
    done = commands.run(command, cwd=directory, env={"PYTHONPATH": str(commands.ROOT)})
    assert done.returncode == 0, done.stderr[-3000:]
    start, metrics = (directory / "run" / "notifications.txt").read_text().splitlines()
    assert start == "start"
    assert (directory / "run" / "operative_config.train_and_eval.gin").exists()
    return json.loads(metrics)


@pytest.mark.parametrize("by", ["yaml", "gin", "python"])
@pytest.mark.slow
def test_custom_trainer_can_be_selected_by_yaml_gin_or_python(
    tmp_path: pathlib.Path, by: str
) -> None:
    config = tmp_path / "trainer.yaml"
    config.write_text("trainer: {name: custom}")
    flag = {
        "yaml": f"--config_file={config}",
        "gin": "--gin_params=create_trainer.trainer_cls = @CustomTrainer",
        "python": "--from_python",
    }[by]
    metrics = _launch(tmp_path, flag)
    assert metrics["from_custom_trainer"] == 1.0
    assert 0 < metrics["accuracy"] <= 1
    report = json.loads((tmp_path / "run" / "metrics.json").read_text().splitlines()[-2])
    assert (report["step"], report["optimizer_iterations"], report["model_global_step"]) == (
        40,
        40,
        40,
    )


@pytest.fixture(scope="module")
def page_trainer() -> Any:
    """Return the page's trainer class, with `train_step` and `eval_step` as printed there."""
    loader = importlib.machinery.SourceFileLoader("page_launcher", str(SOURCE))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module.CustomTrainer


def _expected_metrics(model: keras.Model, num_examples: int) -> tuple[float, float]:
    """Compute the accuracy and the loss over the first examples with NumPy."""
    images, labels = (part[:num_examples] for part in data.load_split("validation"))
    logits = np.asarray(model(images), np.float64)
    losses = np.log(np.exp(logits).sum(-1)) - logits[np.arange(len(labels)), labels]
    return float(np.mean(logits.argmax(-1) == labels)), float(losses.mean())


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("replicas", "batch_size", "drop_remainder", "num_examples"),
    [
        (1, 100, False, 360),
        (2, 100, True, 300),
        # The second replica has no example of the last batch.
        (2, 358, False, 360),
        pytest.param(2, 120, False, 360, marks=pytest.mark.slow),
    ],
)
def test_custom_trainer_computes_metrics_over_all_validation_examples(
    tmp_path: pathlib.Path,
    two_replicas: tf.distribute.Strategy,
    page_trainer: Any,
    replicas: int,
    batch_size: int,
    drop_remainder: bool,
    num_examples: int,
) -> None:
    strategy = two_replicas if replicas == 2 else tf.distribute.get_strategy()
    params = configs.digits_mlp()
    validation_data = {"global_batch_size": batch_size, "drop_remainder": drop_remainder}
    lengths = {"train_steps": 40, "validation_interval": 20, "validation_steps": -1}
    params.override({"task": {"validation_data": validation_data}, "trainer": lengths})

    def run(mode: str) -> tuple[keras.Model, Mapping[str, Any]]:
        with strategy.scope():
            task = DigitsTask(params.task)
            optimizer = task.create_optimizer(params.trainer.optimizer_config)
            trainer = page_trainer(
                params, task, task.build_model(), optimizer, train=mode != "eval"
            )
        return train_lib.run_experiment(
            strategy, task, mode, params, str(tmp_path), trainer=trainer, run_post_eval=True
        )

    model, logs = run("train_and_eval")
    accuracy, loss = _expected_metrics(model, num_examples)
    evaluated = run("eval")[1]
    records = [json.loads(line) for line in (tmp_path / "metrics.json").read_text().splitlines()]
    recorded = [r for r in records if r["split"] == "validation" and r["step"] == 40]
    for metrics in (logs, evaluated, *recorded):
        assert metrics["accuracy"] == pytest.approx(accuracy, abs=1e-6)
        assert metrics["validation_loss"] == pytest.approx(loss, rel=TOLERANCE)


@pytest.mark.sample(2)
@pytest.mark.parametrize(("replicas", "train_tf_while_loop"), [(1, False), (2, True)])
def test_custom_trainer_makes_no_update_after_the_end_of_the_data(
    two_replicas: tf.distribute.Strategy,
    page_trainer: Any,
    replicas: int,
    train_tf_while_loop: bool,
) -> None:
    strategy = two_replicas if replicas == 2 else tf.distribute.get_strategy()
    params = configs.digits_mlp()
    params.trainer.train_tf_while_loop = train_tf_while_loop
    batches = arrays.from_arrays(data.load_split("train"), 64, shuffle=False).take(5)

    def make_trainer() -> Any:
        keras.utils.set_random_seed(0)
        with strategy.scope():
            task = DigitsTask(params.task)
            optimizer = task.create_optimizer(params.trainer.optimizer_config)
            dataset = strategy.experimental_distribute_dataset(
                tf_data_options.without_idle_autotuner(batches)
            )
            return page_trainer(
                params, task, task.build_model(), optimizer, evaluate=False, train_dataset=dataset
            )

    def state_of(trainer: Any) -> list[np.ndarray]:
        variables = [*trainer.model.weights, *trainer.optimizer.variables]
        return [np.asarray(v) for v in (*variables, trainer.global_step, trainer.train_loss.count)]

    exact, too_far = make_trainer(), make_trainer()
    exact.run_steps(tf.constant(5))
    with pytest.raises(errors.DataError, match="ended at step 5, before training was complete"):
        too_far.run_steps(tf.constant(6))
    for one, other in zip(state_of(exact), state_of(too_far), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.sample(1)
@pytest.mark.parametrize("execution", ["xla", "xla_loop", "eager"])
def test_custom_trainer_computes_correct_metrics_in_all_execution_modes(
    page_trainer: Any, execution: str
) -> None:
    params = configs.digits_mlp()
    validation_data = {"global_batch_size": 100}
    params.override({"task": {"validation_data": validation_data}})
    params.runtime.execution = execution
    task = DigitsTask(params.task)
    optimizer = task.create_optimizer(params.trainer.optimizer_config)
    trainer = page_trainer(params, task, task.build_model(), optimizer)
    trainer.run_steps(tf.constant(5))
    for _ in range(2):
        logs = trainer.evaluate(tf.constant(-1))
        accuracy, loss = _expected_metrics(trainer.model, 360)
        assert float(logs["accuracy"]) == pytest.approx(accuracy, abs=1e-6)
        assert float(logs["validation_loss"]) == pytest.approx(loss, rel=TOLERANCE)
