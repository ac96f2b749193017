import contextlib
import dataclasses
import json
import logging as python_logging
import os
import pathlib
import re
import sys

import gin
import pytest
import tensorflow as tf
from absl import logging

from official_lite.checkpoint import chain, commit
from official_lite.common import errors
from official_lite.config import compatibility
from official_lite.core import config_definitions as cfg
from official_lite.core import trainer_factory
from official_lite.run import provenance, run_record


def _params(train_steps: int = 3) -> cfg.ExperimentConfig:
    return cfg.ExperimentConfig(trainer=cfg.TrainerConfig(train_steps=train_steps))


def _read(path: pathlib.Path) -> dict:
    return json.loads(path.read_text())


def test_training_run_writes_its_config_environment_and_status(tmp_path: pathlib.Path) -> None:
    with run_record.RunRecord(_params(), "train", str(tmp_path)) as record:
        assert _read(tmp_path / "run.json")["status"] == "running"
        logging.error("something to remember")
        record.note(global_step=3)
    entries = _read(tmp_path / "run.json")
    assert (entries["status"], entries["global_step"], entries["seed"]) == ("done", 3, 0)
    assert {"python", "tensorflow", "keras"} <= set(entries["versions"])
    assert "something to remember" in (tmp_path / "log.txt").read_text()
    assert (tmp_path / "params.yaml").exists()
    assert (tmp_path / "operative_config.train.gin").exists()


def test_failed_run_records_its_error_and_logs_the_traceback(tmp_path: pathlib.Path) -> None:
    record = run_record.RunRecord(_params(), "train", str(tmp_path))
    with pytest.raises(ZeroDivisionError) as caught, record:
        1 / 0  # noqa: B018  (the failure)
    assert caught.value.__notes__ == [f"The full traceback is in {tmp_path / 'log.txt'}."]
    assert _read(tmp_path / "run.json")["exit_reason"] == "ZeroDivisionError: division by zero"
    assert "Traceback" in (tmp_path / "log.txt").read_text()


def test_error_without_a_message_is_recorded_by_its_class_name(tmp_path: pathlib.Path) -> None:
    record = run_record.RunRecord(_params(), "train", str(tmp_path))
    with pytest.raises(KeyboardInterrupt), record:
        raise KeyboardInterrupt
    assert _read(tmp_path / "run.json")["exit_reason"] == "KeyboardInterrupt"


def test_run_log_begins_with_the_command_and_the_library_versions(
    tmp_path: pathlib.Path, log_as_train_py_does: None
) -> None:
    with run_record.RunRecord(_params(), "train", str(tmp_path)):
        pass
    first, second = (tmp_path / "log.txt").read_text().splitlines()[:2]
    assert "Command: " in first
    assert re.search(r"Versions: python 3\..*tensorflow \d", second)


def test_last_log_line_states_the_status_and_step_of_the_run(
    tmp_path: pathlib.Path, log_as_train_py_does: None
) -> None:
    with run_record.RunRecord(_params(), "train", str(tmp_path)) as record:
        record.note(global_step=3)
    last = (tmp_path / "log.txt").read_text().splitlines()[-1]
    assert last.endswith("Experiment finished: status=done, step=3.")
    with pytest.raises(ZeroDivisionError), run_record.RunRecord(_params(), "eval", str(tmp_path)):
        1 / 0  # noqa: B018  (the failure)
    last = (tmp_path / "log.eval.txt").read_text().splitlines()[-1]
    assert last.endswith("Experiment finished: status=failed, step=0.")


def test_log_includes_messages_of_standard_library_loggers_during_the_run(
    tmp_path: pathlib.Path,
) -> None:
    with run_record.RunRecord(_params(), "train", str(tmp_path)):
        python_logging.getLogger("mine").warning("from a logger of my own")
    python_logging.getLogger("mine").warning("too late")
    text = (tmp_path / "log.txt").read_text()
    assert "from a logger of my own" in text
    assert "too late" not in text


def test_only_the_chief_writes_the_run_record(tmp_path: pathlib.Path) -> None:
    with run_record.RunRecord(_params(), "train", str(tmp_path), is_chief=False) as record:
        record.replace_params(_params(5))
        record.note(global_step=3)
    assert os.listdir(tmp_path) == []


