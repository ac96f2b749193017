"""A Model Garden project runs after three textual replacements and no other change.

The texts in `projects/` are whole programs for the published Model Garden and Keras 2, as their
authors would have written them, and run with those unchanged.
"""

import json
import re
from pathlib import Path

import pytest
import tensorflow as tf

from tests import commands, rounding

PROJECTS = Path(__file__).parent / "projects"
# The metrics are means over at least 128 examples.
TOLERANCE = rounding.tolerance(roundings=128)
REPOSITORY = Path(__file__).parents[2]
REPLACEMENTS = {
    r"\bofficial\b": "official_lite",
    r"^import orbit$": "from official_lite import orbit",
    r"\btf_keras\b": "keras",
}

MAJORITY_TRAINER = "--gin_params=create_trainer.trainer_cls = @MajorityTrainer"


def run_port(
    name: str, model_dir: Path, experiment: str, *arguments: str, mode: str = "train_and_eval"
) -> None:
    """Port the project, write it next to `model_dir` and run it there."""
    text = (PROJECTS / f"{name}.py.txt").read_text()
    for pattern, replacement in REPLACEMENTS.items():
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    project = model_dir.parent / f"{name}.py"
    project.write_text(text)
    flags = [f"--mode={mode}", f"--experiment={experiment}", f"--model_dir={model_dir}"]
    done = commands.run([project, *flags, *arguments])
    assert done.returncode == 0, done.stderr[-6000:]


def assert_usual_files(model_dir: Path, last_step: int) -> None:
    expected = [
        "params.yaml",
        "checkpoint",
        f"ckpt-{last_step}.index",
        "operative_config.train_and_eval.gin",
    ]
    assert [name for name in expected if not (model_dir / name).is_file()] == []
    for folder in ("train", "validation"):
        assert list((model_dir / folder).glob("events.out.tfevents.*"))


def last_scalars(folder: Path) -> dict[str, float]:
    """Return the latest value of each scalar in the event files of `folder`."""
    scalars = {}
    for record in tf.data.TFRecordDataset([str(path) for path in sorted(folder.glob("events*"))]):
        for value in tf.compat.v1.Event.FromString(record.numpy()).summary.value:
            scalars[value.tag] = float(tf.make_ndarray(value.tensor))
    return scalars


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model_dir = tmp_path_factory.mktemp("classification") / "pretrain"
    run_port("classification", model_dir, "stripes_pretrain")
    return model_dir


def test_ported_classification_project_reaches_95_percent_accuracy_and_writes_run_files(
    pretrained: Path,
) -> None:
    assert_usual_files(pretrained, last_step=120)
    final = json.loads((pretrained / "final.json").read_text())
    assert final["accuracy"] >= 0.95
    assert final["mean_recall"] == pytest.approx(final["accuracy"], abs=0.02)
    assert final["evaluated_at"] == 120


def test_ported_classification_saves_best_and_averaged_weights(pretrained: Path) -> None:
    best = json.loads((pretrained / "best_ckpt" / "info.json").read_text())
    assert best["accuracy"] >= 0.95
    assert tf.train.latest_checkpoint(pretrained / "best_ckpt")
    assert tf.train.latest_checkpoint(pretrained / "ema_checkpoints")


@pytest.mark.slow
def test_ported_classification_fine_tunes_from_a_backbone(pretrained: Path) -> None:
    model_dir = pretrained.parent / "finetune"
    override = f"--params_override=task.init_checkpoint={pretrained}"
    run_port("classification", model_dir, "stripes_finetune", override)
    assert_usual_files(model_dir, last_step=80)
    assert json.loads((model_dir / "final.json").read_text())["accuracy"] >= 0.95
    assert last_scalars(model_dir / "train")["learning_rate"] == pytest.approx(0.0, abs=1e-3)


@pytest.fixture(scope="module")
def majority(float16_kernels: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model_dir = tmp_path_factory.mktemp("subclassed") / "run"
    run_port("subclassed", model_dir, "majority", MAJORITY_TRAINER)
    return model_dir


@pytest.mark.slow
def test_ported_subclassed_model_reaches_95_percent_accuracy_with_a_custom_train_step(
    majority: Path,
) -> None:
    assert_usual_files(majority, last_step=150)
    validation = last_scalars(majority / "validation")
    assert validation["accuracy"] >= 0.95
    assert validation["wrong_examples"] == round(128 * (1 - validation["accuracy"]))


def test_ported_trainer_reports_its_additional_metrics(majority: Path) -> None:
    train, validation = last_scalars(majority / "train"), last_scalars(majority / "validation")
    assert train["accuracy_percent"] == pytest.approx(100 * train["accuracy"])
    assert train["learning_rate"] == pytest.approx(5e-3)
    assert validation["accuracy_by_id"] == pytest.approx(validation["accuracy"])
    assert (validation["num_examples"], validation["num_evals"]) == (128, 3)


def test_ported_subclassed_model_is_restored_for_evaluation(majority: Path) -> None:
    trained = last_scalars(majority / "validation")
    run_port("subclassed", majority, "majority", MAJORITY_TRAINER, mode="eval")
    evaluated = last_scalars(majority / "validation")
    # The attribute in which the trainer counts evaluations is saved in its checkpoints.
    assert (evaluated.pop("num_evals"), trained.pop("num_evals")) == (4, 3)
    del evaluated["steps_per_second"], trained["steps_per_second"]
    assert evaluated == pytest.approx(trained, rel=TOLERANCE)


def test_eval_mode_of_ported_classification_reproduces_its_last_evaluation(
    pretrained: Path,
) -> None:
    trained = last_scalars(pretrained / "validation")
    run_port("classification", pretrained, "stripes_pretrain", mode="eval")
    assert last_scalars(pretrained / "validation") == pytest.approx(trained, rel=TOLERANCE)


@pytest.mark.sample(1)
@pytest.mark.parametrize(("experiment", "steps"), [("joint", 120), ("interleaving", 160)])
def test_ported_multitask_project_reaches_90_percent_accuracy_in_both_tasks(
    tmp_path: Path, experiment: str, steps: int
) -> None:
    model_dir = tmp_path / "run"
    run_port("multitask", model_dir, f"points_{experiment}")
    assert_usual_files(model_dir, last_step=steps)
    folders = [model_dir / "validation" / task for task in ("quadrant", "ring")]
    trained = [last_scalars(folder) for folder in folders]
    final = json.loads((model_dir / "final.json").read_text())
    run_port("multitask", model_dir, f"points_{experiment}", mode="eval")
    for folder, scalars in zip(folders, trained, strict=True):
        assert last_scalars(folder) == pytest.approx(scalars, rel=TOLERANCE)
    assert min(final[task]["accuracy"] for task in ("quadrant", "ring")) >= 0.9
    assert final["ring"]["worst_batch_loss"] >= final["ring"]["validation_loss"]
