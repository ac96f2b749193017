import json

import numpy as np
import pytest
import tensorflow as tf

from official_lite import orbit
from official_lite.common import errors
from official_lite.core import base_trainer, best_checkpoint, preflight


def _exporter(
    directory, comp="higher", metric="accuracy"
) -> best_checkpoint.BestCheckpointExporter:
    return best_checkpoint.BestCheckpointExporter(str(directory), metric, comp)


@pytest.fixture
def checkpoint() -> tf.train.Checkpoint:
    return tf.train.Checkpoint(v=tf.Variable(1.0))


def _exports(exporter, checkpoint, values) -> list[bool]:
    return [
        exporter.maybe_export_checkpoint(checkpoint, {"accuracy": value}, step)
        for step, value in enumerate(values)
    ]


@pytest.mark.parametrize(
    ("comp", "expected"), [("higher", [True, False, True]), ("lower", [True, True, False])]
)
def test_checkpoint_is_exported_only_if_its_metric_improves(
    tmp_path, checkpoint, comp, expected
) -> None:
    assert _exports(_exporter(tmp_path, comp), checkpoint, [0.5, 0.4, 0.6]) == expected


def test_checkpoint_with_a_nonfinite_metric_is_never_the_best(tmp_path, checkpoint) -> None:
    values = [np.nan, 0.5, np.nan, np.inf, 0.6]
    assert _exports(_exporter(tmp_path), checkpoint, values) == [False, True, False, False, True]


def test_finite_metric_replaces_a_recorded_nonfinite_best_value(tmp_path, checkpoint) -> None:
    # Other programs, such as the Model Garden, may record NaN as the best value.
    info = {"accuracy": None, "best_ckpt_global_step": 0}
    (tmp_path / "info.json").write_text(json.dumps(info))
    assert _exports(_exporter(tmp_path), checkpoint, [np.nan, 0.1, 0.2]) == [False, True, True]


def test_lower_validation_loss_breaks_a_tie_of_the_best_metric(tmp_path, checkpoint) -> None:
    exporter = _exporter(tmp_path, metric="digits|accuracy")
    best = []
    for step, loss in enumerate([40.0, 1.0, 2.0, np.nan]):
        logs = {"digits": {"accuracy": 0.5, "validation_loss": np.float32(loss)}}
        best.append(exporter.maybe_export_checkpoint(checkpoint, logs, step))
    assert best == [True, True, False, False]


def test_first_checkpoint_wins_a_tie_if_no_validation_loss_is_logged(tmp_path, checkpoint) -> None:
    exporter = _exporter(tmp_path)
    assert _exports(exporter, checkpoint, [0.5, 0.5]) == [True, False]
    assert exporter.best_ckpt_path == str(tmp_path / "best_ckpt-0")


def test_restarted_exporter_continues_from_the_recorded_best_value(tmp_path, checkpoint) -> None:
    _exports(_exporter(tmp_path), checkpoint, [0.5])
    restarted = _exporter(tmp_path)
    assert restarted.best_metric_value == 0.5
    assert _exports(restarted, checkpoint, [0.4, 0.6]) == [False, True]


def test_only_the_best_checkpoint_is_kept_and_its_name_contains_the_step(
    tmp_path, checkpoint
) -> None:
    exporter = _exporter(tmp_path)
    _exports(exporter, checkpoint, [0.1, 0.2, 0.3])
    assert exporter.best_ckpt_path == str(tmp_path / "best_ckpt-2")
    assert len(list(tmp_path.glob("*.index"))) == 1


def test_info_file_of_the_best_checkpoint_is_valid_json_with_only_scalars(
    tmp_path, checkpoint
) -> None:
    logs = {"accuracy": 0.5, "nested": {"loss": tf.constant(np.nan)}, "image": tf.ones((2, 2))}
    _exporter(tmp_path).maybe_export_checkpoint(checkpoint, logs, 7)
    record = json.loads((tmp_path / "info.json").read_text())
    assert record == {"accuracy": 0.5, "nested": {"loss": None}, "best_ckpt_global_step": 7}


def test_best_metric_may_be_a_vector_with_one_element(tmp_path, checkpoint) -> None:
    values = [np.array([0.5]), tf.constant([0.4]), np.array([0.6])]
    assert _exports(_exporter(tmp_path), checkpoint, values) == [True, False, True]
    assert _exporter(tmp_path).best_metric_value == pytest.approx(0.6)


def test_nested_best_metric_is_selected_by_names_joined_with_a_vertical_bar(
    tmp_path, checkpoint
) -> None:
    exporter = _exporter(tmp_path, metric="digits|accuracy")
    exporter.maybe_export_checkpoint(checkpoint, {"digits": {"accuracy": 0.5}}, 1)
    assert exporter.best_metric_value == 0.5


def test_error_for_an_unknown_best_metric_suggests_the_nearest_name(tmp_path, checkpoint) -> None:
    with pytest.raises(errors.UnknownKeyError, match="`accuracy`"):
        _exporter(tmp_path, metric="acuracy").maybe_export_checkpoint(
            checkpoint, {"accuracy": 1.0}, 1
        )


def test_preflight_rejects_an_unknown_best_metric_only_if_all_metric_names_are_known(
    experiment, make_trainer
) -> None:
    class Reporting(base_trainer.Trainer):
        def eval_end(self, aggregated_logs=None):
            return {"maee": 1.0}

    block = {"best_checkpoint_export_subdir": "best", "best_checkpoint_eval_metric": "maee"}
    params = experiment(trainer=block)
    preflight.check_metric(params, make_trainer(params, cls=Reporting, train=False))
    with pytest.raises(errors.UnknownNameError, match="`mae`"):
        preflight.check_metric(params, make_trainer(params, train=False))