def test_replaced_config_is_written_to_all_files_of_the_record(tmp_path: pathlib.Path) -> None:
    with run_record.RunRecord(_params(), "train", str(tmp_path)) as record:
        record.replace_params(_params(train_steps=5))
        assert "train_steps: 5" in (tmp_path / "params.yaml").read_text()
    assert _read(tmp_path / "run.json")["train_steps"] == 5
    assert "train_steps = 5" in (tmp_path / "operative_config.train.gin").read_text()


def test_evaluation_does_not_change_the_training_record(tmp_path: pathlib.Path) -> None:
    with run_record.RunRecord(_params(), "eval", str(tmp_path)):
        pass
    left = {"log.eval.txt", "operative_config.eval.gin", "run.eval.json"}
    assert set(os.listdir(tmp_path)) == left


def test_run_is_finished_only_if_a_checkpoint_reached_the_configured_train_steps(
    tmp_path: pathlib.Path,
) -> None:
    with run_record.RunRecord(_params(), "train", str(tmp_path)) as record:
        record.note(global_step=3)
    assert not run_record.is_finished(_params(), "train", str(tmp_path))
    (tmp_path / "ckpt-3.index").touch()
    assert run_record.is_finished(_params(), "train", str(tmp_path))
    assert not run_record.is_finished(_params(train_steps=4), "train", str(tmp_path))
    assert not run_record.is_finished(_params(), "eval", str(tmp_path))


def test_changed_config_of_a_finished_run_raises_unless_allowed(
    tmp_path: pathlib.Path, caplog
) -> None:
    with run_record.RunRecord(_params(), "train", str(tmp_path)) as record:
        record.note(global_step=3)
    (tmp_path / "ckpt-3.index").touch()
    harmless = _params()
    harmless.trainer.max_to_keep = 2
    assert run_record.is_finished(harmless, "train", str(tmp_path))
    other = _params()
    other.runtime.seed = 5
    with pytest.raises(errors.ConfigValueError, match=r"runtime\.seed: 0 -> 5"):
        run_record.is_finished(other, "train", str(tmp_path))
    assert run_record.is_finished(other, "train", str(tmp_path), allow_config_change=True)
    assert "runtime.seed: 0 -> 5" in caplog.text


def test_run_with_train_epochs_is_finished_only_while_train_epochs_is_unchanged(
    tmp_path: pathlib.Path,
) -> None:
    def in_epochs(epochs: float) -> cfg.ExperimentConfig:
        return cfg.ExperimentConfig(trainer=cfg.TrainerConfig(train_epochs=epochs))

    with run_record.RunRecord(in_epochs(1.0), "train", str(tmp_path)) as record:
        record.replace_params(_params(train_steps=3))
        record.note(global_step=3)
    (tmp_path / "ckpt-3.index").touch()
    assert run_record.is_finished(in_epochs(1.0), "train", str(tmp_path))
    assert not run_record.is_finished(in_epochs(2.0), "train", str(tmp_path))


def test_run_with_phases_is_never_reported_as_finished(tmp_path: pathlib.Path) -> None:
    with run_record.RunRecord(_params(), "train", str(tmp_path)) as record:
        record.note(global_step=3)
    (tmp_path / "ckpt-3.index").touch()
    params = _params()
    params.override({"phases": [{"name": "first"}]})
    assert not run_record.is_finished(params, "train", str(tmp_path))


@pytest.mark.parametrize("name", ["a*", "[a-z]"])
def test_model_dir_with_glob_characters_raises(tmp_path: pathlib.Path, name: str) -> None:
    with pytest.raises(errors.ConfigValueError, match="file pattern"):
        run_record.check_model_dir(str(tmp_path / name))


def test_model_dir_check_accepts_a_missing_directory_and_does_not_create_it(
    tmp_path: pathlib.Path,
) -> None:
    run_record.check_model_dir(str(tmp_path / "a" / "b"))
    assert not (tmp_path / "a").exists()


