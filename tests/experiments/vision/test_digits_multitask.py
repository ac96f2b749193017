import json
import pathlib

import numpy as np
import pytest

from experiments.vision.digits_multitask import configs, task
from official_lite import pipeline
from official_lite.core import task_factory
from tests.experiments import evaluations


@pytest.fixture
def params() -> configs.multitask.MultiTaskExperimentConfig:
    params = configs.digits_multitask()
    params.override(
        {
            "task": {"model": {"filters": [4], "units": [8]}},
            "trainer": {"train_steps": 4, "validation_interval": 2, "writers": ["jsonl"]},
            "runtime": {"execution": "graph"},
        }
    )
    return params


def test_digit_task_has_20_labeled_images_and_parity_task_has_two_classes(params) -> None:
    tasks = task_factory.get_task(params.task).tasks
    labels = {
        name: np.concatenate(
            [
                y
                for _, y in one.build_inputs(one.task_config.train_data)
                .take(30)
                .as_numpy_iterator()
            ]
        )
        for name, one in tasks.items()
    }
    assert set(labels["digit"]) == set(range(10))
    assert set(labels["parity"]) == {0, 1}
    # The thirty batches are thirty epochs of the same 20 digits.
    assert np.bincount(labels["digit"]).tolist() == [60] * 10


def test_task_models_share_all_layers_except_the_last(params) -> None:
    models = task_factory.get_task(params.task).build_multitask_model()
    weights = {name: {id(w) for w in m.weights} for name, m in models.sub_tasks.items()}
    assert len(weights["digit"] & weights["parity"]) == 4
    assert len(models.trainable_variables) == 4 + 2 * 2
    assert {n: m.output_shape[-1] for n, m in models.sub_tasks.items()} == task.NUM_CLASSES


@pytest.mark.slow
def test_run_trains_evaluates_and_records_the_best_metrics_of_both_tasks(
    params, tmp_path: pathlib.Path
) -> None:
    _, logs = pipeline.RunPipeline(params, "train_and_eval", str(tmp_path)).run()
    best = json.loads((tmp_path / "best_ckpt" / "info.json").read_text())
    assert {"digit", "parity"} <= best.keys()
    _, evaluated = pipeline.RunPipeline(params, "eval", str(tmp_path)).run()
    for name in ("digit", "parity"):
        assert float(evaluated[name]["accuracy"]) == float(logs[name]["accuracy"])


@pytest.mark.slow
def test_training_with_the_parity_task_improves_digit_accuracy(tmp_path: pathlib.Path) -> None:
    def last_accuracy(name: str, *flags: str) -> float:
        evaluations.train_by_command("vision/digits_multitask", tmp_path / name, *flags)
        return evaluations.validations(tmp_path / name)[-1]["digit/accuracy"]

    alone = last_accuracy("alone", "--set=task.task_routines[1].task_weight=0")
    assert last_accuracy("both") > alone