@pytest.mark.parametrize(
    ("metric", "comp", "warning"),
    [
        ("rmse", "higher", "its name suggests that lower values are better"),
        ("rmse", "", ""),
        ("quality", "", "so the direction `higher` is used"),
        ("quality", "higher", ""),
    ],
)
def test_guessed_or_contradictory_best_checkpoint_metric_comp_logs_a_warning(
    experiment, tmp_path, caplog, metric, comp, warning
) -> None:
    names = {"export_subdir": "best_ckpt", "eval_metric": metric, "metric_comp": comp}
    params = experiment(trainer={f"best_checkpoint_{name}": v for name, v in names.items()})
    with caplog.at_level("WARNING"):
        best_checkpoint.maybe_create_best_ckpt_exporter(params, str(tmp_path))
    assert warning in caplog.text
    assert bool(warning) == bool(caplog.text)


def test_resumed_best_checkpoint_exporter_continues_from_the_best_value_at_the_restored_step(
    tmp_path, checkpoint
) -> None:
    exporter = _exporter(tmp_path)
    exporter.rewind(0)
    _exports(exporter, checkpoint, [0.1])
    exporter.protect()
    assert _exports(exporter, checkpoint, [0.0, 0.2, 0.3]) == [False, True, True]
    restarted = _exporter(tmp_path)
    restarted.rewind(0)
    assert restarted.best_metric_value == 0.1
    assert restarted.best_ckpt_path == str(tmp_path / "best_ckpt-0")
    assert _exports(restarted, checkpoint, [0.0, 0.05, 0.2]) == [False, False, True]


BY_PATH = "official_lite.orbit.hooks:BestCheckpoint"


def _hook(metric: str, directory: str) -> dict[str, str]:
    return {"name": "best_checkpoint", "metric": metric, "directory": directory}


@pytest.mark.parametrize(
    ("hooks", "subdir", "message"),
    [
        ([_hook("mae", "best")], "best", "best_checkpoint_export_subdir.*hook.*`mae`"),
        ([_hook("mae", "a"), _hook("validation_loss", "./a/")], "", "`mae`.*`validation_loss`"),
        ([_hook("mae", "train/best")], "", "event files of training"),
        ([_hook("mae", "ema_checkpoints/best")], "", "averaged weights"),
        ([_hook("mae", "best")], "best/loss", "best_checkpoint_export_subdir.*hook.*`mae`"),
        ([{**_hook("mae", "best"), "name": BY_PATH}], "best", "export_subdir.*hook.*`mae`"),
        ([], ".", "the checkpoints of the run"),
    ],
)
def test_best_checkpoint_directory_used_for_other_files_raises_before_anything_is_written(
    experiment, tmp_path, hooks, subdir, message
) -> None:
    params = experiment(
        trainer={
            "hooks": hooks,
            "best_checkpoint_export_subdir": subdir,
            "best_checkpoint_eval_metric": "validation_loss",
            "best_checkpoint_metric_comp": "lower",
        }
    )
    with pytest.raises(errors.ConfigValueError, match=message):
        preflight.check_run(params, "train", str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_best_checkpoint_directories_are_compared_after_resolving_symlinks(
    experiment, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "linked").symlink_to("run")
    for absolute in ("run", "linked"):
        hooks = [_hook("mae", "best"), _hook("validation_loss", str(tmp_path / absolute / "best"))]
        with pytest.raises(errors.ConfigValueError, match=r"`mae`.*`validation_loss`"):
            preflight.check_run(experiment(trainer={"hooks": hooks}), "train", "run")
    far = [_hook("mae", "best"), _hook("validation_loss", "gs://bucket/run/best")]
    params = experiment(trainer={"hooks": far})
    keepers = [orbit.hooks.BestCheckpoint(h["metric"], directory=h["directory"]) for h in far]
    with pytest.raises(errors.ConfigValueError, match=r"`mae`.*`validation_loss`"):
        preflight.check_directories(params, "gs://bucket/run", keepers)
    preflight.check_directories(params, "gs://bucket/another", keepers)


def test_best_checkpoints_in_sibling_directories_are_accepted(experiment, tmp_path) -> None:
    hooks = [_hook("mae", "best_mae"), _hook("validation_loss", "best_loss")]
    params = experiment(
        trainer={
            "hooks": hooks,
            "best_checkpoint_export_subdir": "best",
            "best_checkpoint_eval_metric": "mae",
        }
    )
    preflight.check_run(params, "train", str(tmp_path / "run"))


def test_best_checkpoint_is_replaced_if_the_watched_metric_has_changed_since_it_was_saved(
    tmp_path, checkpoint
) -> None:
    _exports(_exporter(tmp_path), checkpoint, [0.5])
    restarted = _exporter(tmp_path, metric="f1")
    assert restarted.best_metric_value is None
    assert restarted.maybe_export_checkpoint(checkpoint, {"f1": 0.1}, 4)
    assert restarted.best_metric_value == 0.1


def test_training_does_not_change_the_best_checkpoint_that_another_job_saves(
    tmp_path, checkpoint
) -> None:
    of_training = _exporter(tmp_path)
    of_training.may_export = lambda: False
    _exports(_exporter(tmp_path), checkpoint, [0.5])
    # The other job is saving the next one.
    (tmp_path / "best_ckpt-3.index").touch()
    before = sorted(tmp_path.iterdir())
    of_training.rewind(0)
    of_training.protect()
    of_training.settle(2)
    assert sorted(tmp_path.iterdir()) == before
    assert of_training.best_metric_value == 0.5