def test_gin_config_is_kept_when_save_gin_config_is_called_without_params(
    tmp_path: pathlib.Path,
) -> None:
    run_record.save_gin_config("train", str(tmp_path), _params())
    run_record.save_gin_config("train", str(tmp_path))
    assert "train_steps" in (tmp_path / "operative_config.train.gin").read_text()


def test_each_restart_names_a_changed_training_file_until_the_file_is_restored(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    train, test, weights = (tmp_path / name for name in ("train.csv", "test.csv", "weights.h5"))
    for path in (train, test, weights):
        path.write_text("1,2")
    params = _params()
    params.task = cfg.TaskConfig(
        train_data=cfg.DataConfig(input_path=str(train)),
        test_data=cfg.DataConfig(input_path=str(test)),
        init_checkpoint=str(weights),
    )
    model_dir, prefix = str(tmp_path / "run"), str(tmp_path / "run" / "ckpt-1")

    def start() -> str:
        caplog.clear()
        with run_record.RunRecord(params, "train", model_dir):
            return caplog.text

    with run_record.RunRecord(params, "train", model_dir) as record:
        line = record.seal()
        tf.train.Checkpoint(step=tf.Variable(1)).write(prefix)
        commit.write(prefix, chain={"previous": None, "record": line})
        chain.append_checkpoint(prefix)
    test.write_text("another test")
    weights.write_text("other weights")
    assert "Input files have changed" not in start()
    train.write_text("1,3")
    for _ in range(2):
        assert f"Changed: {train}: sha256" in start()
    train.write_text("1,2")
    assert "Input files have changed" not in start()


def test_previous_config_is_saved_when_a_config_change_is_allowed(tmp_path: pathlib.Path) -> None:
    for seed in (0, 1, 2):
        params = _params()
        params.runtime.seed = seed
        with run_record.RunRecord(params, "train", str(tmp_path), allow_config_change=True):
            (tmp_path / "ckpt-3.index").touch()
    assert "seed: 0" in (tmp_path / "params.1.yaml").read_text()
    assert "seed: 1" in (tmp_path / "params.2.yaml").read_text()
    assert _read(tmp_path / "run.json")["config_changes"] == ["runtime.seed: 1 -> 2"]


def test_changed_config_and_command_replace_the_recorded_ones_only_when_a_checkpoint_is_saved(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_dir, path = str(tmp_path), tmp_path / "params.yaml"
    first, other = _params(), _params()
    other.runtime.seed = 1
    of_first, of_other = (["train.py", f"--experiment={name}"] for name in ("first", "other"))
    monkeypatch.setattr(sys, "argv", of_first)
    with run_record.RunRecord(first, "train", model_dir):
        (tmp_path / "ckpt-3.index").touch()
    recorded = path.read_text()
    monkeypatch.setattr(sys, "argv", of_other)
    record = run_record.RunRecord(other, "train", model_dir, allow_config_change=True)
    with pytest.raises(errors.CheckpointError), record:
        raise errors.CheckpointError("The checkpoint does not match.")
    assert path.read_text() == recorded
    checksum = chain.read(model_dir)[-1].entries["params_sha256"]
    assert checksum == run_record.params_sha256(recorded)
    assert _read(tmp_path / "run.json")["argv"] == of_first
    monkeypatch.setattr(sys, "argv", of_first)
    assert compatibility.check(first, model_dir) == []
    with pytest.raises(errors.ConfigValueError, match=r"runtime\.seed: 0 -> 1"):
        compatibility.check(other, model_dir)
    monkeypatch.setattr(sys, "argv", of_other)
    record = run_record.RunRecord(other, "train", model_dir, allow_config_change=True)
    with contextlib.suppress(errors.CheckpointError), record:
        record.seal()
        raise errors.CheckpointError("The disk is full.")
    assert compatibility.check(other, model_dir) == []
    assert _read(tmp_path / "run.json")["argv"] == of_other
    assert (tmp_path / "params.1.yaml").read_text() == recorded


@pytest.mark.parametrize(
    ("mode", "overrides", "warns"),
    [
        ("train_and_eval", {"trainer": {"validation_steps": 5}}, True),
        ("train_and_eval", {"task": {"validation_data": {"input_path": "elsewhere"}}}, True),
        ("train_and_eval", {"task": {"validation_data": {"prefetch_buffer_size": 3}}}, False),
        ("train_and_eval", {"trainer": {"validation_interval": 5}}, False),
        ("train", {"trainer": {"validation_steps": 5}}, False),
    ],
)
def test_changed_validation_data_log_a_warning_about_comparing_metrics_with_earlier_evaluations(
    tmp_path: pathlib.Path,
    caplog: pytest.LogCaptureFixture,
    mode: str,
    overrides: dict,
    warns: bool,
) -> None:
    params = _params()
    with run_record.RunRecord(params, mode, str(tmp_path)):
        (tmp_path / "ckpt-3.index").touch()
    params.override(overrides)
    with run_record.RunRecord(params, mode, str(tmp_path)):
        pass
    assert ("compare new evaluations with earlier ones" in caplog.text) == warns


def test_gin_bindings_that_do_not_come_from_the_config_are_logged(
    tmp_path: pathlib.Path, caplog
) -> None:
    assert trainer_factory.create_trainer
    gin.parse_config("rate = 0.5\ncreate_trainer.train = True\ntrainer/params.train_steps = 3")
    with run_record.RunRecord(cfg.ExperimentConfig(), "train", str(tmp_path)):
        pass
    (said,) = [text for text in caplog.messages if "Gin binds" in text]
    assert "create_trainer.train, which" in said
    assert "operative_config.train.gin" in said
    assert "train_steps" not in said
    assert "rate" not in said


def test_training_removes_only_temporary_files_of_killed_training_runs(tmp_path) -> None:
    ids = "0123456789abcdef" * 2
    for name in ("params.yaml", ".lock", "run.eval.json", "run.continuous_eval.json"):
        (tmp_path / f"{name}.{ids}.tmp").write_text("")
    with run_record.RunRecord(_params(), "eval", str(tmp_path)):
        assert len(list(tmp_path.glob("*.tmp"))) + len(list(tmp_path.glob(".lock*.tmp"))) >= 4
    with run_record.RunRecord(_params(), "train", str(tmp_path)):
        left = {path.name.split(".json")[0] for path in tmp_path.iterdir() if ids in path.name}
    assert left == {"run.eval", "run.continuous_eval"}


def test_unreadable_input_file_is_marked_as_unreadable_in_the_run_record(
    tmp_path: pathlib.Path,
) -> None:
    link = tmp_path / "data"
    link.symlink_to("/proc/self/mem")  # A regular file; its first byte can't be read.
    params = _params()
    params.task = cfg.TaskConfig(train_data=cfg.DataConfig(input_path=str(link)))
    with run_record.RunRecord(params, "train", str(tmp_path / "run")) as record:
        assert record.seal()
    (described,) = _read(tmp_path / "run" / "run.json")["inputs"]
    assert described["files"][0]["hashed"] == "unreadable"


@dataclasses.dataclass
class _TokenizedTask(cfg.TaskConfig):
    MODEL_FILES = ("tokenizer_path",)

    tokenizer_path: str = ""


def test_change_of_a_tokenizer_file_recorded_by_a_run_is_detected(
    tmp_path: pathlib.Path,
) -> None:
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text("a b")
    params = _params()
    params.task = _TokenizedTask(tokenizer_path=str(tokenizer))
    with run_record.RunRecord(params, "train", str(tmp_path / "run")) as record:
        assert record.seal()
    (described,) = _read(tmp_path / "run" / "run.json")["inputs"]
    assert list(provenance.find_input_differences([described])) == []
    tokenizer.write_text("b a")
    ((path, *_),) = provenance.find_input_differences([described])
    assert path == str(tokenizer)


@pytest.mark.parametrize(
    ("output_dir", "expected"),
    [("a/b", "/run/a/b"), ("/other", "/other"), ("gs://bucket/out", "gs://bucket/out")],
)
def test_prediction_directory_is_resolved_relative_to_the_model_directory(
    output_dir: str, expected: str
) -> None:
    params = cfg.ExperimentConfig(prediction=cfg.PredictionConfig(output_dir=output_dir))
    assert run_record.predictions_dir(params, "/run") == expected
